# SPDX-License-Identifier: BSD-3-Clause
"""Train on scanned digits with several processes, each with its own device: DDP, or FSDP2 with --fsdp.

    torchrun --nproc-per-node=2 examples/distributed_digits.py
    torchrun --nproc-per-node=2 examples/distributed_digits.py --fsdp --checkpoint=/tmp/digits

--checkpoint saves each epoch. A second start with the same folder resumes after the last saved epoch. The number of
processes may differ.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torch_outboard

ACCURACY_BAR = 0.95
SEED = 20


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits with pixels in [0, 1]; every fifth digit of a fixed shuffle is held out."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32) / 16
    labels = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    split = len(order) // 5
    return TensorDataset(images[order[split:]], labels[order[split:]]), TensorDataset(
        images[order[:split]], labels[order[:split]]
    )


def make_model(device: torch.device, is_sharded: bool) -> nn.Module:
    torch.manual_seed(SEED)  # every rank starts from the same weights
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    if not is_sharded:
        return nn.parallel.DistributedDataParallel(model)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


class Checkpoint:
    """The model, the optimizer and the next epoch, in a folder that all ranks see; disabled if `folder` is None."""

    def __init__(self, folder: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.folder, self.model, self.optimizer = folder, model, optimizer

    def state(self, epoch: int) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "epoch": torch.tensor(epoch)}

    def save(self, epoch: int) -> None:
        if self.folder:
            checkpoint.save(self.state(epoch), checkpoint_id=self.folder)

    def load(self) -> int:
        """Load the checkpoint, if there is one, and return the epoch to start with."""
        if not self.folder or not (self.folder / ".metadata").exists():
            return 0
        state = self.state(0)
        checkpoint.load(state, checkpoint_id=self.folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(state["epoch"])


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device) -> Tensor:
    """Train one epoch and return the mean loss of all ranks."""
    losses = []
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean


def accuracy(model: nn.Module, held_out: TensorDataset, device: torch.device) -> float:
    """Return the share of the held-out digits that the model classifies correctly; each rank checks all of them."""
    images, labels = (tensor.to(device) for tensor in held_out.tensors)
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on scanned digits with several processes.")
    parser.add_argument("--device", default="sim", help="the driver to attach")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--fsdp", action="store_true", help="shard the model instead of copying it")
    parser.add_argument("--checkpoint", type=Path, help="a folder to save to and to resume from")
    options = parser.parse_args()

    torch_outboard.attach(options.device)
    name = torch_outboard.attached_driver().name
    local = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    device = torch.device(name, local)
    torch.accelerator.set_device_index(local)
    dist.init_process_group(device_id=device)

    train, held_out = load_data()
    sampler = DistributedSampler(train, seed=SEED, drop_last=True)
    loader = DataLoader(train, batch_size=64 // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = make_model(device, options.fsdp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    saved = Checkpoint(options.checkpoint, model, optimizer)
    start = saved.load()
    for epoch in range(start, options.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader, device)
        saved.save(epoch + 1)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    result = accuracy(model, held_out, device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, from epoch {start}: {result:.1%} of the held-out digits", flush=True)
    dist.destroy_process_group()
    if result < ACCURACY_BAR and options.epochs >= 12:
        raise SystemExit(f"{result:.1%} is below {ACCURACY_BAR:.0%}")


if __name__ == "__main__":
    main()

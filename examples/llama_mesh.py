# SPDX-License-Identifier: BSD-3-Clause
"""Pretrain a small Llama on a mesh: FSDP2 along one dimension, tensor and sequence parallel along the other.

    torchrun --nproc-per-node=4 examples/llama_mesh.py
    torchrun --nproc-per-node=8 examples/llama_mesh.py --tensor-parallel=4 --device=NAME

Each process has its own device. The loop is torchtitan's: byte tokens of a text, warm-up and decay of the learning
rate, gradients clipped by their norm over the whole mesh, the loss sharded by the vocabulary. The text is a file of
Python's standard library, or --text.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from tqdm import tqdm

import torch_outboard

SEED = 20
VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class Shape:
    """The sizes of the model."""

    width: int = 128
    layers: int = 4
    heads: int = 8
    key_heads: int = 4
    hidden: int = 352
    length: int = 64


def rotations(shape: Shape, device: torch.device) -> Tensor:
    """Return cosines and sines for each position, by which queries and keys are turned."""
    size = shape.width // shape.heads
    speeds = 10_000.0 ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(shape.length, device=device)[:, None] * speeds
    return torch.stack([angles.cos(), angles.sin()])


def turn(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn pairs of features by their position's angle. `x` is [batch, heads, position, feature]."""
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Attention(nn.Module):
    """Causal attention of grouped heads. Under tensor parallelism each process has some of the heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.size, bias=False)
        self.key = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.value = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.out = nn.Linear(shape.heads * self.size, shape.width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, self.size).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query, key = turn(query, rotation), turn(key, rotation)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """The gated linear unit of a layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.out = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, rotation: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.out(self.norm(x))


def parallelize(model: Llama, mesh: DeviceMesh) -> None:
    """Split the matrices along the mesh's `tp`. Between them, each process has a part of the positions."""
    whole, split = Replicate(), Shard(1)
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=whole, output_layouts=split),
            "norm": SequenceParallel(),
            "out": ColwiseParallel(input_layouts=split, output_layouts=Shard(-1), use_local_output=False),
        },
    )
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(split, None), desired_input_layouts=(whole, None)),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=split),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,)),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=split),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def make_model(shape: Shape, mesh: DeviceMesh, device: torch.device) -> Llama:
    """Return the model, sharded over the mesh. Every process starts from the same weights."""
    torch.manual_seed(SEED)
    model = Llama(shape).to(device)
    parallelize(model, mesh["tp"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def batches(text: Path, shape: Shape, mesh: DeviceMesh, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this process's part of each batch of `size` pieces of the text, and the bytes that follow them."""
    data = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    draws = torch.Generator().manual_seed(SEED)
    part = slice(mesh["dp"].get_local_rank(), None, mesh["dp"].size())  # the same along `tp`
    while True:
        starts = torch.randint(len(data) - shape.length, (size,), generator=draws)
        pieces = data[starts[:, None] + torch.arange(shape.length + 1)][part]
        yield pieces[:, :-1], pieces[:, 1:]


def learning_rate(step: int, steps: int, warm_up: int = 10) -> float:
    """Return the share of the learning rate: a linear rise, then half a cosine."""
    return min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))


def train_step(
    model: Llama, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor, rotation: Tensor
) -> Tensor:
    """Take a step and return this process's loss."""
    with loss_parallel():
        logits = model(tokens, rotation)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1))
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()


def train(options: argparse.Namespace, device: torch.device) -> None:
    ranks = dist.get_world_size()
    split = options.tensor_parallel
    mesh = init_device_mesh(device.type, (ranks // split, split), mesh_dim_names=("dp", "tp"))
    shape = Shape()
    model = make_model(shape, mesh, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), foreach=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, options.steps))
    data = batches(options.text, shape, mesh, options.batch)
    rotation = rotations(shape, device)
    is_first = dist.get_rank() == 0
    bar = tqdm(range(options.steps), desc=f"dp {ranks // split} x tp {split}", disable=not is_first)
    began = time.perf_counter()
    for step in bar:
        tokens, targets = (tensor.to(device) for tensor in next(data))
        loss = train_step(model, optimizer, tokens, targets, rotation)
        schedule.step()
        if (step + 1) % options.log_every == 0:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
            speed = (step + 1) * options.batch * shape.length / (time.perf_counter() - began)
            bar.set_postfix(loss=f"{loss.item():.3f}", tokens_per_s=f"{speed:.0f}")
            if is_first:
                tqdm.write(f"step {step + 1}: loss {loss.item():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain a small Llama on a 2-D mesh of processes.")
    parser.add_argument("--device", default="sim", help="the driver to attach")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in a step, over all processes")
    parser.add_argument("--tensor-parallel", type=int, help="processes that share a layer (default: 2, if even)")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__))
    options = parser.parse_args()
    ranks = int(os.environ["WORLD_SIZE"])
    options.tensor_parallel = options.tensor_parallel or (2 if ranks % 2 == 0 else 1)
    for size, what in ((ranks, "the number of processes"), (Shape.key_heads, "the heads of keys")):
        if size % options.tensor_parallel:
            parser.error(f"--tensor-parallel={options.tensor_parallel} does not divide {what}, {size}")

    torch_outboard.attach(options.device)
    name = torch_outboard.attached_driver().name
    local = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    device = torch.device(name, local)
    torch.accelerator.set_device_index(local)
    dist.init_process_group(device_id=device)
    train(options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

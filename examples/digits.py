# SPDX-License-Identifier: BSD-3-Clause
"""Train a small convolutional network on scanned digits, on an attached device and again on the CPU.

The data are the 1,797 digits of 8 x 8 pixels that scikit-learn includes. Both runs start from the same weights and see
the same batches with the same number of threads. Their losses can therefore be compared step by step.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ACCURACY_BAR = 0.97
LOSS_BAR = 1e-4
# The driver's own kernels and compiled kernels round differently from the CPU's, and training
# multiplies the difference. With such kernels only the losses of this many first steps must agree.
FIRST_STEPS = 5
SEED = 20


class DigitsNet(nn.Module):
    """Two convolutions with batch normalisation and two linear layers; after construction nothing is random."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


@dataclass
class Data:
    train: TensorDataset
    held_out: TensorDataset


@dataclass
class Run:
    """The results of a training run."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    seconds: float = 0.0


def load_data() -> Data:
    """Return the digits with pixels in [0, 1]; every fifth digit of a fixed shuffle is held out."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    split = len(order) // 5
    held_out, train = order[:split], order[split:]
    return Data(TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out]))


def batches_on(device: torch.device, loader: DataLoader) -> Iterator[list[Tensor]]:
    """Yield the loader's batches on `device`; a side stream copies the next batch while the last one is in use."""
    if device.type == "cpu":
        yield from loader
        return
    module = torch.get_device_module(device)
    side = torch.Stream(device)
    source = iter(loader)

    def fetch() -> list[Tensor] | None:
        batch = next(source, None)
        if batch is None:
            return None
        with module.stream(side):
            return [tensor.to(device, non_blocking=True) for tensor in batch]

    batch = fetch()
    while batch is not None:
        current = torch.accelerator.current_stream(device)
        current.wait_stream(side)
        for tensor in batch:
            # The blocks belong to the side stream: the allocator must not reuse
            # them before this stream is done.
            tensor.record_stream(current)
        # Only after the wait above, which would otherwise wait for this copy too.
        following = fetch()
        yield batch
        batch = following


class Trainer:
    """Model, optimiser, schedule and order of the batches: the state that a checkpoint saves."""

    def __init__(self, data: Data, device: torch.device, options: argparse.Namespace, seed: int) -> None:
        self.device = device
        self.epoch = 0
        self.losses: list[float] = []
        self.order = torch.Generator().manual_seed(seed)
        self.loader = DataLoader(
            data.train,
            options.batch_size,
            shuffle=True,
            drop_last=True,
            generator=self.order,
            num_workers=options.workers,
            pin_memory=device.type != "cpu",
        )
        # Weights are drawn on the CPU, so that every device starts from the same numbers.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = DigitsNet()
        self.model.to(device)
        # Shares the model's weights. The reference on the CPU stays eager, so
        # that the two runs are independent.
        is_compiled = options.compile and device.type != "cpu"
        dynamic = True if options.dynamic else None
        self.forward = torch.compile(self.model, dynamic=dynamic) if is_compiled else self.model
        # By default the optimiser picks a formula for each kind of device;
        # both runs must use the same one.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=1e-2, foreach=True)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, options.lr, total_steps=options.epochs * len(self.loader)
        )

    def train_epoch(self, on_step: Callable[[], None]) -> float:
        """Train one epoch, wait for it and return its mean loss."""
        losses = []
        for images, labels in batches_on(self.device, self.loader):
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(self.forward(images), labels)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.detach())
            on_step()
        self.epoch += 1
        values = torch.stack(losses).tolist()
        self.losses += values
        return sum(values) / len(values)

    def save(self, path: Path) -> None:
        torch.save(
            {
                "epoch": self.epoch,
                "losses": self.losses,
                "order": self.order.get_state(),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
            },
            path,
        )

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.epoch = state["epoch"]
        self.losses = state["losses"]
        self.order.set_state(state["order"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of digits that `model` classifies correctly."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    loader = DataLoader(data, 128, pin_memory=device.type != "cpu")
    for images, labels in batches_on(device, loader):
        right += (model(images).argmax(1) == labels).sum()
    return right.item() / len(data)


def train(data: Data, device: torch.device, options: argparse.Namespace, console: Console) -> Run:
    """Train and evaluate on held-out data; halfway, save a checkpoint and resume it in a fresh trainer."""
    start = time.perf_counter()
    trainer = Trainer(data, device, options, SEED)
    columns = (TextColumn("{task.description:>5}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, TextColumn("{task.fields[loss]}"), console=console) as progress,
        tempfile.TemporaryDirectory() as folder,
    ):
        task = progress.add_task(str(device), total=options.epochs * len(trainer.loader), loss="")
        checkpoint = Path(folder, "digits.pt")
        for epoch in range(options.epochs):
            if epoch == options.epochs // 2:
                trainer.save(checkpoint)
                # Other weights and another order of the batches: state that is not
                # restored would change the losses.
                trainer = Trainer(data, device, options, SEED + 1)
                trainer.load(checkpoint)
            loss = trainer.train_epoch(lambda: progress.advance(task))
            progress.update(task, loss=f"loss {loss:.4f}")
    accuracy = evaluate(trainer.forward, data.held_out, device)
    return Run(trainer.model, trainer.losses, accuracy, time.perf_counter() - start)


def largest_difference(run: Run, reference: Run, steps: int | None = None) -> float:
    """Return the largest difference between the losses of the first steps; NaN if any of the losses is NaN."""
    ours, theirs = (torch.tensor(losses[:steps], dtype=torch.float64) for losses in (run.losses, reference.losses))
    return (ours - theirs).abs().max().item()


def add_comparison(table: Table, run: Run, reference: Run) -> None:
    """Add the rows that compare the two runs."""
    weights = zip(run.model.state_dict().values(), reference.model.state_dict().values(), strict=True)
    weights_equal = all(torch.equal(ours.cpu(), theirs.cpu()) for ours, theirs in weights)
    table.add_row("final loss", f"{run.losses[-1]:.6f}", f"{reference.losses[-1]:.6f}")
    table.add_row("held-out accuracy", f"{run.accuracy:.4f}", f"{reference.accuracy:.4f}")
    table.add_row("seconds", f"{run.seconds:.1f}", f"{reference.seconds:.1f}")
    table.add_row("largest loss difference", f"{largest_difference(run, reference):.3g}", "")
    table.add_row(f"in the first {FIRST_STEPS} steps", f"{largest_difference(run, reference, FIRST_STEPS):.3g}", "")
    table.add_row("losses bit for bit equal", "yes" if run.losses == reference.losses else "no", "")
    table.add_row("weights bit for bit equal", "yes" if weights_equal else "no", "")


def failures_of(run: Run, reference: Run, *, is_rounding: bool) -> list[str]:
    """Return the failures of a run's accuracy and losses; `is_rounding` means that its kernels are not the CPU's."""
    failures = []
    if run.accuracy < ACCURACY_BAR:
        failures.append(f"held-out accuracy {run.accuracy:.4f} is below {ACCURACY_BAR}")
    steps = FIRST_STEPS if is_rounding else len(run.losses)
    difference = largest_difference(run, reference, steps)
    if not difference <= LOSS_BAR:
        failures.append(
            f"the losses of the first {steps} steps differ from the CPU's by up to {difference:.3g}, "
            f"more than {LOSS_BAR}"
        )
    return failures


def add_operators(table: Table) -> None:
    """Add the number of operators and of calls that each provider ran."""
    import torch_outboard

    operators: dict[str, set[str]] = {}
    calls: dict[str, int] = {}
    for row in torch_outboard.coverage():
        operators.setdefault(row.provider, set()).add(row.op)
        calls[row.provider] = calls.get(row.provider, 0) + row.calls
    table.add_section()
    for provider in sorted(operators):
        table.add_row(f"operators run by {provider}", f"{len(operators[provider])}, {calls[provider]:,} calls", "")


def ran_device_kernels(device: torch.device) -> bool:
    """Return whether a kernel of the driver or a generated kernel ran."""
    if device.type == "cpu":
        return False
    import torch_outboard

    return any(torch_outboard.coverage().calls(provider=provider) > 0 for provider in ("native", "generated"))


def add_memory(table: Table, device: torch.device) -> None:
    """Add the allocator's statistics of `device`."""
    stats = torch.get_device_module(device).memory_stats(device)
    mib = 1 << 20
    table.add_section()
    table.add_row("peak memory allocated", f"{stats['allocated_bytes.all.peak'] / mib:.2f} MiB", "")
    table.add_row("peak memory reserved", f"{stats['reserved_bytes.all.peak'] / mib:.2f} MiB", "")
    table.add_row("allocations", f"{stats['allocation.all.allocated']:,}", "")
    table.add_row("segments allocated", f"{stats['segment.all.allocated']:,}", "")
    table.add_row("allocation retries", f"{stats['num_alloc_retries']:,}", "")


def split_device(text: str) -> tuple[str, str]:
    """Return the driver and the index: "sim:1" has an index, "package.module:Class" has none."""
    driver, _, index = text.rpartition(":")
    return (driver, index) if driver and index.isdigit() else (text, "")


def driver_option(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="sim", help="driver to attach, or cpu; with an index if wanted (sim:1)")
    parser.add_argument(
        "--driver-option",
        action="append",
        default=[],
        type=driver_option,
        metavar="KEY=VALUE",
        help="option of the driver; may be repeated",
    )
    parser.add_argument("--compile", action="store_true", help="compile the model, on the device alone")
    parser.add_argument("--dynamic", action="store_true", help="with --compile: for every size of a batch at once")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=0, help="processes that load the data")
    options = parser.parse_args(argv)
    if options.dynamic and not options.compile:
        parser.error("--dynamic: it says how --compile compiles")
    if options.epochs < 2:
        parser.error("--epochs: at least 2, since a checkpoint is saved and resumed half-way")
    if options.device.split(":")[0] == "cpu" and options.driver_option:
        parser.error("--driver-option: the CPU has no driver")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    device = torch.device("cpu")
    if options.device.split(":")[0] != "cpu":
        import torch_outboard

        driver, index = split_device(options.device)
        torch_outboard.attach(driver, **dict(options.driver_option))
        # The device's name may differ from the driver's: torch reserves some names.
        device = torch.device(torch_outboard.attached_driver().name, int(index or 0))
    data = load_data()
    compiled = contextlib.nullcontext()
    if options.compile and device.type != "cpu":
        from torch_outboard.compile import report

        compiled = report()
    with compiled as compilation, torch.accelerator.device_index(device.index if device.type != "cpu" else None):
        run = train(data, device, options, console)
    reference = train(data, torch.device("cpu"), options, console)

    table = Table(title=f"Digits on {device}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    table.add_column("")
    table.add_column(str(device), justify="right")
    table.add_column("cpu", justify="right")
    add_comparison(table, run, reference)
    if device.type != "cpu":
        add_operators(table)
        add_memory(table, device)
    console.print(table)
    if compilation is not None:
        console.print(compilation)

    failures = failures_of(run, reference, is_rounding=options.compile or ran_device_kernels(device))
    for failure in failures:
        console.print(f"[red]Failed:[/red] {failure}.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

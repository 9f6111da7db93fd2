# SPDX-License-Identifier: BSD-3-Clause
"""Measure recurrent nets on an attached device: launches and microseconds a step, against the CPU on the same cores.

The CPU and the device take turns in one process; each figure is the median over the rounds. "host" is the time until
the call returns, "done" until all is done, both divided by the number of steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any


def seconds(work: Callable[[], object], wait: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds until a call returns, and until it is done."""
    wait()
    start = time.perf_counter()
    work()
    returned = time.perf_counter()
    wait()
    return returned - start, time.perf_counter() - start


def launches(work: Callable[[], object], wait: Callable[[], None]) -> int:
    """Return how much work a call queues: kernels, copies, fills and calls of the host."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], acc_events=True) as result:
        work()
        wait()
    return sum(event.device_type == DeviceType.PrivateUse1 for event in result.events())


def work_of(kind: str, place: Any, sizes: argparse.Namespace, is_trained: bool) -> Callable[[], object]:
    import torch

    torch.manual_seed(0)
    net = getattr(torch.nn, kind)(sizes.inputs, sizes.cells).to(place)
    x = torch.randn(sizes.steps, sizes.batch, sizes.inputs).to(place).requires_grad_(is_trained)

    def infer() -> None:
        with torch.no_grad():
            net(x)

    def train() -> None:
        net(x)[0].sum().backward()

    return train if is_trained else infer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="sim", help="the driver, as torch_outboard.attach takes it")
    for name, default in (("steps", 50), ("batch", 8), ("inputs", 32), ("cells", 64), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()

    import torch

    import torch_outboard

    torch_outboard.attach(sizes.driver)
    device = torch.device(torch_outboard.attached_driver().name)
    waits = {"cpu": lambda: None, "device": lambda: torch.accelerator.synchronize(device)}
    print(f"{sizes.steps} steps of {sizes.batch} x {sizes.inputs} inputs, {sizes.cells} cells; microseconds a step")
    print("| net | work | CPU | host | done | done / CPU | launches a step |\n|---|---|---|---|---|---|---|")
    for kind in ("LSTM", "GRU", "RNN"):
        for is_trained in (False, True):
            works = {
                name: work_of(kind, place, sizes, is_trained) for name, place in (("cpu", "cpu"), ("device", device))
            }
            times: dict[str, list[tuple[float, float]]] = {"cpu": [], "device": []}
            for number in range(sizes.rounds + 3):
                for name, work in works.items():
                    elapsed = seconds(work, waits[name])
                    if number >= 3:
                        times[name].append(elapsed)
            cpu, host, done = (
                statistics.median(spent[at] for spent in times[name]) / sizes.steps * 1e6
                for name, at in (("cpu", 1), ("device", 0), ("device", 1))
            )
            count = launches(works["device"], waits["device"]) / sizes.steps
            work = "forward and backward" if is_trained else "forward"
            print(
                f"| {kind} | {work} | {cpu:.1f} | {host:.1f} | {done:.1f} | {done / cpu:.2f} | {count:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: BSD-3-Clause
"""Measure the costs of mixed precision: autocast by operator, against the CPU's, and the unscaling of gradients.

    python benchmarks/amp.py [--driver=NAME] [--rounds=N] [--check]

One process measures everything, and the variants alternate in each round. Figures are medians of the rounds, and ratios
of these. --check makes a missed bar an error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

import torch_outboard

AUTOCAST_BAR = 1.3
UNSCALE_BAR = 1.2
ALL = "all of them"


def seconds(function: Callable[[], object], calls: int, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def medians(variants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return each variant's times, one for each round; the order alternates between rounds."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds + 2):
        for name in names if number % 2 == 0 else reversed(names):
            value = variants[name]()
            if number >= 2:
                times[name].append(value)
    return times


def operators(place: str) -> dict[str, Callable[[], object]]:
    """Return small operators with one policy on both sides, in the dtype of that policy: nothing is cast."""
    low = torch.ones(2, 2, device=place, dtype=torch.bfloat16)
    single = torch.ones(2, 2, device=place)
    return {
        "mm (lower precision)": lambda: torch.mm(low, low),
        "addmm (lower precision)": lambda: torch.addmm(low, low, low),
        "linear (lower precision)": lambda: torch.nn.functional.linear(low, low),
        "mse_loss (float32)": lambda: torch._C._nn.mse_loss(single, single),
        "smooth_l1_loss (float32)": lambda: torch._C._nn.smooth_l1_loss(single, single),
    }


def measure_autocast(device: str, rounds: int, calls: int) -> list[tuple[str, float, float, float]]:
    """Return autocast's added time for an operator, on the device and on the CPU, and the ratio."""
    ours, theirs = operators(device), operators("cpu")
    rows = []

    def timed(place: str, function: Callable[[], object], enabled: bool) -> Callable[[], float]:
        def run() -> float:
            with torch.no_grad(), torch.autocast(place, dtype=torch.bfloat16, enabled=enabled):
                # The calling thread's own time: the device's thread, and
                # other programs, are not autocast's.
                result = seconds(function, calls, time.thread_time)
            if place != "cpu":
                torch.accelerator.synchronize()
            return result

        return run

    for name in ours:
        variants = {
            f"{place} {enabled}": timed(place, functions[name], enabled)
            for place, functions in ((device, ours), ("cpu", theirs))
            for enabled in (False, True)
        }
        times = medians(variants, rounds)
        # The difference within a round, so that a slow round affects both sides.
        added = {
            place: statistics.median(
                on - off for on, off in zip(times[f"{place} True"], times[f"{place} False"], strict=True)
            )
            for place in (device, "cpu")
        }
        rows.append((name, added[device], added["cpu"], added[device] / added["cpu"]))
    # One operator's added time is tens of nanoseconds, as is the noise: the bar
    # is for the sum of all operators.
    ours_added, theirs_added = (sum(row[column] for row in rows) for column in (1, 2))
    return [*rows, (ALL, ours_added, theirs_added, ours_added / theirs_added)]


def measure_unscale(device: str, rounds: int, calls: int) -> list[tuple[str, float, float, float]]:
    """Return the time of unscaling 200 gradients, of a foreach multiply over them, and the ratio."""
    rows = []
    for size in (1 << 10, 1 << 14, 1 << 17):
        grads = [torch.ones(size, device=device) for _ in range(200)]
        unit, found_inf = torch.ones((), device=device), torch.zeros((), device=device)
        # Not 1, for which nothing is multiplied, and so near to it that the values stay.
        factor = unit * (1 + 2.0**-20)

        def timed(function: Callable[[], object]) -> Callable[[], float]:
            def run() -> float:
                torch.accelerator.synchronize()

                def whole() -> None:
                    function()
                    torch.accelerator.synchronize()

                return seconds(whole, calls)

            return run

        times = medians(
            {
                "unscale": timed(
                    lambda: torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, factor)  # noqa: B023
                ),
                "multiply": timed(lambda: torch._foreach_mul_(grads, factor)),  # noqa: B023
            },
            rounds,
        )
        unscale, multiply = (statistics.median(times[name]) for name in ("unscale", "multiply"))
        ratio = statistics.median(a / b for a, b in zip(times["unscale"], times["multiply"], strict=True))
        rows.append((f"200 gradients of {size * 4 // 1024} KiB", unscale, multiply, ratio))
    return rows


def print_rows(
    title: str, columns: tuple[str, str], rows: list[tuple[str, float, float, float]], bar: float | None
) -> bool:
    print(f"{title:<48}{columns[0]:>14}{columns[1]:>14}{'ratio':>8}" + (f"  bar {bar}" if bar else ""))
    for name, ours, theirs, ratio in rows:
        print(f"  {name:<46}{ours * 1e6:>11.2f} us{theirs * 1e6:>11.2f} us{ratio:>8.2f}")
    if bar is None:
        return True
    counted = [row for row in rows if row[0] == ALL] or rows
    is_met = all(row[3] <= bar for row in counted)
    print("  met" if is_met else "  MISSED")
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="sim", help="a driver that has autocast")
    parser.add_argument("--driver-option", action="append", metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=2000, help="calls of an operator in a round")
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    options = parser.parse_args()
    if options.driver_option is None:
        # The default driver runs work on the calling thread: handing work to another
        # thread costs more than autocast.
        options.driver_option = ["schedule=inline"] if options.driver == parser.get_default("driver") else []
    torch.set_num_threads(1)
    torch_outboard.attach(options.driver, **dict(option.split("=", 1) for option in options.driver_option))
    driver = torch_outboard.attached_driver()
    assert driver is not None
    print(f"torch {torch.__version__}, {driver.name}, {options.rounds} rounds, 1 thread")
    added = measure_autocast(driver.name, options.rounds, options.calls)
    is_met = print_rows("What autocast adds to an operator", (driver.name, "cpu"), added, AUTOCAST_BAR)
    unscaled = measure_unscale(driver.name, options.rounds, 5)
    is_met &= print_rows("Unscaling", ("unscale", "foreach mul"), unscaled, UNSCALE_BAR)
    # The host provider runs torch's CPU kernel on the device: our ratio
    # cannot be better than that kernel's.
    on_cpu = measure_unscale("cpu", options.rounds, 5)
    print_rows("Unscaling of CPU tensors, to compare", ("unscale", "foreach mul"), on_cpu, None)
    return 0 if is_met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: BSD-3-Clause
"""The last lines of `outboard test`: what passed, what the driver lacks, the cost to users, and what to do next."""

from __future__ import annotations

import collections
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest

from torch_outboard._settings import generates_kernels
from torch_outboard.driver import WITHOUT, Driver

__all__ = ["Conclusion", "conclusion"]

# Entries whose absence costs users nothing, because the core has an equally good substitute.
_WITHOUT_COST = {
    *("destroy", "device_open", "device_close", "device_synchronize", "event_synchronize", "last_error"),
    *("kernel_register", "graph_capture_begin", "graph_capture_end", "graph_instantiate", "graph_launch"),
    *("graph_destroy", "graph_executable_destroy", "activity_enable", "activity_correlate", "activity_read"),
}
_WITHOUT_A_KERNEL = "operators without a generated kernel run on copies on the CPU, and callers wait for them"
_CAPABILITY = "capability: "


class Conclusion:
    """A pytest plugin that writes the conclusion after pytest's own summary."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        yield
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:  # a worker of pytest-xdist has no terminal
            lines = _of_run(session.config.getoption("--driver"), terminal.stats)
            if lines and exitstatus == pytest.ExitCode.INTERRUPTED:
                lines.insert(0, f"Interrupted: only the first of {session.testscollected} tests have run.")
            for line in lines:
                terminal.write_line(line)


def _of_run(name: str, stats: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the lines for pytest's run on the attached driver, or none if nothing ran."""
    import torch_outboard
    from torch_outboard import _C

    driver = torch_outboard.attached_driver()
    if driver is None or not any(stats.get(kind) for kind in ("passed", "failed", "error", "skipped")):
        return []
    has_device = _C.device_count() > 0
    return conclusion(
        name,
        driver,
        passed=len(stats.get("passed", ())),
        failed=[report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())],
        skipped=[_reason(report) for report in stats.get("skipped", ())],
        entries=_C.entries(),
        reaches_memory=has_device and _C.reaches_memory(0),
        generates=has_device and generates_kernels(driver, 0),
    )


def _reason(report: Any) -> str:
    """Return the reason why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


def conclusion(
    name: str,
    driver: Driver,
    *,
    passed: int,
    failed: Sequence[str],
    skipped: Sequence[str],
    entries: Mapping[str, bool],
    reaches_memory: bool,
    generates: bool,
) -> list[str]:
    """Return the lines for a driver's run.

    Parameters
    ----------
    name : str
        The driver's name as passed to `outboard test`.
    driver : Driver
        The tested driver.
    passed : int
        Number of tests.
    failed, skipped : sequence of str
        The ids of failed tests; the reason of each skipped test.
    entries : mapping of str to bool
        Whether the driver has each entry of the contract.
    reaches_memory, generates : bool
        Whether the host reaches the memory of device 0, and whether operators run there as generated kernels.
    """
    lines = [f"Passed: {passed} tests. Failed: {len(failed)}. Skipped: {len(skipped)}" + (", for:" if skipped else ".")]
    counts = collections.Counter(skipped).most_common()
    lines += [f"  {count:4d}  {reason.removeprefix(_CAPABILITY)}" for reason, count in counts]
    if missing := _missing(entries, generates):
        lines += ["Missing in the driver, and what it costs users:"]
        lines += [f"  {', '.join(names)}: {cost}" for cost, names in missing.items()]
    return [*lines, f"Next: {_next(name, driver, failed, reaches_memory, generates)}"]


def _missing(entries: Mapping[str, bool], generates: bool) -> dict[str, list[str]]:
    """Return the missing entries, grouped by the consequence of their absence."""
    costs = dict(WITHOUT)
    dispensable = set(_WITHOUT_COST)
    if generates:
        costs |= dict.fromkeys(("host_address", "host_callback"), _WITHOUT_A_KERNEL)
        dispensable.add("copy_nd_async")  # a generated kernel does the copy
    if not entries.get("program_build", False):
        dispensable.add("program_binary")
    if entries.get("event_timestamp", False) or entries.get("event_elapsed", False):
        dispensable |= {"event_timestamp", "event_elapsed"}
    missing: dict[str, list[str]] = {}
    for name in WITHOUT:
        if not entries.get(name, False) and name not in dispensable:
            missing.setdefault(costs[name], []).append(name)
    return missing


def _next(name: str, driver: Driver, failed: Sequence[str], reaches_memory: bool, generates: bool) -> str:
    if failed:
        first = failed[0].rpartition("/")[2].partition("[")[0]
        return f"fix the first failure: outboard test {name} {first} -x"
    if generates:
        check = f"outboard kernels check --driver {name}"
        return f"compare torch's operators with the CPU, and measure the kernels: {check}"
    if driver.kernel_generator is None and not reaches_memory:
        advice = "operators run on copies. Generate kernels (`kernel_generator`), or implement `host_address`"
        return f"{advice}: docs/writing-a-driver.md, steps 6 and 10"
    return f"compare torch's operators with the CPU: outboard test {name} --operators"

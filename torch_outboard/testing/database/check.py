# SPDX-License-Identifier: BSD-3-Clause
"""Running entries of the operator database with generated kernels, in processes that may crash."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from torch_outboard.kernels.generated_only import attach_generated_only
from torch_outboard.testing.children import NoAnswer, run_in_children
from torch_outboard.testing.database.entries import entries_of, run_entry

__all__ = ["EntryCheck", "EntryResult", "entry_checks", "check"]


# Part of a refusal caused by the builder's own output, such as a program that does not compile.
_UNUSABLE = "its plan can't be used"
_REFUSAL = r"operator (\S+) has .*?None was generated: (.*?)\. OUTBOARD_FALLBACK"


@dataclass(frozen=True)
class EntryCheck:
    """An entry, its element type, and whether to check gradients."""

    entry: str
    dtype: str
    is_gradient: bool = False


@dataclass(frozen=True)
class EntryResult:
    """The result of an entry: a state of `entries.STATES`, "crash" or "hang", and the reason."""

    check: EntryCheck
    state: str
    reason: str

    @property
    def is_bad(self) -> bool:
        """True if kernels are at fault; a refusal does not count."""
        return self.state in ("wrong", "failed", "crash", "hang")

    @property
    def gist(self) -> str:
        """The reason in one line; for a refusal, the operator without kernels, and why."""
        if match := re.search(_REFUSAL, self.reason, re.DOTALL):
            return f"{match[1]}: {match[2]}".partition("\n")[0][:200]
        if match := re.search(r"operator (\S+) has no kernel", self.reason):
            return f"{match[1]}: not asked"
        return self.reason.partition("\n")[0][:200]

    def as_row(self) -> dict[str, Any]:
        return {**asdict(self.check), "state": self.state, "reason": self.reason}


def entry_checks(dtypes: Sequence[torch.dtype], only: str, has_gradients: bool) -> list[EntryCheck]:
    """Return the checks of all entries whose name matches the regular expression."""
    checks = [
        EntryCheck(info.full_name, str(dtype).removeprefix("torch."), is_gradient)
        for dtype in dtypes
        for is_gradient in (
            (False, True) if has_gradients and (dtype.is_floating_point or dtype.is_complex) else (False,)
        )
        for info in entries_of(dtype)
        if (info.supports_autograd or not is_gradient) and re.search(only, info.full_name)
    ]
    return checks


def check(
    todo: Sequence[EntryCheck], driver: str, options: Mapping[str, str], samples: int, jobs: int, hang_seconds: float
) -> Iterator[EntryResult]:
    """Yield the result of each check, in no particular order.

    The children inherit this process's environment and attach the driver.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)
    arguments = (driver, dict(options), samples, threads)
    for entry, result in run_in_children(_work, arguments, todo, jobs, hang_seconds):
        yield (
            EntryResult(entry, result.kind, result.message)
            if isinstance(result, NoAnswer)
            else EntryResult(entry, *result)
        )


def _work(pipe: Connection, driver: str, options: dict[str, str], samples: int, threads: int) -> None:
    """Run a child. If the device stops working after a failure, the next child takes over."""
    device = attach_generated_only(driver, options)
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    entries: dict[str, dict[str, Any]] = {}
    while (entry := pipe.recv()) is not None:
        dtype = getattr(torch, entry.dtype)
        if entry.dtype not in entries:
            entries[entry.dtype] = {info.full_name: info for info in entries_of(dtype)}
        info = entries[entry.dtype][entry.entry]
        try:
            state, reason = run_entry(info, dtype, samples, device, has_gradients=entry.is_gradient)
        except Exception as error:  # noqa: BLE001 - the comparison failed: results differ in number or kind
            state, reason = "failed", f"{type(error).__name__}: {error}"
        if state == "refused" and _UNUSABLE in reason:
            state = "failed"
        goes_on = state != "failed" or _works(device)
        pipe.send((entry, (state, reason), goes_on))
        if not goes_on:
            return


def _works(device: torch.device) -> bool:
    try:
        torch.zeros(1, device=device).item()
    except Exception:  # noqa: BLE001 - reported with the entry that broke the device; the next entries run in another process
        return False
    return True

# SPDX-License-Identifier: BSD-3-Clause
"""One call and its outcome: results, exception and the time of it, warnings, providers."""

from __future__ import annotations

import functools
import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torch_outboard


class Outcome:
    """The result of one call: the tensors or the exception, and the number of calls that each provider ran for it."""

    def __init__(self, run: Callable[[], Any], device: torch.device) -> None:
        self._device = device
        self.error: Exception | None = None
        # Whether the exception came only when the work was waited for.
        self.is_late = False
        self.value: Any = None
        self.calls: Counter[tuple[str, str]] = Counter()
        is_ours = device.type != "cpu"
        if is_ours:
            torch_outboard.reset_coverage()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.value = run()
            except Exception as error:  # whatever it is becomes part of the comparison
                self.error = error
            if is_ours:
                self._wait(device)
        # What torch's Python deprecates it says once a process.
        relevant = [kept for kept in caught if not issubclass(kept.category, (DeprecationWarning, FutureWarning))]
        gists = {(kept.category.__name__, _gist(str(kept.message))) for kept in relevant}
        self.warnings = sorted(gist for gist in gists if not gist[1].startswith(_OF_ALLOCATIONS))
        if is_ours:
            self.calls = calls_by_operator()
        leaves = tree_leaves(self.value)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]

    def _wait(self, device: torch.device) -> None:
        try:
            torch.accelerator.synchronize(device)
        except Exception as error:  # as above
            if self.error is None:
                self.error, self.is_late = error, True

    @property
    def fallback(self) -> list[str]:
        """The operators that used the copy fallback, on a device whose memory the host reaches."""
        copied = sorted(op for provider, op in self.calls if provider == "fallback")
        return copied if copied and reaches_memory(self._device) else []

    @property
    def is_exact(self) -> bool:
        """Whether only the CPU's own kernels ran, on memory laid out as the CPU's: results agree bit for bit."""
        return all(provider == "host" for provider, _ in self.calls)

    def describe_error(self) -> str:
        when = "late " if self.is_late else ""
        return f"{when}{type(self.error).__name__}: {str(self.error).strip()[:600]}"


# Told at each allocation, of which a device needs more or fewer than the CPU.
_OF_ALLOCATIONS = "ComplexHalf support is experimental"


def _gist(message: str) -> str:
    """Return the first line of a warning, without numbers and without the places where it was issued."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    line = re.sub(r" \(aten::[\w.]+, on the device's stream\)", "", line.partition(" (Triggered")[0])
    return re.sub(r"\d+", "N", line)


class OperatorNames(TorchDispatchMode):
    """A mode that records the operators that run below autograd, except views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def calls_by_operator() -> Counter[tuple[str, str]]:
    """Return the number of calls of each operator by each provider since the last reset of the counters."""
    return Counter({(row.provider, row.op): row.calls for row in torch_outboard.coverage()})


@functools.cache
def reaches_memory(device: torch.device) -> bool:
    """Return whether the host reaches the device's memory, so that operators need no copies."""
    x = torch.ones(2, device=device)
    before = calls_by_operator()
    x.lgamma()
    return ("fallback", "aten::lgamma") not in calls_by_operator() - before

# SPDX-License-Identifier: BSD-3-Clause
"""One drawn call on the CPU and on the device: results, refusals, and the whole storages of its arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..refusals.captured import OperatorCall
from ..refusals.comparison import Attempt, attempt, difference_of_errors
from .placed import POISON, Placed

# How far results of one element type may lie from the CPU's, relative to the greatest of them.
TOLERANCES = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}


@dataclass(frozen=True)
class Outcome(Attempt):
    """The outcome of a call, on the CPU, and the whole storages of its arguments afterwards."""

    storages: list[torch.Tensor]


def outcome_of(call: OperatorCall, device: torch.device) -> Outcome:
    """Run a call whose tensors are `Placed` on the device, and wait for it."""
    storages: list[torch.Tensor] = []

    def here(value: Any) -> Any:
        if isinstance(value, Placed):
            return value.on(device, storages)
        return device if isinstance(value, torch.device) else value

    placed = replace(call, arguments=tuple(tree_map(here, call.arguments)))
    torch.manual_seed(0)
    done = attempt(placed, device)
    return Outcome(
        done.error, done.is_late, [_to_cpu(tensor) for tensor in done.results], [storage.cpu() for storage in storages]
    )


def _to_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.cpu() if value.layout == torch.strided else value.cpu().to_dense()


def difference(ours: Outcome, theirs: Outcome, others: set[type], is_exact: bool, least: float = 0.0) -> str | None:
    """Return how the device differs from the CPU by more than the types' tolerances, or `least`; None if it does not.

    `others` are the types of the CPU's errors for other values: of two mistakes either may be found first.
    """
    if ours.error is not None or theirs.error is not None:
        # By an operator's rank the CPU raises the one or the other of
        # an index that is out of bounds.
        is_of_bounds = ours.is_late and {type(ours.error), type(theirs.error)} == {IndexError, RuntimeError}
        # A drawn size may be more than there is memory for; the CPU has no type for that.
        is_of_memory = isinstance(ours.error, torch.OutOfMemoryError) and "can't allocate memory" in str(theirs.error)
        allowed = others | {type(ours.error)} if is_of_bounds or is_of_memory else others
        return difference_of_errors(ours, theirs, allowed, may_be_late=type(None) in others)
    if len(ours.results) != len(theirs.results):
        return f"{len(ours.results)} results, on the CPU {len(theirs.results)}"
    greatest = max(map(_greatest, theirs.storages), default=0.0)
    tolerance = 0.0
    if not is_exact:  # results of integers have a tolerance of their own
        tolerance = max(
            [TOLERANCES[torch.float64], least, *(TOLERANCES.get(storage.dtype, 0.0) for storage in theirs.storages)]
        )
    for place, (result, wanted) in enumerate(zip(ours.results, theirs.results, strict=True)):
        if (text := difference_of_values(result, wanted, greatest, tolerance)) is not None:
            return f"result {place}: {text}"
    for place, (result, wanted) in enumerate(zip(ours.storages, theirs.storages, strict=True)):
        if (text := difference_of_values(result, wanted, greatest, tolerance)) is not None:
            return f"storage of tensor {place}: {text}"
    return None


def difference_of_values(result: Any, wanted: Any, greatest: float, tolerance: float) -> str | None:
    """Return how a result differs from the CPU's, or None.

    `greatest` is the greatest number among the operator's arguments. `tolerance` is the tolerance of the least exact
    element type among them, or 0 if nothing may differ.
    """
    if not isinstance(wanted, torch.Tensor):
        if isinstance(wanted, float) and isinstance(result, float) and result != wanted and tolerance > 0:
            return difference_of_values(torch.tensor(result), torch.tensor(wanted), greatest, tolerance)
        return None if result == wanted or (result != result and wanted != wanted) else f"{result}, on the CPU {wanted}"
    if (result.shape, result.dtype) != (wanted.shape, wanted.dtype):
        return f"{tuple(result.shape)} of {result.dtype}, on the CPU {tuple(wanted.shape)} of {wanted.dtype}"
    if _agree(result, wanted, 0.0, 0.0):
        return None
    if tolerance and wanted.dtype in TOLERANCES:
        tolerance = max(tolerance, TOLERANCES[wanted.dtype])
    if tolerance and _agree(result, wanted, tolerance, greatest):
        return None
    wide = (result.to(torch.complex128) - wanted.to(torch.complex128)).abs().nan_to_num(float("inf"))
    place = int(wide.argmax())
    where = (result.reshape(-1)[place].item(), wanted.reshape(-1)[place].item())
    return f"{where[0]}, on the CPU {where[1]}, at element {place} of {tuple(wanted.shape)}, {wanted.dtype}"


def _agree(result: torch.Tensor, wanted: torch.Tensor, tolerance: float, greatest: float) -> bool:
    if result.numel() == 0:
        return True
    if tolerance == 0.0 and not result.dtype.is_floating_point and not result.dtype.is_complex:
        return torch.equal(result, wanted)
    # What cancels has the error of what it was made of.
    scale = max(_greatest(wanted), greatest * 1e-2)
    if result.is_complex():
        result, wanted = (_with_one_infinity(tensor.to(torch.complex128)) for tensor in (result, wanted))
    else:
        result, wanted = result.double(), wanted.double()
    return torch.allclose(result, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _with_one_infinity(numbers: torch.Tensor) -> torch.Tensor:
    """Make all complex numbers that are not finite one: their parts depend on how the CPU vectorises a call."""
    return torch.where(torch.isfinite(numbers), numbers, torch.nan)


def _greatest(tensor: torch.Tensor) -> float:
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return 0.0
    numbers = tensor.to(torch.complex128).abs()
    numbers = numbers[torch.isfinite(numbers) & (numbers != POISON)]
    return float(numbers.max()) if numbers.numel() else 0.0

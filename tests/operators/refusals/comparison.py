# SPDX-License-Identifier: BSD-3-Clause
"""One call on the CPU and on the device: whether both refuse it, with which type, and when."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .captured import OperatorCall

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Attempt:
    """The outcome of a call: an exception, and whether only the wait raised it; or the results."""

    error: Exception | None
    is_late: bool
    results: list[Any]

    def described(self) -> str:
        lines = str(self.error).strip().splitlines() or [""]
        return f"{'late ' if self.is_late else ''}{type(self.error).__name__}: {lines[0][:200]}"


def attempt(call: OperatorCall, device: torch.device) -> Attempt:
    """Run a call whose tensors are on the device, and wait for it."""
    error: Exception | None = None
    is_late = False
    value = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call.run_here()
        except Exception as raised:  # whatever it is becomes part of the comparison
            error = raised
        if device.type != "cpu":
            try:
                torch.accelerator.synchronize(device)
            except Exception as raised:  # as above
                if error is None:
                    error, is_late = raised, True
    return Attempt(error, is_late, tree_leaves(value))


def result_of(call: OperatorCall, device: torch.device) -> Attempt:
    """Run a call on copies of its tensors on the device, and wait for it."""
    return attempt(call.on(device), device)


def _shape(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else type(value)


def depends_on_values(call: OperatorCall) -> bool:
    """Return whether the CPU accepts the call with other values: zeros, ones and identity matrices are tried."""
    return type(None) in errors_of_other_values(call)


def errors_of_other_values(call: OperatorCall) -> set[type]:
    """Return the types of the CPU's errors if all tensors are zeros, ones or identity matrices."""
    types = set()
    for fill in (torch.zeros_like, torch.ones_like, _identities):
        arguments = tuple(tree_map(lambda arg: fill(arg) if isinstance(arg, torch.Tensor) else arg, call.arguments))  # noqa: B023
        types.add(type(result_of(OperatorCall(call.operator, arguments), CPU).error))
    return types


def _identities(tensor: torch.Tensor) -> torch.Tensor:
    identity = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    if tensor.dim() >= 2:
        identity.diagonal(0, -2, -1).fill_(1)
    return identity


def difference(ours: Attempt, theirs: Attempt, may_be_late: bool) -> str | None:
    """Return how the device's result of a call differs from the CPU's in shape or refusal; None if it does not."""
    if theirs.error is None and ours.error is None:
        own_shapes, theirs_shapes = ([_shape(result) for result in each.results] for each in (ours, theirs))
        return None if own_shapes == theirs_shapes else f"returns {own_shapes}, on the CPU {theirs_shapes}"
    return difference_of_errors(ours, theirs, set(), may_be_late)


def difference_of_errors(ours: Attempt, theirs: Attempt, others: set[type], may_be_late: bool) -> str | None:
    """Return how the refusals of a call differ, if at least one side refused; `others` are further allowed types."""
    if theirs.error is None:
        return f"raises {ours.described()}, on the CPU nothing"
    if ours.error is None:
        return f"runs; the CPU raises {theirs.described()}"
    if isinstance(ours.error, torch.OutOfMemoryError) and "can't allocate memory" in str(theirs.error):
        return None  # the CPU's allocator has no type for it
    if type(ours.error) not in {type(theirs.error), *others}:
        return f"raises {ours.described()}; the CPU {theirs.described()}"
    if ours.is_late and not may_be_late:
        return f"raises {ours.described()}; the CPU at the call"
    return None

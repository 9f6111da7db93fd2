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
class Result:
    """What came of a call: an exception and when, or the shapes and element types of the results."""

    error: Exception | None
    is_late: bool
    shapes: list[Any]


def result_of(call: OperatorCall, device: torch.device) -> Result:
    """Run a call on the device, and wait for it."""
    error: Exception | None = None
    is_late = False
    value = None
    given = call.on(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = given.run_here()
        except Exception as raised:  # whatever it is becomes part of the comparison
            error = raised
        if device.type != "cpu":
            try:
                torch.accelerator.synchronize(device)
            except Exception as raised:  # as above
                if error is None:
                    error, is_late = raised, True
    return Result(error, is_late, [_shape(one) for one in tree_leaves(value)])


def _shape(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else type(value)


def depends_on_values(call: OperatorCall) -> bool:
    """Tell whether the CPU takes the call with other values, of which zeros, ones and identity matrices are tried."""
    return type(None) in errors_of_other_values(call)


def errors_of_other_values(call: OperatorCall) -> set[type]:
    """Return the types of what the CPU raises where all tensors are zeros, ones or identity matrices."""
    found = set()
    for fill in (torch.zeros_like, torch.ones_like, _identities):
        arguments = tuple(tree_map(lambda one: fill(one) if isinstance(one, torch.Tensor) else one, call.arguments))  # noqa: B023
        found.add(type(result_of(OperatorCall(call.operator, arguments), CPU).error))
    return found


def _identities(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    if tensor.dim() >= 2:
        made.diagonal(0, -2, -1).fill_(1)
    return made


def difference(ours: Result, theirs: Result, may_be_late: bool) -> str | None:
    """Tell how the device's result of a call departs from the CPU's; None if it doesn't."""
    if theirs.error is None and ours.error is None:
        return None if ours.shapes == theirs.shapes else f"returns {ours.shapes}, on the CPU {theirs.shapes}"
    if theirs.error is None:
        return f"raises {_described(ours)}, on the CPU nothing"
    if ours.error is None:
        return f"runs; the CPU raises {_described(theirs)}"
    if type(ours.error) is not type(theirs.error):
        return f"raises {_described(ours)}; the CPU {_described(theirs)}"
    if ours.is_late and not may_be_late:
        return f"raises {_described(ours)}; the CPU at the call"
    return None


def _described(result: Result) -> str:
    lines = str(result.error).strip().splitlines() or [""]
    return f"{'late ' if result.is_late else ''}{type(result.error).__name__}: {lines[0][:200]}"

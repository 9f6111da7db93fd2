# SPDX-License-Identifier: BSD-3-Clause
"""Decompositions of operators whose CPU kernels refuse values: the generated kernel asserts the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

__all__ = ["decompositions"]


def decompositions(known: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of `known` that need an assertion, with the assertion."""
    aten = torch.ops.aten
    checks: dict[Any, Callable[..., None]] = {
        aten.binary_cross_entropy.default: functools.partial(_check_probabilities, checks_targets=_checks_targets()),
        aten.index_fill.int_Tensor: _check_filled_slices,
        aten.masked_fill.Tensor: _check_filled,
        aten.masked_scatter.default: _check_count,
        aten.max_unpool2d.default: _check_places,
        aten.max_unpool3d.default: _check_places,
        aten.searchsorted.Scalar: _check_sorter,
        aten.searchsorted.Tensor: _check_sorter,
    }
    return {one: _checked(check, known.get(one)) for one, check in checks.items()}


def _checked(check: Callable[..., None], decomposition: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function that checks and calls the decomposition; without one, Inductor's lowering is used."""

    def checked(*arguments: Any, **named: Any) -> Any:
        check(*arguments, **named)
        return NotImplemented if decomposition is None else decomposition(*arguments, **named)

    return checked


def _check_probabilities(given: torch.Tensor, target: torch.Tensor, *_: Any, checks_targets: bool) -> None:
    tensors = {"input": given} | ({"target": target} if checks_targets else {})
    for name, tensor in tensors.items():
        is_probability = torch.logical_and(tensor >= 0, tensor <= 1)
        wrong = f"all elements of {name} should be between 0 and 1"
        torch.ops.aten._assert_async.msg(is_probability.all(), wrong)


def _checks_targets() -> bool:
    """Return True if this torch's CPU kernel refuses targets outside [0, 1]; older kernels compute with them."""
    with unset_fake_temporarily():  # the table is built within a trace
        try:
            torch.ops.aten.binary_cross_entropy.default(torch.tensor([0.5]), torch.tensor([2.0]))
        except RuntimeError:
            return True
    return False


def _check_places(_: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *__: Any) -> None:
    is_place = torch.logical_and(indices >= 0, indices < math.prod(output_size))
    torch.ops.aten._assert_async.msg(is_place.all(), "Found an invalid max index")


def _check_filled(self: torch.Tensor, _: torch.Tensor, value: torch.Tensor) -> None:
    _check_fits(value, self.dtype)


def _check_filled_slices(self: torch.Tensor, _: int, index: torch.Tensor, value: torch.Tensor) -> None:
    _check_fits(value, self.dtype)


def _check_fits(value: torch.Tensor, dtype: torch.dtype) -> None:
    """Assert that an integer converts as `c10::Scalar` converts it: to unsigned types, negative integers wrap."""
    if dtype == torch.bool or dtype.is_floating_point or value.dtype in (dtype, torch.bool):
        return
    limits = torch.iinfo(dtype)
    least = limits.min if limits.min < 0 else -limits.max
    fits = torch.logical_and(value >= least, value <= limits.max)
    torch.ops.aten._assert_async.msg(fits, f"value cannot be converted to type {dtype} without overflow")


def _check_sorter(sequence: torch.Tensor, *_: Any, sorter: torch.Tensor | None = None, **__: Any) -> None:
    if sorter is not None and sorter.numel() > 0:
        is_place = torch.logical_and(sorter >= 0, sorter < sequence.shape[-1])
        torch.ops.aten._assert_async.msg(is_place.all(), "torch.searchsorted(): sorter index out of range")


def _check_count(_: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> None:
    wrong = "Number of elements of source < number of ones in mask"
    torch.ops.aten._assert_async.msg(mask.sum() <= source.numel(), wrong)

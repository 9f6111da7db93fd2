# SPDX-License-Identifier: BSD-3-Clause
"""Operators that order elements, built on sorting the rows of a contiguous matrix, for which there is a template."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]

_stable = torch.ops.aten.sort.stable


def _along_a_dimension(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that a tensor without dimensions is returned unchanged, with index 0."""

    @functools.wraps(function)
    def body(self: torch.Tensor, *args: Any, **named: Any) -> Any:
        if self.dim() == 0:
            return self.clone(), torch.zeros_like(self, dtype=torch.int64)
        return function(self, *args, **named)

    return body


@_along_a_dimension
def _sort(self: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    dim %= self.dim()
    if stable and self.dim() == 2 and dim == 1 and self.is_contiguous():
        return NotImplemented
    rows = self.movedim(dim, -1)
    matrix = rows.reshape(-1, rows.shape[-1]).contiguous()
    return tuple(
        _as_laid_out(part.reshape(rows.shape).movedim(-1, dim), self)
        for part in _stable(matrix, stable=True, dim=1, descending=descending)
    )


def _sort_by_any(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return _sort(self, dim=dim, descending=descending)


def _as_laid_out(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the result in the memory order of `empty_like`, as torch does for sorted tensors."""
    if result.stride() == torch.empty_like(like).stride():
        return result
    return torch.empty_like(like, dtype=result.dtype).copy_(result)


@_along_a_dimension
def _topk(self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, indices = _stable(self, stable=True, dim=dim, descending=largest)
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()


@_along_a_dimension
def _kth(self: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    parts = (part.narrow(dim, k - 1, 1).contiguous() for part in _stable(self, stable=True, dim=dim, descending=False))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


@_along_a_dimension
def _mode(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the smallest of the most frequent elements, and its index.

    For each element of the sorted row, count how many equal elements precede it.
    """
    values, indices = (part.movedim(dim, -1).contiguous() for part in _stable(self, stable=True, dim=dim))
    place = torch.arange(values.shape[-1], device=self.device).expand(values.shape)
    is_other = torch.ne(values, torch.cat([values[..., :1], values[..., :-1]], -1))
    runs = torch.cummax(torch.where(is_other, place, 0), -1)[0]
    best = (place - runs).argmax(-1, keepdim=True)
    parts = (part.gather(-1, best).movedim(-1, dim) for part in (values, indices))
    return tuple(part if keepdim else part.squeeze(dim) for part in parts)


@_along_a_dimension
def _middle_of(self: torch.Tensor, dim: int, keepdim: bool, *, is_nan_greatest: bool) -> Any:
    values, indices = _middle(self, dim, is_nan_greatest=is_nan_greatest)
    return (values.unsqueeze(dim), indices.unsqueeze(dim)) if keepdim else (values, indices)


def _median_of(self: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    return _middle_of(self, dim, keepdim, is_nan_greatest=True)


def _nanmedian_of(self: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    return _middle_of(self, dim, keepdim, is_nan_greatest=False)


def _median(self: torch.Tensor) -> torch.Tensor:
    return _middle(self.flatten(), 0, is_nan_greatest=True)[0]


def _nanmedian(self: torch.Tensor) -> torch.Tensor:
    return _middle(self.flatten(), 0, is_nan_greatest=False)[0]


def _middle(self: torch.Tensor, dim: int, *, is_nan_greatest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower of the two middle elements, and its index.

    With `is_nan_greatest`, the first NaN is the median if there is one. Otherwise NaNs are ignored.
    """
    count = self.shape[dim]
    values, indices = _stable(self, stable=True, dim=dim, descending=False)
    last = torch.full_like(values.select(dim, 0), count - 1, dtype=torch.int64)
    place = torch.div(last, 2, rounding_mode="floor")
    if self.dtype.is_floating_point:
        # NaNs sort after all numbers. If there are any, the first NaN is the median, as in the
        # CPU's kernel.
        numbers = values.isnan().logical_not().sum(dim)
        if is_nan_greatest:
            place = torch.where(numbers <= last, numbers, place)
        else:
            place = torch.clamp_min(torch.div(numbers - 1, 2, rounding_mode="floor"), 0)
    place = place.unsqueeze(dim)
    return values.gather(dim, place).squeeze(dim), indices.gather(dim, place).squeeze(dim)


def _check_sorter(sequence: torch.Tensor, *_: Any, sorter: torch.Tensor | None = None, **__: Any) -> None:
    if sorter is not None and sorter.numel() > 0:
        is_place = torch.logical_and(sorter >= 0, sorter < sequence.shape[-1])
        torch.ops.aten._assert_async.msg(is_place.all(), "torch.searchsorted(): sorter index out of range")


OPERATORS = (
    Operator("aten::_unique2.default", facts=Facts(composed="unique")),
    Operator("aten::bucketize", facts=Facts(bad_arguments={"boundaries": "has_several_dimensions"})),
    Operator("aten::kthvalue", guarded=("k",)),
    Operator("aten::kthvalue.default", decomposition=_kth),
    Operator("aten::kthvalue.values", facts=Facts(shape_rule="kth_out")),
    Operator(
        "aten::median aten::nanmedian",
        facts=Facts(misreads_expanded=True, bad_arguments={"self dim": "reduces_nothing"}),
    ),
    Operator("aten::median.default", decomposition=_median),
    Operator("aten::median.dim", decomposition=_median_of),
    Operator("aten::median.dim_values aten::nanmedian.dim_values", facts=Facts(shape_rule="resize_to_selection")),
    Operator("aten::mode", facts=Facts(bad_arguments={"self dim": "reduces_nothing"})),
    Operator("aten::mode.default", decomposition=_mode, facts=Facts(shape_rule="mode")),
    Operator("aten::nanmedian.default", decomposition=_nanmedian),
    Operator("aten::nanmedian.dim", decomposition=_nanmedian_of),
    Operator("aten::searchsorted", facts=Facts(check_values="check_sorter", is_left_to_kernels=True)),
    Operator("aten::searchsorted.Scalar aten::searchsorted.Tensor", check=_check_sorter),
    Operator("aten::sort", facts=Facts(bad_dtypes={"self": "has_complex_type"})),
    Operator("aten::sort.default", decomposition=_sort_by_any),
    # The template sorts the rows of a matrix. Other calls are converted to that form.
    Operator("aten::sort.stable", decomposition=_sort, template="sorts:sort"),
    Operator("aten::topk", guarded=("k",), facts=Facts(checks_all_in_meta=True)),
    Operator("aten::topk.default", decomposition=_topk),
    Operator("aten::unique_consecutive.default", facts=Facts(composed="unique_consecutive")),
    Operator("aten::unique_dim.default", facts=Facts(composed="unique_along")),
)

# SPDX-License-Identifier: BSD-3-Clause
"""Operators that fill a tensor from numbers alone."""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Fill, Operator
from torch_outboard.kernels.refusal import CallRefusal, ClassRefusal

__all__ = ["OPERATORS"]


def _as(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype, device=device)


def _places(count: Any, out: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64, device=out.device)


def _check(out: torch.Tensor, rank: int) -> None:
    if out.dim() != rank:
        raise CallRefusal(f"`out` must have one dimension, not {out.dim()} [out-dimensions]")
    if out.dtype == torch.bool:
        raise ClassRefusal("bool results aren't supported [mixed-types]")


def _range(real: torch.dtype, out: torch.Tensor, start: Any, end: Any, step: Any = 1) -> torch.Tensor:
    _check(out, 1)
    kind = real if out.dtype.is_floating_point else torch.int64
    first, increment = (_as(number, kind, out.device) for number in (start, step))
    return (first + _places(out.shape[0], out).to(kind) * increment).to(out.dtype)


def _range_to(real: torch.dtype, out: torch.Tensor, end: Any) -> torch.Tensor:
    return _range(real, out, 0, end)


def _linear(real: torch.dtype, out: torch.Tensor, start: Any, end: Any, steps: Any) -> torch.Tensor:
    """Compute from both ends, as the CPU's kernel does."""
    _check(out, 1)
    if not out.dtype.is_floating_point and real != torch.float64:
        raise ClassRefusal("integer results need float64 arithmetic, which the dialect lacks [mixed-types]")
    is_wide = out.dtype == torch.float64 or not out.dtype.is_floating_point
    kind = torch.float64 if is_wide else torch.float32
    computed = out.dtype if not out.dtype.is_floating_point else kind
    first, last = (_as(number, computed, out.device).to(kind) for number in (start, end))
    count = out.shape[0]
    if count == 1:
        return first.to(out.dtype).reshape(1)
    step = (last - first) / (count - 1)
    place = _places(count, out)
    values = torch.where(place < count // 2, first + step * place.to(kind), last - step * (count - 1 - place).to(kind))
    return values.to(out.dtype)


def _eye(real: torch.dtype, out: torch.Tensor, *counts: Any) -> torch.Tensor:
    if out.dim() != 2:
        raise CallRefusal(f"`out` must have two dimensions, not {out.dim()} [out-dimensions]")
    rows, columns = (_places(count, out) for count in out.shape)
    return (rows.unsqueeze(1) == columns).to(out.dtype)


OPERATORS = (
    Operator("aten::arange aten::linspace aten::logspace aten::range", facts=Facts(has_shape_of_scalars=True)),
    Operator("aten::arange.out", computed=Fill(_range_to, ignored=("end",))),
    Operator(
        "aten::arange.start_out",
        computed=Fill(_range, ("start", "step"), ("end",)),
        facts=Facts(shape_rule="arange_out"),
    ),
    Operator("aten::eye.m_out", computed=Fill(_eye, ignored=("n", "m"))),
    Operator("aten::eye.out", computed=Fill(_eye, ignored=("n",))),
    Operator(
        "aten::linspace.out",
        computed=Fill(_linear, ("start", "end"), ("steps",)),
        facts=Facts(shape_rule="linspace_out"),
    ),
)

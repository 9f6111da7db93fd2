# SPDX-License-Identifier: BSD-3-Clause
"""Reductions, cumulative operators, counts and distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import widened
from torch_outboard.kernels.book.row import Body, Function, Operator

__all__ = ["OPERATORS"]


def _as_row(op: torch._ops.OpOverload) -> Function:
    """Return a decomposition that reduces a whole tensor as one row, so that finding an element needs no division."""
    names = [argument.name for argument in op._schema.arguments[1:]]

    def as_row(self: torch.Tensor, *args: Any, **named: Any) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **named}
        is_whole = not arguments.get("dim") and not arguments.get("keepdim")
        if is_whole and self.dim() > 1 and self.is_contiguous():
            return op(self.view(-1), *args, **named)
        return NotImplemented

    return as_row


# Groups of items would share rows this long if there are this few results
# (codegen/mapping/parts.py).
_LONG_ROW = 1 << 14
_LONG_STEP = 512
_FEW_ROWS = 512


def _steps_of(self: torch.Tensor, dims: Sequence[int] | None) -> tuple[list[int], list[int]] | None:
    """Return the reduced dimensions outside and inside the kept dimensions, if a long row spans both.

    The channels of images have such rows. If a row were split into equal parts, which begin anywhere, locating an
    element would take divisions by sizes. Two steps avoid the divisions: the first reduces contiguous memory for each
    outer index, and the second reduces those results.
    """
    rank = self.dim()
    if rank == 0:
        return None
    reduced = sorted({dim % rank for dim in dims or ()})
    kept = [dim for dim in range(rank) if dim not in reduced]
    if not kept or not self.dtype.is_floating_point or not self.is_contiguous():
        return None
    outer, inner = [dim for dim in reduced if dim < kept[-1]], [dim for dim in reduced if dim > kept[-1]]
    rows, step = (math.prod(_hint(self.shape[dim]) for dim in dims) for dims in (kept, inner))
    row = step * math.prod(_hint(self.shape[dim]) for dim in outer)
    is_split = 0 < rows <= _FEW_ROWS and row >= _LONG_ROW and _LONG_STEP <= step < row
    return (outer, inner) if is_split else None


def _hint(size: int | torch.SymInt) -> int:
    """Return a size of the traced call, unguarded: reductions have their own guards (kernels/magnitudes.py)."""
    hint: int = size if isinstance(size, int) else size.node.hint
    return hint


def _sum_in_steps(
    self: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    steps = _steps_of(self, dim)
    if steps is None or dtype not in (None, self.dtype):
        return _as_row(torch.ops.aten.sum.dim_IntList)(self, dim, keepdim, dtype=dtype)
    outer, inner = steps
    partial = widened(self).sum(inner, keepdim=True)
    return partial.sum([*outer, *inner], keepdim=keepdim).to(self.dtype)


def _deviation_in_steps(
    self: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Return the variance and the mean. All parts of a row have the same number of elements."""
    steps = _steps_of(self, dim)
    if steps is None:
        return _as_row(torch.ops.aten.var_mean.correction)(self, dim, correction=correction, keepdim=keepdim)
    outer, inner = steps
    squares, means = torch.var_mean(widened(self), inner, correction=0, keepdim=True)
    mean = means.mean(outer, keepdim=True)
    square = (squares + (means - mean).square()).mean(outer, keepdim=True)
    count = math.prod(self.shape[axis] for axis in (*outer, *inner))
    lost = 1 if correction is None else correction
    square = square * (count / (count - lost)) if lost else square
    return tuple((part if keepdim else part.squeeze([*outer, *inner])).to(self.dtype) for part in (square, mean))


def _cumulative(function: Callable[..., Any]) -> Callable[..., None]:
    def body(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        results = function(self, dim)
        values.copy_(results[0])
        indices.copy_(results[1])

    return body


def _logcumsumexp(self: torch.Tensor, dim: int, *out: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.logcumsumexp.default(self, dim)
    return out[0].copy_(result) if out else result


def _softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """Subtract before multiplying, as ATen's kernels do; torch's decomposition returns NaN for an infinite output."""
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    grad, output = grad.to(wide), output.to(wide)
    return ((grad - (grad * output).sum(dim, keepdim=True)) * output).to(input_dtype).contiguous()


def _isin(
    elements: torch.Tensor, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """Compare each element with each test element, in one kernel.

    Inductor's decomposition sorts if there are many elements. Its threshold is a power of their number, which a plan
    cannot express as a formula.
    """
    rank = test_elements.dim()
    is_member = elements.reshape([*elements.shape, *[1] * rank]) == test_elements
    if rank > 0:
        is_member = is_member.any(tuple(range(-rank, 0)))
    return is_member.logical_not() if invert else is_member


def _norm(difference: torch.Tensor, p: float) -> torch.Tensor:
    size = difference.abs()
    if p == 0:
        return (size != 0).sum(-1).to(size.dtype)
    if p == math.inf:
        return size.amax(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    return size.sum(-1) if p == 1 else size.pow(p).sum(-1).pow(1 / p)


def _distances(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _distances_of_pairs(self: torch.Tensor, p: float = 2) -> torch.Tensor:
    rows = torch.arange(self.shape[0], device=self.device)
    pairs = torch.arange(self.shape[0] * (self.shape[0] - 1) // 2, device=self.device)
    # The number of the pair after the last pair that begins with a given row.
    ends = torch.cumsum(self.shape[0] - 1 - rows, 0)
    first = (pairs.unsqueeze(1) >= ends).sum(1)
    begins = torch.where(first > 0, ends[torch.clamp_min(first - 1, 0)], 0)
    return _norm(self[first] - self[pairs - begins + first + 1], p)


def _histogram(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Count elements in bins.

    The last bin includes its upper bound. Elements outside all bins and NaNs are not counted.
    """
    flat = self.flatten()
    low = torch.full((), min, dtype=self.dtype, device=self.device)
    high = torch.full((), max, dtype=self.dtype, device=self.device)
    if min == max:
        low, high = flat.amin(), flat.amax()
        is_finite = torch.logical_and(low.abs() < math.inf, high.abs() < math.inf)
        torch.ops.aten._assert_async.msg(is_finite, "torch.histc: the range of the elements is not finite")
        is_one = low == high
        low, high = torch.where(is_one, low - 1, low), torch.where(is_one, high + 1, high)
    is_counted = (flat >= low) & (flat <= high)
    place = ((flat - low) * bins / (high - low)).to(torch.int64)
    place = torch.where(is_counted, torch.clamp(place, 0, bins - 1), bins)
    return flat.new_zeros(bins + 1).scatter_add(0, place, torch.ones_like(flat)).narrow(0, 0, bins).clone()


OPERATORS = (
    Operator("aten::_cdist_forward", facts=Facts(bad_arguments={"x1 p": "is_bad_order"})),
    Operator("aten::_cdist_forward.default", decomposition=_distances),
    Operator("aten::_cummax_helper", computed=Body(_cumulative(torch.ops.aten.cummax.default))),
    Operator("aten::_cummin_helper", computed=Body(_cumulative(torch.ops.aten.cummin.default))),
    Operator("aten::_log_softmax aten::_softmax aten::var", facts=Facts(bad_dtypes={"self": "has_integral_type"})),
    Operator("aten::_logcumsumexp", computed=Body(_logcumsumexp)),
    Operator("aten::_pdist_forward.default", decomposition=_distances_of_pairs),
    Operator("aten::_segment_reduce_backward", facts=Facts(checked_values="sums")),
    Operator("aten::_softmax_backward_data.default", decomposition=_softmax_backward),
    Operator("aten::all aten::any", facts=Facts(bad_arguments={"out": "has_bad_truth_type"})),
    Operator("aten::all.default", decomposition=_as_row(torch.ops.aten.all.default)),
    Operator("aten::aminmax", facts=Facts(bad_arguments={"self min max": "dtypes_differ<3>"})),
    Operator("aten::any.default", decomposition=_as_row(torch.ops.aten.any.default)),
    Operator("aten::bincount.default", facts=Facts(composed="bincount")),
    Operator("aten::count_nonzero.dim_IntList", facts=Facts(shape_rule="count_nonzero")),
    Operator("aten::equal.default", facts=Facts(composed="equal")),
    Operator(
        "aten::histc",
        facts=Facts(
            bad_numbers={"min max": "is_bad_histogram_range"}, check_values="check_range", is_left_to_kernels=True
        ),
    ),
    Operator("aten::histc.default", decomposition=_histogram),
    Operator(
        "aten::isin",
        facts=Facts(
            bad_dtypes={
                "element test_elements": "has_boolean",
                "elements test_element": "has_boolean",
                "elements test_elements": "has_boolean",
            }
        ),
    ),
    Operator("aten::isin.Tensor_Tensor", decomposition=_isin),
    Operator("aten::linalg_vector_norm.default", decomposition=_as_row(torch.ops.aten.linalg_vector_norm.default)),
    Operator(
        "aten::max aten::min",
        facts=Facts(bad_arguments={"self dim": "reduces_nothing"}, bad_dtypes={"self": "has_complex_type"}),
    ),
    Operator(
        "aten::max.default",
        decomposition=_as_row(torch.ops.aten.max.default),
        facts=Facts(shape_rule="extremum", bad_arguments={"self": "has_no_elements"}),
    ),
    Operator("aten::mean.default", decomposition=_as_row(torch.ops.aten.mean.default)),
    Operator("aten::mean.dim", decomposition=_as_row(torch.ops.aten.mean.dim)),
    Operator(
        "aten::min.default",
        decomposition=_as_row(torch.ops.aten.min.default),
        facts=Facts(shape_rule="extremum", bad_arguments={"self": "has_no_elements"}),
    ),
    Operator("aten::nansum.default", facts=Facts(shape_rule="nansum")),
    Operator("aten::prod.default", decomposition=_as_row(torch.ops.aten.prod.default), facts=Facts(shape_rule="prod")),
    Operator("aten::renorm", facts=Facts(bad_arguments={"p maxnorm": "is_bad_norm"})),
    Operator("aten::segment_reduce", facts=Facts(raises_at_call=True, checked_values="sums")),
    Operator(
        "aten::std.correction",
        decomposition=_as_row(torch.ops.aten.std.correction),
        facts=Facts(known_warning="degrees of freedom", shape_rule="deviation"),
    ),
    Operator("aten::std.correction_out aten::var.correction_out", facts=Facts(known_warning="degrees of freedom")),
    Operator(
        "aten::std_mean.correction", facts=Facts(known_warning="degrees of freedom", shape_rule="deviation_and_mean")
    ),
    Operator("aten::sum.default", decomposition=_as_row(torch.ops.aten.sum.default)),
    Operator("aten::sum.dim_IntList", decomposition=_sum_in_steps),
    Operator(
        "aten::var.correction",
        decomposition=_as_row(torch.ops.aten.var.correction),
        facts=Facts(known_warning="degrees of freedom", shape_rule="deviation"),
    ),
    Operator(
        "aten::var_mean.correction",
        decomposition=_deviation_in_steps,
        facts=Facts(known_warning="degrees of freedom", shape_rule="deviation_and_mean"),
    ),
)

# SPDX-License-Identifier: BSD-3-Clause
"""The decompositions for tracing an operator's call: Inductor's, unless eager code computes another value."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._inductor.decomposition import select_decomp_table

from torch_outboard.kernels import orders, resizing, scatters, value_checks

__all__ = ["decompositions", "with_statistics"]


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the table for `make_fx`."""
    aten = torch.ops.aten
    of_inductor = select_decomp_table()
    table: dict[Any, Callable[..., Any]] = {
        **of_inductor,
        **{one: _of_whole(one, of_inductor.get(one)) for one in _whole_reductions()},
        **orders.decompositions(),
        **resizing.decompositions(),
        **scatters.decompositions(of_inductor),
        aten._adaptive_avg_pool3d.default: _adaptive_avg_pool3d,
        aten._cdist_forward.default: _distances,
        aten._index_put_impl.default: _index_put,
        aten._pdist_forward.default: _distances_of_pairs,
        aten.addbmm.default: _addbmm,
        aten._softmax_backward_data.default: _softmax_backward,
        aten.cat.default: functools.partial(_cat, known=of_inductor[aten.cat.default]),
        aten.hardshrink_backward.default: _shrink_backward,
        aten.histc.default: _histogram,
        aten.im2col.default: _windows,
        aten.index_add.default: _index_add,
        aten.index_copy.default: _index_copy,
        aten.index_fill.int_Scalar: _index_fill,
        aten.index_fill.int_Tensor: _index_fill,
        aten.index_reduce.default: _index_reduce,
        aten.index_select.default: _index_select,
        aten.native_group_norm.default: _group_norm,
        aten.native_layer_norm.default: _layer_norm,
        aten.softshrink_backward.default: _shrink_backward,
        aten.upsample_trilinear3d.default: decomposition_table[aten.upsample_trilinear3d.default],
        aten.div.Tensor_mode: _divide,
        aten.isin.Tensor_Tensor: _isin,
    }
    return {**table, **value_checks.decompositions(table)}


def _whole_reductions() -> list[Any]:
    aten = torch.ops.aten
    plain = [aten.sum, aten.mean, aten.prod, aten.max, aten.min, aten.any, aten.all]
    by_dimension = [aten.sum.dim_IntList, aten.mean.dim, aten.linalg_vector_norm.default, aten.var.correction]
    return [*(one.default for one in plain), *by_dimension, aten.std.correction, aten.var_mean.correction]


def _of_whole(op: Any, known: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition that reduces a whole tensor as one row, for places without divisions by sizes.

    Other reductions use their known decomposition.
    """
    names = [argument.name for argument in op._schema.arguments[1:]]

    def body(self: torch.Tensor, *given: Any, **named: Any) -> Any:
        arguments = {**dict(zip(names, given, strict=False)), **named}
        is_whole = not arguments.get("dim") and not arguments.get("keepdim")
        if is_whole and self.dim() > 1 and self.is_contiguous():
            return op(self.view(-1), *given, **named)
        return NotImplemented if known is None else known(self, *given, **named)

    return body


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0, *, known: Callable[..., Any]) -> Any:
    """Convert to the common type first if types differ: empty rows are skipped, but their types count."""
    common = functools.reduce(torch.promote_types, (one.dtype for one in tensors))
    if all(one.dtype == common for one in tensors):
        return known(tensors, dim)
    taken = [one.to(common) for one in tensors if one.dim() != 1 or one.shape[0] != 0]
    return torch.ops.aten.cat.default(taken or [one.to(common) for one in tensors], dim)


def _divide(a: torch.Tensor, b: torch.Tensor, *, rounding_mode: str | None) -> Any:
    """Divide floating point numbers with rounding down through the remainder, as ATen's kernels do.

    Inductor's lowering is floor(a / b), which is one too large if the quotient is rounded up to a whole number.
    """
    common = torch.result_type(a, b)
    if rounding_mode != "floor" or not common.is_floating_point:
        return NotImplemented
    wide = torch.float64 if common == torch.float64 else torch.float32
    a, b = a.to(wide), b.to(wide)
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    below = quotient.floor()
    whole = torch.where(quotient - below > 0.5, below + 1, below)
    plain = a / b
    signed = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), whole)
    return torch.where(b == 0, plain, signed).to(common)


def _softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """Subtract before multiplying, as ATen's kernels do; torch's decomposition has NaN for an infinite output."""
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    grad, output = grad.to(wide), output.to(wide)
    return ((grad - (grad * output).sum(dim, keepdim=True)) * output).to(input_dtype).contiguous()


def _layer_norm(input: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    result = decomposition_table[torch.ops.aten.native_layer_norm.default](input, shape, weight, bias, eps)
    return with_statistics(result, input, weight, bias)


def _group_norm(input: torch.Tensor, weight: Any, bias: Any, *given: Any) -> Any:
    result = decomposition_table[torch.ops.aten.native_group_norm.default](input, weight, bias, *given)
    return with_statistics(result, input, weight, bias)


def with_statistics(result: Any, input: torch.Tensor, *parameters: torch.Tensor | None) -> Any:
    """Return the result with means and reciprocal deviations in the CPU's type.

    That is the input's type, or float32 if the parameters' types differ from it.
    """
    is_mixed = any(one is not None and one.dtype != input.dtype for one in parameters)
    dtype = torch.float32 if is_mixed else input.dtype
    values, mean, rstd = result
    return values, mean.to(dtype), rstd.to(dtype)


def _isin(
    elements: torch.Tensor, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """Compare each element with each test element, in one kernel.

    Inductor's decomposition sorts many elements. Its threshold is a power of their number, which a plan cannot express
    as a formula.
    """
    rank = test_elements.dim()
    found = elements.reshape([*elements.shape, *[1] * rank]) == test_elements
    if rank > 0:
        found = found.any(tuple(range(-rank, 0)))
    return found.logical_not() if invert else found


def _shrink_backward(grad: torch.Tensor, self: torch.Tensor, lambd: float) -> torch.Tensor:
    return torch.where((self >= -lambd) & (self <= lambd), 0, grad)


def _index_put(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> Any:
    return torch.ops.aten.index_put.default(self, indices, values, accumulate)


def _addbmm(self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute the sum of all products as one product, of matrices side by side."""
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], -1)
    return torch.ops.aten.addmm.default(self, left, batch2.reshape(-1, batch2.shape[2]), beta=beta, alpha=alpha)


def _adaptive_avg_pool3d(self: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    """Compute the mean of a box as a mean of means along its sides."""
    pool = torch.ops.aten._adaptive_avg_pool2d.default
    depth, height, width = output_size
    planes = pool(self.flatten(0, -4), [height, width])
    boxes = pool(planes.flatten(-2), [depth, height * width])
    result: torch.Tensor = boxes.reshape(*self.shape[:-3], *output_size)
    return result


def _windows(self: torch.Tensor, *given: Any) -> torch.Tensor:
    result: torch.Tensor = decomposition_table[torch.ops.aten.im2col.default](self, *given)
    return torch.empty(result.shape, dtype=self.dtype, device=self.device).copy_(result)


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
    # The number of the pair after the last one that begins with a row.
    ends = torch.cumsum(self.shape[0] - 1 - rows, 0)
    first = (pairs.unsqueeze(1) >= ends).sum(1)
    begins = torch.where(first > 0, ends[torch.clamp_min(first - 1, 0)], 0)
    return _norm(self[first] - self[pairs - begins + first + 1], p)


def _index_add(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1) -> Any:
    return _along(torch.ops.aten.scatter_add.default, self, dim, index, source if alpha == 1 else source * alpha)


def _put_rows(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """Put whole rows along a dimension; a tensor without dimensions counts as one row."""
    rows = self.reshape(1) if self.dim() == 0 else self
    place = [*(None for _ in range(dim % rows.dim())), index]
    return torch.ops.aten.index_put.default(rows, place, source).reshape(self.shape)


def _index_copy(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    # `index_put` takes negative indices; this operator refuses them.
    size = self.shape[dim] if self.dim() else 1
    return _put_rows(self, dim, scatters.checked_index(index.reshape(-1), size, may_be_negative=False), source)


def _index_fill(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    # Unlike index_copy, which torch's decomposition uses, this operator counts negative indices from the end.
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=self.dtype, device=self.device)
    return _put_rows(self, dim, index.reshape(-1), value.to(self.dtype))


def _index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Read by `gather`: both operators refuse indices that count from the end."""
    index = index.long()
    if self.dim() == 0:
        return self.reshape(1).gather(0, index.reshape(-1)).reshape(())
    shape = [1] * self.dim()
    shape[dim] = -1
    sizes = list(self.shape)
    sizes[dim] = index.numel()
    return self.gather(dim, index.reshape(shape).expand(sizes))


def _index_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    operator = torch.ops.aten.scatter_reduce.two
    return _along(operator, self, dim, index, source, reduce, include_self=include_self)


def _along(
    operator: Any, self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *given: Any, **named: Any
) -> torch.Tensor:
    """Scatter slices, each to the place along the dimension that its index names."""
    rows, source = (one.reshape(1) if one.dim() == 0 else one for one in (self, source))
    shape = [1] * rows.dim()
    shape[dim] = -1
    where = index.reshape(shape).expand(source.shape)
    result: torch.Tensor = operator(rows, dim, where, source, *given, **named)
    return result.reshape(self.shape)


def _histogram(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Count elements in bins.

    The last bin includes its upper bound. Elements outside all bins, and NaNs, are not counted.
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

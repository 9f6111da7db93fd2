# SPDX-License-Identifier: BSD-3-Clause
"""Reading and writing elements by indices.

In deterministic mode, and if the language has no atomics for the operation, scattered values are sorted by their
targets. Otherwise Inductor's lowerings scatter with atomics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_outboard.codegen.dialects.dialect import SUFFIXES
from torch_outboard.compile.generators import generators
from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Numbers, Operator
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["OPERATORS", "check_between", "checked_index"]

# Element types that devices can add to atomically. Inductor leaves sums of other types to a
# library.
_ADDED_ATOMICALLY = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32)


def _is_sorted(self: torch.Tensor, kind: str) -> bool:
    # Without an order, the real and imaginary parts could be set from two different values.
    if torch.are_deterministic_algorithms_enabled() or kind not in ("set", "sum") or self.is_complex():
        return True
    return kind == "sum" and (self.dtype not in _ADDED_ATOMICALLY or SUFFIXES[self.dtype] not in _atomics())


def _atomics() -> frozenset[str]:
    dialect = generators().eager().dialect  # type: ignore[attr-defined]
    return dialect.atomics  # type: ignore[no-any-return]


def _leaves_to_library(self: torch.Tensor, src: Any) -> bool:
    """Return True if Inductor leaves such a write to a library's scatter, which a plan cannot call."""
    from torch._inductor.utils import use_scatter_fallback

    if not isinstance(src, torch.Tensor):
        return False
    return use_scatter_fallback(torch.ops.aten.scatter_.src, None, self.dtype, src.dtype, src.device.type, True)


def _combined(
    base: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, kind: str, *, include_self: bool = True
) -> torch.Tensor:
    """Combine the rows of `values` into the rows of `base` given by `rows`."""
    from torch_outboard.kernels.templates.segments import combined

    if rows.shape[0] == 0:
        return base
    ordered, order = torch.ops.aten.sort.stable(rows, stable=True, dim=0, descending=False)
    result: torch.Tensor = combined(base, ordered, order, values, kind, include_self)
    return result


def checked_index(index: torch.Tensor, size: Any, *, may_be_negative: bool) -> torch.Tensor:
    """Return an index's positions along a dimension, read through a tensor so that an invalid index is an error."""
    along = torch.arange(size, device=index.device)
    return along[index] if may_be_negative else along.gather(0, index.flatten()).reshape(index.shape)


# Along a dimension.


def _scatter(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, kind: str = "set", *, include_self: bool = True
) -> Any:
    if index.numel() == 0:
        return self.clone()
    if include_self and not _is_sorted(self, kind) and not (kind == "set" and _leaves_to_library(self, src)):
        return NotImplemented
    if self.dim() == 0 or index.dim() == 0:
        values = src if not isinstance(src, torch.Tensor) else src.reshape(-1)
        rows = _scatter(self.reshape(-1), 0, index.reshape(-1), values, kind, include_self=include_self)
        return rows.reshape(self.shape)
    if isinstance(src, torch.Tensor):
        if src.dtype != self.dtype:
            raise ClassRefusal("its tensors have different dtypes [mixed-types]")
        values = src[tuple(slice(0, size) for size in index.shape)]
    else:
        values = self.new_full((), src).expand(index.shape)
    dim %= self.dim()
    place, step = torch.zeros_like(index, memory_format=torch.contiguous_format), 1
    for number in reversed(range(self.dim())):
        if number == dim:
            along = checked_index(index, self.shape[number], may_be_negative=False)
        else:
            shape = [-1 if axis == number else 1 for axis in range(self.dim())]
            along = torch.arange(index.shape[number], device=self.device).reshape(shape)
        place = place + along * step
        step = step * self.shape[number]
    result = _combined(self.reshape(-1, 1), place.reshape(-1), values.reshape(-1, 1), kind, include_self=include_self)
    return result.reshape(self.shape)


def _scatter_add(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    return _scatter(self, dim, index, src, "sum")


def _scatter_and_reduce(self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, *, reduce: str) -> Any:
    return _scatter(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


def _scatter_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return _scatter(self, dim, index, src, reduce, include_self=include_self)


def _index_add(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1) -> Any:
    return _along(torch.ops.aten.scatter_add.default, self, dim, index, source if alpha == 1 else source * alpha)


def _index_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    operator = torch.ops.aten.scatter_reduce.two
    return _along(operator, self, dim, index, source, reduce, include_self=include_self)


def _along(
    operator: Any, self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *args: Any, **named: Any
) -> torch.Tensor:
    """Scatter slices, each to its index along the dimension."""
    rows, source = (tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in (self, source))
    shape = [1] * rows.dim()
    shape[dim] = -1
    where = index.reshape(shape).expand(source.shape)
    result: torch.Tensor = operator(rows, dim, where, source, *args, **named)
    return result.reshape(self.shape)


def _put_rows(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """Write whole rows along a dimension; a tensor without dimensions is treated as one row."""
    rows = self.reshape(1) if self.dim() == 0 else self
    place = [*(None for _ in range(dim % rows.dim())), index]
    return torch.ops.aten.index_put.default(rows, place, source).reshape(self.shape)


def _index_copy(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    # `index_put` accepts negative indices; this operator refuses them.
    size = self.shape[dim] if self.dim() else 1
    return _put_rows(self, dim, checked_index(index.reshape(-1), size, may_be_negative=False), source)


def _index_fill(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    # Unlike index_copy, which torch's decomposition uses, index_fill accepts negative indices.
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=self.dtype, device=self.device)
    return _put_rows(self, dim, index.reshape(-1), value.to(self.dtype))


def _index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """Read with `gather`: both operators refuse negative indices."""
    index = index.long()
    if self.dim() == 0:
        return self.reshape(1).gather(0, index.reshape(-1)).reshape(())
    shape = [1] * self.dim()
    shape[dim] = -1
    sizes = list(self.shape)
    sizes[dim] = index.numel()
    return self.gather(dim, index.reshape(shape).expand(sizes))


# By index tensors.


def _index_put(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    kind = "sum" if accumulate else "set"
    if not _is_sorted(self, kind):
        return NotImplemented
    numbered = [(number, index) for number, index in enumerate(indices) if index is not None]
    if any(index.dtype == torch.bool for _, index in numbered):
        raise ClassRefusal("writes through a bool mask aren't supported [mask-write]")
    if values.dtype != self.dtype:
        raise ClassRefusal("its tensors have different dtypes [mixed-types]")
    indexed = [number for number, _ in numbered]
    others = [number for number in range(self.dim()) if number not in indexed]
    broadcast = torch.broadcast_tensors(*(index for _, index in numbered))  # type: ignore[no-untyped-call]
    shape, rest = broadcast[0].shape, [self.shape[number] for number in others]

    # Values have the shape of a read by the same indices: the indexed dimensions stay in place if
    # they are adjacent, and otherwise come first.
    in_front = indexed[0] if indexed[-1] - indexed[0] + 1 == len(indexed) else 0
    values = values.expand([*rest[:in_front], *shape, *rest[in_front:]])
    places = range(in_front, in_front + len(shape))
    values = values.movedim(tuple(places), tuple(range(len(shape))))

    place, step = torch.zeros_like(broadcast[0], dtype=torch.int64, memory_format=torch.contiguous_format), 1
    for number, index in zip(reversed(indexed), reversed(broadcast), strict=True):
        place = place + checked_index(index, self.shape[number], may_be_negative=True) * step
        step = step * self.shape[number]
    order = [*indexed, *others]
    columns = math.prod(rest)
    base = self.permute(order)
    result = _combined(
        base.reshape(-1, columns),
        place.reshape(-1),
        values.reshape(-1, columns),
        kind,
    )
    back = [order.index(number) for number in range(self.dim())]
    result = result.reshape(base.shape).permute(back)
    return result if result.stride() == self.stride() else torch.empty_like(self).copy_(result)


def _masked_index_put(
    self: torch.Tensor, mask: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> Any:
    """Add values by indices; elements that the mask excludes may have any index."""
    clamped = [
        None if index is None else index.clamp(-size, size - 1)
        for index, size in zip(indices, self.shape, strict=False)
    ]
    return _index_put(self, clamped, values.masked_fill(mask.logical_not(), 0), accumulate=True)


def _index_put_impl(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> Any:
    return torch.ops.aten.index_put.default(self, indices, values, accumulate)


# By masks, and value checks.


def _masked_fill(self: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.masked_fill.Tensor(self, mask, value.to(self.dtype))
    return result


def _check_filled(self: torch.Tensor, _: torch.Tensor, value: torch.Tensor) -> None:
    _check_fits(value, self.dtype)


def _check_filled_slices(self: torch.Tensor, _: int, index: torch.Tensor, value: torch.Tensor) -> None:
    _check_fits(value, self.dtype)


def _check_fits(value: torch.Tensor, dtype: torch.dtype) -> None:
    """Assert that an integer converts as in `c10::Scalar`: negative integers wrap in unsigned types."""
    if dtype == torch.bool or dtype.is_floating_point or value.dtype in (dtype, torch.bool):
        return
    limits = torch.iinfo(dtype)
    least = limits.min if limits.min < 0 else -limits.max
    fits = torch.logical_and(value >= least, value <= limits.max)
    torch.ops.aten._assert_async.msg(fits, f"value cannot be converted to type {dtype} without overflow")


def check_between(tensor: torch.Tensor, low: Any, high: Any, wrong: str) -> None:
    """Assert that all elements are between two bounds, inclusive; a NaN fails."""
    torch.ops.aten._assert_async.msg(torch.logical_and(tensor >= low, tensor <= high).all(), wrong)


def _assert_async(self: torch.Tensor) -> None:
    """Call the overload that torch's passes do not remove as dead code."""
    torch.ops.aten._assert_async.msg(self, "Expected Tensor with single nonzero value, but got zero")


def _check_count(_: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> None:
    wrong = "Number of elements of source < number of ones in mask"
    torch.ops.aten._assert_async.msg(mask.sum() <= source.numel(), wrong)


def _masked_scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Compute each element's position among the written elements, and read the source at this position."""
    self, mask = torch.broadcast_tensors(self, mask)  # type: ignore[no-untyped-call]
    flags = mask.flatten()
    before = flags.to(torch.int64).cumsum(0) - 1
    values = torch.ops.aten._unsafe_masked_index.default(source.flatten(), flags, [before], 0)
    return torch.where(flags, values, self.flatten()).view(self.shape)


def _nonzero_static(self: torch.Tensor, *, size: Any, fill_value: int = -1) -> torch.Tensor:
    """Write the indices of the first nonzero elements to their rows, and all other indices to one extra row."""
    is_nonzero = (self != 0).flatten()
    before = is_nonzero.to(torch.int64).cumsum(0) - 1
    row = torch.where(torch.logical_and(is_nonzero, before < size), before, size)
    result = torch.full((size + 1, self.dim()), fill_value, dtype=torch.int64, device=self.device)
    if self.dim() > 0:
        number = torch.arange(is_nonzero.shape[0], device=self.device)
        strides = [math.prod(self.shape[dim + 1 :]) for dim in range(self.dim())]
        pairs = zip(strides, self.shape, strict=True)
        places = torch.stack(
            [torch.div(number, divisor, rounding_mode="floor") % length for divisor, length in pairs], 1
        )
        result = torch.ops.aten.index_put(result, [row], places)
    return result[:size].clone()


def _check_indices(_: torch.Tensor, indices: torch.Tensor, *__: Any) -> None:
    if indices.dtype not in (torch.int32, torch.int64):
        raise ClassRefusal("the CPU kernel rejects the dtype of its tensors or of its result [wrong-call]")


def _embedding_renorm(self: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Scale the rows named by `indices` down to the maximum norm. For rows within it, only the norm is computed."""
    places = checked_index(indices.reshape(-1), self.shape[0], may_be_negative=False)
    is_named = torch.zeros(self.shape[0], dtype=torch.bool, device=self.device).index_fill(0, places, True)
    norms = torch.linalg.vector_norm(self, norm_type, 1)
    scales = max_norm / (norms + 1e-7)
    is_scaled = torch.logical_and(is_named, norms > max_norm)
    return torch.where(is_scaled[:, None], self * scales[:, None], self)


OPERATORS = (
    Operator(
        "aten::_assert_async",
        facts=Facts(checked_values="values", kernel_checks=True, bad_arguments={"self": "is_not_one_element"}),
    ),
    Operator("aten::_assert_async.default", decomposition=_assert_async),
    Operator(
        "aten::_index_put_impl_", facts=Facts(bad_arguments={"self indices values accumulate": "is_bad_index_put"})
    ),
    Operator("aten::_index_put_impl_.default", facts=Facts(known_warning="byte indices", composed="put_by_masks")),
    Operator("aten::_unsafe_index_put", facts=Facts(kernel_adds=True)),
    Operator("aten::embedding aten::scatter_ aten::take", facts=Facts(kernel_checks=True)),
    Operator("aten::embedding_renorm.default", decomposition=_embedding_renorm),
    Operator("aten::_index_put_impl.default", decomposition=_index_put_impl),
    Operator("aten::_unsafe_index_put.default aten::index_put.default", decomposition=_index_put),
    Operator("aten::_unsafe_masked_index_put_accumulate.default", decomposition=_masked_index_put),
    Operator("aten::embedding_dense_backward", guarded=("num_weights",), facts=Facts(kernel_checks=True)),
    Operator("aten::embedding_dense_backward.default", check=_check_indices),
    Operator("aten::gather aten::index_add aten::scatter", facts=Facts(kernel_checks=True, raises_runtime_error=True)),
    Operator("aten::gather.default", lowering="" if torch.__version__ >= "2.13" else "lowerings:gather"),
    Operator(
        "aten::index",
        facts=Facts(has_shape_of_masks=True, bad_arguments={"self indices": "is_bad_index"}, kernel_checks=True),
    ),
    Operator("aten::index.Tensor", facts=Facts(known_warning="byte indices", composed="index_by_masks")),
    Operator("aten::index_add.default", decomposition=_index_add),
    Operator(
        "aten::index_copy", facts=Facts(bad_arguments={"self index source": "is_bad_index_copy"}, kernel_checks=True)
    ),
    Operator("aten::index_copy.default", decomposition=_index_copy),
    Operator(
        "aten::index_fill",
        filled="value",
        facts=Facts(
            bad_arguments={"self index value": "is_bad_index_fill"},
            check_values="check_filler",
            is_left_to_kernels=True,
            kernel_checks=True,
        ),
    ),
    Operator("aten::index_fill.int_Scalar", decomposition=_index_fill),
    Operator("aten::index_fill.int_Tensor", decomposition=_index_fill, check=_check_filled_slices),
    Operator(
        "aten::index_put aten::index_put_ aten::scatter_add_ aten::scatter_reduce_",
        facts=Facts(kernel_checks=True, kernel_adds=True),
    ),
    Operator(
        "aten::index_reduce",
        facts=Facts(bad_arguments={"reduce": "is_bad_reduction_name", "self dim index source": "is_bad_index_reduce"}),
    ),
    Operator("aten::index_reduce.default", decomposition=_index_reduce),
    Operator(
        "aten::index_select", facts=Facts(bad_arguments={"self index": "is_bad_index_select"}, kernel_checks=True)
    ),
    Operator("aten::index_select.default", decomposition=_index_select, facts=Facts(shape_rule="index_select")),
    Operator(
        "aten::masked_fill",
        computed=Numbers(_masked_fill, ("value",)),
        filled="value",
        facts=Facts(
            bad_arguments={"self mask value": "is_bad_masked_fill"},
            check_values="check_filler",
            is_left_to_kernels=True,
        ),
    ),
    Operator("aten::masked_fill.Tensor", check=_check_filled),
    Operator("aten::masked_fill_.Scalar", facts=Facts(shape_rule="masked_fill_scalar")),
    Operator("aten::masked_fill_.Tensor", facts=Facts(shape_rule="masked_fill_tensor")),
    Operator("aten::masked_scatter", facts=Facts(bad_arguments={"mask": "is_bad_mask"}, kernel_checks=True)),
    Operator("aten::masked_scatter.default", decomposition=_masked_scatter, check=_check_count),
    Operator("aten::masked_select.default", facts=Facts(composed="masked_select")),
    Operator("aten::nonzero.default", facts=Facts(composed="nonzero")),
    Operator("aten::nonzero_static", guarded=("size", "fill_value")),
    Operator("aten::nonzero_static.default", decomposition=_nonzero_static),
    Operator("aten::put", facts=Facts(bad_arguments={"self index source": "is_bad_put"})),
    Operator("aten::repeat_interleave", facts=Facts(checked_values="sums", kernel_checks=True)),
    Operator("aten::repeat_interleave.Tensor", facts=Facts(composed="repeat_interleave")),
    Operator("aten::scatter.reduce aten::scatter.value_reduce", decomposition=_scatter_and_reduce),
    Operator("aten::scatter.src aten::scatter.value", decomposition=_scatter),
    Operator(
        "aten::scatter_add aten::scatter_reduce",
        facts=Facts(kernel_checks=True, kernel_adds=True, raises_runtime_error=True),
    ),
    Operator("aten::scatter_add.default", decomposition=_scatter_add),
    Operator("aten::scatter_reduce.two", decomposition=_scatter_reduce),
    Operator("outboard::combine_sorted.default", template="segments:combine_sorted"),
)

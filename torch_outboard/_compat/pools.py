# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: wrong lowerings of pooling, which eager kernels and compiled code share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

__all__ = [
    "fix_avg_pool_gradients",
    "fix_fractional_max_pool",
    "needs_fix_avg_pool_gradients",
    "needs_fix_fractional_max_pool",
]


class _Read(Exception):
    """Carries the index of the sample's dimension to read."""


class _Samples:
    def get_size(self) -> list[int]:
        return [1, 1, 3]

    def make_loader(self) -> Callable[[list[int]], NoReturn]:
        def load(index: list[int]) -> NoReturn:
            raise _Read(index[-1])

        return load


def needs_fix_fractional_max_pool() -> bool:
    """Return True if Inductor reads samples from the last dimension to the first, which is right only in 2-d."""
    from torch._inductor import lowering

    of_torch = lowering.lowerings[torch.ops.aten.fractional_max_pool3d.default]
    # Later versions of torch have it in another module.
    offsets = inspect.unwrap(of_torch).__globals__.get("_fractional_pooling_offsets")
    if offsets is None:
        return False
    sizes = [4, 4, 4]
    try:
        offsets(_Samples(), sizes, sizes, sizes, 0, 3)([0, 0], 0)
    except _Read as read:
        return bool(read.args[0] != 0)
    return False


def fix_fractional_max_pool(device: str) -> None:
    """Make compiled fractional_max_pool3d read its random samples as the kernels of torch do, for a device type.

    In 2-d, torch's kernels read the samples from the last dimension to the first; in 3-d, in the order of dimensions.
    Inductor uses the 2-d order for both, and up to half of the results are wrong elements. There is no hook for a
    device's own lowering. Upstream: https://github.com/pytorch/pytorch/issues/183249.
    """
    if not needs_fix_fractional_max_pool():
        return
    from torch._inductor import lowering

    operator, reverse = torch.ops.aten.fractional_max_pool3d.default, torch.ops.prims.rev.default
    of_torch = lowering.lowerings[operator]

    @functools.wraps(of_torch)
    def fractional_max_pool3d(x: Any, kernel_size: Any, output_size: Any, random_samples: Any) -> Any:
        if x.get_device().type == device:
            random_samples = lowering.lowerings[reverse](random_samples, [2])
        return of_torch(x, kernel_size, output_size, random_samples)

    lowering.lowerings[operator] = fractional_max_pool3d


def needs_fix_avg_pool_gradients() -> bool:
    """Return True if a mean's gradient divides by the whole window even if the window extends past the padding."""
    from torch._inductor import ir, lowering
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    operator = torch.ops.aten.avg_pool2d_backward.default
    of_torch = inspect.unwrap(lowering.lowerings[operator])
    nothing = torch.fx.Graph()
    nothing.output(())
    graph = GraphLowering(torch.fx.GraphModule({}, nothing))

    def image(size: int) -> ir.TensorBox:
        layout = ir.FixedLayout(torch.device("cpu"), torch.float32, [1, 1, size], [size, size, 1])
        return ir.TensorBox.create(ir.InputBuffer(name=f"image{size}", layout=layout))

    with V.set_graph_handler(graph):
        gradient = of_torch(image(4), image(8), [1, 3], [1, 2], [0, 0], True, True)
        text = gradient.data.data.inner_fn_str()
    return "index_expr(8" not in text


def fix_avg_pool_gradients(device: str) -> None:
    """Make gradients of means over windows use the same divisors as the means, for a device type.

    With ceil_mode, a last window may extend past the padding. The means count only its elements in the padded image,
    but Inductor's gradient divides by the size of the window. This patch divides the gradient first, and makes Inductor
    divide by 1. There is no hook for a device's own lowering. With a repaired torch, the gradient is still right.
    Upstream: https://github.com/pytorch/pytorch/issues/198119.
    """
    from torch._inductor import lowering

    for dims in (2, 3):
        operator = getattr(torch.ops.aten, f"avg_pool{dims}d_backward").default
        lowering.lowerings[operator] = _divided_first(lowering.lowerings[operator], dims, device)


def _divided_first(of_torch: Callable[..., Any], dims: int, device: str) -> Callable[..., Any]:
    @functools.wraps(of_torch)
    def gradient(
        grad: Any,
        x: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None = None,
    ) -> Any:
        if x.get_device().type == device and ceil_mode and divisor_override is None:
            sides = (x.get_size()[-dims:], kernel_size, stride or kernel_size, padding or [0] * dims)
            grad = _shares(grad, list(zip(*sides, strict=True)), count_include_pad)
            divisor_override = 1
        return of_torch(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return gradient


def _shares(grad: Any, sides: Sequence[tuple[Any, ...]], counts_padding: bool) -> Any:
    """Return gradients divided by the element counts of their windows; halves are computed in float."""
    from torch._inductor import ir
    from torch._inductor.virtualized import ops

    load = grad.make_loader()
    dtype = torch.promote_types(grad.get_dtype(), torch.float32)

    def whole(value: Any) -> Any:
        return ops.index_expr(value, torch.int64)

    def element(index: Sequence[Any]) -> Any:
        value = ops.to_dtype(load(index), dtype)
        for place, (length, size, stride, padding) in zip(index[-len(sides) :], sides, strict=True):
            begin = place * stride - padding
            first, last = whole(begin), whole(begin + size)
            if counts_padding:
                last = ops.minimum(last, whole(length + padding))
            else:
                first, last = ops.maximum(first, whole(0)), ops.minimum(last, whole(length))
            value = ops.truediv(value, ops.to_dtype(ops.sub(last, first), dtype))
        return value

    shares = ir.Pointwise.create(device=grad.get_device(), dtype=dtype, inner_fn=element, ranges=list(grad.get_size()))
    shares.realize()  # several windows read each element
    return shares

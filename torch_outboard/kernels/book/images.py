# SPDX-License-Identifier: BSD-3-Clause
"""Resizing of images, and windows of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from torch_outboard.kernels.book.copies import dense, in_memory, in_order_of
from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import widened
from torch_outboard.kernels.book.row import Body, Operator, RefusalReason
from torch_outboard.kernels.refusal import CallRefusal

__all__ = ["OPERATORS"]

# The CPU's kernel uses as many weight bits as fit its integers.
_IN_INTEGERS = RefusalReason("the CPU kernel computes uint8 in integer arithmetic [rounding]", (torch.uint8,))


def _windows(self: torch.Tensor, *args: Any) -> torch.Tensor:
    if min(args[2]) < 0:
        raise CallRefusal("the padding is negative [wrong-call]")
    result: torch.Tensor = decomposition_table[torch.ops.aten.im2col.default](self, *args)
    return dense(result)


def _check_places(_: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *__: Any) -> None:
    is_place = torch.logical_and(indices >= 0, indices < math.prod(output_size))
    torch.ops.aten._assert_async.msg(is_place.all(), "Found an invalid max index")


def _linear(self: torch.Tensor, output_size: Sequence[Any], align_corners: bool, *scales: float | None) -> torch.Tensor:
    """Add two weighted neighbours along each side.

    Torch adds a part of their difference, which infinities turn into NaN.
    """
    image = widened(self)
    dims = len(output_size)
    sides = []
    for dim, (size, count) in enumerate(zip(self.shape[2:], output_size, strict=True)):
        scale = scales[dim] if dim < len(scales) else None
        place = torch.arange(count, device=self.device).to(image.dtype)
        if align_corners:
            place = place * ((size - 1) / (count - 1) if count > 1 else 0)
        else:
            place = ((place + 0.5) * (1 / scale if scale else size / count) - 0.5).clamp(min=0)
        low = place.to(torch.int64).clamp(max=size - 1)
        share = (place - low).clamp(max=1)
        sides.append(
            [places.view(-1, *[1] * (dims - 1 - dim)) for places in (low, (low + 1).clamp(max=size - 1), share)]
        )

    def value(corner: list[torch.Tensor]) -> torch.Tensor:
        if len(corner) == dims:
            pixels: torch.Tensor = torch.ops.aten._unsafe_index.Tensor(image, [None, None, *corner])
            return pixels
        low, high, share = sides[len(corner)]
        return value([*corner, low]) * (1 - share) + value([*corner, high]) * share

    return in_order_of(value([]).to(self.dtype), self)


def _used_scales(scales: Sequence[float | None], sizes: Sequence[Any], counts: Sequence[Any]) -> list[float | None]:
    """Return the scales that find nearest elements: a side that keeps or doubles its length ignores its scale."""
    sides = zip(scales, sizes, counts, strict=True)
    return [None if scale and (count == size or count == 2 * size) else scale for scale, size, count in sides]


def _nearest_elements(name: str) -> Callable[..., torch.Tensor]:
    def body(self: torch.Tensor, output_size: Sequence[Any], *scales: float | None) -> torch.Tensor:
        all_scales = [*scales, *[None] * (self.dim() - 2 - len(scales))]
        used = _used_scales(all_scales, self.shape[2:], output_size)
        return getattr(torch.ops.aten, name).default(self, output_size, *used)  # type: ignore[no-any-return]

    return body


def _nearest(kind: str) -> Callable[..., torch.Tensor]:
    def body(grad: torch.Tensor, output_size: Any, input_size: Sequence[Any], *scales: float | None) -> torch.Tensor:
        all_scales = [*scales, *[None] * (grad.dim() - 2 - len(scales))]
        used = _used_scales(all_scales, input_size[2:], output_size) if kind == "nearest" else all_scales
        return _gradient(grad, input_size, kind, False, used)

    return body


def _weighted(kind: str) -> Callable[..., torch.Tensor]:
    def body(
        grad: torch.Tensor, output_size: Any, input_size: Sequence[Any], align_corners: bool, *scales: float | None
    ) -> torch.Tensor:
        return _gradient(grad, input_size, kind, align_corners, scales)

    return body


def _gradient(
    grad: torch.Tensor, input_size: Sequence[Any], kind: str, align_corners: bool, scales: Sequence[float | None]
) -> torch.Tensor:
    from torch_outboard.kernels.templates.upsampling import upsample_backward

    known = [scale or 0.0 for scale in scales] + [0.0] * (grad.dim() - 2 - len(scales))  # a missing scale is None
    like = grad.new_empty(input_size)
    result: torch.Tensor = upsample_backward(grad, like, kind, align_corners, known)
    return result


# With antialiasing, a pixel is the mean of a window of the image, weighted by distance.


def _triangle(distance: torch.Tensor) -> torch.Tensor:
    return (1 - distance.abs()).clamp(min=0)


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """Return the weights of R. Keys ("Cubic convolution interpolation for digital image processing", 1981)."""
    x = distance.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


_WEIGHTS = {"bilinear": (1.0, _triangle), "bicubic": (2.0, _cubic)}  # reach and shape of the weights


class _Side:
    """One side of an image that is resized with antialiasing."""

    def __init__(self, kind: str, length: int, count: int, align_corners: bool, scale: float | None) -> None:
        self._reach, self._weight = _WEIGHTS[kind]
        self._length, self._count = length, count
        if align_corners:
            self._scale = (length - 1) / (count - 1) if count > 1 else 0.0
        else:
            self._scale = 1 / scale if scale else length / count

    def windows(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the indices that each result reads, their weights, and a mask of the entries in its window.

        All windows have the same size.
        """
        size = min(2 * math.ceil(self._reach * max(self._scale, 1)) + 1, self._length)
        begin, end, middle = self._bounds(like)
        places = begin[:, None] + torch.arange(size, device=like.device)
        is_own = places < end[:, None]
        weights = self._weighted(places, middle[:, None], is_own)
        return places.clamp(max=self._length - 1), in_memory(weights), is_own

    def matrix(self, like: torch.Tensor) -> torch.Tensor:
        """Return the weight of each element in each result."""
        begin, end, middle = (bound[:, None] for bound in self._bounds(like))
        places = torch.arange(self._length, device=like.device)[None]
        return self._weighted(places, middle, (places >= begin) & (places < end))

    def _bounds(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        middle = (torch.arange(self._count, device=like.device).to(like.dtype) + 0.5) * self._scale
        reach = self._reach * max(self._scale, 1.0)
        begin, end = ((middle + offset + 0.5).to(torch.int64) for offset in (-reach, reach))  # toward 0, as in ATen
        return begin.clamp(min=0), end.clamp(max=self._length), middle

    def _weighted(self, places: torch.Tensor, middle: torch.Tensor, is_inside: torch.Tensor) -> torch.Tensor:
        distance = (places.to(middle.dtype) - middle + 0.5) / max(self._scale, 1.0)
        weights = torch.where(is_inside, self._weight(distance), 0)
        return weights / weights.sum(-1, keepdim=True)


def _smooth(kind: str) -> Callable[..., torch.Tensor]:
    def body(self: torch.Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Any:
        image = widened(self)
        for dim, count, scale in _sides(output_size, scales):
            side = _Side(kind, int(self.shape[dim]), int(count), align_corners, scale)
            places, weights, is_own = side.windows(image)
            parts = torch.where(is_own, image.movedim(dim, -1)[..., places] * weights, 0)
            image = parts.sum(-1).movedim(-1, dim)
        return in_order_of(image.to(self.dtype), self)

    return body


def _smooth_gradient(kind: str) -> Callable[..., torch.Tensor]:
    def body(
        grad: torch.Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool, *scales: Any
    ) -> torch.Tensor:
        result = widened(grad)
        for dim, count, scale in _sides(output_size, scales):
            side = _Side(kind, int(input_size[dim]), int(count), align_corners, scale)
            result = (result.movedim(dim, -1) @ side.matrix(result)).movedim(-1, dim)
        return in_order_of(result.to(grad.dtype), grad)

    return body


def _sides(output_size: Sequence[int], scales: Sequence[float | None]) -> Any:
    """Return the dimensions of an image, their new lengths and the given scales, from the last dimension on."""
    return zip((-1, -2), reversed(output_size), reversed([*scales, None, None][:2]), strict=True)


OPERATORS = (
    Operator(
        "aten::_upsample_bicubic2d_aa aten::_upsample_bilinear2d_aa aten::upsample_trilinear3d",
        facts=Facts(checks_all_in_meta=True),
    ),
    Operator("aten::_upsample_bicubic2d_aa.default", decomposition=_smooth("bicubic"), refused=_IN_INTEGERS),
    Operator("aten::_upsample_bicubic2d_aa_backward.default", decomposition=_smooth_gradient("bicubic")),
    Operator("aten::_upsample_bilinear2d_aa.default", decomposition=_smooth("bilinear"), refused=_IN_INTEGERS),
    Operator("aten::_upsample_bilinear2d_aa_backward.default", decomposition=_smooth_gradient("bilinear")),
    Operator("aten::_upsample_nearest_exact1d_backward.default", decomposition=_nearest("nearest_exact")),
    Operator("aten::_upsample_nearest_exact2d_backward.default", decomposition=_nearest("nearest_exact")),
    Operator("aten::_upsample_nearest_exact3d_backward.default", decomposition=_nearest("nearest_exact")),
    Operator(
        "aten::channel_shuffle aten::native_channel_shuffle aten::replication_pad2d", facts=Facts(layout="suggested")
    ),
    Operator("aten::im2col.default", decomposition=_windows),
    Operator("aten::max_unpool2d", facts=Facts(layout="suggested", raises_runtime_error=True)),
    Operator("aten::max_unpool2d.default aten::max_unpool3d.default", check=_check_places),
    Operator("aten::max_unpool3d", facts=Facts(raises_runtime_error=True)),
    Operator("aten::reflection_pad2d_backward", facts=Facts(layout="suggested", like=1)),
    Operator(
        "aten::upsample_bicubic2d", guarded=("output_size",), refused=_IN_INTEGERS, facts=Facts(checks_all_in_meta=True)
    ),
    Operator("aten::upsample_bicubic2d_backward.default", decomposition=_weighted("cubic")),
    # Torch decomposes it before the book is consulted.
    Operator(
        "aten::upsample_bilinear2d",
        computed=Body(_linear),
        guarded=("output_size",),
        refused=_IN_INTEGERS,
        facts=Facts(checks_all_in_meta=True),
    ),
    Operator("aten::upsample_bilinear2d_backward.default", decomposition=_weighted("linear")),
    Operator("aten::upsample_linear1d", guarded=("output_size",), facts=Facts(checks_all_in_meta=True)),
    Operator("aten::upsample_linear1d_backward.default", decomposition=_weighted("linear")),
    Operator(
        "aten::upsample_nearest1d",
        computed=Body(_nearest_elements("upsample_nearest1d")),
        guarded=("output_size",),
        facts=Facts(checks_all_in_meta=True),
    ),
    Operator("aten::upsample_nearest1d_backward.default", decomposition=_nearest("nearest")),
    Operator(
        "aten::upsample_nearest2d",
        computed=Body(_nearest_elements("upsample_nearest2d")),
        guarded=("output_size",),
        facts=Facts(checks_all_in_meta=True),
    ),
    Operator("aten::upsample_nearest2d_backward.default", decomposition=_nearest("nearest")),
    Operator(
        "aten::upsample_nearest3d",
        computed=Body(_nearest_elements("upsample_nearest3d")),
        guarded=("output_size",),
        facts=Facts(checks_all_in_meta=True),
    ),
    Operator("aten::upsample_nearest3d_backward.default", decomposition=_nearest("nearest")),
    Operator("aten::upsample_linear1d.default aten::upsample_trilinear3d.default", decomposition=_linear),
    Operator("aten::upsample_trilinear3d_backward.default", decomposition=_weighted("linear")),
    Operator("outboard::upsample_backward.default", template="upsampling:backward"),
)

# SPDX-License-Identifier: BSD-3-Clause
"""Images resized, and their windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from torch_outboard.kernels.book.pooling import dense
from torch_outboard.kernels.book.row import Operator, Refused

__all__ = ["OPERATORS"]

# With weights of as many bits as one of the CPU's kernels has room for.
_IN_INTEGERS = Refused("of bytes, the CPU's kernel computes in integers", (torch.uint8,))


def _windows(self: torch.Tensor, *given: Any) -> torch.Tensor:
    result: torch.Tensor = decomposition_table[torch.ops.aten.im2col.default](self, *given)
    return dense(result)


def _check_places(_: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *__: Any) -> None:
    is_place = torch.logical_and(indices >= 0, indices < math.prod(output_size))
    torch.ops.aten._assert_async.msg(is_place.all(), "Found an invalid max index")


def _trilinear(*given: Any) -> Any:
    return decomposition_table[torch.ops.aten.upsample_trilinear3d.default](*given)


def _nearest(kind: str) -> Callable[..., torch.Tensor]:
    def body(grad: torch.Tensor, output_size: Any, input_size: Sequence[Any], *scales: float | None) -> torch.Tensor:
        return _gradient(grad, input_size, kind, False, scales)

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

    known = [one or 0.0 for one in scales] + [0.0] * (grad.dim() - 2 - len(scales))  # those left out are None
    like = grad.new_empty(input_size)
    result: torch.Tensor = upsample_backward(grad, like, kind, align_corners, known)
    return result


OPERATORS = (
    Operator("aten::_upsample_nearest_exact1d_backward.default", decomposition=_nearest("nearest_exact")),
    Operator("aten::_upsample_nearest_exact2d_backward.default", decomposition=_nearest("nearest_exact")),
    Operator("aten::_upsample_nearest_exact3d_backward.default", decomposition=_nearest("nearest_exact")),
    Operator("aten::im2col.default", decomposition=_windows),
    Operator("aten::max_unpool2d.default aten::max_unpool3d.default", check=_check_places),
    Operator("aten::upsample_bicubic2d", guarded=("output_size",), refused=_IN_INTEGERS),
    Operator("aten::upsample_bicubic2d_backward.default", decomposition=_weighted("cubic")),
    Operator("aten::upsample_bilinear2d", guarded=("output_size",), refused=_IN_INTEGERS),
    Operator("aten::upsample_bilinear2d_backward.default", decomposition=_weighted("linear")),
    Operator("aten::upsample_linear1d", guarded=("output_size",)),
    Operator("aten::upsample_linear1d_backward.default", decomposition=_weighted("linear")),
    Operator("aten::upsample_nearest1d", guarded=("output_size",)),
    Operator("aten::upsample_nearest1d_backward.default", decomposition=_nearest("nearest")),
    Operator("aten::upsample_nearest2d", guarded=("output_size",)),
    Operator("aten::upsample_nearest2d_backward.default", decomposition=_nearest("nearest")),
    Operator("aten::upsample_nearest3d", guarded=("output_size",)),
    Operator("aten::upsample_nearest3d_backward.default", decomposition=_nearest("nearest")),
    Operator("aten::upsample_trilinear3d.default", decomposition=_trilinear),
    Operator("aten::upsample_trilinear3d_backward.default", decomposition=_weighted("linear")),
    Operator("outboard::upsample_backward.default", template="upsampling:backward"),
)

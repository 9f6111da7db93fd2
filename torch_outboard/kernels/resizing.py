# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of resized images, for which there is a template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard.kernels.templates.upsampling import upsample_backward

__all__ = ["decompositions"]


def decompositions() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    return {
        aten._upsample_nearest_exact1d_backward.default: _nearest("nearest_exact"),
        aten._upsample_nearest_exact2d_backward.default: _nearest("nearest_exact"),
        aten._upsample_nearest_exact3d_backward.default: _nearest("nearest_exact"),
        aten.upsample_bicubic2d_backward.default: _weighted("cubic"),
        aten.upsample_bilinear2d_backward.default: _weighted("linear"),
        aten.upsample_linear1d_backward.default: _weighted("linear"),
        aten.upsample_nearest1d_backward.default: _nearest("nearest"),
        aten.upsample_nearest2d_backward.default: _nearest("nearest"),
        aten.upsample_nearest3d_backward.default: _nearest("nearest"),
        aten.upsample_trilinear3d_backward.default: _weighted("linear"),
    }


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
    known = [one or 0.0 for one in scales] + [0.0] * (grad.dim() - 2 - len(scales))  # those left out are None
    like = grad.new_empty(input_size)
    result: torch.Tensor = upsample_backward(grad, like, kind, align_corners, known)
    return result

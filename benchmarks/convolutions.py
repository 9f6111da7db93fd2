# SPDX-License-Identifier: BSD-3-Clause
"""Measure convolutions and their gradients on nv against torch's CUDA device, in one process in turns.

    benchmarks/convolutions.py

A figure is the median of the rounds for one call; the host waits for every twenty calls. A ratio is the median of the
ratios of all rounds. Both multiply float32 as float32, and their results are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from _against_cuda import compare

# isort: split
import torch

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A convolution: sizes, what differs from the defaults, its dtype and its layout."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    is_last: bool = True
    is_transposed: bool = False
    has_bias: bool = False

    def arguments(self) -> tuple[object, ...]:
        rank = len(self.input) - 2
        options = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1} | self.options
        lists = [[options[name]] * rank for name in ("stride", "padding", "dilation", "output_padding")]
        return (*lists[:3], self.is_transposed, lists[3], options["groups"])

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(DTYPES[self.dtype])
        return x.contiguous(memory_format=LAST[x.dim()]) if self.is_last and x.dim() in LAST else x


def three(channels: int, size: int, batch: int = 32, **more: Any) -> Case:
    return Case((batch, channels, size, size), (channels, channels, 3, 3), {"padding": 1}, **more)


CASES = {
    "resnet50 stem, 7×7 of 224², 32 images": Case((32, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "1×1, 64 to 256, 56²": Case((32, 64, 56, 56), (256, 64, 1, 1)),
    "1×1, 1024 to 256, 14²": Case((32, 1024, 14, 14), (256, 1024, 1, 1)),
    "3×3, 64 channels, 56²": three(64, 56),
    "3×3, 128 channels, 28²": three(128, 28),
    "3×3, 256 channels, 14²": three(256, 14),
    "3×3, 512 channels, 7²": three(512, 7),
    "3×3, 64 channels, 56², bias": three(64, 56, has_bias=True),
    "3×3, 64 channels, 56², contiguous": three(64, 56, is_last=False),
    "3×3, 256 channels, 14², float16": three(256, 14, dtype="float16"),
    "3×3, 64 channels, 56², float32": three(64, 56, dtype="float32", is_last=False),
    "3×3, 256 channels, 14², float32": three(256, 14, dtype="float32", is_last=False),
    "3×3, 128 channels, 28², float32, channels last": three(128, 28, dtype="float32"),
    "3×3 by 2, 128 channels, 56²": Case((32, 128, 56, 56), (128, 128, 3, 3), {"stride": 2, "padding": 1}),
    "dilated 3×3, 256 channels, 28²": Case((8, 256, 28, 28), (256, 256, 3, 3), {"padding": 2, "dilation": 2}),
    "depthwise 3×3, 96 channels, 56²": Case((32, 96, 56, 56), (96, 1, 3, 3), {"padding": 1, "groups": 96}),
    "depthwise 7×7, 96 channels, 56²": Case((32, 96, 56, 56), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    "5×5, 64 channels, 28²": Case((32, 64, 28, 28), (64, 64, 5, 5), {"padding": 2}),
    "5×5 by 2, 96 to 192, 28²": Case((32, 96, 28, 28), (192, 96, 5, 5), {"padding": 2, "stride": 2}),
    "1×1 by 2, 256 to 512, 56²": Case((32, 256, 56, 56), (512, 256, 1, 1), {"stride": 2}),
    "1×1, 2048 to 512, 7²": Case((32, 2048, 7, 7), (512, 2048, 1, 1)),
    "3×3, 64 channels, 224², one image": three(64, 224, batch=1),
    "3×3, 61 to 67 channels, 33²": Case((8, 61, 33, 33), (67, 61, 3, 3), {"padding": 1}),
    "16×16 by 16, 3 to 768, 224²": Case((32, 3, 224, 224), (768, 3, 16, 16), {"stride": 16}, has_bias=True),
    "4×4 by 4, 3 to 96, 224²": Case((32, 3, 224, 224), (96, 3, 4, 4), {"stride": 4}, has_bias=True),
    "1-d, 3 by 2 of 512, 3000": Case((8, 512, 3000), (512, 512, 3), {"padding": 1, "stride": 2}, has_bias=True),
    "32 groups of 4, 3×3, 56²": Case((32, 128, 56, 56), (128, 4, 3, 3), {"padding": 1, "groups": 32}),
    "transposed 2×2 by 2, 128 to 64, 56²": Case(
        (8, 128, 56, 56), (128, 64, 2, 2), {"stride": 2}, is_transposed=True, has_bias=True
    ),
    "1-d, 3 of 80 to 512, 3000": Case((8, 80, 3000), (512, 80, 3), {"padding": 1}, has_bias=True),
    "3-d, 3×3×3, 32 channels, 32³": Case((4, 32, 32, 32, 32), (32, 32, 3, 3, 3), {"padding": 1}),
}


def functions(case: Case, device: torch.device) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the convolution and its gradients on a device, of the same numbers on each."""
    torch.manual_seed(0)
    x, weight = (case.laid_out(torch.randn(sizes)).to(device) for sizes in (case.input, case.weight))
    channels = case.weight[1] * case.options.get("groups", 1) if case.is_transposed else case.weight[0]
    bias = torch.randn(channels).to(DTYPES[case.dtype]).to(device) if case.has_bias else None
    gradient = torch.convolution(x, weight, bias, *case.arguments())
    mask = [True, True, case.has_bias]

    def backward() -> Any:
        sizes = [channels] if case.has_bias else None
        return torch.ops.aten.convolution_backward(gradient, x, weight, sizes, *case.arguments(), mask)

    return lambda: torch.convolution(x, weight, bias, *case.arguments()), backward


def difference(ours: Any, theirs: Any) -> float:
    """Return the greatest difference of the results, in units of the greatest number."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, (tuple, list)) else [(ours, theirs)]
    differences = [
        float((result.cpu().float() - wanted.cpu().float()).abs().max() / wanted.cpu().float().abs().max())
        for result, wanted in pairs
        if wanted is not None
    ]
    return max(differences)


if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = False
    sys.exit(compare("convolutions", __doc__.splitlines()[0], CASES, functions, difference))

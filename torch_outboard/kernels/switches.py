# SPDX-License-Identifier: BSD-3-Clause
"""Torch's switches that allow float32 products and convolutions to round to TF32, as on CUDA.

csrc/ops/planned/recipes.cpp reads the switches, which are part of a call's class.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["allowed", "rounded"]


def rounded() -> list[bool]:
    """Return two flags: whether products may be rounded, and whether convolutions may be."""
    return [_rounds("product"), _rounds("convolution")]


def allowed(dialect: Dialect, family: str) -> Dialect:
    """Return the dialect, without the matrix units that the switches forbid for a family of operators."""
    units = tuple(unit for unit in dialect.units if not unit.is_rounded or _rounds(family))
    return dialect if len(units) == len(dialect.units) else replace(dialect, units=units)


def _rounds(family: str) -> bool:
    switches = {
        "product": torch.backends.cuda.matmul,
        "convolution": torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        "convolution_gradients": torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    }
    return family in switches and switches[family].fp32_precision == "tf32"

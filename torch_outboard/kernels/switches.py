# SPDX-License-Identifier: BSD-3-Clause
"""Torch's switches that let products and convolutions of float32 be rounded to TF32, as on CUDA.

csrc/ops/planned/recipes.cpp reads them for the class of a call.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["allowed", "rounded"]


def rounded() -> list[bool]:
    """Return whether products and convolutions may be rounded."""
    return [_rounds("product"), _rounds("convolution")]


def allowed(dialect: Dialect, family: str) -> Dialect:
    """Return the dialect with the matrix units that the switches allow for a family of operators."""
    units = tuple(unit for unit in dialect.units if not unit.is_rounded or _rounds(family))
    return dialect if len(units) == len(dialect.units) else replace(dialect, units=units)


def _rounds(family: str) -> bool:
    switches = {
        "product": torch.backends.cuda.matmul,
        "convolution": torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        "convolution_gradients": torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    }
    return family in switches and switches[family].fp32_precision == "tf32"

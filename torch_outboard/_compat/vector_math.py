# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15 with oneMKL before 2025: the CPU's functions of one variable."""

from __future__ import annotations

import re

import torch

__all__ = ["initialize_vector_math", "needs_initialize_vector_math"]

# The functions that aten/src/ATen/cpu/vml.h takes from oneMKL, and the operators that use them.
_FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor"),
    *("lgamma", "log", "log10", "log1p", "log2", "round", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)


def needs_initialize_vector_math() -> bool:
    """Return True if torch has a oneMKL that selects a function's code in its first call, without a lock."""
    version = re.search(r"Math Kernel Library Version (\d+)", torch.__config__.show())
    return version is not None and int(version[1]) < 2025


def initialize_vector_math() -> None:
    """Call the CPU's functions of one variable once on one thread, before operators call them on several.

    The first call of such a function selects its code. If several threads make the first call at once, one thread may
    run low-accuracy code for its part of the numbers. Errors of 1e-4 occur in a fifth of the processes whose first call
    is large (https://github.com/pytorch/pytorch/issues/188792). The host provider runs the CPU's operators for the
    device, and tests compare the device with them. A call on a single number never uses a second thread. All calls
    together take 2 ms.
    """
    if not needs_initialize_vector_math():
        return
    for dtype in (torch.float32, torch.float64):
        number = torch.ones(1, dtype=dtype, device="cpu")
        for name in _FUNCTIONS:
            getattr(torch, name)(number)

# SPDX-License-Identifier: BSD-3-Clause
"""A custom operator in C++ for every driver: builds softclip.cpp with torch's cpp_extension.

OUTBOARD_DRIVER=sim python -m examples.custom_operator
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils import cpp_extension

import torch_outboard

__all__ = ["build", "softclip"]


def build(folder: str | None = None) -> None:
    """Compile the operator, unless it is already compiled, and load it; `folder` is the build folder."""
    libraries = torch_outboard.library_paths()
    cpp_extension.load(
        "outboard_softclip",
        [str(Path(__file__).parent / "softclip.cpp")],
        extra_include_paths=torch_outboard.include_paths(),
        extra_ldflags=[f"-L{path}" for path in libraries]
        + [f"-Wl,-rpath,{path}" for path in libraries]
        + ["-ltorch_outboard"],
        extra_cflags=["-std=c++20"],
        build_directory=folder,
        is_python_module=False,
    )


def softclip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return limit * tanh(x / limit); raise ValueError unless limit is positive."""
    return torch.ops.outboard_example.softclip(x, limit)

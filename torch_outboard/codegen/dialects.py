# SPDX-License-Identifier: BSD-3-Clause
"""The dialects by their names: those of this package and those that a vendor's generator brings."""

from __future__ import annotations

from torch_outboard.codegen.cuda_cpp import CUDA_CPP
from torch_outboard.codegen.dialect import Dialect
from torch_outboard.codegen.host_cpp import HOST_CPP
from torch_outboard.codegen.opencl_c import OPENCL_C

__all__ = ["add_dialect", "find_dialect"]

_dialects = {one.name: one for one in (CUDA_CPP, OPENCL_C, HOST_CPP)}


def add_dialect(dialect: Dialect) -> None:
    """Makes a dialect known to generated code. ValueError for another one of the same name."""
    if _dialects.setdefault(dialect.name, dialect) != dialect:
        raise ValueError(f"there is another dialect {dialect.name!r}: give yours another name")


def find_dialect(name: str) -> Dialect:
    """Gives a dialect. KeyError if there is none of the name."""
    return _dialects[name]

# SPDX-License-Identifier: BSD-3-Clause
"""A registry of dialects by name: this package's dialects, and the dialects that vendors' generators add."""

from __future__ import annotations

from torch_outboard.codegen.dialects.cuda_cpp import CUDA_CPP
from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.slang import SLANGS

__all__ = ["add_dialect", "find_dialect"]

_dialects: dict[str, Dialect] = {dialect.name: dialect for dialect in (CUDA_CPP, OPENCL_C, HOST_CPP)} | SLANGS


def add_dialect(dialect: Dialect) -> None:
    """Register a dialect for generated code.

    Raises
    ------
    ValueError
        If another dialect has the same name.
    """
    if _dialects.setdefault(dialect.name, dialect) != dialect:
        raise ValueError(f"the dialect name {dialect.name!r} is taken: choose another one")


def find_dialect(name: str) -> Dialect:
    """Return a dialect by its name. Raise KeyError if no dialect has the name."""
    return _dialects[name]

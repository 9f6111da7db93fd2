# SPDX-License-Identifier: BSD-3-Clause
"""What a dialect says about its language: the table that a vendor fills to get generated kernels.

The bodies of kernels are one text for all dialects, in the part of C that opencl_c, C++ and CUDA C++ share. It uses the
types `ob_i8` … `ob_u64`, `float`, `double` and `bool`, and helpers of prelude/, which are written the same way. What
differs is here: how a kernel begins, what stands before pointers, how an item learns its number, and how functions of
the language's library are called.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["COMPUTE_TYPES", "HALVES", "STORAGE_TYPES", "SUFFIXES", "Dialect", "prelude"]

HALVES = (torch.float16, torch.bfloat16)

SUFFIXES = {
    torch.bool: "b8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}

# Of an element in memory. A bool is a byte, since languages differ about its size in memory.
STORAGE_TYPES = {
    dtype: {"b8": "ob_u8", "f16": "ob_u16", "bf16": "ob_u16", "f32": "float", "f64": "double"}.get(name, "ob_" + name)
    for dtype, name in SUFFIXES.items()
}

# Of a variable. Halves are computed in float.
COMPUTE_TYPES = {
    **STORAGE_TYPES,
    torch.bool: "bool",
    torch.float16: "float",
    torch.bfloat16: "float",
}


@dataclass(frozen=True)
class Dialect:
    """A language in which kernels are generated.

    Attributes
    ----------
    name : str
        What it is called; `program_build` gets it as the language unless `language` says another one.
    header : str
        Stands before everything: `ob_i8` … `ob_u64` as types and these macros, which prelude/ and kernels use.
        OB_DEVICE before a helper, OB_GLOBAL before what a pointer to the device's memory points to, OB_RESTRICT,
        OB_LIB(name) for a function of C's library that is generic in its type, OB_AS_F32, OB_AS_U32, OB_AS_F64 and
        OB_AS_U64 for the bits of a number as another one's, OB_INFINITY, OB_NAN.
    kernel : str
        How a kernel begins: a format of `name` and `parameters`.
    item : str
        The number of this item in the launch, an expression of 64 bits.
    group : int
        Items of a group in a launch of one dimension.
    lanes : int
        Independent accumulators of an item that reduces a row. A power of two.
    language, options : str
        For `program_build`.
    runs_on_host : bool
        Whether a kernel is a function of the host's C++, called with the number of an item as its first argument.
    has_double : bool
        Whether there is `double`. Without it kernels of float64 are refused.
    functions : mapping of str to str
        Spellings of functions of C's library that differ from OB_LIB: {"exp": "ob_my_exp"}.
    fail : str or None
        A statement that ends a kernel with the failure `message`, a C string: a format. None if kernels can't: then
        operators that check indices are left to the providers of eager calls.
    atomics : frozenset of str
        Suffixes of types for which the dialect's header has OB_ATOMIC_ADD_<suffix>(pointer, value).
    """

    name: str
    header: str
    kernel: str
    item: str
    group: int = 64
    lanes: int = 16
    language: str = ""
    options: str = ""
    runs_on_host: bool = False
    has_double: bool = True
    functions: Mapping[str, str] = field(default_factory=dict, hash=False)
    fail: str | None = None
    atomics: frozenset[str] = frozenset()

    def function(self, name: str) -> str:
        """Gives the spelling of a function of C's library."""
        return self.functions.get(name, f"OB_LIB({name})")

    @property
    def real(self) -> torch.dtype:
        """The type in which fractions of sizes are computed."""
        return torch.float64 if self.has_double else torch.float32

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether kernels may load, compute and store elements of this type."""
        return dtype in STORAGE_TYPES and (self.has_double or dtype != torch.float64)

    def source(self, kernel: str) -> str:
        """Gives the whole text of a program: the header, what the kernel uses of the prelude, the kernel."""
        first = ["#define OB_HAS_DOUBLE 1", "#define ob_real double"] if self.has_double else ["#define ob_real float"]
        return "\n".join([*first, self.header, *(_used(part, kernel) for part in prelude()), kernel])


# In the order in which they use each other.
_FILES = ("integer", "float", "half", "random")
_HELPER = re.compile(r"\bob_\w+")
# A family of helpers for a type, whose names end with its suffix.
_FAMILY = re.compile(r"^OB_[A-Z]+\((?:\w+, )+(?P<suffix>\w+)\)\n", re.MULTILINE)


@functools.cache
def prelude() -> tuple[str, ...]:
    """Gives the files of the prelude."""
    folder = Path(__file__).with_name("prelude")
    return tuple((folder / f"{name}.h").read_text(encoding="utf-8") for name in _FILES)


def _used(part: str, kernel: str) -> str:
    """Gives a file without the families that a kernel calls nothing of; nothing if it calls nothing at all."""
    called = set(_HELPER.findall(kernel))
    suffixes = {name.rpartition("_")[2] for name in called}
    has_families = _FAMILY.search(part) is not None
    part = _FAMILY.sub(lambda family: family[0] if family["suffix"] in suffixes else "", part)
    is_used = bool(_FAMILY.search(part)) if has_families else bool(called & set(_HELPER.findall(part)))
    return part if is_used else ""

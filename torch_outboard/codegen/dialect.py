# SPDX-License-Identifier: BSD-3-Clause
"""What a dialect says about its language: the table that a vendor fills to get generated kernels.

The bodies of kernels are one text for all dialects, in the part of C that opencl_c, C++ and CUDA C++ share. It uses the
types `ob_i8` … `ob_u64`, `float`, `double` and `bool`, and helpers of prelude/, which are written the same way. What
differs is here: how a kernel begins, what stands before pointers, how an item learns its number, and how functions of
the language's library are called.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import torch

from torch_outboard.codegen.helpers import needed_by

__all__ = ["COMPUTE_TYPES", "FLOAT8", "HALVES", "NARROW", "STORAGE_TYPES", "SUFFIXES", "Dialect"]

HALVES = (torch.float16, torch.bfloat16)

# Without float8_e8m0fnu, of which Inductor lowers nothing.
FLOAT8 = {
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float8_e5m2: "e5m2",
    torch.float8_e5m2fnuz: "e5m2fnuz",
}

# Types of memory, which are computed in float: their helpers are `ob_from_<suffix>` and `ob_to_<suffix>`.
NARROW = (*HALVES, *FLOAT8)

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
    **FLOAT8,
}

# Of an element in memory. A bool is a byte, since languages differ about its size in memory.
STORAGE_TYPES = {
    **{dtype: "ob_" + name for dtype, name in SUFFIXES.items()},
    torch.bool: "ob_u8",
    torch.float32: "float",
    torch.float64: "double",
    **{dtype: f"ob_u{8 * dtype.itemsize}" for dtype in NARROW},
}

# Of a variable.
COMPUTE_TYPES = {**STORAGE_TYPES, torch.bool: "bool", **dict.fromkeys(NARROW, "float")}


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
        OB_TABLE before a table of constants of the whole program, OB_TABLE_AT before what a pointer into one points to,
        OB_LIB(name) for a function of C's library that is generic in its type, OB_AS_F32, OB_AS_U32, OB_AS_F64 and
        OB_AS_U64 for the bits of a number as another one's, OB_INFINITY, OB_NAN. OB_VECTORS(count) may say to a
        compiler for CPUs that the loop that follows is to become one of vectors of 16 elements, `count` of them a turn;
        where it isn't there it is nothing.
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
    raises : str
        Functions that end a kernel with an exception, which stand before kernels that call them: `ob_raise_index(name,
        index, size)` for an operator's index that is out of bounds, and `ob_raise_assert(message)`, given C strings.
    records : bool
        Whether kernels say what is wrong in the record of their stream (prelude/failure.h), and go on: the header has
        OB_TAKE(pointer), which sets a 32-bit number that is 0 to 1 and is true for one of those that come. Without
        either, operators that check indices are left to the providers of eager calls.
    atomics : frozenset of str
        Suffixes of types to which kernels add atomically: for which the header has `ob_atomic_add_<suffix>(pointer,
        value)`. Those of halves are the prelude's, by OB_CAS(pointer, seen, next), a comparison and exchange of 32 bits
        that gives what was there.
    vectors : str
        Vectors of 32 bytes, for CPUs, which stand before kernels that use them. For each suffix of f32, f64, u32 and
        u64: a type `ob_vec_<suffix>` with `+`, `ob_vec_splat_<suffix>(number)`, `ob_vec_load_<suffix>(pointer)`,
        `ob_vec_store_<suffix>(vector, pointer)` and `ob_vec_add_product_<suffix>(number, vector, sum)`, by a fused
        multiplication where the device has one. Pointers are those of an item's own memory.
    has_groups : bool
        Whether items of a group share memory: the header has OB_LOCAL before what is declared in it, OB_LOCAL_AT before
        what a pointer into it points to, OB_BARRIER, OB_ITEM_OF_GROUP and OB_GROUP_NUMBER, and there are vectors
        `float4` and `uint4` with members x, y, z and w. Without groups and vectors there are no products.
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
    raises: str = ""
    records: bool = False
    atomics: frozenset[str] = frozenset()
    vectors: str = ""
    has_groups: bool = False

    def function(self, name: str) -> str:
        """Gives the spelling of a function of C's library."""
        return self.functions.get(name, f"OB_LIB({name})")

    def described(self) -> str:
        """Gives all that it says as text, the same in every process: the order of a set differs between them."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        given["atomics"], given["functions"] = sorted(self.atomics), sorted(self.functions.items())
        return repr(given)

    @property
    def checks(self) -> bool:
        """Whether kernels can say that an index or an assertion is wrong."""
        return self.records or self.raises != ""

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
        raises = [self.raises] if "ob_raise_" in kernel else []
        vectors = [self.vectors] if "ob_vec_" in kernel else []
        narrow = [f"#define OB_BEYOND_E4M3FN {_beyond_e4m3fn()}"] if "_e4m3fn(" in kernel else []
        marks = ["#ifndef OB_VECTORS", "#define OB_VECTORS(count)", "#endif"] if "OB_VECTORS" in kernel else []
        return "\n".join([*first, *narrow, self.header, *marks, *raises, *vectors, *needed_by(kernel), kernel])


@functools.cache
def _beyond_e4m3fn() -> str:
    """The bits of what is too large for a float8_e4m3fn: no number, or from torch 2.12 on the greatest."""
    return hex(int(torch.tensor(float("inf")).to(torch.float8_e4m3fn).view(torch.uint8)))

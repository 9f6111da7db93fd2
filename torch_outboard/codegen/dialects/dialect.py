# SPDX-License-Identifier: BSD-3-Clause
"""The dialect: the table that a vendor fills in to get generated kernels in its language.

All dialects share the bodies of kernels, written in the common subset of opencl_c, C++ and CUDA C++. They use the types
`ob_i8` … `ob_u64`, `float`, `double` and `bool`, and helpers of prelude/, which are in the same subset. A dialect holds
the differences: how a kernel begins, the qualifiers of pointers, how an item finds its number, and the spellings of
library functions.

The fields serve languages like C. For another language, derive a class and override the methods that write text: the
frame of a kernel, pointers, named constants, loads of four elements, literals.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from torch_outboard.codegen.dialects.frame import LocalArray, Parameter, Suffixes
from torch_outboard.codegen.dialects.literals import literal_text, with_suffix
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.codegen.prelude import needed_by

__all__ = ["COMPUTE_TYPES", "FLOAT8", "FLOAT_FUNCTIONS", "HALVES", "NARROW", "STORAGE_TYPES", "SUFFIXES", "Dialect"]

HALVES = (torch.float16, torch.bfloat16)
_INT16 = (torch.int16, torch.uint16)

# Except float8_e8m0fnu: Inductor lowers no operator on it.
FLOAT8 = {
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float8_e5m2: "e5m2",
    torch.float8_e5m2fnuz: "e5m2fnuz",
}

# Storage-only types, computed in float. Their helpers are `ob_from_<suffix>` and `ob_to_<suffix>`.
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

# The C type of an element in memory. A bool is a byte, because its size in memory differs between
# languages.
STORAGE_TYPES = {
    **{dtype: "ob_" + name for dtype, name in SUFFIXES.items()},
    torch.bool: "ob_u8",
    torch.float32: "float",
    torch.float64: "double",
    **{dtype: f"ob_u{8 * dtype.itemsize}" for dtype in NARROW},
}

# The functions of prelude/elementary.h, by the names of C's library.
_ELEMENTARY = "acos acosh asin asinh atan atanh cos cosh erfc exp2 expm1 log log10 log1p log2 sin sinh tan tanh"
FLOAT_FUNCTIONS = {name: f"ob_float_{name}" for name in _ELEMENTARY.split()}

# Macros that a header may leave undefined, with their default definitions in C.
_OPTIONAL = {
    "OB_VECTORS(count)": "",
    "OB_BARRIER_ALL": "OB_BARRIER",
    "OB_ALIGNED(bytes)": "",
    "OB_STRUCT(name)": "typedef struct name name; struct name",
    "OB_OWN(type, name, count)": "type* name",
    "OB_FOR_TABLES": "",
    "OB_TABLE_OF(type, name)": "OB_TABLE_AT type* name",
}

# The C type of a variable.
COMPUTE_TYPES = {**STORAGE_TYPES, torch.bool: "bool", **dict.fromkeys(NARROW, "float")}


@dataclass(frozen=True)
class Dialect:
    """A language in which kernels are generated.

    Attributes
    ----------
    name : str
        The dialect's name. `program_build` receives it as the language unless `language` is set.
    header : str
        Text before everything else. It defines the types `ob_i8` … `ob_u64` and these macros, which prelude/
        and kernels use. OB_DEVICE: before a helper. OB_GLOBAL: before the target of a pointer into the device's
        memory. OB_RESTRICT. OB_TABLE: before a table of constants of the whole program. OB_TABLE_AT: before the
        target of a pointer into such a table. OB_LIB(name): a function of C's library that is generic in its
        type. OB_AS_F32, OB_AS_U32, OB_AS_F64 and OB_AS_U64: the bits of a number as the named type.
        OB_INFINITY, OB_NAN. OB_MUL_HIGH(a, b): the upper half of the product of two 32-bit unsigned numbers.
        OB_IN_LOOPS is defined if the compiler vectorizes loops, but not calls in them. OB_VECTORS(count) is
        optional. It asks a compiler for CPUs to vectorize the next loop by 16 elements, with `count` vectors
        per turn. By default, it expands to nothing. Optional, for languages that are not C: OB_STRUCT(name) is
        the head of a struct. OB_OWN(type, name, count) is a parameter that holds an item's private array, which
        the function writes. OB_TABLE_OF(type, name) is a parameter that holds a table of constants;
        OB_FOR_TABLES precedes functions with such a parameter. OB_ALIGNED(bytes) is optional. It follows the
        name of an array that must begin at a multiple of `bytes`. Without it, the language must align a group's
        arrays to 16 bytes, or a subclass must override `load_four` and `store_four`. docs/vendor-questions.md
        lists all words that texts use.
    kernel : str
        The head of a kernel: a format of `name` and `parameters`.
    item : str
        The number of this item in the launch, a 64-bit expression.
    group : int
        Items per group in a one-dimensional launch, and the most items in any group if the driver reports no
        max_threads_per_block. Kernels take the sizes of groups and of group memory from the device's properties.
    lanes : int
        Independent accumulators of an item that reduces a row; a power of two.
    language, options : str
        Arguments of `program_build`.
    runs_on_host : bool
        True if a kernel is a function of the host's C++, called with the number of an item as its first argument.
    has_double : bool
        True if the language has `double`. Without it, float64 kernels are refused, and all constants have the float
        suffix.
    has_int16 : bool
        True if the language computes with `ob_i16` and `ob_u16`. Without it, int16 and uint16 kernels are refused, and
        the two types only hold the bits of halves: they convert to `ob_u32`, and from all integers.
    functions : mapping of str to str
        Spellings of C library functions that differ from OB_LIB: {"exp": "ob_my_exp"}.
    float_functions : mapping of str to str
        The same for float32 only, in a language with doubles. `FLOAT_FUNCTIONS` names the functions of
        prelude/elementary.h.
    raises : str
        Functions that end a kernel with an exception, placed before kernels that call them. `ob_raise_index(name,
        index, size)` reports an operator's out-of-bounds index, and `ob_raise_assert(message)` a failed assertion.
        Names and messages are C strings.
    records : bool
        True if kernels report failures in the record of their stream (prelude/failure.h) and continue. The header then
        defines OB_TAKE(pointer, count): it increments a 32-bit number that equals `count`, and returns true for exactly
        one of the items that call it. The host only reads the number, so a device-scope atomic suffices even for a
        record in host memory. Without `raises` and `records`, the providers of eager calls run operators that check
        indices.
    atomics : frozenset of str
        Suffixes of the types that kernels add atomically. For each, the header has `ob_atomic_add_<suffix>(pointer,
        value)`. The prelude implements atomic adds of halves with OB_CAS(pointer, seen, next), a 32-bit
        compare-and-exchange that returns the old value.
    vectors : str
        Vectors of 32 bytes, for CPUs, placed before kernels that use them. For each suffix of f32, f64, u32 and u64: a
        type `ob_vec_<suffix>` with `+`, `ob_vec_splat_<suffix>(number)`, `ob_vec_load_<suffix>(pointer)`,
        `ob_vec_store_<suffix>(vector, pointer)` and `ob_vec_add_product_<suffix>(number, vector, sum)`, which uses a
        fused multiply-add if the device has one. Pointers are to an item's own memory. For CPUs with wider registers,
        the text may also define OB_WIDE_BYTES (64), OB_WIDE(name), such as `ob_wide_##name`, for the same names with
        wider vectors, and OB_WIDE_DEVICE, which precedes helpers that use them.
    has_restrict : bool
        True if OB_RESTRICT states that no other pointer accesses a pointer's memory, so that loads may move ahead of
        stores.
    has_groups : bool
        True if items of a group share memory. The header then has OB_LOCAL before declarations in that memory,
        OB_LOCAL_AT before the target of a pointer into it, OB_BARRIER, OB_ITEM_OF_GROUP and OB_GROUP_NUMBER. It also
        has vectors `float4` and `uint4` with members x, y, z and w. Without groups and these vectors, matrix products
        have no kernels. OB_BARRIER need not order more than the group's memory. After OB_BARRIER_ALL, the items of a
        group also see each other's stores to device memory. A header without it states that OB_BARRIER does this too.
    subgroup : int
        The number of consecutive items that can read each other's values, a power of two; requires `has_groups`. The
        header then has OB_ITEM_OF_SUBGROUPS, an item's number in its group, of which each `subgroup` consecutive
        numbers form a subgroup, and OB_OF_ITEM(value, item), the value of another item of the subgroup. 0: reductions
        use only the group's memory.
    units : tuple of MatrixUnit
        The matrix units of the devices, with `has_groups`. Products of the units' types use them.
    dynamic : str
        The line in a kernel that declares `ob_dynamic`, the local memory that a launch allocates for each group. "":
        the language has no dynamic memory, and kernels declare all of their memory.
    unroll : str
        The line before a loop that a compiler should unroll.
    suffixes : Suffixes
        The suffixes of constants, after their digits.
    library : tuple of str
        Files of prelude/ with functions of C's library, for a language without them. OB_LIB(name) is then
        `ob_lib_<name>`.
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
    has_int16: bool = True
    functions: Mapping[str, str] = field(default_factory=dict, hash=False)
    float_functions: Mapping[str, str] = field(default_factory=dict, hash=False)
    raises: str = ""
    records: bool = False
    atomics: frozenset[str] = frozenset()
    vectors: str = ""
    has_groups: bool = False
    has_restrict: bool = True
    subgroup: int = 0
    units: tuple[MatrixUnit, ...] = ()
    dynamic: str = ""
    unroll: str = "#pragma unroll"
    suffixes: Suffixes = Suffixes()
    library: tuple[str, ...] = ()

    def function(self, name: str, dtype: torch.dtype | None = None) -> str:
        """Return the spelling of a function of C's library, of a type if it is known."""
        if dtype == torch.float32 and self.has_double and name in self.float_functions:
            return self.float_functions[name]
        return self.functions.get(name, f"OB_LIB({name})")

    def frame(self, name: str, parameters: Iterable[Parameter], body: str, arrays: Iterable[LocalArray] = ()) -> str:
        """Return a kernel: its head, the memory that its items share, and its body, which must end with a newline."""
        head = self.kernel.format(name=name, parameters=", ".join(self.declared(parameter) for parameter in parameters))
        arrays = tuple(arrays)
        lines = [f"{self.dynamic}\n"] if any(array.offset is not None for array in arrays) else []
        lines += [self.local_array(array) for array in arrays]
        return f"{head} {{\n{''.join(f'  {line}' for line in lines)}{body}}}\n"

    def declared(self, parameter: Parameter) -> str:
        """Return the declaration of a parameter."""
        if not parameter.is_pointer:
            return f"const {parameter.type} {parameter.name}"
        pointer = self.pointer(parameter.type, is_written=parameter.is_written)
        return f"{pointer}{' OB_RESTRICT' if parameter.is_alone else ''} {parameter.name}"

    def pointer(self, kind: str, *, is_written: bool) -> str:
        """Return the type of a pointer to elements of type `kind` in device memory."""
        return f"OB_GLOBAL {'' if is_written else 'const '}{kind}*"

    def local_array(self, array: LocalArray) -> str:
        """Return the line that declares memory of a group."""
        if array.offset is not None:
            kind = f"OB_LOCAL_AT {array.type}*"
            return f"{kind} const {array.name} = ({kind})(ob_dynamic + {array.offset});\n"
        aligned = " OB_ALIGNED(16)" if array.is_aligned else ""
        return f"OB_LOCAL {array.type} {array.name}[{array.size}]{aligned};\n"

    def constant(self, name: str, value: int) -> str:
        """Return the declaration of an integer constant that may be used as an array size."""
        return f"enum {{ {name} = {value} }};"

    def four(self, kind: str) -> str:
        """Return the type of four elements ("float" or "ob_u32") with members x, y, z and w."""
        return "float4" if kind == "float" else "uint4"

    def load_four(self, kind: str, array: str, index: str) -> str:
        """Return four elements of a group's array, starting at an index that is a multiple of four."""
        return f"*(OB_LOCAL_AT const {self.four(kind)}*)({array} + {index})"

    def store_four(self, kind: str, array: str, index: str, value: str) -> str:
        """Return the statement that stores four elements in a group's array."""
        return f"*(OB_LOCAL_AT {self.four(kind)}*)({array} + {index}) = {value};"

    def load_16_bytes(self, place: str) -> str:
        """Return 16 aligned bytes of device memory, starting at an element, as four "ob_u32"."""
        return f"*(OB_GLOBAL const {self.four('ob_u32')}*)(&{place})"

    def before(self, kind: str, pointer: str, count: str) -> str:
        """Return the pointer to the element of type `kind` in device memory that lies `count` before another."""
        return f"{pointer} - {count}"

    def literal(self, value: Any, dtype: torch.dtype) -> str:
        """Return a number as a constant of a type."""
        return literal_text(value, dtype, COMPUTE_TYPES[dtype], self.suffixes)

    def written_by_call(self, name: str) -> str:
        """Return a variable of the item as the argument of a function that writes the variable."""
        return f"&{name}"

    def arithmetic(self, sign: str, a: str, b: str, dtype: torch.dtype) -> str:
        """Return the sum, difference or product of floating-point values, rounded and not simplified."""
        return f"({a} {sign} {b})"

    def described(self) -> str:
        """Return all fields as text. The text is the same in every process, so sets and mappings are sorted."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["atomics"], values["functions"] = sorted(self.atomics), sorted(self.functions.items())
        return repr(values)

    @property
    def checks(self) -> bool:
        """True if kernels can report an invalid index or a failed assertion."""
        return self.records or self.raises != ""

    @property
    def real(self) -> torch.dtype:
        """The type in which fractions of sizes are computed."""
        return torch.float64 if self.has_double else torch.float32

    def supports(self, dtype: torch.dtype) -> bool:
        """Return True if kernels can load, compute and store elements of this type."""
        missing = (() if self.has_double else (torch.float64,)) + (() if self.has_int16 else _INT16)
        return dtype in STORAGE_TYPES and dtype not in missing

    def source(self, kernel: str) -> str:
        """Return the text of a program: the header, the parts of the prelude that the kernel uses, and the kernel."""
        first = ["#define OB_HAS_DOUBLE 1", "#define ob_real double"] if self.has_double else ["#define ob_real float"]
        raises = [self.raises] if "ob_raise_" in kernel else []
        vectors = [self.vectors] if "ob_vec_" in kernel else []
        narrow = [f"#define OB_BEYOND_E4M3FN {_beyond_e4m3fn()}"] if "_e4m3fn(" in kernel else []
        written = "\n".join([*needed_by(kernel, self.library, () if self.has_double else ("f64",)), kernel])
        marks = [
            f"#ifndef {macro.partition('(')[0]}\n#define {macro} {text}\n#endif"
            for macro, text in _OPTIONAL.items()
            if macro.partition("(")[0] in written
        ]
        if not self.has_double or self.suffixes.f64:
            written = with_suffix(written, self.suffixes.f64 if self.has_double else self.suffixes.f32)
        return "\n".join([*first, *narrow, self.header, *marks, *raises, *vectors, written])


@functools.cache
def _beyond_e4m3fn() -> str:
    """Return the bits for values too large for float8_e4m3fn: NaN, or the greatest number from torch 2.12 on."""
    return hex(int(torch.tensor(float("inf")).to(torch.float8_e4m3fn).view(torch.uint8)))

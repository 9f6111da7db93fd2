# SPDX-License-Identifier: BSD-3-Clause
"""The dialect slang, for drivers whose `program_build` compiles it to SPIR-V.

A kernel is an entry point. Its parameters are the fields of a struct in push constants, or in memory whose address is
pushed if the struct is too large. The struct's first field is the number of the dispatch's first group: devices limit
the groups per dispatch, so a launch may take several dispatches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray, Parameter, Suffixes

__all__ = ["SLANG", "SLANGS", "Slang", "with_subgroups"]

# Bytes of push constants that every device supports.
_MAX_PUSH_CONSTANT_BYTES = 128

_FIRST = Parameter("ob_first_group", "ob_i64")

_INT16 = """\
typedef int16_t ob_i16;
typedef uint16_t ob_u16;
"""

# Halves on devices without 16-bit types. There, ob_i16 only holds the bits of a half.
_BYTES = """\
struct ob_u16 {
  uint8_t low, high;
  __init<T : __BuiltinIntegerType>(T bits) {
    low = __intCast<uint8_t>(bits);
    high = (uint8_t)(__intCast<uint32_t>(bits) >> 8);
  }
};
typedef ob_u16 ob_i16;
extension uint32_t {
  __implicit_conversion(1) __init(ob_u16 half) { return (uint32_t)half.low | (uint32_t)half.high << 8; }
}
"""

_HEADER = """\
typedef int8_t ob_i8;
typedef int32_t ob_i32;
typedef int64_t ob_i64;
typedef uint8_t ob_u8;
typedef uint32_t ob_u32;
typedef uint64_t ob_u64;
typedef uint64_t size_t;
#define OB_DEVICE
#define OB_GLOBAL
#define volatile
#define OB_RESTRICT
#define OB_STRUCT(name) struct name
#define OB_OWN(type, name, count) inout type name[count]
#define OB_OUT(type, name) out type name
#define OB_TABLE static const
#define OB_TABLE_OF(type, name) type name[ob_count]
#define OB_FOR_TABLES __generic<let ob_count : int>
#define OB_LIB(name) ob_lib_##name
#define OB_AS_F32(x) asfloat((ob_u32)(x))
#define OB_AS_U32(x) asuint(x)
#define OB_AS_F64(x) bit_cast<double>((ob_u64)(x))
#define OB_AS_U64(x) bit_cast<ob_u64>(x)
#define OB_INFINITY asfloat(0x7f800000u)
#define OB_NAN asfloat(0x7fc00000u)
#define OB_LOCAL groupshared
#define OB_BARRIER GroupMemoryBarrierWithGroupSync()
#define OB_BARRIER_ALL AllMemoryBarrierWithGroupSync()
#define OB_ITEM_OF_GROUP ob_item_of_group()
#define OB_GROUP_NUMBER (ob_first_group + ob_group_of_launch())
#define OB_MUL_HIGH(a, b) ob_mul_high(a, b)
#define OB_CAS(place, seen, next) ob_cas(place, seen, next)
#define OB_TAKE(place, count) (ob_cas(place, count, count + 1u) == count)
[vk::constant_id(0)] const int ob_block = 1;
ob_i32 ob_item_of_group() {
  let place = spirv_asm { result:$$uint3 = OpLoad builtin(LocalInvocationId:uint3) };
  return (ob_i32)place.x;
}
ob_i64 ob_group_of_launch() {
  let place = spirv_asm { result:$$uint3 = OpLoad builtin(WorkgroupId:uint3) };
  return (ob_i64)place.x;
}
struct ob_halves { ob_u32 low, high; };
ob_u32 ob_mul_high(ob_u32 a, ob_u32 b) {
  let halves = spirv_asm { result:$$ob_halves = OpUMulExtended $a $b };
  return halves.high;
}
// The compiler simplifies x - x and x + 0, which are not always 0 and x.
#define OB_FUNCTION(T) \\
  T ob_lib_fabs(T x) { return spirv_asm { result:$$T = OpExtInst glsl450 FAbs $x }; } \\
  T ob_lib_floor(T x) { return spirv_asm { result:$$T = OpExtInst glsl450 Floor $x }; } \\
  T ob_lib_ceil(T x) { return spirv_asm { result:$$T = OpExtInst glsl450 Ceil $x }; } \\
  T ob_lib_trunc(T x) { return spirv_asm { result:$$T = OpExtInst glsl450 Trunc $x }; } \\
  T ob_lib_rint(T x) { return spirv_asm { result:$$T = OpExtInst glsl450 RoundEven $x }; } \\
  T ob_lib_sqrt(T x) { return spirv_asm { result:$$T = OpExtInst glsl450 Sqrt $x }; } \\
  T ob_lib_fma(T x, T y, T z) { return spirv_asm { result:$$T = OpExtInst glsl450 Fma $x $y $z }; }
OB_FUNCTION(float)
float ob_plus_f32(float a, float b) { return spirv_asm { result:$$float = OpFAdd $a $b }; }
float ob_minus_f32(float a, float b) { return spirv_asm { result:$$float = OpFSub $a $b }; }
ob_u32 ob_cas(ob_u32* place, ob_u32 seen, ob_u32 next) {
  ob_u32 before;
  InterlockedCompareExchange(*place, seen, next, before);
  return before;
}
void ob_atomic_add_i32(ob_i32* place, ob_i32 value) { InterlockedAdd(*place, value); }
void ob_atomic_add_f32(float* place, float value) {
  ob_u32* bits = (ob_u32*)place;
  for (ob_u32 seen = *bits;;) {
    const ob_u32 before = ob_cas(bits, seen, asuint(asfloat(seen) + value));
    if (before == seen) return;
    seen = before;
  }
}
void ob_atomic_add_i64(ob_i64* place, ob_i64 value) { InterlockedAdd(*place, value); }
#ifdef OB_HAS_DOUBLE
OB_FUNCTION(double)
double ob_plus_f64(double a, double b) { return spirv_asm { result:$$double = OpFAdd $a $b }; }
double ob_minus_f64(double a, double b) { return spirv_asm { result:$$double = OpFSub $a $b }; }
void ob_atomic_add_f64(double* place, double value) {
  ob_u64* bits = (ob_u64*)place;
  for (ob_u64 seen = *bits;;) {
    ob_u64 before;
    InterlockedCompareExchange(*bits, seen, bit_cast<ob_u64>(bit_cast<double>(seen) + value), before);
    if (before == seen) return;
    seen = before;
  }
}
#endif
"""


# Number items by subgroup, whatever the device's own order of items. Devices may support reads of
# another item's value for 32 bits only.
_SUBGROUPS = """\
ob_i32 ob_item_of_subgroups() {
  let number = spirv_asm { OpCapability GroupNonUniform; result:$$uint = OpLoad builtin(SubgroupId:uint) };
  let lane = spirv_asm { result:$$uint = OpLoad builtin(SubgroupLocalInvocationId:uint) };
  return (ob_i32)(number * $LANES + lane);
}
#define OB_ITEM_OF_SUBGROUPS ob_item_of_subgroups()
#define OB_OF_ITEM(value, item) ob_of_item(value, (ob_u32)(item) % $LANES)
ob_u32 ob_of_item(ob_u32 value, ob_u32 lane) { return WaveReadLaneAt(value, lane); }
ob_i32 ob_of_item(ob_i32 value, ob_u32 lane) { return (ob_i32)ob_of_item((ob_u32)value, lane); }
float ob_of_item(float value, ob_u32 lane) { return asfloat(ob_of_item(asuint(value), lane)); }
bool ob_of_item(bool value, ob_u32 lane) { return ob_of_item((ob_u32)value, lane) != 0; }
#define OB_NARROW(T) T ob_of_item(T value, ob_u32 lane) { return (T)ob_of_item((ob_i32)value, lane); }
OB_NARROW(ob_i8)
OB_NARROW(ob_u8)
ob_u64 ob_of_item(ob_u64 value, ob_u32 lane) {
  return (ob_u64)ob_of_item((ob_u32)(value >> 32), lane) << 32 | ob_of_item((ob_u32)value, lane);
}
ob_i64 ob_of_item(ob_i64 value, ob_u32 lane) { return (ob_i64)ob_of_item((ob_u64)value, lane); }
#ifdef OB_HAS_DOUBLE
double ob_of_item(double value, ob_u32 lane) {
  return bit_cast<double>(ob_of_item(bit_cast<ob_u64>(value), lane));
}
#endif
"""


@dataclass(frozen=True)
class Slang(Dialect):
    """Slang, whose kernels take their parameters from a struct."""

    def frame(self, name: str, parameters: Iterable[Parameter], body: str, arrays: Iterable[LocalArray] = ()) -> str:
        all_parameters = (_FIRST, *parameters)
        fields = "".join(f"  {self._type(parameter)} {parameter.name};\n" for parameter in all_parameters)
        structs, pushed, member = f"struct ob_arguments {{\n{fields}}};\n", "ob_arguments", "ob_given."
        if struct_bytes(all_parameters) > _MAX_PUSH_CONSTANT_BYTES:
            structs += "struct ob_pushed {\n  ob_arguments* at;\n};\n"
            pushed, member = "ob_pushed", "ob_given.at->"
        lines = "".join(f"  {self.declared(parameter)} = {member}{parameter.name};\n" for parameter in all_parameters)
        # Arguments and group memory are declared in the program, which may have several kernels.
        shared = "".join(map(self.local_array, arrays))
        entry = f'[shader("compute")] [numthreads(ob_block, 1, 1)]\nvoid {name}()'
        return (
            f"namespace ob_of_{name} {{\n{structs}[[vk::push_constant]] uniform {pushed} ob_given;\n{shared}"
            f"{entry} {{\n{lines}{body}}}\n}}\n"
        )

    def _type(self, parameter: Parameter) -> str:
        return self.pointer(parameter.type, is_written=True) if parameter.is_pointer else parameter.type

    def declared(self, parameter: Parameter) -> str:
        return f"{'' if parameter.is_pointer else 'const '}{self._type(parameter)} {parameter.name}"

    def pointer(self, kind: str, *, is_written: bool) -> str:
        return f"{kind}*"

    def local_array(self, array: LocalArray) -> str:
        return f"OB_LOCAL {array.type} {array.name}[{array.size}];\n"

    def constant(self, name: str, value: int) -> str:
        return f"static const int {name} = {value};"

    def load_four(self, kind: str, array: str, index: str) -> str:
        places = ", ".join(f"{array}[({index}) + {i}]" for i in range(4))
        return f"{self.four(kind)}({places})"

    def store_four(self, kind: str, array: str, index: str, value: str) -> str:
        return " ".join(f"{array}[({index}) + {i}] = {value}.{part};" for i, part in enumerate("xyzw"))

    def load_16_bytes(self, place: str) -> str:
        return f"loadAligned<16>((uint4*)(&{place}))"

    def before(self, kind: str, pointer: str, count: str) -> str:
        # Slang cannot subtract from a pointer, and adding a negative number gave wrong addresses:
        # compute the address as an unsigned integer.
        return f"({self.pointer(kind, is_written=True)})((ob_u64)({pointer}) - (ob_u64)({count}) * sizeof({kind}))"

    def written_by_call(self, name: str) -> str:
        return name

    def arithmetic(self, sign: str, a: str, b: str, dtype: torch.dtype) -> str:
        names = {"+": "plus", "-": "minus"}
        if sign not in names:
            return super().arithmetic(sign, a, b, dtype)
        return f"ob_{names[sign]}_{'f64' if dtype == torch.float64 else 'f32'}({a}, {b})"


def struct_bytes(fields: Iterable[Parameter]) -> int:
    """Return the size of a struct with these fields, as C lays it out, without padding at the end."""
    end = 0
    for parameter in fields:
        end = -(-end // parameter.bytes) * parameter.bytes + parameter.bytes
    return end


def _dialect(*, has_double: bool, has_int16: bool) -> Slang:
    return Slang(
        name=f"slang{'' if has_double else '_floats'}{'' if has_int16 else '_bytes'}",
        language="slang",
        header=(_INT16 if has_int16 else _BYTES) + _HEADER,
        kernel="void {name}({parameters})",
        item="(OB_GROUP_NUMBER * ob_block + OB_ITEM_OF_GROUP)",
        group=64,
        lanes=4,
        # Optimization above -O0 turns x * y + x * c into x * (y + c).
        options="-O0 -fvk-use-entrypoint-name -fp-mode precise",
        records=True,
        has_groups=True,
        has_restrict=False,
        unroll="[unroll]",
        library=("math",),
        suffixes=Suffixes(f32="f", f64="L" if has_double else "f", i64="LL", u64="ULL"),
        # Devices without doubles may have no atomics of 64 bits either.
        atomics=frozenset({"f16", "bf16", "f32", "i32"} | ({"f64", "i64"} if has_double else set())),
        has_double=has_double,
        has_int16=has_int16,
    )


_BOTH = (True, False)
_FORMS = (_dialect(has_double=has_double, has_int16=has_int16) for has_double in _BOTH for has_int16 in _BOTH)
# The dialects by name: "slang", "slang_floats" for devices without doubles, and both with "_bytes"
# for devices without 16-bit types.
SLANGS = {form.name: form for form in _FORMS}
SLANG = SLANGS["slang"]


def with_subgroups(dialect: Slang, lanes: int) -> Slang:
    """Return the dialect for devices whose subgroups have `lanes` items, which read each other's values."""
    narrow = "OB_NARROW(ob_i16)\nOB_NARROW(ob_u16)\n" if dialect.has_int16 else ""
    header = dialect.header + _SUBGROUPS.replace("$LANES", str(lanes)) + narrow
    return replace(dialect, name=f"{dialect.name}_subgroups", header=header, subgroup=lanes)

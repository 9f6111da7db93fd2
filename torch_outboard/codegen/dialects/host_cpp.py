# SPDX-License-Identifier: BSD-3-Clause
"""C++ for the host: each kernel is a function that loops over its items, one after the other.

This dialect verifies the results of other dialects on a machine without their devices, also under the compiler's
sanitizers. Its kernels need memory that the host can reach.
"""

from __future__ import annotations

from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["HOST_CPP"]

_HEADER = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
using ob_i8 = int8_t;
using ob_i16 = int16_t;
using ob_i32 = int32_t;
using ob_i64 = int64_t;
using ob_u8 = uint8_t;
using ob_u16 = uint16_t;
using ob_u32 = uint32_t;
using ob_u64 = uint64_t;
#define OB_DEVICE static inline __attribute__((always_inline, unused))
#define OB_GLOBAL
#define OB_RESTRICT __restrict
#define OB_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OB_TABLE const
#define OB_TABLE_AT const
#define OB_LIB(name) std::name
template <typename To, typename From>
static inline To ob_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "not the bits of one another");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
#define OB_AS_F32(x) ob_bits<float, ob_u32>(x)
#define OB_AS_U32(x) ob_bits<ob_u32, float>(x)
#define OB_AS_F64(x) ob_bits<double, ob_u64>(x)
#define OB_AS_U64(x) ob_bits<ob_u64, double>(x)
#define OB_INFINITY std::numeric_limits<double>::infinity()
#define OB_NAN std::numeric_limits<double>::quiet_NaN()
#define OB_MUL_HIGH(a, b) ((ob_u32)((ob_u64)(a) * (b) >> 32))
// The items of a launch run one after the other.
#define OB_PLAIN_ADD(T, U, S) \\
  OB_DEVICE void ob_atomic_add_##S(T* place, T value) { *place = (T)((U)*place + (U)value); }
OB_PLAIN_ADD(float, float, f32)
OB_PLAIN_ADD(double, double, f64)
OB_PLAIN_ADD(ob_i8, ob_u32, i8)
OB_PLAIN_ADD(ob_i16, ob_u32, i16)
OB_PLAIN_ADD(ob_i32, ob_u32, i32)
OB_PLAIN_ADD(ob_i64, ob_u64, i64)
OB_PLAIN_ADD(ob_u8, ob_u32, u8)
"""

# Included only if needed: it takes longer to compile than most kernels.
_RAISES = """\
#include <stdexcept>
#include <string>
[[noreturn]] static inline void ob_raise_index(const char* name, ob_i64 index, ob_i64 size) {
  throw std::out_of_range(std::string(name) + ": index " + std::to_string(index) +
                          " is out of bounds for a dimension of size " + std::to_string(size));
}
[[noreturn]] static inline void ob_raise_assert(const char* message) { throw std::runtime_error(message); }
"""

_VECTORS = """\
#define OB_VECTOR(W, T, S, BYTES)                                                                  \\
  typedef T ob_##W##_##S __attribute__((vector_size(BYTES)));                                      \\
  OB_DEVICE ob_##W##_##S ob_##W##_splat_##S(T value) { return ob_##W##_##S{} + value; }            \\
  OB_DEVICE ob_##W##_##S ob_##W##_load_##S(const T* place) {                                       \\
    ob_##W##_##S value;                                                                            \\
    std::memcpy(&value, place, sizeof(value));                                                     \\
    return value;                                                                                  \\
  }                                                                                                \\
  OB_DEVICE void ob_##W##_store_##S(ob_##W##_##S value, T* place) { std::memcpy(place, &value, sizeof(value)); } \\
  OB_DEVICE ob_##W##_##S ob_##W##_add_product_##S(T a, ob_##W##_##S b, ob_##W##_##S c) { return a * b + c; }
OB_VECTOR(vec, float, f32, 32)
OB_VECTOR(vec, double, f64, 32)
OB_VECTOR(vec, ob_u32, u32, 32)
OB_VECTOR(vec, ob_u64, u64, 32)
#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define OB_WIDE_BYTES 64
#define OB_WIDE(name) ob_wide_##name
#define OB_WIDE_DEVICE OB_DEVICE
OB_VECTOR(wide, float, f32, 64)
OB_VECTOR(wide, double, f64, 64)
OB_VECTOR(wide, ob_u32, u32, 64)
OB_VECTOR(wide, ob_u64, u64, 64)
#endif
"""

HOST_CPP = Dialect(
    name="host_cpp",
    header=_HEADER,
    kernel="static inline void {name}(const ob_i64 ob_item, {parameters})",
    item="ob_item",
    runs_on_host=True,
    group=1,
    lanes=16,
    raises=_RAISES,
    atomics=frozenset({"f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8"}),
    vectors=_VECTORS,
)

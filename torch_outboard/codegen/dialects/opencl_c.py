# SPDX-License-Identifier: BSD-3-Clause
"""The dialect opencl_c: version 1.2 of the language and later, for all drivers that build programs in it."""

from __future__ import annotations

from torch_outboard.codegen.dialects.dialect import FLOAT_FUNCTIONS, Dialect

__all__ = ["OPENCL_C"]

# always_inline: without it, CPU compilers keep helpers as calls, which prevent the vectorization of
# loops.
_HEADER = """\
#ifdef OB_HAS_DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL FP_CONTRACT OFF
typedef char ob_i8;
typedef short ob_i16;
typedef int ob_i32;
typedef long ob_i64;
typedef uchar ob_u8;
typedef ushort ob_u16;
typedef uint ob_u32;
typedef ulong ob_u64;
#define OB_DEVICE static inline __attribute__((always_inline))
#define OB_GLOBAL __global
#define OB_RESTRICT restrict
#define OB_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OB_TABLE __constant
#define OB_TABLE_AT __constant
#define OB_LIB(name) name
#define OB_AS_F32(x) as_float(x)
#define OB_AS_U32(x) as_uint(x)
#define OB_AS_F64(x) as_double(x)
#define OB_AS_U64(x) as_ulong(x)
#ifdef __clang__
#define OB_PRAGMA(text) _Pragma(#text)
#define OB_VECTORS(count) OB_PRAGMA(clang loop vectorize(enable) vectorize_width(16) interleave_count(count))
#pragma clang diagnostic ignored "-Wpass-failed"
#if defined(OB_HAS_DOUBLE) && (defined(__x86_64__) || defined(__aarch64__))
#define OB_IN_LOOPS 1
#endif
#endif
#define OB_INFINITY INFINITY
// exp() and floor() of some compilers for CPUs convert to integers, which is undefined for a NaN: of one that the
// compiler knows, no result is stored. It does not know this payload, on which no number depends.
#define OB_NAN as_float(get_work_dim() | 0x7fc00000u)
#define OB_CAS(place, seen, next) atomic_cmpxchg(place, seen, next)
#define OB_TAKE(place, count) (atomic_cmpxchg((volatile __global uint*)(place), count, count + 1u) == count)
#define OB_LOCAL __local
#define OB_LOCAL_AT __local
#define OB_BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define OB_BARRIER_ALL barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define OB_ITEM_OF_GROUP ((ob_i32)get_local_id(0))
#define OB_GROUP_NUMBER ((ob_i64)get_group_id(0))
#define OB_MUL_HIGH(a, b) mul_hi(a, b)
// The language has no additions of floating point: by comparison and exchange.
OB_DEVICE void ob_atomic_add_f32(__global float* place, float value) {
  volatile __global uint* bits = (volatile __global uint*)place;
  uint seen = *bits;
  for (;;) {
    const uint before = atomic_cmpxchg(bits, seen, as_uint(as_float(seen) + value));
    if (before == seen) return;
    seen = before;
  }
}
OB_DEVICE void ob_atomic_add_i32(__global int* place, int value) { atomic_add((volatile __global int*)place, value); }
OB_DEVICE void ob_atomic_add_i64(__global long* place, long value) { atom_add((volatile __global long*)place, value); }
#ifdef OB_HAS_DOUBLE
OB_DEVICE void ob_atomic_add_f64(__global double* place, double value) {
  volatile __global ulong* bits = (volatile __global ulong*)place;
  ulong seen = *bits;
  for (;;) {
    const ulong before = atom_cmpxchg(bits, seen, as_ulong(as_double(seen) + value));
    if (before == seen) return;
    seen = before;
  }
}
#endif
"""

# With FP_FAST_FMAF, or on a CPU with __FMA__, fma is an instruction, also for doubles. There is no
# vload or vstore here: they would take as long to compile as the rest of a product.
_VECTORS = """\
#define OB_VECTOR(W, T, V, S, N, SUM)                                                              \\
  typedef V ob_##W##_##S;                                                                          \\
  typedef V ob_##W##_##S##_anywhere __attribute__((aligned(sizeof(T))));                           \\
  OB_DEVICE V ob_##W##_splat_##S(T value) { return (V)(value); }                                   \\
  OB_DEVICE V ob_##W##_load_##S(const T* place) { return *(const ob_##W##_##S##_anywhere*)place; } \\
  OB_DEVICE void ob_##W##_store_##S(V value, T* place) { *(ob_##W##_##S##_anywhere*)place = value; } \\
  OB_DEVICE V ob_##W##_add_product_##S(T a, V b, V c) { return SUM; }
#if defined(FP_FAST_FMAF) || defined(__FMA__)
#define OB_FUSED(a, b, c) fma(a, b, c)
#else
#define OB_FUSED(a, b, c) (a) * (b) + (c)
#endif
OB_VECTOR(vec, float, float8, f32, 8, OB_FUSED((float8)(a), b, c))
OB_VECTOR(vec, ob_u32, uint8, u32, 8, a * b + c)
OB_VECTOR(vec, ob_u64, ulong4, u64, 4, a * b + c)
#ifdef OB_HAS_DOUBLE
OB_VECTOR(vec, double, double4, f64, 4, OB_FUSED((double4)(a), b, c))
#endif
// Without the attribute, clang makes two of a vector of 64 bytes.
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__clang__)
#define OB_WIDE_BYTES 64
#define OB_WIDE(name) ob_wide_##name
#define OB_WIDE_DEVICE static inline __attribute__((always_inline, min_vector_width(512)))
OB_VECTOR(wide, float, float16, f32, 16, OB_FUSED((float16)(a), b, c))
OB_VECTOR(wide, ob_u32, uint16, u32, 16, a * b + c)
OB_VECTOR(wide, ob_u64, ulong8, u64, 8, a * b + c)
#ifdef OB_HAS_DOUBLE
OB_VECTOR(wide, double, double8, f64, 8, OB_FUSED((double8)(a), b, c))
#endif
#endif
"""

OPENCL_C = Dialect(
    name="opencl_c",
    header=_HEADER,
    kernel="__kernel void {name}({parameters})",
    item="(ob_i64)get_global_id(0)",
    group=64,
    lanes=16,
    records=True,
    atomics=frozenset({"f16", "bf16", "f32", "f64", "i32", "i64"}),
    float_functions=FLOAT_FUNCTIONS,
    vectors=_VECTORS,
    has_groups=True,
)

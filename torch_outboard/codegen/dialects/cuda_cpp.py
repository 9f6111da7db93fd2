# SPDX-License-Identifier: BSD-3-Clause
"""The dialect cuda_cpp: CUDA C++ without headers, for drivers whose `program_build` takes the language "cuda"."""

from __future__ import annotations

from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["CONVERSIONS", "CUDA_CPP"]

# The prelude's conversions of halves, in PTX. NVIDIA's compilers for other languages accept PTX
# too.
CONVERSIONS = """\
OB_DEVICE float ob_native_from_f16(ob_u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
OB_DEVICE ob_u16 ob_native_to_f16(float value) {
  ob_u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#define OB_FROM_F16(bits) ob_native_from_f16(bits)
#define OB_TO_F16(value) ob_native_to_f16(value)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
OB_DEVICE ob_u16 ob_native_to_bf16(float value) {
  ob_u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#define OB_TO_BF16(value) ob_native_to_bf16(value)
#endif
"""

# NVRTC defines int64_t as `long`, and has no library headers.
_HEADER = """\
using ob_i8 = signed char;
using ob_i16 = short;
using ob_i32 = int;
using ob_i64 = long;
using ob_u8 = unsigned char;
using ob_u16 = unsigned short;
using ob_u32 = unsigned;
using ob_u64 = unsigned long;
#define OB_DEVICE static __device__ __forceinline__
#define OB_GLOBAL
#define OB_RESTRICT __restrict__
#define OB_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OB_TABLE static __constant__ const
#define OB_TABLE_AT const
#define OB_LIB(name) name
#define OB_AS_F32(x) __uint_as_float(x)
#define OB_AS_U32(x) __float_as_uint(x)
#define OB_AS_F64(x) __longlong_as_double((long long)(x))
#define OB_AS_U64(x) ((ob_u64)__double_as_longlong(x))
#define OB_INFINITY __int_as_float(0x7f800000)
#define OB_NAN __int_as_float(0x7fc00000)
#define OB_CAS(place, seen, next) atomicCAS((unsigned*)(place), seen, next)
#define OB_TAKE(place, count) (atomicCAS((unsigned*)(place), count, count + 1u) == count)
#define OB_LOCAL __shared__
#define OB_LOCAL_AT
#define OB_BARRIER __syncthreads()
#define OB_ITEM_OF_GROUP ((ob_i32)threadIdx.x)
#define OB_GROUP_NUMBER ((ob_i64)blockIdx.x)
#define OB_MUL_HIGH(a, b) __umulhi(a, b)
OB_DEVICE void ob_atomic_add_f32(float* place, float value) { atomicAdd(place, value); }
OB_DEVICE void ob_atomic_add_f64(double* place, double value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 600
  unsigned long long seen = *(unsigned long long*)place, before;
  do {
    before = seen;
    seen = atomicCAS((unsigned long long*)place, before,
                     (unsigned long long)__double_as_longlong(__longlong_as_double((long long)before) + value));
  } while (seen != before);
#else
  atomicAdd(place, value);
#endif
}
OB_DEVICE void ob_atomic_add_i32(ob_i32* place, ob_i32 value) { atomicAdd(place, value); }
OB_DEVICE void ob_atomic_add_i64(ob_i64* place, ob_i64 value) {
  atomicAdd((unsigned long long*)place, (unsigned long long)value);
}
"""

CUDA_CPP = Dialect(
    name="cuda_cpp",
    header=_HEADER + CONVERSIONS,
    kernel='extern "C" __global__ void {name}({parameters})',
    item="((ob_i64)blockIdx.x * blockDim.x + threadIdx.x)",
    group=256,
    lanes=4,
    language="cuda",
    # Templates request fused multiply-adds explicitly. Elsewhere, a product and a sum are rounded
    # separately, as on the CPU.
    options="--fmad=false --std=c++17",
    records=True,
    atomics=frozenset({"f16", "bf16", "f32", "f64", "i32", "i64"}),
    has_groups=True,
    dynamic="extern __shared__ ob_u8 ob_dynamic[] __attribute__((aligned(16)));",
)

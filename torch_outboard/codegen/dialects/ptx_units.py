# SPDX-License-Identifier: BSD-3-Clause
"""The matrix units of GPUs whose languages take inline PTX, from sm_80 on: `mma.sync`, `ldmatrix` and `cp.async`.

The names and positions of elements follow the PTX manual, chapter "Warp Level Matrix Instructions". Four adjacent lanes
of a warp form the manual's group: `lane / 4` is groupID, `lane % 4` is threadID_in_group.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torch_outboard.codegen.dialects.cuda_cpp import CONVERSIONS, CUDA_CPP
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.units import Copies, Fragment, Load, MatrixUnit

__all__ = ["PTX_CUDA_CPP", "PTX_OPENCL_C"]

_SUMS = Fragment("float", 4, "lane / 4 + index / 2 * 8", "lane % 4 * 2 + index % 2")
_LEFT = Fragment("ob_u32", 4, "lane / 4 + index / 2 % 2 * 8", "lane % 4 * 2 + index % 2 + index / 4 * 8", 2)
_RIGHT = Fragment("ob_u32", 2, "lane % 4 * 2 + index % 2 + index / 2 * 8", "lane / 4", 2)

# ldmatrix takes the address of a row of eight elements from each lane. The first eight lanes
# address the first 8x8 matrix, whose elements become the first register, and so on. Two
# neighbouring fragments of the right operand are loaded at a time.
_LOAD_LEFT = (
    Load("ob_load_4($INTO, $ARRAY, $AT);", line="lane % 16", step="lane / 16 * 8"),
    Load("ob_load_4_transposed($INTO, $ARRAY, $AT);", line="lane / 8 % 2 * 8", step="lane % 8 + lane / 16 * 8"),
)
_LOAD_RIGHT = (
    Load("ob_load_4($INTO, $ARRAY, $AT);", line="lane % 8 + lane / 16 * 8", step="lane / 8 % 2 * 8", fragments=2),
    Load("ob_load_4_transposed($INTO, $ARRAY, $AT);", line="lane / 16 * 8", step="lane % 16", fragments=2),
)

_OF_CUDA = """\
#if __CUDA_ARCH__ < 800
#error "matrix units by PTX need sm_80 or later: set the driver's option matrix_units to 0"
#endif
OB_DEVICE ob_u32 ob_shared(const void* place) { return (ob_u32)__cvta_generic_to_shared(place); }
"""
_OF_OPENCL_C = """\
#ifndef __NV_CL_C_VERSION
#error "matrix units by PTX need NVIDIA's opencl_c: set the driver's option matrix_units to 0"
#endif
OB_DEVICE ob_u32 ob_shared(__local const void* place) { return (ob_u32)(size_t)place; }
"""

# Addresses in the group's memory have 32 bits. In 32-bit arithmetic, an address is a number per
# lane plus a constant that the instruction encodes. On an H100, copies through the L1 cache make a
# product 1.6 times as fast in NVIDIA's opencl_c, which leaves most of a multiprocessor's memory to
# that cache, and 1.1 times as slow in CUDA C++.
_COPIES = """\
OB_DEVICE void ob_copy_16(ob_u32 to, OB_GLOBAL const void* from, bool is_wanted) {
  const ob_u32 bytes = is_wanted ? 16 : 0;
  asm volatile("cp.async.$CACHE.shared.global.L2::128B [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(bytes) : "memory");
}
OB_DEVICE void ob_commit_copies(void) { asm volatile("cp.async.commit_group;" : : : "memory"); }
#define ob_wait_for_copies(later) \\
  { asm volatile("cp.async.wait_group %0;" : : "n"(later) : "memory"); }
"""

_LOADS = """\
OB_DEVICE void ob_load_words_4(ob_u32* into, ob_u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3]) : "r"(from) : "memory");
}
OB_DEVICE void ob_load_words_4_transposed(ob_u32* into, ob_u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3]) : "r"(from) : "memory");
}
#define ob_load_4(into, array, at) ob_load_words_4(into, ob_shared(array) + (ob_u32)(at) * 2)
#define ob_load_4_transposed(into, array, at) ob_load_words_4_transposed(into, ob_shared(array) + (ob_u32)(at) * 2)
"""

_ROWS = """\
OB_DEVICE float ob_of_lane(float value, ob_u32 bit) {
  float other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(other) : "f"(value), "r"(bit));
  return other;
}
OB_DEVICE float ob_power(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
"""

# For ldmatrix, a 32-bit element is a pair of 16-bit elements, so ldmatrix cannot transpose it.
_ROUNDED = """\
OB_DEVICE ob_u32 ob_to_tf32(float value) {
  ob_u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
OB_DEVICE void ob_load_rounded_4(ob_u32* into, ob_u32 from) {
  ob_load_words_4(into, from);
  for (int i = 0; i < 4; ++i) into[i] = ob_to_tf32(OB_AS_F32(into[i]));
}
#define ob_load_floats_4(into, array, at) ob_load_rounded_4(into, ob_shared(array) + (ob_u32)(at) * 4)
OB_DEVICE void ob_multiply(float* sums, const ob_u32* left, const ob_u32* right) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
"""

# The first operand becomes the upper half.
_MULTIPLY = """\
OB_DEVICE ob_u32 ob_pair_of(float low, float high) {
  ob_u32 bits;
  asm("cvt.rn.$KINDx2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
OB_DEVICE void ob_multiply(float* sums, const ob_u32* left, const ob_u32* right) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.$KIND.$KIND.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
"""


def _units(shared: str, cache: str) -> tuple[MatrixUnit, ...]:
    """Return a language's units. Copies are cached in L1 and L2 ("ca") or in L2 only ("cg").

    `shared` defines `ob_shared`, which returns PTX's address of the group's memory.
    """
    shared += _COPIES.replace("$CACHE", cache)
    copies = Copies(
        "ob_copy_16(ob_shared($ARRAY) + (ob_u32)($AT) * $BYTES, $FROM, $IS_WANTED);",
        "ob_commit_copies();",
        "ob_wait_for_copies($LATER);",
    )
    halves = (
        MatrixUnit(
            name=f"mma_m16n8k16_{kind}",
            m=16,
            n=8,
            k=16,
            dtype=dtype,
            lanes=32,
            left=_LEFT,
            right=_RIGHT,
            result=_SUMS,
            multiply="ob_multiply($SUMS, $LEFT, $RIGHT);",
            header=shared + _LOADS + _ROWS + _MULTIPLY.replace("$KIND", kind),
            load_left=_LOAD_LEFT,
            load_right=_LOAD_RIGHT,
            exchange="ob_of_lane($VALUE, $BIT)",
            power="ob_power($VALUE)",
            pair="ob_pair_of($LOW, $HIGH)",
            copies=copies,
        )
        for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float16, "f16"))
    )
    floats = MatrixUnit(
        name="mma_m16n8k8_tf32",
        m=16,
        n=8,
        k=8,
        dtype=torch.float32,
        lanes=32,
        left=Fragment("ob_u32", 4, "lane / 4 + index % 2 * 8", "lane % 4 + index / 2 * 4"),
        right=Fragment("ob_u32", 2, "lane % 4 + index * 4", "lane / 4"),
        result=_SUMS,
        multiply="ob_multiply($SUMS, $LEFT, $RIGHT);",
        header=shared + _LOADS + _ROUNDED,
        element="ob_to_tf32($ELEMENT)",
        load_left=(Load("ob_load_floats_4($INTO, $ARRAY, $AT);", line="lane % 16", step="lane / 16 * 4"), None),
        load_right=(
            Load(
                "ob_load_floats_4($INTO, $ARRAY, $AT);",
                line="lane % 8 + lane / 16 * 8",
                step="lane / 8 % 2 * 4",
                fragments=2,
            ),
            None,
        ),
        copies=copies,
        is_rounded=True,
    )
    return (*halves, floats)


PTX_CUDA_CPP = replace(CUDA_CPP, name="ptx_cuda_cpp", language="cuda", units=_units(_OF_CUDA, "cg"))
PTX_OPENCL_C = replace(
    OPENCL_C,
    name="ptx_opencl_c",
    language="opencl_c",
    header=f"{OPENCL_C.header}#ifdef __NV_CL_C_VERSION\n{CONVERSIONS}#endif\n",
    units=_units(_OF_OPENCL_C, "ca"),
)

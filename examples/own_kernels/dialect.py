# SPDX-License-Identifier: BSD-3-Clause
"""The spelling of the generator's constructs in the language of the devices: all that the generator must know of it.

Kernels are one text for all languages: the part of C that the languages share, with macros for the rest.
`torch_outboard.codegen.dialects.dialect.Dialect` defines each construct. To port it, begin with the header, call an
operator, and read the errors of your compiler. This dialect omits groups of items that share memory, which make other
devices fast. For groups, see the dialects of OpenCL C and CUDA C++ beside that module.
"""

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.compile.simt.generator import SimtGenerator

LANGUAGE = "own_kernels_c"

# Types, the qualifier of pointers to device memory, functions that are generic
# in their type, bits of numbers.
HEADER = """\
typedef tiny ob_i8;
typedef small ob_i16;
typedef word ob_i32;
typedef wide ob_i64;
typedef unsigned_tiny ob_u8;
typedef unsigned_small ob_u16;
typedef unsigned_word ob_u32;
typedef unsigned_wide ob_u64;
#define OB_DEVICE helper
#define OB_GLOBAL in_memory
#define OB_RESTRICT restrict
#define OB_TABLE constant
#define OB_TABLE_AT const
#define OB_LIB(name) name
#define OB_AS_F32(x) bits_to_float(x)
#define OB_AS_U32(x) float_to_bits(x)
#define OB_AS_F64(x) bits_to_double(x)
#define OB_AS_U64(x) double_to_bits(x)
#define OB_INFINITY infinity
#define OB_NAN not_a_number
// For kernels that check indices: who finds the first mistake tells it.
#define OB_TAKE(place, count) take(place, count)
// Additions to memory that items share. Here they run one after the other.
#define OB_ADD(T, U, S) OB_DEVICE void ob_atomic_add_##S(OB_GLOBAL T* at, T value) { *at = (T)((U)*at + (U)value); }
OB_ADD(float, float, f32)
OB_ADD(double, double, f64)
OB_ADD(ob_i8, ob_u32, i8)
OB_ADD(ob_i16, ob_u32, i16)
OB_ADD(ob_i32, ob_u32, i32)
OB_ADD(ob_i64, ob_u64, i64)
OB_ADD(ob_u8, ob_u32, u8)
"""

# For products, on devices like CPUs: vectors of 32 bytes.
VECTORS = """\
#define OB_VECTOR(T, V, S)                                                              \\
  typedef V ob_vec_##S;                                                                 \\
  OB_DEVICE ob_vec_##S ob_vec_splat_##S(T number) { return (V){0} + number; }           \\
  OB_DEVICE ob_vec_##S ob_vec_load_##S(const T* at) { V v; vector_load(v, at); return v; } \\
  OB_DEVICE void ob_vec_store_##S(ob_vec_##S v, T* at) { vector_store(v, at); }         \\
  OB_DEVICE ob_vec_##S ob_vec_add_product_##S(T a, ob_vec_##S b, ob_vec_##S c) { return a * b + c; }
OB_VECTOR(float, vector_of_float, f32)
OB_VECTOR(double, vector_of_double, f64)
OB_VECTOR(ob_u32, vector_of_unsigned_word, u32)
OB_VECTOR(ob_u64, vector_of_unsigned_wide, u64)
"""

DIALECT = Dialect(
    name=LANGUAGE,
    header=HEADER,
    kernel="kernel void {name}({parameters})",
    item="item_number()",
    lanes=16,
    group=64,
    options="fast_build",
    records=True,
    atomics=frozenset({"f32", "f64", "i8", "i16", "i32", "i64", "u8"}),
    vectors=VECTORS,
)


class OwnKernelsGenerator(SimtGenerator):
    dialect = DIALECT

// SPDX-License-Identifier: BSD-3-Clause
// Integers. Arithmetic wraps, as PyTorch's does, and is undefined nowhere.

// A is the type, U the unsigned one of its size (at least of 32 bits, where C would compute in int), S the suffix.
#define OB_INTEGER(A, U, S)                                                                                         \
  OB_DEVICE A ob_add_##S(A a, A b) { return (A)((U)a + (U)b); }                                                     \
  OB_DEVICE A ob_sub_##S(A a, A b) { return (A)((U)a - (U)b); }                                                     \
  OB_DEVICE A ob_mul_##S(A a, A b) { return (A)((U)a * (U)b); }                                                     \
  OB_DEVICE A ob_neg_##S(A a) { return (A)((U)0 - (U)a); }                                                          \
  OB_DEVICE A ob_maximum_##S(A a, A b) { return a > b ? a : b; }                                                    \
  OB_DEVICE A ob_minimum_##S(A a, A b) { return a < b ? a : b; }                                                    \
  OB_DEVICE A ob_sign_##S(A a) { return (A)((a > 0) - (a < 0)); }                                                   \
  OB_DEVICE A ob_abs_##S(A a) { return a < 0 ? ob_neg_##S(a) : a; }                                                 \
  /* C leaves a division by zero, which kernels check, and that of the least number by -1 open; 0 and what wraps. */\
  OB_DEVICE A ob_div_##S(A a, A b) { return b == 0 ? 0 : (b == (A)-1 && a < 0) ? ob_neg_##S(a) : (A)(a / b); }      \
  OB_DEVICE A ob_mod_##S(A a, A b) { return b == 0 || (b == (A)-1 && (A)-1 < 0) ? 0 : (A)(a % b); }                 \
  OB_DEVICE A ob_floordiv_##S(A a, A b) {                                                                           \
    const A quotient = ob_div_##S(a, b);                                                                            \
    return ob_mod_##S(a, b) != 0 && ((a < 0) != (b < 0)) ? (A)(quotient - 1) : quotient;                            \
  }                                                                                                                 \
  OB_DEVICE A ob_remainder_##S(A a, A b) {                                                                          \
    const A rest = ob_mod_##S(a, b);                                                                                \
    return rest != 0 && ((rest < 0) != (b < 0)) ? (A)(rest + b) : rest;                                             \
  }                                                                                                                 \
  OB_DEVICE A ob_pow_##S(A a, A b) {                                                                                \
    if (b < 0) return a == 1 ? (A)1 : a == (A)-1 ? ((b & 1) ? (A)-1 : (A)1) : (A)0;                                 \
    A result = 1;                                                                                                   \
    for (; b != 0; b >>= 1) {                                                                                       \
      if (b & 1) result = ob_mul_##S(result, a);                                                                    \
      a = ob_mul_##S(a, a);                                                                                         \
    }                                                                                                               \
    return result;                                                                                                  \
  }                                                                                                                 \
  /* Shifts by a negative number or by all bits: what a longer shift would leave, as PyTorch's. */                  \
  OB_DEVICE A ob_shl_##S(A a, A b) { return b < 0 || b >= (A)(8 * sizeof(A)) ? (A)0 : (A)((U)a << b); }             \
  OB_DEVICE A ob_shr_##S(A a, A b) {                                                                                \
    const A most = (A)(8 * sizeof(A) - 1);                                                                          \
    if (b < 0 || b > most) return a < 0 ? (A)-1 : (A)0;                                                             \
    return (A)(a >> b);                                                                                             \
  }
OB_INTEGER(ob_i8, ob_u32, i8)
OB_INTEGER(ob_i16, ob_u32, i16)
OB_INTEGER(ob_i32, ob_u32, i32)
OB_INTEGER(ob_i64, ob_u64, i64)
OB_INTEGER(ob_u8, ob_u32, u8)
OB_INTEGER(ob_u16, ob_u32, u16)
OB_INTEGER(ob_u32, ob_u32, u32)
OB_INTEGER(ob_u64, ob_u64, u64)

// SPDX-License-Identifier: BSD-3-Clause
// Integers. Arithmetic wraps as in PyTorch, and is never undefined.

// T is the type, S the suffix. U is the unsigned type of the same size, but at least 32 bits,
// because C would compute smaller types in int.
// family T, U, S:
//   ob_i8, ob_u32, i8;
//   ob_i16, ob_u32, i16;
//   ob_i32, ob_u32, i32;
//   ob_i64, ob_u64, i64;
//   ob_u8, ob_u32, u8;
//   ob_u16, ob_u32, u16;
//   ob_u32, ob_u32, u32;
//   ob_u64, ob_u64, u64
OB_DEVICE T ob_add_S(T a, T b) { return (T)((U)a + (U)b); }
OB_DEVICE T ob_sub_S(T a, T b) { return (T)((U)a - (U)b); }
OB_DEVICE T ob_mul_S(T a, T b) { return (T)((U)a * (U)b); }
OB_DEVICE T ob_neg_S(T a) { return (T)((U)0 - (U)a); }
OB_DEVICE T ob_maximum_S(T a, T b) { return a > b ? a : b; }
OB_DEVICE T ob_minimum_S(T a, T b) { return a < b ? a : b; }
OB_DEVICE T ob_sign_S(T a) { return (T)((a > 0) - (a < 0)); }
OB_DEVICE T ob_abs_S(T a) { return a < 0 ? ob_neg_S(a) : a; }
// C does not define a division by zero, nor the division of the least number by -1. The first
// returns 0 (kernels check the divisor), the second wraps.
OB_DEVICE T ob_div_S(T a, T b) { return b == 0 ? 0 : (b == (T)-1 && a < 0) ? ob_neg_S(a) : (T)(a / b); }
// In SPIR-V, % of a negative number is undefined; / is not.
OB_DEVICE T ob_mod_S(T a, T b) { return b == 0 || (b == (T)-1 && a < 0) ? 0 : (T)(a - (T)(a / b) * b); }
OB_DEVICE T ob_floordiv_S(T a, T b) {
  const T quotient = ob_div_S(a, b);
  return ob_mod_S(a, b) != 0 && ((a < 0) != (b < 0)) ? (T)(quotient - 1) : quotient;
}
OB_DEVICE T ob_remainder_S(T a, T b) {
  const T rest = ob_mod_S(a, b);
  return rest != 0 && ((rest < 0) != (b < 0)) ? (T)(rest + b) : rest;
}
OB_DEVICE T ob_pow_S(T a, T b) {
  if (b < 0) return a == 1 ? (T)1 : a == (T)-1 ? ((b & 1) ? (T)-1 : (T)1) : (T)0;
  T result = 1;
  for (; b != 0; b >>= 1) {
    if (b & 1) result = ob_mul_S(result, a);
    a = ob_mul_S(a, a);
  }
  return result;
}
// A shift by a negative number, or by at least the number of bits, returns the limit of longer
// shifts, as in PyTorch.
OB_DEVICE T ob_shl_S(T a, T b) { return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((U)a << b); }
OB_DEVICE T ob_shr_S(T a, T b) {
  const T most = (T)(8 * sizeof(T) - 1);
  if (b < 0 || b > most) return a < 0 ? (T)-1 : (T)0;
  return (T)(a >> b);
}

// The quotient of a number by a size, both below 2^31. The inverse is 2^62 / size, rounded up. The
// arithmetic uses 32 bits, because NVIDIA's SPIR-V compiler (580.159) mixes up the 64-bit quotients
// of unrolled turns.
OB_DEVICE ob_i32 ob_over(const ob_i32 number, const ob_i64 inverse) {
  const ob_u32 factor = (ob_u32)number, upper = (ob_u32)((ob_u64)inverse >> 32), low = factor * upper;
  const ob_u32 sum = low + OB_MUL_HIGH(factor, (ob_u32)inverse);
  const ob_u32 high = OB_MUL_HIGH(factor, upper) + (sum < low ? 1u : 0u);
  return (ob_i32)(high << 2 | sum >> 30);
}

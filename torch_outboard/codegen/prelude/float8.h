// SPDX-License-Identifier: BSD-3-Clause
// Floats of 8 bits are stored and computed in float. Conversions round to nearest, ties to even.
// The words of a member are the number of fraction bits, the exponent's bias, the bits of the
// greatest number, of values beyond it, and of NaN, whether there is an infinity, and whether zero
// has a sign.

// family FRACTION, BIAS, MOST, BEYOND, NONE, HAS_INFINITY, HAS_SIGNED_ZERO, S:
//   3, 7, 0x7e, OB_BEYOND_E4M3FN, 0x7f, 0, 1, e4m3fn;
//   2, 15, 0x7b, 0x7c, 0x7f, 1, 1, e5m2;
//   3, 8, 0x7f, 0x80, 0x80, 0, 0, e4m3fnuz;
//   2, 16, 0x7f, 0x80, 0x80, 0, 0, e5m2fnuz
OB_DEVICE float ob_from_S(ob_u8 bits) {
  const ob_u32 rest = bits & 0x7fu;
  // If the exponent is 0, the value is a multiple of the least number.
  const float small = (float)rest * OB_AS_F32((ob_u32)(128 - (BIAS) - (FRACTION)) << 23);
  const float normal = OB_AS_F32((rest << (23 - (FRACTION))) + ((ob_u32)(127 - (BIAS)) << 23));
  const float size = (rest >> (FRACTION)) == 0 ? small : normal;
  const bool is_none = (HAS_SIGNED_ZERO) ? rest > (MOST) + (HAS_INFINITY) : bits == (NONE);
  const bool is_infinite = (HAS_INFINITY) && rest == (MOST) + 1;
  const float value = is_none ? OB_NAN : is_infinite ? OB_INFINITY : size;
  return (bits & 0x80u) != 0 ? -value : value;
}
OB_DEVICE ob_u8 ob_to_S(float value) {
  const ob_u32 bits = OB_AS_U32(value);
  const ob_u32 size = bits & 0x7fffffffu;
  // Adding a power of two rounds a small value to a multiple of the least number, which is then in
  // the last bits.
  const ob_u32 power = (ob_u32)(151 - (BIAS) - (FRACTION)) << 23;
  const ob_u32 small = OB_AS_U32(OB_AS_F32(size) + OB_AS_F32(power)) - power;
  const ob_u32 carry = (1u << (22 - (FRACTION))) - 1u + ((size >> (23 - (FRACTION))) & 1u);
  const ob_u32 normal = (size - ((ob_u32)(127 - (BIAS)) << 23) + carry) >> (23 - (FRACTION));
  const ob_u32 rounded = size < ((ob_u32)(128 - (BIAS)) << 23) ? small : normal;
  const ob_u32 number = rounded > (MOST) ? (ob_u32)(BEYOND) : rounded;
  const ob_u32 found = size > 0x7f800000u ? (ob_u32)(NONE) : number;
  const ob_u32 sign = (bits >> 31) & (ob_u32)((HAS_SIGNED_ZERO) | (found != 0));
  return (ob_u8)(found | sign << 7);
}

// SPDX-License-Identifier: BSD-3-Clause
// Halves are stored as 16 bits and computed in float. Conversions round to nearest, ties to even. A
// dialect whose device has instructions for them defines OB_TO_BF16, OB_FROM_F16 and OB_TO_F16.

OB_DEVICE float ob_from_bf16(ob_u16 bits) { return OB_AS_F32((ob_u32)bits << 16); }
OB_DEVICE ob_u16 ob_to_bf16(float value) {
#ifdef OB_TO_BF16
  return OB_TO_BF16(value);
#else
  const ob_u32 bits = OB_AS_U32(value);
  return value != value ? (ob_u16)0x7fc0 : (ob_u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

OB_DEVICE float ob_from_f16(ob_u16 half_bits) {
#ifdef OB_FROM_F16
  return OB_FROM_F16(half_bits);
#else
  const ob_u32 sign = ((ob_u32)half_bits & 0x8000u) << 16;
  const ob_u32 rest = (ob_u32)half_bits & 0x7fffu;
  // If the exponent is 0, the value is a multiple of 2^-24, which a float holds exactly.
  const ob_u32 small = OB_AS_U32((float)rest * 5.9604644775390625e-8f);
  const ob_u32 normal = (rest << 13) + ((ob_u32)112 << 23);
  const ob_u32 special = 0x7f800000u | (rest << 13);
  return OB_AS_F32(sign | (rest < 0x0400u ? small : rest < 0x7c00u ? normal : special));
#endif
}
OB_DEVICE ob_u16 ob_to_f16(float value) {
#ifdef OB_TO_F16
  return OB_TO_F16(value);
#else
  const ob_u32 bits = OB_AS_U32(value);
  const ob_u32 sign = (bits >> 16) & 0x8000u;
  const ob_u32 size = bits & 0x7fffffffu;
  // Below 2^-14, adding 0.5 rounds the value to a multiple of 2^-24, which is then in the last
  // bits.
  const ob_u32 small = OB_AS_U32(OB_AS_F32(size) + 0.5f) - 0x3f000000u;
  const ob_u32 normal = (size - ((ob_u32)112 << 23) + 0x0fffu + ((size >> 13) & 1u)) >> 13;
  const ob_u32 special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return (ob_u16)(sign | (size < 0x38800000u ? small : size < 0x477ff000u ? normal : special));
#endif
}

// Atomic additions to one half of a 32-bit word, by compare-and-exchange of the word: the dialect's
// OB_CAS(place, seen, next) returns the old value. In a language without OB_CAS, the items of a
// launch run one after the other.
// family S: f16; bf16
OB_DEVICE void ob_atomic_add_S(OB_GLOBAL ob_u16* place, float value) {
#ifdef OB_CAS
  volatile OB_GLOBAL ob_u32* word = (volatile OB_GLOBAL ob_u32*)((size_t)place & ~(size_t)3);
  const ob_u32 shift = ((size_t)place & 2) != 0 ? 16u : 0u;
  for (ob_u32 seen = *word;;) {
    const ob_u16 sum = ob_to_S(ob_from_S((ob_u16)(seen >> shift)) + value);
    const ob_u32 before = OB_CAS(word, seen, (seen & ~(0xffffu << shift)) | ((ob_u32)sum << shift));
    if (before == seen) return;
    seen = before;
  }
#else
  *place = ob_to_S(ob_from_S(*place) + value);
#endif
}

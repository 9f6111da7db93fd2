// SPDX-License-Identifier: BSD-3-Clause
// Access to unaligned memory.

// Of eight words, drop the first `ahead` bytes, move the next 16 bytes to the front, and clear all
// but the first `count` of these 16 bytes. Both numbers are even, and `ahead` is below 16.
OB_DEVICE void ob_shift_16(OB_OWN(ob_u32, words, 8), ob_u32 ahead, ob_u32 count) {
  if (ahead & 8) {
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (ahead & 4) {
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  if (ahead & 2) {
    for (int i = 0; i < 4; ++i) words[i] = words[i] >> 16 | words[i + 1] << 16;
  }
  for (ob_u32 i = 0; i < 4; ++i) {
    if (count < 4 * i + 4) words[i] &= count > 4 * i ? 0xffff : 0;
  }
}

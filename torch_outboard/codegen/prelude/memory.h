// SPDX-License-Identifier: BSD-3-Clause
// Places in memory that are not aligned.

// Shift the 16 bytes behind the first `ahead` ones of eight words to the front, and clear those of
// them behind the first `count`. Both are even numbers; `ahead` is below 16.
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

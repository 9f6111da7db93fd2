// SPDX-License-Identifier: BSD-3-Clause
// Philox 4x32 with 10 rounds: returns number `offset` of the stream `seed`, the same on every
// device.

OB_STRUCT(ob_philox_4) {
  ob_u32 x;
  ob_u32 y;
  ob_u32 z;
  ob_u32 w;
};

OB_DEVICE ob_u32 ob_high(ob_u32 a, ob_u32 b) { return (ob_u32)(((ob_u64)a * b) >> 32); }
OB_DEVICE ob_philox_4 ob_philox(ob_u64 seed, ob_u64 offset) {
  ob_philox_4 c;
  c.x = (ob_u32)offset;
  c.y = (ob_u32)(offset >> 32);
  c.z = 0;
  c.w = 0;
  ob_u32 low = (ob_u32)seed;
  ob_u32 high = (ob_u32)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const ob_u32 a = c.x;
    const ob_u32 b = c.z;
    c.x = ob_high(0xCD9E8D57u, b) ^ c.y ^ low;
    c.z = ob_high(0xD2511F53u, a) ^ c.w ^ high;
    c.y = 0xCD9E8D57u * b;
    c.w = 0xD2511F53u * a;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return c;
}

// A number in [0, 1) with 24 bits, which a float holds exactly, so the result is never rounded to
// 1.
OB_DEVICE float ob_uniform(ob_u32 bits) { return (float)(bits >> 8) * 5.9604644775390625e-8f; }
OB_DEVICE float ob_rand(ob_i64 seed, ob_i64 offset) { return ob_uniform(ob_philox((ob_u64)seed, (ob_u64)offset).x); }
// The Box-Muller transform; the argument of the logarithm is in (0, 1].
OB_DEVICE float ob_randn(ob_i64 seed, ob_i64 offset) {
  const ob_philox_4 bits = ob_philox((ob_u64)seed, (ob_u64)offset);
  const float size = OB_LIB(sqrt)(-2.0f * OB_LIB(log)(1.0f - ob_uniform(bits.x)));
  return size * OB_LIB(cos)(6.283185307179586f * ob_uniform(bits.y));
}
// The position of an attention weight among the call's random numbers. Four weights share a
// position, and use Philox's four words: within a square of 16 by 16 weights, the weights whose
// queries and keys differ by 0 or 8. A lane of common matrix units holds all four.
OB_DEVICE ob_u64 ob_drop_place(ob_i64 head, ob_i64 queries, ob_i64 keys, ob_i64 query, ob_i64 key) {
  const ob_u64 down = ((ob_u64)queries + 15) / 16;
  const ob_u64 across = ((ob_u64)keys + 15) / 16;
  const ob_u64 square = ((ob_u64)head * down + (ob_u64)query / 16) * across + (ob_u64)key / 16;
  return square * 64 + (ob_u64)query % 8 * 8 + (ob_u64)key % 8;
}
OB_DEVICE ob_u32 ob_drop_word(ob_philox_4 drawn, ob_i64 query, ob_i64 key) {
  const ob_u32 upper = (key & 8) ? drawn.y : drawn.x;
  const ob_u32 lower = (key & 8) ? drawn.w : drawn.z;
  return (query & 8) ? lower : upper;
}
OB_DEVICE bool ob_is_kept(
    ob_u64 seed, ob_u32 least, ob_i64 head, ob_i64 queries, ob_i64 keys, ob_i64 query, ob_i64 key
) {
  return ob_drop_word(ob_philox(seed, ob_drop_place(head, queries, keys, query, key)), query, key) >= least;
}
OB_DEVICE ob_i64 ob_randint(ob_i64 seed, ob_i64 offset, ob_i64 low, ob_i64 high) {
  const ob_philox_4 bits = ob_philox((ob_u64)seed, (ob_u64)offset);
  const ob_u64 drawn = ((ob_u64)bits.x << 32) | bits.y;
  const ob_u64 count = (ob_u64)high - (ob_u64)low;
  return (ob_i64)((ob_u64)low + (count == 0 ? drawn : drawn % count));
}

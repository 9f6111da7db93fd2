// SPDX-License-Identifier: BSD-3-Clause
// A kernel writes a failure to the record of its stream, which a wait reads.
// csrc/core/kernel_failure.h has the same struct. Only the first failure since the host erased the
// record is written: the dialect's atomic OB_TAKE(pointer, count) returns true for the first item.

OB_STRUCT(ob_record) {
  ob_u32 taken;
  ob_u32 check;
  ob_u64 ticket;
  ob_i64 index;
  ob_i64 size;
  ob_u32 which;
  ob_u32 erased;
  ob_u64 seal;
};

OB_DEVICE void ob_fail(OB_GLOBAL ob_record* record, ob_u64 ticket, ob_u32 which, ob_u32 check, ob_i64 index,
                       ob_i64 size) {
  const ob_u32 erased = record->erased;
  if (!OB_TAKE(&record->taken, erased)) return;
  record->check = check;
  record->ticket = ticket;
  record->index = index;
  record->size = size;
  record->which = which;
  // The checksum. The host ignores the record until the checksum matches, whatever order the writes
  // arrive in.
  record->seal = ticket ^ (ob_u64)index ^ (ob_u64)size ^ ((ob_u64)which << 32) ^ check ^ (ob_u64)0x6f7574626f617264L;
}

// Return an index that is within bounds in any case. `given` is the user's value, before a negative
// index was wrapped.
OB_DEVICE ob_i64 ob_checked(OB_GLOBAL ob_record* record, ob_u64 ticket, ob_u32 which, ob_u32 check, ob_i64 index,
                            ob_i64 size, ob_i64 given) {
  if (index >= 0 && index < size) return index;
  ob_fail(record, ticket, which, check, given, size);
  return index < 0 ? 0 : size - 1;
}

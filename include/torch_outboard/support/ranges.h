// SPDX-License-Identifier: BSD-3-Clause
// The device memory that a driver has allocated, so that a copy beyond an allocation is an error
// instead of a crash.
#pragma once

#include <bit>
#include <cinttypes>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "torch_outboard/support/error.h"

namespace support {

struct Range {
  uint64_t bytes = 0;
  uint64_t owner = 0;  // the number by which the driver frees the memory
};

// The ranges of one device, by address. Adjacent ranges count as one range.
class Ranges {
 public:
  void add(uint64_t address, Range range) {
    const std::unique_lock lock(mutex_);
    ranges_.insert_or_assign(address, range);
    ++changes_;
  }

  // Remove the range that begins at `address`. Return false if there is none.
  bool take(uint64_t address, Range* out_range) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end()) return false;
    *out_range = found->second;
    ranges_.erase(found);
    ++changes_;
    return true;
  }

  // Return how often ranges were added and taken; never 0.
  uint64_t changes() const {
    const std::shared_lock lock(mutex_);
    return changes_;
  }

  // Return the owner of each range, and the count of changes at that moment.
  std::vector<uint64_t> owners(uint64_t* out_changes) const {
    const std::shared_lock lock(mutex_);
    std::vector<uint64_t> found;
    for (const auto& [address, range] : ranges_) found.push_back(range.owner);
    *out_changes = changes_;
    return found;
  }

  // Return the owner of the range that contains all of these bytes; 0 if there is none.
  uint64_t owner_of(uint64_t address, uint64_t bytes) const {
    const std::shared_lock lock(mutex_);
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return 0;
    --next;
    const uint64_t offset = address - next->first;
    return offset < next->second.bytes && bytes <= next->second.bytes - offset ? next->second.owner : 0;
  }

  bool has(uint64_t address, uint64_t bytes) const {
    const std::shared_lock lock(mutex_);
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return false;
    --next;
    const uint64_t offset = address - next->first;
    if (offset >= next->second.bytes) return false;
    if (bytes <= next->second.bytes - offset) return true;
    bytes -= next->second.bytes - offset;
    uint64_t end = next->first + next->second.bytes;
    for (++next; next != ranges_.end() && next->first == end; ++next) {
      if (bytes <= next->second.bytes) return true;
      bytes -= next->second.bytes;
      end += next->second.bytes;
    }
    return false;
  }

  ob_status check(int32_t device, uint64_t address, uint64_t bytes) const {
    if (has(address, bytes)) [[likely]]
      return OB_OK;
    return fail(OB_INVALID_ARGUMENT, "device %d: the %" PRIu64 " bytes at 0x%" PRIx64 " are not memory of the device",
                device, bytes, address);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Range> ranges_;
  uint64_t changes_ = 1;
};

// Refuse a copy if the stream's device is on neither side.
inline ob_status check_copy(int32_t index, const ob_copy& copy) {
  if (copy.dst_device == index || copy.src_device == index) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "device %d cannot copy from device %d to device %d", index, copy.src_device,
              copy.dst_device);
}

// Refuse a fill that is unaligned, too long for 64 bits, or whose pattern does not have 1, 2, 4, 8
// or 16 bytes.
inline ob_status check_fill(int32_t index, uint64_t dst, uint32_t pattern_size, uint64_t count) {
  const bool is_size = pattern_size <= 16 && std::has_single_bit(pattern_size);
  if (is_size && dst % pattern_size == 0 && count <= UINT64_MAX / pattern_size) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "device %d: invalid fill of %" PRIu64 " times %u bytes at 0x%" PRIx64, index, count,
              pattern_size, dst);
}

}  // namespace support

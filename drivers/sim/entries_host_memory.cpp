// SPDX-License-Identifier: BSD-3-Clause
// The entries about host memory: ordinary memory, with a list of allocated and registered ranges.
// Mistakes fail here as they would on hardware.
#include <cstdlib>

#include "entries.h"

namespace sim {
namespace {

using HostRanges = Driver::HostRanges;

// Return the range of `ranges` that overlaps [begin, begin + bytes), or end.
HostRanges::const_iterator overlap(const HostRanges& ranges, uint64_t begin, uint64_t bytes) {
  auto after = ranges.lower_bound(begin + bytes);
  if (after == ranges.begin()) return ranges.end();
  --after;
  return after->first + after->second.bytes > begin ? after : ranges.end();
}

ob_status host_alloc(void* self, uint64_t bytes, void** out_pointer) {
  return enter<Entry::host_alloc>(self, [&](const Call& call) -> ob_status {
    void* pointer = nullptr;
    const size_t alignment = bytes >= 4096 ? 4096 : 64;
    if (bytes == 0) return fail(OB_INVALID_ARGUMENT, "host_alloc of 0 bytes");
    if (posix_memalign(&pointer, alignment, bytes) != 0) {
      return fail(OB_OUT_OF_MEMORY, "host_alloc: the host cannot allocate %s", size_text(bytes).c_str());
    }
    try {
      std::lock_guard lock(call.driver.host_mutex);
      call.driver.host_ranges[reinterpret_cast<uint64_t>(pointer)] = {bytes, true};
    } catch (...) {
      std::free(pointer);
      throw;
    }
    *out_pointer = pointer;
    return OB_OK;
  });
}

// Remove the range that begins at `pointer` from the list.
ob_status forget(Driver& driver, const char* entry, const char* origin, void* pointer, bool is_allocated) {
  std::lock_guard lock(driver.host_mutex);
  const auto range = driver.host_ranges.find(reinterpret_cast<uint64_t>(pointer));
  if (range == driver.host_ranges.end() || range->second.is_allocated != is_allocated) {
    return fail(OB_INVALID_ARGUMENT, "%s of %p, which %s did not return or register, or which was already released",
                entry, pointer, origin);
  }
  driver.host_ranges.erase(range);
  return OB_OK;
}

ob_status host_free(void* self, void* pointer) {
  return enter<Entry::host_free>(self, [&](const Call& call) {
    const ob_status status = forget(call.driver, "host_free", "host_alloc", pointer, true);
    if (status == OB_OK) std::free(pointer);
    return status;
  });
}

ob_status host_register(void* self, void* pointer, uint64_t bytes) {
  return enter<Entry::host_register>(self, [&](const Call& call) -> ob_status {
    const uint64_t begin = reinterpret_cast<uint64_t>(pointer);
    if (pointer == nullptr || bytes == 0 || begin + bytes < begin) {
      return fail(OB_INVALID_ARGUMENT, "host_register of %" PRIu64 " bytes at %p: the range is empty or invalid", bytes,
                  pointer);
    }
    std::lock_guard lock(call.driver.host_mutex);
    HostRanges& ranges = call.driver.host_ranges;
    if (const auto range = overlap(ranges, begin, bytes); range != ranges.end()) {
      return fail(OB_ALREADY_EXISTS,
                  "host_register of %" PRIu64 " bytes at %p: %" PRIu64 " bytes at 0x%" PRIx64 " are already %s", bytes,
                  pointer, range->second.bytes, range->first,
                  range->second.is_allocated ? "allocated by host_alloc" : "registered");
    }
    ranges[begin] = {bytes, false};
    return OB_OK;
  });
}

ob_status host_unregister(void* self, void* pointer) {
  return enter<Entry::host_unregister>(
      self, [&](const Call& call) { return forget(call.driver, "host_unregister", "host_register", pointer, false); });
}

}  // namespace

void fill_host_memory_entries(ob_driver* table) {
  table->host_alloc = host_alloc;
  table->host_free = host_free;
  table->host_register = host_register;
  table->host_unregister = host_unregister;
}

}  // namespace sim

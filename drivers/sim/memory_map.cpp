// SPDX-License-Identifier: BSD-3-Clause
// Address space without memory, and memory mapped into it.
#include <cinttypes>

#include "error.h"
#include "memory.h"

namespace sim {

ob_status DeviceMemory::reserve(uint64_t bytes, uint64_t* out_address) {
  if (bytes == 0 || bytes % kMapGranularity != 0) {
    return fail(OB_INVALID_ARGUMENT, "device %d: mem_reserve of %" PRIu64 " bytes; it takes multiples of %" PRIu64,
                device_, bytes, kMapGranularity);
  }
  std::lock_guard lock(mutex_);
  const uint64_t address = bytes <= span_ ? addresses_.take(bytes, kMapGranularity) : 0;
  if (address == 0) {
    return fail(OB_OUT_OF_MEMORY, "device %d: no address range of %s is left in %s", device_, size_text(bytes).c_str(),
                size_text(span_).c_str());
  }
  regions_.emplace(address, Region{Kind::kReservation, bytes, bytes, std::vector<bool>(bytes / kMapGranularity)});
  *out_address = address;
  return OB_OK;
}

ob_status DeviceMemory::release(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto reservation = regions_.find(address);
  if (reservation == regions_.end() || reservation->second.kind != Kind::kReservation ||
      reservation->second.bytes != bytes) {
    return fail(OB_INVALID_ARGUMENT,
                "device %d: mem_release of %" PRIu64 " bytes at 0x%" PRIx64
                ", which is not a whole range of mem_reserve, or was already released",
                device_, bytes, address);
  }
  for (const bool is_mapped : reservation->second.mapped) {
    if (is_mapped) {
      return fail(OB_FAILED_PRECONDITION, "device %d: mem_release at 0x%" PRIx64 ": memory is mapped there; unmap it",
                  device_, address);
    }
  }
  addresses_.give(address, bytes);
  regions_.erase(reservation);
  return OB_OK;
}

// Return the reservation that holds the range. Its pages must all be `mapped`, or all not.
ob_status DeviceMemory::check_range(const char* entry, uint64_t address, uint64_t bytes, bool mapped,
                                    Region** out_region) {
  if (bytes == 0 || bytes % kMapGranularity != 0 || address % kMapGranularity != 0) {
    return fail(OB_INVALID_ARGUMENT,
                "device %d: %s of %" PRIu64 " bytes at 0x%" PRIx64 "; both must be multiples of %" PRIu64, device_,
                entry, bytes, address, kMapGranularity);
  }
  const auto reservation = region_of(address);
  if (reservation == regions_.end() || reservation->second.kind != Kind::kReservation ||
      bytes > reservation->second.bytes - (address - reservation->first)) {
    return fail(OB_INVALID_ARGUMENT,
                "device %d: %s of %" PRIu64 " bytes at 0x%" PRIx64 ", which is not within one reservation", device_,
                entry, bytes, address);
  }
  const uint64_t first = (address - reservation->first) / kMapGranularity;
  for (uint64_t page = first; page < first + bytes / kMapGranularity; ++page) {
    if (reservation->second.mapped[page] != mapped) {
      return fail(OB_FAILED_PRECONDITION, "device %d: %s at 0x%" PRIx64 ": memory is %s mapped there", device_, entry,
                  reservation->first + page * kMapGranularity, mapped ? "not" : "already");
    }
  }
  *out_region = &reservation->second;
  return OB_OK;
}

// The lock is held while the system maps, so two threads that map or unmap one range see one order.
ob_status DeviceMemory::map(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Region* region = nullptr;
  ob_status status = check_range("mem_map", address, bytes, false, &region);
  if (status == OB_OK) status = take_bytes(bytes);
  if (status != OB_OK) return status;
  status = commit(address, bytes);
  if (status != OB_OK) {
    used_ -= bytes;
    return status;
  }
  const uint64_t first = (address - region_of(address)->first) / kMapGranularity;
  for (uint64_t page = first; page < first + bytes / kMapGranularity; ++page) region->mapped[page] = true;
  return OB_OK;
}

ob_status DeviceMemory::unmap(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Region* region = nullptr;
  const ob_status status = check_range("mem_unmap", address, bytes, true, &region);
  if (status != OB_OK) return status;
  decommit(address, bytes);
  used_ -= bytes;
  const uint64_t first = (address - region_of(address)->first) / kMapGranularity;
  for (uint64_t page = first; page < first + bytes / kMapGranularity; ++page) region->mapped[page] = false;
  return OB_OK;
}

}  // namespace sim

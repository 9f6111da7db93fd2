// SPDX-License-Identifier: BSD-3-Clause
// One device's memory: address ranges, the allocations in them, and how the host reaches it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "address_space.h"
#include "options.h"
#include "torch_outboard/driver.h"

namespace sim {

constexpr uint64_t kMapGranularity = uint64_t{2} << 20;

// Two equally large ranges of the process's address space: device addresses, which are never
// accessible, and host addresses, which are accessible if their memory is live. Host minus device
// is one number for the whole device. The ranges are much larger than the memory, so that address
// space never runs out before memory does.
class DeviceMemory {
 public:
  ob_status open(int32_t device, const Options& options);
  void close();  // unmaps all memory, live or not

  ob_status allocate(uint64_t bytes, uint64_t* out_address);
  ob_status free(uint64_t address);
  ob_status info(uint64_t* out_free, uint64_t* out_total) const;

  ob_status reserve(uint64_t bytes, uint64_t* out_address);
  ob_status release(uint64_t address, uint64_t bytes);
  ob_status map(uint64_t address, uint64_t bytes);
  ob_status unmap(uint64_t address, uint64_t bytes);

  ob_status export_handle(uint64_t address, void* out_handle, size_t* inout_size);
  ob_status open_handle(const void* handle, size_t size, uint64_t* out_address);
  ob_status close_handle(uint64_t address);

  // Return the host's address of live memory, or an error that says what
  // [address, address + bytes) is instead.
  ob_status translate(uint64_t address, uint64_t bytes, void** out_host) const;

  // Return the number of live allocations, reservations and opened handles,
  // and the bytes of the first two.
  uint64_t live_count() const;
  uint64_t live_bytes() const;

 private:
  enum class Kind : uint8_t { kAllocation, kReservation, kForeign };
  struct Region {
    Kind kind;
    uint64_t bytes;       // that are accessible
    uint64_t span;        // of address space
    std::vector<bool> mapped;  // of a reservation, a bit for each kMapGranularity
  };
  using Regions = std::map<uint64_t, Region>;

  // Call all with mutex_ held, except the last four, which call the system and take no lock.
  Regions::iterator region_of(uint64_t address);
  Regions::const_iterator region_of(uint64_t address) const;
  ob_status take_bytes(uint64_t bytes);
  ob_status check_range(const char* entry, uint64_t address, uint64_t bytes, bool mapped, Region** out_region);
  ob_status describe_miss(uint64_t address, uint64_t bytes, Regions::const_iterator region) const;

  ob_status map_window(uint64_t span);
  ob_status commit(uint64_t address, uint64_t bytes);
  void decommit(uint64_t address, uint64_t bytes);
  char* host(uint64_t address) const { return reinterpret_cast<char*>(address + offset_); }

  mutable std::mutex mutex_;
  int32_t device_ = 0;
  uint64_t total_ = 0;
  uint64_t used_ = 0;
  bool poison_ = false;
  int file_ = -1;              // with ipc: the file that the host range maps, at the same offsets
  void* device_mapping_ = nullptr;
  void* host_mapping_ = nullptr;
  uint64_t mapping_bytes_ = 0;
  uint64_t base_ = 0;          // first device address
  uint64_t span_ = 0;
  uint64_t offset_ = 0;        // host minus device
  Regions regions_;
  AddressSpace addresses_;
};

}  // namespace sim

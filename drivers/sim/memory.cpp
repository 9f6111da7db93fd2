// SPDX-License-Identifier: BSD-3-Clause
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "error.h"

namespace sim {
namespace {

uint64_t page_size() {
  static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

ob_status DeviceMemory::map_window(uint64_t span) {
  mapping_bytes_ = span + kMapGranularity;  // room to align
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* host = MAP_FAILED;
  if (file_ >= 0) {
    if (ftruncate(file_, static_cast<off_t>(mapping_bytes_)) == 0) {
      host = mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_, 0);
    }
  } else {
    host = mmap(nullptr, mapping_bytes_, PROT_NONE, kFlags, -1, 0);
  }
  if (host == MAP_FAILED) return OB_OUT_OF_MEMORY;
  // A forked child must not use the device. Without this, each page that the parent writes to while
  // a child lives would be copied.
  madvise(host, mapping_bytes_, MADV_DONTFORK);
  host_mapping_ = host;
  device_mapping_ = nullptr;
  span_ = span;
  const uint64_t host_base = round_up(reinterpret_cast<uint64_t>(host), kMapGranularity);
  base_ = host_base;
  offset_ = 0;
  return OB_OK;
}

ob_status DeviceMemory::open(int32_t device, const Options& options) {
  device_ = device;
  total_ = options.memory;
  used_ = 0;
  poison_ = options.poison;
  if (options.ipc) {
    file_ = memfd_create("outboard-sim", MFD_CLOEXEC);
    if (file_ < 0) return fail(OB_UNAVAILABLE, "device %d: memfd_create: %s", device, std::strerror(errno));
  }
  // The core reserves a range as large as the device for each of many streams. Tools that limit
  // address space (ulimit, valgrind, sanitizers) may allow less.
  constexpr uint64_t kMaxSpan = uint64_t{32} << 40;
  const uint64_t least = round_up(total_, kMapGranularity) * 2;
  ob_status status = OB_OUT_OF_MEMORY;
  for (uint64_t span = std::max(std::min(least * 32, kMaxSpan), least); span >= least && status != OB_OK; span /= 2) {
    span = round_up(span, kMapGranularity);
    if (map_window(span) != OB_OK) continue;
    if (options.single_mapping) {
      status = OB_OK;
      continue;
    }
    void* addresses = mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED) {
      munmap(host_mapping_, mapping_bytes_);
      host_mapping_ = nullptr;
      continue;
    }
    device_mapping_ = addresses;
    const uint64_t host_base = base_;
    base_ = round_up(reinterpret_cast<uint64_t>(addresses), kMapGranularity);
    offset_ = host_base - base_;
    status = OB_OK;
  }
  if (status != OB_OK) {
    close();
    return fail(
        status,
        "device %d: no address space for %s of memory (%s); lower the option 'memory', or raise the limit of ulimit -v",
        device, size_text(total_).c_str(), std::strerror(ENOMEM));
  }
  addresses_ = AddressSpace();
  addresses_.add(base_, span_);
  return OB_OK;
}

void DeviceMemory::close() {
  if (host_mapping_ != nullptr) munmap(host_mapping_, mapping_bytes_);
  if (device_mapping_ != nullptr) munmap(device_mapping_, mapping_bytes_);
  if (file_ >= 0) ::close(file_);
  host_mapping_ = device_mapping_ = nullptr;
  file_ = -1;
  regions_.clear();
}

ob_status DeviceMemory::commit(uint64_t address, uint64_t bytes) {
  // Allocate the file's pages now: if memory runs out later, a write to a missing page ends the
  // process.
  const auto place = static_cast<off_t>(static_cast<char*>(host(address)) - static_cast<char*>(host_mapping_));
  errno = file_ < 0 ? 0 : posix_fallocate(file_, place, static_cast<off_t>(bytes));
  if (errno != 0 || mprotect(host(address), bytes, PROT_READ | PROT_WRITE) != 0) {
    return fail(OB_OUT_OF_MEMORY,
                "device %d: the host refused %s: %s (with very many allocations, raise vm.max_map_count)", device_,
                size_text(bytes).c_str(), std::strerror(errno));
  }
  if (poison_) {
    // The core's pattern of memory that no owner has written (driver.h's OB_DRIVER_POISONS).
    auto* const words = reinterpret_cast<uint16_t*>(host(address));
    std::fill_n(words, bytes / sizeof(*words), uint16_t{0x7FF0});
  }
  return OB_OK;
}

void DeviceMemory::decommit(uint64_t address, uint64_t bytes) {
  madvise(host(address), bytes, file_ >= 0 ? MADV_REMOVE : MADV_DONTNEED);
  mprotect(host(address), bytes, PROT_NONE);
}

ob_status DeviceMemory::take_bytes(uint64_t bytes) {
  if (bytes > total_ - used_) {
    return fail(OB_OUT_OF_MEMORY,
                "device %d: out of memory: tried to allocate %s; %s of %s is free, and %s is in use in %zu pieces",
                device_, size_text(bytes).c_str(), size_text(total_ - used_).c_str(), size_text(total_).c_str(),
                size_text(used_).c_str(), regions_.size());
  }
  used_ += bytes;
  return OB_OK;
}

ob_status DeviceMemory::allocate(uint64_t bytes, uint64_t* out_address) {
  if (bytes == 0) return fail(OB_INVALID_ARGUMENT, "device %d: mem_alloc of 0 bytes", device_);
  uint64_t address = 0;
  uint64_t rounded = 0;
  uint64_t span = 0;
  {
    std::lock_guard lock(mutex_);
    // Check before rounding, because a request near 2^64 would wrap.
    if (bytes > total_) return take_bytes(bytes);
    rounded = round_up(bytes, page_size());
    const ob_status status = take_bytes(rounded);
    if (status != OB_OK) return status;
    // Allocations as large as a huge page are aligned like one, so that the host may use huge
    // pages. At least one inaccessible page follows each allocation: an overrun faults.
    const uint64_t unit = rounded >= kMapGranularity ? kMapGranularity : page_size();
    span = round_up(rounded + page_size(), unit);
    address = addresses_.take(span, unit);
    if (address == 0) {
      used_ -= rounded;
      return fail(OB_OUT_OF_MEMORY, "device %d: no address range for %s", device_, size_text(bytes).c_str());
    }
  }
  const ob_status status = commit(address, rounded);
  std::lock_guard lock(mutex_);
  if (status != OB_OK) {
    used_ -= rounded;
    addresses_.give(address, span);
    return status;
  }
  regions_.emplace(address, Region{Kind::kAllocation, rounded, span, {}});
  *out_address = address;
  return OB_OK;
}

ob_status DeviceMemory::free(uint64_t address) {
  Region region;
  {
    std::lock_guard lock(mutex_);
    const auto entry = regions_.find(address);
    if (entry == regions_.end() || entry->second.kind != Kind::kAllocation) {
      return fail(OB_INVALID_ARGUMENT,
                  "device %d: mem_free of 0x%" PRIx64 ", which mem_alloc did not return, or which was already freed",
                  device_, address);
    }
    region = std::move(entry->second);
    regions_.erase(entry);
  }
  decommit(address, region.bytes);
  std::lock_guard lock(mutex_);
  used_ -= region.bytes;
  addresses_.give(address, region.span);
  return OB_OK;
}

ob_status DeviceMemory::info(uint64_t* out_free, uint64_t* out_total) const {
  std::lock_guard lock(mutex_);
  *out_free = total_ - used_;
  *out_total = total_;
  return OB_OK;
}

uint64_t DeviceMemory::live_count() const {
  std::lock_guard lock(mutex_);
  return regions_.size();
}

uint64_t DeviceMemory::live_bytes() const {
  std::lock_guard lock(mutex_);
  return used_;
}

DeviceMemory::Regions::iterator DeviceMemory::region_of(uint64_t address) {
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return regions_.end();
  --after;
  return address - after->first < after->second.span ? after : regions_.end();
}

DeviceMemory::Regions::const_iterator DeviceMemory::region_of(uint64_t address) const {
  return const_cast<DeviceMemory*>(this)->region_of(address);
}

ob_status DeviceMemory::translate(uint64_t address, uint64_t bytes, void** out_host) const {
  std::lock_guard lock(mutex_);
  const auto entry = region_of(address);
  if (entry == regions_.end()) return describe_miss(address, bytes, entry);
  const Region& region = entry->second;
  const uint64_t offset = address - entry->first;
  if (offset > region.bytes || bytes > region.bytes - offset) return describe_miss(address, bytes, entry);
  if (region.kind == Kind::kReservation) {
    const uint64_t last = offset + (bytes == 0 ? 0 : bytes - 1);
    for (uint64_t page = offset / kMapGranularity; page <= last / kMapGranularity; ++page) {
      if (page < region.mapped.size() && !region.mapped[page]) return describe_miss(address, bytes, entry);
    }
  }
  *out_host = host(address);
  return OB_OK;
}

ob_status DeviceMemory::describe_miss(uint64_t address, uint64_t bytes, Regions::const_iterator region) const {
  if (region == regions_.end()) {
    const bool is_ours = address - base_ < span_;
    return fail(OB_INVALID_ARGUMENT, "device %d: 0x%" PRIx64 " is %s", device_, address,
                is_ours ? "not live memory of the device" : "not an address of the device");
  }
  const bool is_reserved = region->second.kind == Kind::kReservation;
  return fail(OB_OUT_OF_RANGE,
              "device %d: %" PRIu64 " bytes at 0x%" PRIx64 " extend past the %" PRIu64
              "-byte %s that begins at 0x%" PRIx64 "%s",
              device_, bytes, address, region->second.bytes, is_reserved ? "reservation" : "allocation", region->first,
              is_reserved ? ", or memory is not mapped there" : "");
}

}  // namespace sim

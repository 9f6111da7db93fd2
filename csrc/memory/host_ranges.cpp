// SPDX-License-Identifier: BSD-3-Clause
#include "memory/host_ranges.h"

#include <iterator>
#include <mutex>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/process.h"
#include "memory/host_allocator.h"

namespace outboard {

namespace memory {

bool HostRanges::add(const HostRange& range) {
  const std::unique_lock lock(mutex_);
  const auto next = ranges_.lower_bound(range.start);
  const bool meets_next = next != ranges_.end() && next->first - range.start < range.size;
  const bool meets_last =
      next != ranges_.begin() && range.start - std::prev(next)->first < std::prev(next)->second.size;
  if (meets_next || meets_last) {
    return false;
  }
  ranges_.emplace_hint(next, range.start, range);
  return true;
}

void HostRanges::remove(uintptr_t start) {
  const std::unique_lock lock(mutex_);
  ranges_.erase(start);
}

HostRange HostRanges::find(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::shared_lock lock(mutex_);
  const auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) {
    return {};
  }
  const HostRange& range = std::prev(it)->second;
  return address - range.start < range.size ? range : HostRange{};
}

bool HostRanges::set_busy(uintptr_t start, bool is_busy) {
  const std::unique_lock lock(mutex_);
  const auto it = ranges_.find(start);
  if (it == ranges_.end() || !it->second.is_registered || it->second.is_busy == is_busy) {
    return false;
  }
  it->second.is_busy = is_busy;
  return true;
}

void HostRanges::set_pinned(uintptr_t start) {
  const std::unique_lock lock(mutex_);
  HostRange& range = ranges_.at(start);
  range.is_pinned = true;
  range.is_busy = false;
}

HostRanges& host_ranges() {
  static auto* const instance = new HostRanges();
  return *instance;
}

}  // namespace memory

using memory::host_ranges;

namespace {

[[noreturn]] void raise_cannot_register() {
  raise_not_supported("host_register", "pinning existing memory (unlike pin_memory(), which returns a pinned copy)");
}

}  // namespace

bool is_pinned(const void* pointer) {
  return host_ranges().find(pointer).is_pinned;
}

bool is_host_block(const void* pointer) {
  return host_ranges().find(pointer).size != 0;
}

void register_host_memory(void* pointer, size_t bytes) {
  if (!driver().host_register) {
    raise_cannot_register();
  }
  const auto start = reinterpret_cast<uintptr_t>(pointer);
  if (pointer == nullptr || bytes == 0 || start + bytes < start) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, "0 bytes cannot be pinned");
  }
  check_device_index(current_device());
  ensure_open(current_device());
  // Entered before the driver is called, so that one of two overlapping ranges is refused.
  ob_status status = OB_ALREADY_EXISTS;
  if (host_ranges().add({start, bytes, false, true, true})) {
    const TrackedCall noted("host_register", OB_HOST);
    status = driver().host_register(driver().self, pointer, bytes);
    if (status == OB_OK) {
      host_ranges().set_pinned(start);
    } else {
      host_ranges().remove(start);
    }
  }
  // Registered by us, or by another user of the device in this process, whom only the driver knows.
  if (status == OB_ALREADY_EXISTS) {
    raise(ErrorKind::InvalidArgument, OB_ALREADY_EXISTS,
          "part of this memory is already pinned: each byte can be registered only once. Call host_unregister first");
  }
  if (is_unimplemented(status)) {
    raise_cannot_register();
  }
  check(status, "host_register", OB_HOST);
}

void unregister_host_memory(void* pointer) {
  if (driver_is_gone()) {
    return;
  }
  const auto start = reinterpret_cast<uintptr_t>(pointer);
  if (!host_ranges().set_busy(start, true)) {
    raise(
        ErrorKind::InvalidArgument, OB_NOT_FOUND,
        "this memory is not registered: call host_unregister once, with the address that was passed to host_register");
  }
  try {
    for (int i = 0; i < device_count(); ++i) {
      if (is_open(static_cast<c10::DeviceIndex>(i))) {
        synchronize_device(static_cast<c10::DeviceIndex>(i));
      }
    }
    const TrackedCall noted("host_unregister", OB_HOST);
    check(driver().host_unregister(driver().self, pointer), "host_unregister", OB_HOST);
  } catch (...) {
    host_ranges().set_busy(start, false);
    throw;
  }
  host_ranges().remove(start);
}

}  // namespace outboard

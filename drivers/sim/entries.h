// SPDX-License-Identifier: BSD-3-Clause
// The code that every entry of the table runs around its own work.
#pragma once

#include <cinttypes>
#include <exception>
#include <new>

#include "driver.h"
#include "error.h"
#include "faults.h"

namespace sim {

struct Call {
  Driver& driver;
  ob_status injected;  // the status with which the queued work of this call must fail, or OB_OK
};

// Run an entry's body: count the call for fault injection, and keep
// exceptions from crossing into C.
template <Entry kEntry, class Body>
ob_status enter(void* self, Body&& body) noexcept {
  Driver& driver = *static_cast<Driver*>(self);
  try {
    ob_status injected = OB_OK;
    if (driver.faults.active()) [[unlikely]] {
      const ob_status status = driver.faults.count_call(kEntry, &injected);
      if (status != OB_OK) return status;
    }
    return body(Call{driver, injected});
  } catch (const std::bad_alloc&) {
    return fail(OB_OUT_OF_MEMORY, "%s: the host is out of memory", entry_name(kEntry));
  } catch (const std::exception& error) {
    return fail(OB_INTERNAL, "%s: %s", entry_name(kEntry), error.what());
  }
}

// Do the same for entries whose first argument after `self` is an open device.
template <Entry kEntry, class Body>
ob_status enter_device(void* self, int32_t index, Body&& body) noexcept {
  return enter<kEntry>(self, [&](const Call& call) -> ob_status {
    Device* device = nullptr;
    const ob_status status = call.driver.find_device(index, &device);
    return status == OB_OK ? body(call, *device) : status;
  });
}

void fill_device_entries(ob_driver* table);
void fill_memory_entries(ob_driver* table, bool has_ipc);
void fill_host_memory_entries(ob_driver* table);
void fill_stream_entries(ob_driver* table);
void fill_event_entries(ob_driver* table, bool has_signal);
void fill_copy_entries(ob_driver* table);
void fill_activity_entries(ob_driver* table);
// Fill all entries that a driver with these options has.
void fill_entries(ob_driver* table, const Options& options);

}  // namespace sim

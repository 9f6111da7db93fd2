// SPDX-License-Identifier: BSD-3-Clause
// For drivers that open their runtime on first use: look-ups of devices, streams and events, with
// errors for unknown ones.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torch_outboard/support/child.h"
#include "torch_outboard/support/error.h"
#include "torch_outboard/support/handles.h"

namespace support {

// Count devices in a child process, because runtimes start threads. `work` returns the child's
// lines: the number of devices, the error, and a line per skipped device. `advice` follows the
// sentence that reports a failure of the child.
template <class Work, class Enumeration>
int32_t count_in_child(Work&& work, const char* runtime, const char* advice, Enumeration* out_enumeration) {
  std::vector<std::string> lines;
  std::string why;
  if (!query_child(work, &lines, &why) || lines.size() < 2) {
    out_enumeration->error = std::string("the child process that counts the ") + runtime + " devices " +
                             (why.empty() ? "returned no answer" : why) + ". " + advice;
    return 0;
  }
  out_enumeration->error = lines[1];
  out_enumeration->unusable_devices.assign(lines.begin() + 2, lines.end());
  return static_cast<int32_t>(std::strtol(lines[0].c_str(), nullptr, 10));
}

// Return the number of devices, or a negative status. `probe(options, &enumeration)` counts
// them until this process has opened the runtime itself.
template <class Driver, class Probe>
int32_t count_devices(Driver& driver, Probe&& probe) {
  int32_t count = 0;
  const ob_status status = guarded("device_count", [&]() -> ob_status {
    const std::lock_guard lock(driver.mutex);
    if (driver.is_enumerated && driver.owner == getpid()) {
      count = static_cast<int32_t>(driver.enumeration.devices.size());
      return OB_OK;
    }
    if (!driver.is_probed) {
      driver.probed_count = probe(driver.options, &driver.enumeration);
      driver.is_probed = true;
      for (const std::string& line : driver.enumeration.unusable_devices) {
        if (driver.probed_count > 0) std::fprintf(stderr, "torch_outboard: %s\n", line.c_str());
      }
    }
    count = driver.probed_count;
    if (count == 0) return fail(OB_UNAVAILABLE, "%s", driver.enumeration.error.c_str());
    return OB_OK;
  });
  return status == OB_OK ? count : -status;
}

// Open the runtime at the first call of the process, and find a device in it.
template <class Driver, class Enumerate, class Found>
ob_status find_devices(Driver& driver, const char* runtime, Enumerate&& enumerate, int32_t index,
                       const Found** out_found) {
  const std::lock_guard lock(driver.mutex);
  if (driver.is_enumerated && driver.owner != getpid()) {
    return fail(OB_FAILED_PRECONDITION,
                "%s was opened before this process was forked and cannot be used in the child: use the start method "
                "'spawn'",
                runtime);
  }
  if (!driver.is_enumerated) {
    if (std::string error; !driver.api.load(driver.options.library, &error)) {
      return fail(OB_UNAVAILABLE, "%s", error.c_str());
    }
    driver.enumeration = enumerate(driver.api, driver.options);
    driver.is_enumerated = true;
    driver.owner = getpid();
  }
  const size_t count = driver.enumeration.devices.size();
  if (index < 0 || static_cast<size_t>(index) >= count) {
    if (driver.is_probed && index >= 0 && index < driver.probed_count) {
      return fail(OB_UNAVAILABLE,
                  "device %d existed when the devices were counted, but is gone now; there are %zu devices", index,
                  count);
    }
    const std::string& error = driver.enumeration.error;
    return fail(OB_INVALID_ARGUMENT, "there is no device %d; the number of devices is %zu%s%s", index, count,
                error.empty() ? "" : ": ", error.c_str());
  }
  *out_found = &driver.enumeration.devices[static_cast<size_t>(index)];
  return OB_OK;
}

// Find an open device.
template <class Device, size_t kCount>
ob_status find_open(const std::atomic<Device*> (&devices)[kCount], int32_t index, Device** out_device) {
  const bool is_index = index >= 0 && static_cast<size_t>(index) < kCount;
  Device* device = is_index ? devices[index].load(std::memory_order_acquire) : nullptr;
  if (device == nullptr) [[unlikely]]
    return fail(OB_INVALID_ARGUMENT, "device %d does not exist or is not open", index);
  *out_device = device;
  return OB_OK;
}

// Find an object of a device. `device_of` is the member that has the device's number.
template <class T, uint8_t kKind>
ob_status find_owned(const Handles<std::unique_ptr<T>, kKind>& handles, int32_t T::* device_of, const char* what,
                     int32_t index, uint64_t handle, T** out_object) {
  std::unique_ptr<T>* found = handles.find(handle);
  if (found == nullptr || (**found).*device_of != index) [[unlikely]] {
    return fail(OB_INVALID_ARGUMENT,
                "device %d has no %s 0x%" PRIx64 ": it was never created, was destroyed, or belongs to another device",
                index, what, handle);
  }
  *out_object = found->get();
  return OB_OK;
}

// The base of a driver that opens its runtime on first use, and whose handles refer to its own
// objects. `device_of` is the member of Stream that has the device's number; other objects call it
// `device`.
template <class Options, class Api, class Enumeration, class Device, class Stream, class Event, class Program,
          class Kernel, size_t kCount, int32_t Stream::* device_of>
struct LateDriver {
  explicit LateDriver(Options given) : options(std::move(given)) {}

  ob_status find_open(int32_t index, Device** out_device) { return support::find_open(devices, index, out_device); }
  ob_status find_stream(int32_t index, uint64_t handle, Stream** out_stream) {
    return find_owned(streams, device_of, "stream", index, handle, out_stream);
  }
  ob_status find_event(int32_t index, uint64_t handle, Event** out_event) {
    return find_owned(events, &Event::device, "event", index, handle, out_event);
  }
  ob_status find_program(int32_t index, uint64_t handle, Program** out_program) {
    return find_owned(programs, &Program::device, "program", index, handle, out_program);
  }
  ob_status find_kernel(int32_t index, uint64_t handle, Kernel** out_kernel) {
    return find_owned(kernels, &Kernel::device, "kernel", index, handle, out_kernel);
  }
  // Make find_open return the device from now on.
  void publish(std::unique_ptr<Device> device) {
    const std::lock_guard lock(mutex);
    devices[device->index].store(device.get(), std::memory_order_release);
    owned.push_back(std::move(device));
  }
  // Delete a device that find_open no longer returns.
  void drop(Device* device) {
    const std::lock_guard lock(mutex);
    std::erase_if(owned, [device](const std::unique_ptr<Device>& each) { return each.get() == device; });
  }

  Options options;
  Api api;
  std::mutex mutex;  // guards the members below, up to `devices`
  bool is_probed = false;
  int32_t probed_count = 0;
  bool is_enumerated = false;
  pid_t owner = 0;  // the process that opened the runtime
  Enumeration enumeration;
  std::vector<std::unique_ptr<Device>> owned;
  std::atomic<Device*> devices[kCount] = {};
  // Pointers, because a handle's object is moved when it is taken, and these objects have mutexes.
  Handles<std::unique_ptr<Stream>, 1> streams;
  Handles<std::unique_ptr<Event>, 2> events;
  Handles<std::unique_ptr<Program>, 3> programs;
  Handles<std::unique_ptr<Kernel>, 4> kernels;
};

// Run an entry's body with the driver and the open device that it names.
template <class Driver, class Body>
ob_status with_device(void* self, int32_t index, const char* entry, Body&& body) noexcept {
  return guarded(entry, [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    decltype(driver.devices[0].load()) device = nullptr;
    const ob_status status = driver.find_open(index, &device);
    return status == OB_OK ? body(driver, device) : status;
  });
}

// Run an entry's body with the driver and a stream of the device.
template <class Driver, class Body>
ob_status with_stream(void* self, int32_t index, uint64_t handle, const char* entry, Body&& body) noexcept {
  return guarded(entry, [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    decltype(driver.streams.find(handle)->get()) stream = nullptr;
    const ob_status status = driver.find_stream(index, handle, &stream);
    return status == OB_OK ? body(driver, stream) : status;
  });
}

// Run an entry's body with the driver and an event of the device.
template <class Driver, class Body>
ob_status with_event(void* self, int32_t index, uint64_t handle, const char* entry, Body&& body) noexcept {
  return guarded(entry, [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    decltype(driver.events.find(handle)->get()) event = nullptr;
    const ob_status status = driver.find_event(index, handle, &event);
    return status == OB_OK ? body(driver, event) : status;
  });
}

}  // namespace support

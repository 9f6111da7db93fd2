// SPDX-License-Identifier: BSD-3-Clause
// How drivers over a runtime that is opened late find devices, streams and events, and refuse what
// isn't there.
#pragma once

#include <unistd.h>

#include <cinttypes>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch_outboard/support/child.h"
#include "torch_outboard/support/error.h"
#include "torch_outboard/support/handles.h"

namespace support {

// Count devices in a child process, because runtimes start threads. `work` returns the lines of
// the child: the number, the error, and what is left out. `advice` ends the sentence that says
// that the child failed.
template <class Work, class Enumeration>
int32_t count_in_child(Work&& work, const char* runtime, const char* advice, Enumeration* out_enumeration) {
  std::vector<std::string> lines;
  std::string why;
  if (!ask_child(work, &lines, &why) || lines.size() < 2) {
    out_enumeration->error = std::string("the child process that counts the ") + runtime + " devices " +
                             (why.empty() ? "said nothing" : why) + ". " + advice;
    return 0;
  }
  out_enumeration->error = lines[1];
  out_enumeration->left_out.assign(lines.begin() + 2, lines.end());
  return static_cast<int32_t>(std::strtol(lines[0].c_str(), nullptr, 10));
}

// Open the runtime at the first call, once a process, and find a device in it.
template <class Driver, class Enumerate, class Found>
ob_status find_devices(Driver& driver, const char* runtime, Enumerate&& enumerate, int32_t index,
                       const Found** out_found) {
  const std::lock_guard lock(driver.mutex);
  if (driver.is_enumerated && driver.owner != getpid()) {
    return fail(OB_FAILED_PRECONDITION,
                "%s was opened before this process was forked, and does not survive that: use the start method "
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
      return fail(OB_UNAVAILABLE, "device %d was there when the devices were counted and is gone now; there are %zu",
                  index, count);
    }
    const std::string& error = driver.enumeration.error;
    return fail(OB_INVALID_ARGUMENT, "there is no device %d; the number of devices is %zu%s%s", index, count,
                error.empty() ? "" : ": ", error.c_str());
  }
  *out_found = &driver.enumeration.devices[static_cast<size_t>(index)];
  return OB_OK;
}

// Find a stream or an event of a device. `device_of` is the member that has the device's number.
template <class T, uint8_t kKind>
ob_status find_owned(const Handles<std::unique_ptr<T>, kKind>& handles, int32_t T::* device_of, const char* what,
                     int32_t index, uint64_t handle, T** out_object) {
  std::unique_ptr<T>* found = handles.find(handle);
  if (found == nullptr || (**found).*device_of != index) [[unlikely]] {
    return fail(OB_INVALID_ARGUMENT,
                "device %d has no %s 0x%" PRIx64 ": never created, destroyed, or of another device", index, what,
                handle);
  }
  *out_object = found->get();
  return OB_OK;
}

}  // namespace support

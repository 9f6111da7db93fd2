// SPDX-License-Identifier: BSD-3-Clause
// The one attached driver.
#pragma once

#include <c10/core/Device.h>
#include <torch_outboard/driver.h>

#include <string>

#include "core/export.h"

namespace outboard {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

namespace detail {
OUTBOARD_API extern ob_driver table;  // all null until install_driver
}

// Return the attached driver's table. Entries that a shorter table lacks are null.
inline const ob_driver& driver() {
  return detail::table;
}

// Check the table (version, required entries, groups that must be complete) and make it the
// process's driver, permanently. Raise RegistrationError for a bad table or a second call.
OUTBOARD_API void install_driver(const std::string& name, const ob_driver& table);

// Return true if install_driver has succeeded.
OUTBOARD_API bool is_attached() noexcept;

// Return the name under which the driver is attached ("mychip"), "" before.
OUTBOARD_API const std::string& driver_name();

// Return the result of the probe, which is called once and cached; 0 before attach. A failing probe
// counts as 0 devices; probe_error() returns the reason.
OUTBOARD_API int device_count() noexcept;
OUTBOARD_API const std::string& probe_error();

// Return true if an optional entry returned OB_UNIMPLEMENTED: for that
// call it counts as a missing entry.
inline bool is_unimplemented(ob_status status) {
  return status == OB_UNIMPLEMENTED;
}

}  // namespace outboard

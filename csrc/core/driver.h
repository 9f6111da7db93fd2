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

// The attached driver's table: entries that a shorter, older driver lacks are null.
inline const ob_driver& driver() {
  return detail::table;
}

// Checks the table (version, required entries, groups that must be whole) and makes it the process's driver, for
// good. RegistrationError for a bad table or a second call.
OUTBOARD_API void install_driver(const std::string& name, const ob_driver& table);

// Whether install_driver has succeeded.
OUTBOARD_API bool is_attached() noexcept;

// The name under which the driver is attached ("mychip"), "" before.
OUTBOARD_API const std::string& driver_name();

// The probe's answer, asked once and kept; 0 before attach. A failing probe counts as 0 devices and its reason is in
// probe_error().
OUTBOARD_API int device_count() noexcept;
OUTBOARD_API const std::string& probe_error();

// Treats OB_UNIMPLEMENTED of an optional entry as a missing entry: true if the entry did its work.
inline bool is_unimplemented(ob_status status) {
  return status == OB_UNIMPLEMENTED;
}

}  // namespace outboard

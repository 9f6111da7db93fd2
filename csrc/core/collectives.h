// SPDX-License-Identifier: BSD-3-Clause
// The attached driver's collectives, if its library has any.
#pragma once

#include <torch_outboard/collectives.h>

#include <string>

#include "core/export.h"

namespace outboard {

// Return the table with the entries that the driver was built with, and all others null. Raise
// RegistrationError for a bad table.
OUTBOARD_API ob_collectives check_collectives(const std::string& name, const ob_collectives& table);

// Install a checked table for the process; a driver without collectives has an empty one. Call it
// after the driver is installed. If attaching fails, the library is closed, so its table must not
// be installed.
OUTBOARD_API void install_collectives(const ob_collectives& table) noexcept;

// Return the table, or null if the driver has no collectives.
OUTBOARD_API const ob_collectives* collectives() noexcept;

// Return the reason for this thread's last failure, or "" if the driver reports none.
OUTBOARD_API std::string last_collectives_error();

}  // namespace outboard

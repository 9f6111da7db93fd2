// SPDX-License-Identifier: BSD-3-Clause
// The attached driver's collectives, if its library has any.
#pragma once

#include <torch_outboard/collectives.h>

#include <string>

#include "core/export.h"

namespace outboard {

// Check the table and make it the process's. Raise RegistrationError for a bad table. Call it before install_driver.
OUTBOARD_API void install_collectives(const std::string& name, const ob_collectives& table);

// Return the table, or null if the driver has no collectives.
OUTBOARD_API const ob_collectives* collectives() noexcept;

// Return the reason of this thread's last failure, "" if the driver gives none.
OUTBOARD_API std::string last_collectives_error();

}  // namespace outboard

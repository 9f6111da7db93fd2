// SPDX-License-Identifier: BSD-3-Clause
// What a fork and the end of the process mean to us: no driver call is made any more.
#pragma once

#include <string>

#include "core/export.h"

namespace outboard {

// True in a child that was forked after a device was opened (or after a probe that opens): device use raises there.
OUTBOARD_API bool in_bad_fork() noexcept;

// True once shut_down began, or in a bad fork: deleters, event and stream destructors then call nothing.
OUTBOARD_API bool driver_is_gone() noexcept;

// Makes every device that is not open yet refuse to open in this process, for good, with this reason.
OUTBOARD_API void forbid_opening(std::string reason);
// Empty if devices may be opened.
std::string opening_forbidden();

// Installs the pthread_atfork handler; called by install_driver.
void install_fork_handler();

namespace detail {
void begin_exit() noexcept;
void mark_runtime_opened() noexcept;  // by the probe or by device_properties
}  // namespace detail

}  // namespace outboard

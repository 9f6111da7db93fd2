// SPDX-License-Identifier: BSD-3-Clause
// The state of the process: after a bad fork and during exit, no driver entry is called.
#pragma once

#include <string>

#include "core/export.h"

namespace outboard {

// Return true in a child that was forked after a device was opened, or after a probe that
// opens. Using a device raises there.
OUTBOARD_API bool in_bad_fork() noexcept;

// Return true once shut_down began, or in a bad fork. Deleters and destructors of events
// and streams then call nothing.
OUTBOARD_API bool driver_is_gone() noexcept;

// Make every device that is not open refuse to open in this process, permanently, with this reason.
OUTBOARD_API void forbid_opening(std::string reason);
// Return the reason, or "" if devices may be opened.
std::string opening_refusal();

// Install the pthread_atfork handler. install_driver calls it.
void install_fork_handler();

namespace detail {
void begin_exit() noexcept;
void mark_runtime_opened() noexcept;  // called by the probe and by device_properties
}  // namespace detail

}  // namespace outboard

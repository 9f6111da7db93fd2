// SPDX-License-Identifier: BSD-3-Clause
// Bytes stored on disk for later processes: program binaries (from program_binary, for
// program_build), bytes that a driver keeps itself (ob_registrar's keep), and an entry for each
// text that the driver refused. Each is a file in `programs` below the folder of plans
// (OUTBOARD_KERNEL_CACHE_DIR). The file's name is a hash of everything on which the bytes depend.
// Its first bytes are a hash of this and of the rest. A file that is damaged, or that another user
// may have written, is not used. Processes share the folder, and files appear only when complete.
// Thread-safe.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "kernels/program.h"

namespace outboard::kernels {

// Return a text of everything on which a program's bytes for a device depend, or "" if the driver
// returns no bytes or there is no folder.
std::string program_key(c10::DeviceIndex device, const ProgramText& text);

// The same for bytes that the driver keeps under its own key; "" if there is no folder.
std::string store_key(c10::DeviceIndex device, std::string_view key);

// Return the stored bytes, or "" if there are none.
std::string read_program(const std::string& key);

// Store the bytes. If the folder cannot be written, warn once and stop storing. Return true if they
// are stored.
bool write_program(const std::string& key, const std::string& bytes);

// Return the file that represents the build of a program, for a BuildLock (core/build_lock.h).
std::string lock_path_of(const std::string& key);

// Return true if the driver is known to refuse a program's text, here or in an earlier process.
bool is_known_refusal(c10::DeviceIndex device, const ProgramText& text);
// Store that the driver refuses the text. Return false if there is no folder.
bool store_refusal(c10::DeviceIndex device, const ProgramText& text);

}  // namespace outboard::kernels

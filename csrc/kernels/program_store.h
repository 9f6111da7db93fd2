// SPDX-License-Identifier: BSD-3-Clause
// Bytes on disk for later processes: program binaries, which program_binary returned for
// program_build, what a driver keeps itself (ob_registrar's keep), and a file for each text that
// the driver refused. They lie in `programs`
// below the folder of plans (OUTBOARD_KERNEL_CACHE_DIR), a file each. The file's name is the hash
// of all that the binary depends on. Its first bytes are the hash of that and of the rest. A file
// that is damaged, or that another user may have written, is not used. Processes share the
// folder: files appear complete. Thread-safe.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "kernels/program.h"

namespace outboard::kernels {

// Return what the bytes of a program for a device depend on; "" if the driver returns no bytes,
// or there is no folder for them.
std::string program_key(c10::DeviceIndex device, const ProgramText& text);

// Return what bytes that the driver keeps under its own key depend on; "" if there is no folder.
std::string kept_key(c10::DeviceIndex device, std::string_view key);

// Return the stored bytes, or "" if there are none.
std::string read_program(const std::string& key);

// Store the bytes. If the folder cannot be written, warn once and stop storing. Return true if they
// are stored.
bool write_program(const std::string& key, const std::string& bytes);

// Return the file that stands for the build of a program, for a Turn (core/turns.h).
std::string path_of_turn(const std::string& key);

// Return true if the driver is known to refuse a program's text, here or in an earlier process.
bool is_known_refusal(c10::DeviceIndex device, const ProgramText& text);
// Store that the driver refuses the text. Return false if there is no folder.
bool store_refusal(c10::DeviceIndex device, const ProgramText& text);

}  // namespace outboard::kernels

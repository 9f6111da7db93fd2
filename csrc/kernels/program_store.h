// SPDX-License-Identifier: BSD-3-Clause
// What a driver's compiler made of programs, on disk: bytes that program_binary handed out, for program_build of a later
// process. They lie in `programs` below the folder of plans (OUTBOARD_KERNEL_CACHE_DIR), a file each, whose name is the hash
// of all that they depend on, and whose first bytes are the hash of that and of the rest. What is damaged, or what another
// user may have written, is not taken. Processes share the folder: a file comes into being whole. Thread-safe.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "kernels/program.h"

namespace outboard::kernels {

// What the bytes of a program for a device depend on; "" if the driver hands out none, or there is no folder for them.
std::string program_key(c10::DeviceIndex device, const ProgramText& text);

// The bytes that were kept, "" if none were.
std::string read_program(const std::string& key);

// Keeps bytes. A folder that can't be written is warned of once, and no more tried.
void write_program(const std::string& key, const std::string& bytes);

}  // namespace outboard::kernels

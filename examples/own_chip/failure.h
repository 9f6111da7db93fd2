// SPDX-License-Identifier: BSD-3-Clause
// How the runtime's own parts say what is wrong: a result, and the reason.
#pragma once

#include <stdexcept>
#include <string>

#include "chip.h"

struct Failure : std::runtime_error {
  Failure(chip_result r, const std::string& reason) : std::runtime_error(reason), result(r) {}
  chip_result result;
};

// Gives what the compiler makes of a program. It is in compiler.cpp.
std::string compile_program(const std::string& text);

// Gives the folder in which this library lies, with a "/" at the end.
std::string library_folder();

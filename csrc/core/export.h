// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Mark symbols that other libraries (the bindings, custom operators) may use. All others are
// hidden.
#define OUTBOARD_API __attribute__((visibility("default")))

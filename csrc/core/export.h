// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Marks what other libraries (the bindings, custom operators) may use; all else is hidden.
#define OUTBOARD_API __attribute__((visibility("default")))

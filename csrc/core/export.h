// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Mark what other libraries (the bindings, custom operators) may use. Everything else is hidden.
#define OUTBOARD_API __attribute__((visibility("default")))

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {
// Register the operators with torch's dispatcher, through torch::Library objects
// that live as long as the process.
void register_operators();
}  // namespace outboard

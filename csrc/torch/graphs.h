// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {

// Make torch.accelerator.Graph work, if torch has it (2.12 and later). Call
// it once the device has its name.
void register_graphs();

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {

// Makes torch.accelerator.Graph work, where torch has it (2.13 and later). To be called once the device has its name.
void register_graphs();

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {

// Make AOTInductor's package loader run models of the attached device.
void register_model_runner();

}  // namespace outboard

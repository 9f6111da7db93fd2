// SPDX-License-Identifier: BSD-3-Clause
// The number of GPUs that this process may use, without initializing CUDA.
#pragma once

#include <cstdint>
#include <string>

namespace nv {

constexpr int32_t kMaxDevices = 64;

// Count the GPUs: by NVML, else /proc, else CUDA in a child process. CUDA_VISIBLE_DEVICES applies.
// Return 0, with a sentence, if there is none.
int32_t count_devices(const std::string& library, std::string* out_error);

}  // namespace nv

// SPDX-License-Identifier: BSD-3-Clause
// Philox generators: 16 bytes of state as on CUDA, 8 of seed and 8 of offset.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <utility>

#include "core/capture.h"
#include "core/export.h"

namespace outboard {

// Return the device's default generator. It is made on first use; opens nothing.
OUTBOARD_API const at::Generator& default_generator(c10::DeviceIndex device);
OUTBOARD_API at::Generator new_generator(c10::DeviceIndex device);

// Take the next numbers of the generator (the device's default generator if undefined). Draws never
// overlap. `increment` is rounded up to a multiple of 4. Raise CaptureError if the device's current
// stream captures: use `capture_philox` there.
OUTBOARD_API RandomPosition reserve_philox(const at::Generator& generator, c10::DeviceIndex device, uint64_t increment);

// Do the same for a captured draw. Each replay takes its own numbers.
OUTBOARD_API RandomDraw capture_philox(Capture& capture, const at::Generator& generator, c10::DeviceIndex device,
                                       uint64_t increment);

}  // namespace outboard

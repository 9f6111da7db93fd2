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

// The device's default generator; made on first use, opens nothing.
OUTBOARD_API const at::Generator& default_generator(c10::DeviceIndex device);
OUTBOARD_API at::Generator new_generator(c10::DeviceIndex device);

struct PhiloxState {
  uint64_t seed;
  uint64_t offset;
};

// Takes the next numbers of the generator (the device's default one if undefined): draws never overlap.
// `increment` is rounded up to a multiple of 4.
// CaptureError if the device's current stream captures: there it is `capture_philox`.
OUTBOARD_API PhiloxState reserve_philox(const at::Generator& generator, c10::DeviceIndex device, uint64_t increment);

// The same for a captured draw, whose replays take numbers of their own.
OUTBOARD_API RandomDraw capture_philox(Capture& capture, const at::Generator& generator, c10::DeviceIndex device,
                                       uint64_t increment);

}  // namespace outboard

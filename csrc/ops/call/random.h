// SPDX-License-Identifier: BSD-3-Clause
// Random numbers for a call, from the device generator's seed and offset: a CPU generator for a
// call on the host, or a seed for the device's own kernels.
#pragma once

#include <ATen/core/Generator.h>

#include "core/capture.h"
#include "ops/call/call.h"

namespace outboard {

// Take the next offset of the call's generator, or of the device's default generator, and return a
// CPU generator for it.
at::Generator cpu_generator_for(const Call& call);

// Do the same for a captured call: each replay takes its own offset, and
// `cpu_generator` makes its generator when the call runs.
RandomDraw captured_draw(const Call& call, Capture& capture);
at::Generator cpu_generator(const RandomDraw& draw);

// Take the next offset for a call whose kernels draw, and return their seed, an int64 on
// the CPU. While the stream captures, the seed is on the device, where each replay
// writes a new one. Distinct offsets of a generator yield distinct seeds; the same
// (seed, offset) yields the same seed.
at::Tensor seed_for(const Call& call, Stream& stream);

// Return the seed of a captured draw. Call it only from DriverCommand::queue.
int64_t seed_when_queued(const RandomDraw& draw);

}  // namespace outboard

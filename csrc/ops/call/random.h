// SPDX-License-Identifier: BSD-3-Clause
// Random numbers of a call, from the device generator's seed and offset: a CPU generator for a call on the host, a seed
// for the device's own kernels.
#pragma once

#include <ATen/core/Generator.h>

#include "core/capture.h"
#include "ops/call/call.h"

namespace outboard {

// Takes the next offset of the call's generator (or of its device's default one).
at::Generator cpu_generator_for(const Call& call);

// As `cpu_generator_for` for a call that is captured: each replay takes an offset of its own, and `cpu_generator` makes its
// generator.
RandomDraw captured_draw(const Call& call, Capture& capture);
at::Generator cpu_generator(const RandomDraw& draw);

// Takes the next offset for a call whose kernels draw, and gives their seed, an int64: on the CPU, or, while the stream
// captures, on the device, where each replay puts another one. Distinct offsets of a generator give distinct seeds, and the
// same (seed, offset) the same one.
at::Tensor seed_for(const Call& call, Stream& stream);

}  // namespace outboard

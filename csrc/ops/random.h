// SPDX-License-Identifier: BSD-3-Clause
// Random numbers for host calls: a CPU generator for each call, from the device generator's seed and offset.
#pragma once

#include <ATen/core/Generator.h>

#include "core/capture.h"
#include "ops/call.h"

namespace outboard {

// Takes the next offset of the call's generator (or of its device's default one).
at::Generator cpu_generator_for(const Call& call);

// The same for a call that is captured: each replay takes an offset of its own, and `cpu_generator` makes its generator.
RandomDraw captured_draw(const Call& call, Capture& capture);
at::Generator cpu_generator(const RandomDraw& draw);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Launches kernels that a compiler generated, in C++ for memory that the host can access, or in the
// driver's language.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/export.h"
#include "core/stream.h"
#include "kernels/device_kernel.h"

namespace outboard {

// A kernel's own entry point. Each argument is one word with an address or the bits of a number.
using CompiledEntry = void (*)(const uint64_t* arguments);

// An entry on the host, or a program of the device. Never freed: queued launches and graphs refer
// to it, and its library stays loaded.
struct CompiledKernel {
  std::string name;
  kernels::ArgumentKinds arguments;  // the arguments that calls pass
  CompiledEntry entry = nullptr;
  std::unique_ptr<const kernels::DeviceKernel> program;
};

// Raise ValueError for letters that entries on the host do not take (kernels/argument_kind.h).
OUTBOARD_API std::unique_ptr<CompiledKernel> make_compiled(std::string name, CompiledEntry entry,
                                                           std::string_view arguments);
OUTBOARD_API std::unique_ptr<CompiledKernel> make_compiled(std::unique_ptr<const kernels::DeviceKernel> program);

struct CompiledArgument {
  const at::Tensor* tensor = nullptr;  // for an argument that is an address
  uint64_t bits = 0;                   // for all other arguments
};

// Queue the kernel on the current stream of its tensors' device: as host work, or as a driver
// launch. The first launch on a device waits for the compiler. While the stream captures, the
// launch becomes a step of the graph. A one-element CPU tensor that the kernel reads is read
// immediately. Memory from another stream's pool is recorded as used on this stream, because the
// authors of compiled code cannot record it themselves.
//
// Raise ValueError for tensors on several devices or none, and for other CPU tensors. Raise
// NotSupportedError if a kernel on the host needs memory that the host cannot reach. An exception
// in such a kernel is raised at the next wait for the stream, with the kernel's name. A failure of
// a driver launch is raised where the driver reports it.
OUTBOARD_API void launch_compiled(const CompiledKernel& kernel, c10::ArrayRef<CompiledArgument> arguments);

// Return a new tensor on a device's current stream: torch.empty_strided without the
// dispatcher, which would double the time.
OUTBOARD_API at::Tensor empty_compiled(c10::DeviceIndex device, c10::ScalarType dtype, c10::IntArrayRef sizes,
                                       c10::IntArrayRef strides);

}  // namespace outboard

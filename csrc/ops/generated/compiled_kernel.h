// SPDX-License-Identifier: BSD-3-Clause
// Launch kernels that a compiler generated: in C++ for memory that the host can reach, or in the driver's language.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/export.h"
#include "core/stream.h"
#include "kernels/device_kernel.h"

namespace outboard {

// A kernel's own entry: each argument is one word, which holds an address or the bits of a number.
using CompiledEntry = void (*)(const uint64_t* arguments);

// One of two: an entry on the host, or a program of the device. Never freed: queued launches and graphs name it, and its
// library stays loaded.
struct CompiledKernel {
  std::string name;
  // A letter an argument: 'r' a tensor that is read, 'w' one that is written, 'i' an int64_t, 'j' an int32_t, 'h' an
  // int16_t, 'b' an int8_t, 'f' a float, 'd' a double, 'k' an integer for a launch's formulas. Of a device's kernel those
  // that are passed.
  std::string arguments;
  CompiledEntry entry = nullptr;
  std::unique_ptr<const kernels::DeviceKernel> program;
};

OUTBOARD_API std::unique_ptr<CompiledKernel> make_compiled(std::string name, CompiledEntry entry,
                                                           std::string arguments);
OUTBOARD_API std::unique_ptr<CompiledKernel> make_compiled(std::unique_ptr<const kernels::DeviceKernel> program);

struct CompiledArgument {
  const at::Tensor* tensor = nullptr;  // of 'r' and 'w'
  uint64_t bits = 0;                   // of the others
};

// Queues the kernel on the current stream of the device that its tensors are on: as host work, or as a launch of the
// driver's, for which the first on a device waits for its compiler. While that stream captures, the launch becomes a step
// of the graph. A CPU tensor of one element that is read is read now. Memory of another stream's pool is recorded as in use
// on this one, since nobody who compiles code could do it.
//
// ValueError for tensors of several devices or of none, and for other CPU tensors; NotSupportedError if the host cannot
// reach the memory that a kernel on the host needs. An exception in such a kernel is raised at the next wait for the
// stream, with the kernel's name; what a launch of the driver's fails with, where the driver tells it.
OUTBOARD_API void launch_compiled(const CompiledKernel& kernel, c10::ArrayRef<CompiledArgument> arguments);

// The same for a program of a plan, on a stream of the call's device: a kernel may read nothing but numbers on the CPU,
// as one that only checks them does. `sizes` are the program's for the arguments' integers.
void launch_program(const CompiledKernel& kernel, Stream& stream, c10::ArrayRef<CompiledArgument> arguments,
                    const kernels::LaunchSizes& sizes);

// A fresh tensor on the current stream of a device: torch.empty_strided without the dispatcher, which takes as long again.
OUTBOARD_API at::Tensor empty_compiled(c10::DeviceIndex device, c10::ScalarType dtype, c10::IntArrayRef sizes,
                                       c10::IntArrayRef strides);

}  // namespace outboard

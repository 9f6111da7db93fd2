// SPDX-License-Identifier: BSD-3-Clause
// Launching kernels that a compiler generated in C++, for memory that the host can reach.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

#include "core/export.h"

namespace outboard {

// A kernel's own entry: each argument is one word, which holds an address or the bits of a number.
using CompiledEntry = void (*)(const uint64_t* arguments);

// Never freed: queued launches and graphs name it, and its library stays loaded.
struct CompiledKernel {
  std::string name;
  CompiledEntry entry = nullptr;
  // A letter an argument: 'r' a tensor that is read, 'w' one that is written, 'i' an int64_t, 'f' a float, 'd' a double.
  std::string arguments;
};

struct CompiledArgument {
  const at::Tensor* tensor = nullptr;  // of 'r' and 'w'
  uint64_t bits = 0;                   // of the others
};

// Queues the kernel on the current stream of the device that its tensors are on, as host work. While that stream
// captures, the launch becomes a step of the graph. A CPU tensor of one element that is read is read now. Memory of
// another stream's pool is recorded as in use on this one, since nobody who compiles code could do it.
//
// ValueError for tensors of several devices or of none, and for other CPU tensors; NotSupportedError if the host cannot
// reach the memory. An exception in the kernel is raised at the next wait for the stream, with the kernel's name.
OUTBOARD_API void launch_compiled(const CompiledKernel& kernel, c10::ArrayRef<CompiledArgument> arguments);

// A fresh tensor on the current stream of a device: torch.empty_strided without the dispatcher, which takes as long again.
OUTBOARD_API at::Tensor empty_compiled(c10::DeviceIndex device, c10::ScalarType dtype, c10::IntArrayRef sizes,
                                       c10::IntArrayRef strides);

// Whether launch_compiled can run on a device: whether the host reaches its memory, of which it asks for the least block.
OUTBOARD_API bool reaches_memory(c10::DeviceIndex device);

}  // namespace outboard

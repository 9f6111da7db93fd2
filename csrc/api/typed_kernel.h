// SPDX-License-Identifier: BSD-3-Clause
// Kernels in the driver's language that users launch from Python, with declared parameters. Each launch is checked
// against the declaration.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/export.h"
#include "core/stream.h"
#include "kernels/program.h"

namespace outboard {

struct KernelParameter {
  enum class Kind : uint8_t {
    Tensor,  // the address of its first element
    Number,  // by value
    Local  // local (shared) memory of a block
  };
  Kind kind = Kind::Tensor;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // Undefined: a tensor of any dtype
  bool is_written = false;  // of a tensor
  bool is_strided = false;  // a tensor of any strides; others are contiguous
};

struct TypedKernel {
  // `name` is the kernel's in the program, too.
  TypedKernel(const std::string& name, kernels::ProgramText text, std::vector<KernelParameter> takes)
      : program(name, std::move(text), name), parameters(std::move(takes)) {}

  kernels::ProgramKernel program;
  std::vector<KernelParameter> parameters;
};

struct TypedArgument {
  const at::Tensor* tensor = nullptr;
  // The number in the parameter's dtype, from the first byte on, or the bytes of local memory.
  uint64_t bits = 0;
};

struct LaunchOptions {
  std::array<uint32_t, 3> grid;  // blocks
  std::array<uint32_t, 3> block;  // threads of a block
  std::array<uint32_t, 3> cluster;  // blocks of a cluster; 0: none
  uint64_t shared_memory = 0;  // bytes
  bool is_cooperative = false;
  bool follows_addresses = false;
  Stream* stream = nullptr;  // null: the current stream of the tensors' device
};

// Queues a launch, or adds it to the graph that the stream captures. `arguments` are one a parameter. A grid of no blocks
// queues nothing. The caller need not hold the tensors any longer: their memory is the stream's until the launch is done.
//
// ValueError for a tensor that the declaration forbids, a block of no threads and a stream of another device, RuntimeError
// for tensors of two devices, NotSupportedError if the driver launches no kernels, or `follows_addresses` is asked of a
// device that doesn't.
OUTBOARD_API void launch_typed(const TypedKernel& kernel, c10::ArrayRef<TypedArgument> arguments,
                               const LaunchOptions& options);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Kernels in the driver's language that users launch from Python, with declared parameters. Each
// launch is checked against the declaration.
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
    Number,  // passed by value
    Local  // local (shared) memory of a block
  };
  Kind kind = Kind::Tensor;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // Undefined: a tensor of any dtype
  bool is_written = false;  // whether the kernel writes the tensor
  bool is_strided = false;  // a tensor of any strides; others are contiguous
};

struct TypedKernel {
  // `name` is also the kernel's name in the program.
  TypedKernel(const std::string& name, kernels::ProgramText text, std::vector<KernelParameter> takes)
      : program(name, std::move(text), name), parameters(std::move(takes)) {}

  kernels::ProgramKernel program;
  std::vector<KernelParameter> parameters;
};

struct TypedArgument {
  const at::Tensor* tensor = nullptr;
  // The bits of the number in the parameter's dtype, starting at the first byte, or the bytes of
  // local memory.
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

// Queue a launch, or add it to the graph that the stream captures. `arguments` has one element for
// each parameter. A grid of no blocks queues nothing. The caller may release the tensors: their
// memory belongs to the stream until the launch is done.
//
// Raise ValueError for a tensor that the declaration forbids, a block of no threads or a stream of
// another device. Raise RuntimeError for tensors of two devices. Raise NotSupportedError if the
// driver launches no kernels, or if `follows_addresses` is required and the device lacks it.
OUTBOARD_API void launch_typed(const TypedKernel& kernel, c10::ArrayRef<TypedArgument> arguments,
                               const LaunchOptions& options);

}  // namespace outboard

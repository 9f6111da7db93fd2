// SPDX-License-Identifier: BSD-3-Clause
// One launch of a kernel in the driver's language, with tensors and numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "core/export.h"
#include "core/stream.h"
#include "kernels/device_kernel.h"
#include "ops/tensors/launch_uses.h"

namespace outboard {

constexpr size_t kScalarBytes = 16;  // bytes of the largest element, a complex double

// Copy the element of a CPU tensor that a kernel reads as its argument.
// Raise ValueError for other tensors.
OUTBOARD_API void copy_scalar(const std::string& kernel, kernels::ArgumentKind kind, const at::Tensor& tensor,
                              void* out_scalar);

class OUTBOARD_API KernelLaunch {
 public:
  KernelLaunch(const kernels::DeviceKernel& kernel, Stream& stream) : kernel_(kernel), stream_(stream), uses_(stream) {}

  // Pass the kernel's next argument. A one-element CPU tensor that the kernel reads is read
  // immediately. Raise ValueError for other CPU tensors.
  void add(const at::Tensor& tensor);
  void add(uint64_t bits) { words_.push_back(bits); }
  // Replace a number that was passed before, for another launch.
  void replace(size_t index, uint64_t bits) { words_[index] = bits; }

  // Queue the launch on the stream, or in the graph that the stream captures. The first launch on a
  // device waits for the compiler. `sizes` are the launch sizes for the arguments' integers.
  void queue() { queue(kernel_.sizes(words_)); }
  void queue(const kernels::LaunchSizes& sizes);

 private:
  static constexpr size_t kInlineArguments = 12;

  // Return a CPU number as a device tensor, whose memory may be released once the launch is queued.
  at::Tensor on_device(kernels::ArgumentKind kind, const at::Tensor& tensor);

  const kernels::DeviceKernel& kernel_;
  Stream& stream_;
  LaunchUses uses_;
  c10::SmallVector<uint64_t, kInlineArguments> words_;
  c10::SmallVector<at::Tensor, 1> moved_;
};

}  // namespace outboard

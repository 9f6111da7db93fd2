// SPDX-License-Identifier: BSD-3-Clause
// Biases of convolutions by the driver's own kernels: cuDNN sums none of bfloat16.
#pragma once

#include "../driver.h"

namespace nv {

// A dense tensor with numbers for its channels.
struct Biased {
  const char* type;  // the end of the kernels' names: "float", "double", "half" or "bfloat16"
  uint32_t element_bytes;
  uint32_t sum_bytes;  // of the type that its elements are summed in
  uint64_t data;     // aligned to 16 bytes if it is written
  uint64_t bias;
  uint32_t count;     // elements
  uint32_t channels;
  uint32_t inner;     // elements of a channel that are adjacent: 1 in channels last, else all of a grid

  // Return the bytes of memory that the sums need.
  uint64_t scratch_bytes() const;
  uint32_t splits() const;
};

// Add the bias to the tensor.
ob_status add_bias(Driver& driver, Device& device, CUstream stream, const Biased& biased);

// Write the sums of the tensor's channels to the bias, in the same order in each call.
ob_status sum_to_bias(Driver& driver, Device& device, CUstream stream, const Biased& biased, uint64_t scratch);

}  // namespace nv

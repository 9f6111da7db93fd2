// SPDX-License-Identifier: BSD-3-Clause
// cuDNN's plans of convolutions, by what they depend on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "cudnn_graphs.h"
#include "torch_outboard/driver.h"

namespace nv::convolutions {

// What a call writes: the response of a convolution, or the gradient of its image or filter. A
// transposed convolution is the gradient of an image.
enum class Direction : int { kResponse, kImage, kFilter };

// Batch, channels, and the grid, whose last size is unused in two dimensions.
using Sizes = std::array<int64_t, 5>;

struct Problem {
  Direction direction = Direction::kResponse;
  int type = cudnn::kFloat;
  bool is_channels_last = false;
  int dims = 2;  // of the grid: 2 or 3
  Sizes image{}, filter{}, response{};
  std::array<int64_t, 3> stride{}, padding{}, dilation{};
  int64_t alignment = 16;  // bytes that divide all addresses
  cudnn::Rules rules{};

  cudnn::PlanKey key() const;
};

// Return the strides of a dense tensor with these sizes.
Sizes dense_strides(const Sizes& sizes, int dims, bool is_channels_last);

// Return the problem's plan, as Session::find does.
ob_status find_plan(cudnn::Session& session, const Problem& problem, std::shared_ptr<const cudnn::Plan>* out_plan);

}  // namespace nv::convolutions

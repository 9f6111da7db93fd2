// SPDX-License-Identifier: BSD-3-Clause
// cuDNN's plans of convolutions, by what they depend on.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "cudnn.h"
#include "torch_outboard/driver.h"

namespace nv::convolutions {

// What a call writes: the response of a convolution, or the gradient of its image or filter. A transposed convolution is
// the gradient of an image.
enum class Direction : int { kResponse, kImage, kFilter };

// Batch, channels, and the grid, whose last size is unused in two dimensions.
using Sizes = std::array<int64_t, 5>;
using PlanKey = std::array<int64_t, 29>;

struct Problem {
  Direction direction = Direction::kResponse;
  int type = cudnn::kFloat;
  bool is_channels_last = false;
  int dims = 2;  // of the grid: 2 or 3
  Sizes image{}, filter{}, response{};
  std::array<int64_t, 3> stride{}, padding{}, dilation{};
  int64_t alignment = 16;  // bytes that divide all addresses

  PlanKey key() const;
};

// Return the strides of a dense tensor with these sizes.
Sizes dense_strides(const Sizes& sizes, int dims, bool is_channels_last);

struct Plan;

// A device's handle and its plans. Thread-safe.
class Plans {
 public:
  // Return OB_INTERNAL, with the reason, if the library refuses. The device's context must be current.
  static ob_status make(const cudnn::Library& library, std::unique_ptr<Plans>* out_plans);
  ~Plans();
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  // Return the problem's plan. Return OB_UNIMPLEMENTED if cuDNN has no engine for it; that is remembered too.
  ob_status find(const Problem& problem, std::shared_ptr<const Plan>* out_plan);

  // Queue a plan. The addresses are those of the image, the filter and the response.
  int execute(const Plan& plan, const std::array<uint64_t, 3>& addresses, uint64_t workspace, CUstream stream);

  const cudnn::Library& library;

 private:
  Plans(const cudnn::Library& given, cudnn::Handle made) : library(given), handle_(made) {}

  std::mutex handle_mutex_;  // a stream is set for the next call
  const cudnn::Handle handle_;
  std::mutex mutex_;
  std::map<PlanKey, std::shared_ptr<const Plan>> plans_;
};

// Return the bytes of memory that a plan needs beside its tensors.
uint64_t workspace_of(const Plan& plan);

}  // namespace nv::convolutions

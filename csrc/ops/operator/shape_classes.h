// SPDX-License-Identifier: BSD-3-Clause
// The classes of calls whose meta kernel is trusted. A class is trusted once the CPU kernel agreed
// on one of its calls: on stand-ins (ops/call/acceptance.h), or in a call for which the caller
// waited. If the CPU kernel's result differs from the meta kernel's, later calls of the class wait.
//
// A class is an operator with its arguments' dtypes, ranks and layouts, and the flags
// and dtypes among its constants.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/export.h"

namespace outboard {

class ShapeClasses {
 public:
  enum class State : uint8_t { Unknown, Agreed, Different };

  // Return the class's state. With `is_verified`, only check whether the class has disagreed since.
  State state_of(uint64_t shape_class, bool is_verified) {
    if (is_verified && !has_exceptions_.load(std::memory_order_relaxed)) {
      return State::Agreed;
    }
    const State state = look_up(shape_class);
    return is_verified && state == State::Unknown ? State::Agreed : state;
  }
  void mark_agreed(uint64_t shape_class);
  // Stop trusting the class. `difference` states the results of the meta kernel and the CPU kernel;
  // the class keeps only its first difference.
  void mark_different(uint64_t shape_class, const std::string& difference);
  // Count a call that waits because of its class.
  void count_wait(uint64_t shape_class);

  struct Row {
    std::string difference;
    uint64_t waits;
  };
  std::vector<Row> different_classes();

 private:
  struct Class {
    State state = State::Unknown;
    std::string difference;
    uint64_t waits = 0;
  };
  static constexpr size_t kMaxClasses = 1024;  // further classes are unknown, and wait

  State look_up(uint64_t shape_class);

  std::atomic<bool> has_exceptions_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, Class> classes_;
};

// Return a sentence that describes how a result differs from the meta kernel's; `dtype` is
// Undefined if the meta kernel returned none.
std::string shape_difference(c10::ScalarType dtype, c10::IntArrayRef sizes, const at::Tensor& result);

// The operators and classes that wait because their meta kernel disagreed.
struct ShapeDisagreement {
  std::string op;
  std::string difference;
  uint64_t waits;
};
OUTBOARD_API std::vector<ShapeDisagreement> shape_disagreements();

}  // namespace outboard

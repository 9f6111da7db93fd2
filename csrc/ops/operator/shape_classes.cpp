// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/shape_classes.h"

#include <sstream>

#include "ops/operator/operator.h"

namespace outboard {

ShapeClasses::State ShapeClasses::look_up(uint64_t shape_class) {
  const std::lock_guard lock(mutex_);
  const auto it = classes_.find(shape_class);
  return it != classes_.end() ? it->second.state : State::Unknown;
}

void ShapeClasses::mark_agreed(uint64_t shape_class) {
  const std::lock_guard lock(mutex_);
  if (classes_.size() < kMaxClasses) {
    Class& known = classes_[shape_class];
    if (known.state == State::Unknown) {
      known.state = State::Agreed;
    }
  }
}

void ShapeClasses::mark_different(uint64_t shape_class, const std::string& difference) {
  const std::lock_guard lock(mutex_);
  // These classes are few and must not be evicted. Only the number of classes in a program bounds
  // them.
  Class& known = classes_[shape_class];
  if (known.state != State::Different) {
    known.state = State::Different;
    known.difference = difference;
  }
  has_exceptions_.store(true, std::memory_order_relaxed);
}

void ShapeClasses::count_wait(uint64_t shape_class) {
  const std::lock_guard lock(mutex_);
  if (const auto it = classes_.find(shape_class); it != classes_.end()) {
    ++it->second.waits;
  }
}

std::vector<ShapeClasses::Row> ShapeClasses::different_classes() {
  const std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const auto& [key, known] : classes_) {
    if (known.state == State::Different) {
      rows.push_back({known.difference, known.waits});
    }
  }
  return rows;
}

std::string shape_difference(c10::ScalarType dtype, c10::IntArrayRef sizes, const at::Tensor& result) {
  std::ostringstream text;
  text << "the meta kernel returned ";
  dtype == c10::ScalarType::Undefined ? text << "nothing" : text << dtype << ' ' << sizes;
  text << ", but the CPU kernel returned ";
  result.defined() ? text << result.scalar_type() << ' ' << result.sizes() : text << "nothing";
  return text.str();
}

std::vector<ShapeDisagreement> shape_disagreements() {
  std::vector<ShapeDisagreement> result;
  for_each_operator([&](Operator& op) {
    for (ShapeClasses::Row& row : op.shape_classes.different_classes()) {
      result.push_back({op.name, std::move(row.difference), row.waits});
    }
  });
  return result;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// A call's arguments in the form of the contract.
#pragma once

#include <torch_outboard/driver.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ops/call/call.h"

namespace outboard {

// Return the flags for a call from torch's switches.
uint64_t call_flags();

// The kind of the tensors in an argument list.
enum class Memory : uint8_t {
  Used,  // the tensors of a call
  Kept,  // the tensors of a graph; the list owns resources that the tensors would own
  None   // a query: the driver sees no addresses
};

// An argument list for the driver. It owns the arrays that the values point to.
class DriverValues {
 public:
  DriverValues(Memory memory, c10::DeviceIndex device)
      : is_kept_(memory == Memory::Kept), has_memory_(memory != Memory::None), device_(device) {}

  void add(const ArgInfo& info, const c10::IValue& value);

  const ob_tensor* add_tensors(const std::vector<at::Tensor>& tensors);

  // Describe results that are not allocated.
  const ob_tensor* add_shapes(const std::vector<OutputShape>& shapes);

  const std::vector<ob_value>& values() const { return values_; }
  uint64_t flags() const { return flags_; }

  // Return a hash of everything on which a kernel's answer may depend: the operator, kinds, dtypes,
  // devices, sizes, strides, constants and flags, but not addresses or memory contents.
  uint64_t key(const std::string& op) const;

  // Return false if the contract cannot represent an argument: the call then goes to the next
  // provider.
  bool is_complete() const { return is_complete_; }

 private:
  bool is_kept_;
  bool has_memory_;
  c10::DeviceIndex device_;
  uint64_t flags_ = call_flags();
  std::vector<ob_value> values_;
  std::deque<std::vector<ob_tensor>> tensors_;
  std::deque<std::vector<int64_t>> ints_;
  std::deque<std::vector<double>> doubles_;
  std::deque<std::string> strings_;
  std::deque<std::unique_ptr<std::byte[]>> bytes_;
  bool is_complete_ = true;
};

}  // namespace outboard

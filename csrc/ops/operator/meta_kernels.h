// SPDX-License-Identifier: BSD-3-Clause
// Meta kernels in C++: the functions of torch's structured operators, with which
// the CPU's kernels compute their outputs' shapes, dtypes and strides, and our own
// rules for other frequent operators.
//
// The dispatcher's Meta kernels are not used for these. Torch's Python registers decompositions
// over many of them, which take 90 to 1,100 microseconds per call (gelu, sum) instead of 2, and
// sometimes return other strides.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/operator_name.h>

namespace outboard {

struct MetaKernel {
  const c10::KernelFunction* kernel = nullptr;  // lives as long as the process
  bool is_structured = false;  // torch's own, instead of a rule from this package
};

// Return the operator's meta kernel in C++; its kernel is null if there is none.
MetaKernel meta_kernel_of(const c10::OperatorName& name);

// An entry of meta_kernel_of's table.
struct MetaKernelEntry {
  c10::OperatorName name;
  c10::KernelFunction kernel;
  bool is_structured = false;
};

// Add this package's rules for operators that are not structured: ops/operator/shape_rules.cpp.
void add_shape_rules(std::vector<MetaKernelEntry>& entries);

}  // namespace outboard

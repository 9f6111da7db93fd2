// SPDX-License-Identifier: BSD-3-Clause
// Checks of a collective's arguments. They raise ValueError at the call,
// before any rank is waited for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace outboard {

using Tensors = std::vector<at::Tensor>;

// Check that the tensors are dense and of one device, either ours or the CPU. Raise
// NotSupportedError for other layouts.
void check_tensors(const char* name, const Tensors& tensors);
void check_one(const char* name, const char* argument, const Tensors& tensors);
void check_same_dtype(const char* name, const Tensors& read, const Tensors& written);
// Check that `list` has `size` tensors with the element count and the dtype of `expected`.
void check_list(const char* name, const char* argument, const Tensors& list, const at::Tensor& expected, int size);
// Return the tensors that gather fills or scatter distributes: the single list of the rank `root`,
// and nothing on other ranks. `argument` is the lists' name, `where` the root's.
Tensors check_list_of_root(const char* name, const char* argument, const char* where, const std::vector<Tensors>& lists,
                           const Tensors& own, bool is_root, int size);
// Check that `whole` has `size` times the elements of `part`.
void check_parts(const char* name, const at::Tensor& whole, const at::Tensor& part, int size);
void check_rank(const char* name, const char* argument, int64_t rank, int size);
// Return the bytes for each rank of a tensor that is split along its first
// dimension, evenly if `splits` is empty.
std::vector<int64_t> split_bytes(const char* name, const char* argument, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, int size);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/checks.h"

#include <c10/util/Exception.h>

#include <numeric>

#include "core/driver.h"
#include "core/error.h"

namespace outboard {

void check_tensors(const char* name, const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), name, " got no tensor");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), name, " got an undefined tensor");
    if (tensor.layout() != c10::kStrided) {
      raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
            c10::str(name, " of ", tensor.layout(),
                     " tensors is not supported: send their indices and values, or call"
                     " to_dense() first"));
    }
    TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.device().type() == kDeviceType, name, " takes tensors of '",
                      driver_name(), "' and the CPU, got one on ", tensor.device());
    TORCH_CHECK_VALUE(tensor.device() == tensors.front().device(), name, " takes tensors of one device, got ",
                      tensors.front().device(), " and ", tensor.device());
  }
}

void check_one(const char* name, const char* argument, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, " takes one tensor as ", argument, ", got ", tensors.size());
}

void check_same_dtype(const char* name, const Tensors& read, const Tensors& written) {
  for (const Tensors* list : {&read, &written}) {
    for (const at::Tensor& tensor : *list) {
      TORCH_CHECK_VALUE(tensor.scalar_type() == read.front().scalar_type(), name, " takes tensors of one dtype, got ",
                        read.front().scalar_type(), " and ", tensor.scalar_type());
    }
  }
}

void check_list(const char* name, const char* argument, const Tensors& list, const at::Tensor& expected, int size) {
  TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size), name, ": ", argument, " has ", list.size(),
                    " tensors, but the group has ", size, " ranks");
  for (const at::Tensor& tensor : list) {
    TORCH_CHECK_VALUE(tensor.numel() == expected.numel() && tensor.scalar_type() == expected.scalar_type(), name, ": ",
                      argument, " contains a tensor of ", tensor.sizes(), " ", tensor.scalar_type(),
                      ", but the ranks exchange ", expected.sizes(), " ", expected.scalar_type());
  }
}

Tensors check_list_of_root(const char* name, const char* argument, const char* where, const std::vector<Tensors>& lists,
                           const Tensors& own, bool is_root, int size) {
  TORCH_CHECK_VALUE(lists.size() == (is_root ? 1 : 0), name, " takes ", argument, " on ", where,
                    " rank, and no list on other ranks");
  if (!is_root) {
    return {};
  }
  check_list(name, argument, lists[0], own[0], size);
  return lists[0];
}

void check_parts(const char* name, const at::Tensor& whole, const at::Tensor& part, int size) {
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size, name, ": a tensor of ", whole.numel(),
                    " elements does not hold ", size, " parts of ", part.numel(), " elements for ", size, " ranks");
  TORCH_CHECK_VALUE(whole.scalar_type() == part.scalar_type(), name, " takes tensors of one dtype, got ",
                    whole.scalar_type(), " and ", part.scalar_type());
}

void check_rank(const char* name, const char* argument, int64_t rank, int size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, name, ": ", argument, " is rank ", rank, ", but the group has ", size,
                    " ranks");
}

std::vector<int64_t> split_bytes(const char* name, const char* argument, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row_bytes = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, name, ": the ", rows, " rows of ", argument, " cannot be divided evenly among ",
                      size, " ranks: pass the split sizes");
    return std::vector<int64_t>(size, rows / size * row_bytes);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size), name, ": ", splits.size(), " splits of ", argument,
                    ", but the group has ", size, " ranks");
  TORCH_CHECK_VALUE(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows, name, ": the splits of ",
                    argument, " don't sum to its ", rows, " rows");
  std::vector<int64_t> bytes;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, name, ": a split of ", argument, " is negative: ", split);
    bytes.push_back(split * row_bytes);
  }
  return bytes;
}

}  // namespace outboard

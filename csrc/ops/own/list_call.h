// SPDX-License-Identifier: BSD-3-Clause
// One call of an operator over lists: the conditions for a kernel over chunks, and the kernel's
// arguments.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string>
#include <vector>

#include "ops/own/lists.h"
#include "ops/tensors/launch_uses.h"

namespace outboard {

// Return a number's bits in the first bytes of a word; nothing if the dtype cannot hold it.
std::optional<uint64_t> bits_of(const c10::Scalar& number, c10::ScalarType dtype);

// One call: the arguments of its kernel, gathered from the operator's.
class ListCall {
 public:
  ListCall(const ListRecipe& recipe, const std::string& name, c10::ArrayRef<c10::IValue> arguments, Stream& stream)
      : recipe_(recipe), name_(name), arguments_(arguments), stream_(stream), uses_(stream) {}

  // Return false if no kernel over chunks can serve the call.
  bool gather() { return gather_arguments() && gather_rows(); }

  // Return true if the tensors have several dtypes, and some have no dimensions: type promotion
  // treats such tensors differently.
  bool is_mixed() const;

  // Find or make the table. Return false if written memory overlaps other memory of the call, or
  // the table cannot be made.
  bool prepare();

  void launch();

  // Return true if a kernel was launched before another kernel failed.
  bool has_launched() const { return has_launched_; }

  // Return the lists of results, one for each column of fresh tensors.
  const std::vector<c10::List<at::Tensor>>& results() const { return results_; }

 private:
  // A memory range of the call, to check whether written memory overlaps other memory.
  struct Extent {
    uint64_t begin;
    uint64_t end;
    bool is_written;
  };
  static bool are_disjoint(std::vector<Extent>& extents);
  // Return true if written memory of the first `count` overlaps no other.
  static bool are_first_disjoint(const std::vector<Extent>& extents, size_t count);

  bool gather_arguments();

  bool gather_rows();

  // Return true if all lists of the operator have that length, or are empty.
  bool have_lengths(size_t length) const;

  bool gather_word(const kernels::ChunkSource& source, size_t place, const at::Tensor& like, uint64_t* out_word);

  // Return the number from a list of numbers, or from a CPU tensor.
  static std::optional<uint64_t> number_at(const c10::IValue& value, size_t place, size_t length,
                                           c10::ScalarType dtype);

  void gather_results(c10::ArrayRef<c10::IValue> first);

  // Allocate results contiguously, as a kernel writes them: one allocation, and a table that does
  // not depend on their addresses.
  void gather_results_of_rows(c10::ScalarType dtype, size_t rows);

  void use(const at::Tensor& tensor, bool is_written);

  const ListRecipe& recipe_;
  const std::string& name_;
  c10::ArrayRef<c10::IValue> arguments_;
  Stream& stream_;
  c10::SmallVector<uint64_t, 8> words_;
  ChunkRows rows_;
  std::vector<Extent> extents_;
  size_t unlisted_count_ = 0;  // number of leading extents, which belong to tensors outside the lists
  LaunchUses uses_;
  std::vector<c10::List<at::Tensor>> results_;
  std::optional<ChunkTable> table_;
  bool has_launched_ = false;
  bool has_numbers_ = false;
};

}  // namespace outboard

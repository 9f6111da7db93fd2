// SPDX-License-Identifier: BSD-3-Clause
// How an operator over lists of tensors becomes one launch: its kernel, and the layout of the table
// that the kernel reads. The table has a row for each index of the lists, and a word for each chunk
// of elements, which one group of items computes.
//
//   chunks 1
//   column list 0 w            a row has the address of argument 0's tensor, which is written,
//   column list 1 r            of argument 1's, which is read,
//   column fresh float32       of a new tensor, as large as the others: the results, in order
//   column element 5 r         of a tensor of one element in argument 5's list
//   column number 2 float64    the number itself, of argument 2's list of numbers
//   argument tensor 3 r        the kernel is passed the address of argument 3, a tensor of one element,
//   argument number 4 float64  a number
//
// An operator that reduces each tensor has two kernels. Its plan also has
//
//   column chunk               the number of the row's first chunk
//   join float32 float16 any   the first kernel writes a float32 for each chunk; the second reduces them to a float16
//                              for each row, the result; `any`: rows may have no
//                              elements, `some`: at least one
//
// The tensors of `list` and `fresh` in a row have equal element counts and the same order in
// memory. The first column belongs to one of these tensors. A row ends with its number of elements.
// The table begins with the words of the chunks: the row in the upper 32 bits, the number of the
// chunk within the row in the lower.
//
// The kernel gets the table, the number of chunks, the number of elements in a chunk, and a value
// for each `argument`. The first of two kernels also gets the memory for the chunks' results. The
// second gets the table, the number of chunks, the number of elements in a chunk, the number of
// rows, the memory of the chunks' results, and the results' memory.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/export.h"
#include "kernels/argument_kind.h"

namespace outboard::kernels {

struct ChunkSource {
  enum class Kind : uint8_t { List, Fresh, Element, Number, Tensor, Chunk };
  Kind kind;
  bool is_written = false;
  uint32_t argument = 0;  // index in the operator's schema; not for Fresh and Chunk
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // for Fresh and Number
};

struct ChunkJoin {
  c10::ScalarType kept;  // dtype of the number kept for a chunk
  c10::ScalarType result;
  bool needs_elements;
};

struct OUTBOARD_API ChunkPlan {
  // Read a plan; `kernels` has the arguments of each kernel. Raise ValueError, with the reason, for
  // a text that is not such a plan or does not fit the kernels.
  ChunkPlan(std::string_view text, c10::ArrayRef<ArgumentKinds> kernels);

  std::vector<ChunkSource> columns;
  std::vector<ChunkSource> arguments;
  std::optional<ChunkJoin> join;
};

}  // namespace outboard::kernels

// SPDX-License-Identifier: BSD-3-Clause
// How an operator over lists of tensors is one launch: which kernel, and what it finds where. The kernel gets a table with
// a row for each place of the lists and a word for each chunk of elements, which one group of its items has.
//
//   chunks 1
//   column list 0 w            a row has the address of argument 0's tensor, which is written,
//   column list 1 r            of argument 1's, which is read,
//   column fresh float32       of a tensor that is made, as large as the others: results, in order
//   column element 5 r         of a tensor of one element in argument 5's list
//   column number 2 float64    the number itself, of argument 2's list of numbers
//   argument tensor 3 r        the kernel is passed the address of argument 3, a tensor of one element,
//   argument number 4 float64  a number
//
// Tensors of `list` and `fresh` have as many elements in a row, in the same order in memory. The first column is of one of
// them. The kernel's own arguments come after the table, the number of chunks and that of elements in a chunk: the letters
// "tii" and one for each `argument`. A row ends with its number of elements. The table begins with the words of chunks: the
// row in the upper 32 bits, below the number of the chunk in the row.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/export.h"

namespace outboard::kernels {

struct ChunkSource {
  enum class Kind : uint8_t { List, Fresh, Element, Number, Tensor };
  Kind kind;
  bool is_written = false;
  uint32_t argument = 0;  // of the operator's schema; not of Fresh
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of Fresh and Number
};

struct OUTBOARD_API ChunkPlan {
  // `letters` are those of the kernel's arguments. ValueError for a text that is no such plan, with what is wrong with it.
  ChunkPlan(std::string_view text, std::string_view letters);

  std::vector<ChunkSource> columns;
  std::vector<ChunkSource> arguments;
};

}  // namespace outboard::kernels

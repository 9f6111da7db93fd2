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
// An operator that reduces each tensor has two kernels, and in its plan are
//
//   column chunk               the number of the row's first chunk
//   join float32 float16 any   the first kernel writes a float32 for each chunk, of which the second makes a float16 for
//                              each row, the results; `any`: of any number of elements, `some`: of one at least
//
// Tensors of `list` and `fresh` have as many elements in a row, in the same order in memory. The first column is of one of
// them. The kernel's own arguments come after the table, the number of chunks and that of elements in a chunk: the letters
// "tii" and one for each `argument`. A row ends with its number of elements. The table begins with the words of chunks: the
// row in the upper 32 bits, below the number of the chunk in the row. The first kernel of two gets the memory of the
// chunks' numbers last, and the second the table, the numbers of chunks, of elements in a chunk and of rows, that memory,
// and the results': the letters "riiirw".
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/export.h"

namespace outboard::kernels {

struct ChunkSource {
  enum class Kind : uint8_t { List, Fresh, Element, Number, Tensor, Chunk };
  Kind kind;
  bool is_written = false;
  uint32_t argument = 0;  // of the operator's schema; not of Fresh and Chunk
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of Fresh and Number
};

struct ChunkJoin {
  c10::ScalarType kept;  // of a chunk's number
  c10::ScalarType result;
  bool needs_elements;
};

struct OUTBOARD_API ChunkPlan {
  // `letters` are those of each kernel's arguments. ValueError for a text that is no such plan, or one of other kernels,
  // with what is wrong with it.
  ChunkPlan(std::string_view text, const std::vector<std::string>& letters);

  std::vector<ChunkSource> columns;
  std::vector<ChunkSource> arguments;
  std::optional<ChunkJoin> join;
};

}  // namespace outboard::kernels

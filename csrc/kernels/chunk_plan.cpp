// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/chunk_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "kernels/dtypes.h"

namespace outboard::kernels {

namespace {

constexpr uint32_t kMaxArgument = 63;  // a bit each says which numbers are by value

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

ChunkSource read_source(std::string_view line, bool is_column) {
  const std::string whole(line);
  const auto require = [&whole](bool holds) {
    TORCH_CHECK_VALUE(holds, "'", whole, "' is no column and no argument of a launch over chunks");
  };
  const std::string_view kind = next_word(line);
  ChunkSource source{};
  if (kind == "fresh") {
    source.kind = ChunkSource::Kind::Fresh;
    source.is_written = true;
  } else {
    const std::string_view word = next_word(line);
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), source.argument);
    require(error == std::errc() && last == word.data() + word.size() && source.argument <= kMaxArgument);
    source.kind = kind == "list"      ? ChunkSource::Kind::List
                  : kind == "element" ? ChunkSource::Kind::Element
                  : kind == "tensor"  ? ChunkSource::Kind::Tensor
                                      : ChunkSource::Kind::Number;
    require(source.kind != ChunkSource::Kind::Number || kind == "number");
  }
  require(source.kind == ChunkSource::Kind::Number || (source.kind == ChunkSource::Kind::Tensor) != is_column);
  const std::string_view last = next_word(line);
  if (source.kind == ChunkSource::Kind::Fresh || source.kind == ChunkSource::Kind::Number) {
    source.dtype = dtype_named(last);
    require(source.dtype != c10::ScalarType::Undefined);
  } else {
    require(last == "r" || last == "w");
    source.is_written = last == "w";
  }
  require(next_word(line).empty());
  return source;
}

char letter_of(const ChunkSource& source) {
  if (source.kind == ChunkSource::Kind::Tensor) {
    return source.is_written ? 'w' : 'r';
  }
  return source.dtype == c10::kDouble  ? 'd'
         : source.dtype == c10::kFloat ? 'f'
         : source.dtype == c10::kLong  ? 'i'
                                       : '?';
}

}  // namespace

ChunkPlan::ChunkPlan(std::string_view text, std::string_view letters) {
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (std::exchange(is_first, false)) {
      TORCH_CHECK_VALUE(line == "chunks 1", "a plan of a launch over chunks begins with 'chunks 1', not '", line, "'");
      continue;
    }
    const std::string_view word = next_word(line);
    TORCH_CHECK_VALUE(word == "column" || word == "argument", "'", word, "' is no column and no argument");
    (word == "column" ? columns : arguments).push_back(read_source(line, word == "column"));
  }
  TORCH_CHECK_VALUE(!columns.empty() && columns[0].kind == ChunkSource::Kind::List,
                    "the first column of a launch over chunks is a list of tensors");
  std::string wanted = "tii";
  for (const ChunkSource& source : arguments) {
    wanted.push_back(letter_of(source));
  }
  TORCH_CHECK_VALUE(letters == wanted, "the kernel over chunks takes '", letters, "', and its plan passes '", wanted,
                    "'");
}

}  // namespace outboard::kernels

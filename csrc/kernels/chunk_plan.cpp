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

constexpr uint32_t kMaxArgument = 63;  // a bit for each argument marks numbers by value

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

ChunkSource read_source(std::string_view line, bool is_column) {
  const std::string whole(line);
  const auto require = [&whole](bool holds) {
    TORCH_CHECK_VALUE(holds, "'", whole, "' is neither a column nor an argument of a launch over chunks");
  };
  const std::string_view kind = next_word(line);
  ChunkSource source{};
  if (kind == "fresh") {
    source.kind = ChunkSource::Kind::Fresh;
    source.is_written = true;
  } else if (kind == "chunk") {
    source.kind = ChunkSource::Kind::Chunk;
    require(is_column && next_word(line).empty());
    return source;
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

ChunkJoin read_join(std::string_view line) {
  const std::string whole(line);
  const ChunkJoin join{dtype_named(next_word(line)), dtype_named(next_word(line)), line == " some"};
  TORCH_CHECK_VALUE(join.kept != c10::ScalarType::Undefined && join.result != c10::ScalarType::Undefined &&
                        (join.needs_elements || line == " any"),
                    "'", whole, "' is not a rule for joining chunks");
  return join;
}

ArgumentKind kind_of(const ChunkSource& source) {
  if (source.kind == ChunkSource::Kind::Tensor) {
    return source.is_written ? ArgumentKind::Written : ArgumentKind::Read;
  }
  TORCH_CHECK_VALUE(source.dtype == c10::kDouble || source.dtype == c10::kFloat || source.dtype == c10::kLong,
                    "a launch over chunks cannot pass a number of dtype ", source.dtype);
  return source.dtype == c10::kDouble  ? ArgumentKind::Double
         : source.dtype == c10::kFloat ? ArgumentKind::Float
                                       : ArgumentKind::Int64;
}

// "'tii', 'rw'"
std::string described(c10::ArrayRef<ArgumentKinds> kernels) {
  std::string text;
  for (const ArgumentKinds& kinds : kernels) {
    text += (text.empty() ? "'" : ", '") + letters_of(kinds) + "'";
  }
  return text;
}

}  // namespace

ChunkPlan::ChunkPlan(std::string_view text, c10::ArrayRef<ArgumentKinds> kernels) {
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (std::exchange(is_first, false)) {
      TORCH_CHECK_VALUE(line == "chunks 1", "a plan of a launch over chunks must begin with 'chunks 1', not '", line,
                        "'");
      continue;
    }
    const std::string_view word = next_word(line);
    if (word == "join") {
      join = read_join(line);
      continue;
    }
    TORCH_CHECK_VALUE(word == "column" || word == "argument", "'", word, "' is neither a column nor an argument");
    (word == "column" ? columns : arguments).push_back(read_source(line, word == "column"));
  }
  TORCH_CHECK_VALUE(!columns.empty() && columns[0].kind == ChunkSource::Kind::List,
                    "the first column of a launch over chunks must be a list of tensors");
  using enum ArgumentKind;
  std::vector<ArgumentKinds> wanted{{Table, Int64, Int64}};
  for (const ChunkSource& source : arguments) {
    wanted[0].push_back(kind_of(source));
  }
  const bool is_fresh = std::ranges::count(columns, ChunkSource::Kind::Fresh, &ChunkSource::kind) > 0;
  const auto chunks = std::ranges::count(columns, ChunkSource::Kind::Chunk, &ChunkSource::kind);
  TORCH_CHECK_VALUE(chunks == (join.has_value() ? 1 : 0) && !(join.has_value() && is_fresh),
                    "a launch that joins chunks needs a column of first chunks and cannot have fresh results");
  if (join.has_value()) {
    wanted[0].push_back(Written);
    wanted.push_back({Read, Int64, Int64, Int64, Read, Written});
  }
  TORCH_CHECK_VALUE(kernels.equals(wanted), "the kernels over chunks take ", described(kernels),
                    ", but their plan passes ", described(wanted));
}

}  // namespace outboard::kernels

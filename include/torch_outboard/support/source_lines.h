// SPDX-License-Identifier: BSD-3-Clause
// The lines of a program's source that a build log mentions.
#pragma once

#include <cctype>
#include <set>
#include <string>
#include <string_view>

namespace support {

// Return line numbers as compilers write them: "a.cl:12:5: error",
// "a.cu(12): error", "line 12; error".
inline std::set<size_t> cited_lines(std::string_view log) {
  std::set<size_t> lines;
  for (size_t at = 0; at < log.size(); ++at) {
    const bool is_colon = log[at] == ':';
    const bool is_parenthesis = log[at] == '(';
    const bool is_word = log.substr(at, 5) == "line ";
    size_t next = at + (is_word ? 5 : 1);
    if (!is_colon && !is_parenthesis && !is_word) continue;
    size_t number = 0;
    const size_t first = next;
    while (next < log.size() && std::isdigit(static_cast<unsigned char>(log[next])) && next - first < 7) {
      number = number * 10 + static_cast<size_t>(log[next++] - '0');
    }
    if (next == first || next == log.size()) continue;
    const char end = log[next];
    if ((is_colon && end == ':') || (is_parenthesis && end == ')') || (is_word && !std::isdigit(end))) {
      lines.insert(number);
    }
    at = next - 1;
    if (is_colon && end == ':') at = log.find('\n', next) == std::string_view::npos ? log.size() : log.find('\n', next);
  }
  return lines;
}

// Return "\nSource:\n  12 | int x = y;\n", at most 20 lines; empty if the log names none.
inline std::string cite_source(std::string_view log, std::string_view source) {
  constexpr size_t kMaxLines = 20;
  const std::set<size_t> wanted = cited_lines(log);
  std::string text;
  size_t cited = 0;
  size_t number = 1;
  for (size_t begin = 0; begin <= source.size() && cited < kMaxLines; ++number) {
    const size_t end = std::min(source.find('\n', begin), source.size());
    if (wanted.count(number) != 0) {
      text += (text.empty() ? "\nSource:\n  " : "  ") + std::to_string(number) + " | ";
      text += source.substr(begin, end - begin);
      text += '\n';
      ++cited;
    }
    begin = end + 1;
  }
  return text;
}

}  // namespace support

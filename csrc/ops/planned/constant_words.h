// SPDX-License-Identifier: BSD-3-Clause
// A call's constants, as words of a key.
#pragma once

#include <ATen/core/ivalue.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <string_view>

namespace outboard {

// Append the words of a constant argument: its kind, and its value unless
// plans take the value from the call.
template <typename Words>
void add_constant(Words& words, const c10::IValue& value, bool has_value) {
  words.push_back(value.isNone()     ? 1
                  : value.isInt()    ? 2
                  : value.isBool()   ? 3
                  : value.isDouble() ? 4
                  : value.isString() ? 5
                  : value.isList()   ? 6
                  : value.isDevice() ? 7
                                     : 8);
  if (!has_value) {
    return;
  }
  if (value.isInt()) {
    words.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    words.push_back(value.toBool() ? 1 : 0);
  } else if (value.isDouble()) {
    words.push_back(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isComplexDouble()) {
    words.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    words.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    words.push_back(value.toStringRef().size());
    words.push_back(std::hash<std::string_view>{}(value.toStringRef()));
  } else if (value.isList()) {
    words.push_back(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) {
      add_constant(words, element, true);
    }
  }
}

}  // namespace outboard

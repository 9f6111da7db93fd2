// SPDX-License-Identifier: BSD-3-Clause
// The kinds of a kernel's arguments. Generated code, Python and files denote each by a letter.
// torch_outboard/codegen/letters.py reads this table; no other place lists the letters.
#pragma once

#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/export.h"

namespace outboard::kernels {

enum class ArgumentKind : char {
  Read = 'r',
  Written = 'w',
  Scalar = 's',
  Table = 't',  // only for devices whose properties have `follows_addresses`
  Int64 = 'i',
  Int32 = 'j',
  Int16 = 'h',
  Int8 = 'b',
  Float = 'f',
  Double = 'd',
  Kept = 'k',
  Null = 'n',
  Local = 'l',  // receives the geometry's `local_bytes`; without such an argument, they are a property of the launch
  Record = 'e',  // becomes three arguments of the driver's launch (core/kernel_failure.h)
};

struct ArgumentKindInfo {
  ArgumentKind kind;
  const char* type;  // type name in codegen/program.py; for pointer types, its ending
  const char* meaning;
  uint8_t bytes;  // bytes of a number that the kernel takes by value, else 0
  bool is_pointer;
  bool is_integer;  // formulas read it
  bool is_passed;  // calls pass a value as a word
  bool is_on_host;  // entries on the host take it
};

inline constexpr std::array kArgumentKinds{
    ArgumentKindInfo{ArgumentKind::Read, "const *", "the address of a tensor that is read", 0, true, false, true, true},
    ArgumentKindInfo{ArgumentKind::Written, "*", "the address of a tensor that is written", 0, true, false, true, true},
    ArgumentKindInfo{ArgumentKind::Scalar, "scalar*", "the bits of a CPU tensor's one element, at most 8 bytes", 8,
                     false, false, true, false},
    ArgumentKindInfo{ArgumentKind::Table, "table",
                     "the address of a table of addresses, whose memory the kernel also uses", 0, true, false, true,
                     false},
    ArgumentKindInfo{ArgumentKind::Int64, "int64_t", "an integer of 64 bits", 8, false, true, true, true},
    ArgumentKindInfo{ArgumentKind::Int32, "int32_t", "an integer of 32 bits", 4, false, true, true, false},
    ArgumentKindInfo{ArgumentKind::Int16, "int16_t", "an integer of 16 bits", 2, false, false, true, false},
    ArgumentKindInfo{ArgumentKind::Int8, "int8_t", "an integer of 8 bits", 1, false, false, true, false},
    ArgumentKindInfo{ArgumentKind::Float, "float", "a number of 32 bits", 4, false, false, true, true},
    ArgumentKindInfo{ArgumentKind::Double, "double", "a number of 64 bits", 8, false, false, true, true},
    ArgumentKindInfo{ArgumentKind::Kept, "kept", "an integer for formulas only", 0, false, true, true, false},
    ArgumentKindInfo{ArgumentKind::Null, "zero", "an address of 0", 0, true, false, false, false},
    ArgumentKindInfo{ArgumentKind::Local, "local", "local memory", 0, false, false, false, false},
    ArgumentKindInfo{ArgumentKind::Record, "record", "the record of failures", 0, false, false, false, false},
};

// Positions in the table, by letter.
inline constexpr auto kIndexOfKind = [] {
  std::array<uint8_t, 128> places{};
  for (size_t i = 0; i < kArgumentKinds.size(); ++i) {
    places[static_cast<size_t>(kArgumentKinds[i].kind)] = static_cast<uint8_t>(i);
  }
  return places;
}();

// Return the table's entry for a kind.
constexpr const ArgumentKindInfo& info_of(ArgumentKind kind) {
  return kArgumentKinds[kIndexOfKind[static_cast<size_t>(kind)]];
}

// Return true if calls pass a tensor.
constexpr bool takes_tensor(ArgumentKind kind) {
  return kind == ArgumentKind::Read || kind == ArgumentKind::Written || kind == ArgumentKind::Scalar;
}

using ArgumentKinds = std::vector<ArgumentKind>;

// Parse one letter per argument. Raise ValueError, which lists the letters, for any other letter.
// With `is_on_host`, also raise for a letter that host entry points do not take.
OUTBOARD_API ArgumentKinds read_kinds(const std::string& kernel, std::string_view letters, bool is_on_host = false);

// Return the letters, for messages.
OUTBOARD_API std::string letters_of(c10::ArrayRef<ArgumentKind> kinds);

// Return the kinds of the arguments that calls pass.
OUTBOARD_API ArgumentKinds passed(c10::ArrayRef<ArgumentKind> kinds);

}  // namespace outboard::kernels

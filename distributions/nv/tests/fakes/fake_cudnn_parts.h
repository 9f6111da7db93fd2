// SPDX-License-Identifier: BSD-3-Clause
// What the parts of the fake cuDNN share: descriptors, elements of memory, the size of a workspace.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "bfloat16.h"

struct Handle {
  void* stream = nullptr;
};

struct Descriptor {
  int kind = 0;
  bool is_final = false;
  int64_t engine = -1;  // of a configuration, an engine or a plan
  std::map<int, std::vector<char>> attributes;

  template <class T>
  std::vector<T> all(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  T one(int attribute) const {
    const std::vector<T> values = all<T>(attribute);
    return values.empty() ? T{} : values[0];
  }
};

inline double read(int type, const void* at, int64_t index) {
  if (type == 0) return static_cast<const float*>(at)[index];
  if (type == 1) return static_cast<const double*>(at)[index];
  if (type == 2) return static_cast<double>(static_cast<const _Float16*>(at)[index]);
  return from_bfloat16(static_cast<const uint16_t*>(at)[index]);
}

inline void write(int type, void* at, int64_t index, double value) {
  if (type == 0) {
    static_cast<float*>(at)[index] = static_cast<float>(value);
  } else if (type == 1) {
    static_cast<double*>(at)[index] = value;
  } else if (type == 2) {
    static_cast<_Float16*>(at)[index] = static_cast<_Float16>(value);
  } else {
    static_cast<uint16_t*>(at)[index] = to_bfloat16(static_cast<float>(value));
  }
}

inline int64_t workspace_bytes() {
  const char* given = std::getenv("OB_FAKE_CUDNN_WORKSPACE");
  return given == nullptr ? 1000 : std::strtoll(given, nullptr, 10);
}

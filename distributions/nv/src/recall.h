// SPDX-License-Identifier: BSD-3-Clause
// Bytes that an earlier process stored, or that a pack contains.
#pragma once

#include <string>

#include "torch_outboard/driver.h"

namespace nv {

// Copy the bytes of a key. Return false if there are none, or no core that stores bytes.
inline bool recall_bytes(decltype(ob_registrar::recall) recall, int32_t device, const std::string& key,
                         std::string* out_bytes) {
  const auto take = [](void* context, const void* bytes, size_t size) {
    static_cast<std::string*>(context)->assign(static_cast<const char*>(bytes), size);
  };
  return recall != nullptr && recall(device, key.data(), key.size(), out_bytes, take) == OB_OK;
}

}  // namespace nv

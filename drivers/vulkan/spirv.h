// SPDX-License-Identifier: BSD-3-Clause
// What the driver reads in SPIR-V's words, and what it adds to them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "vk.h"

namespace vulkan {

// A kernel of a module: how it takes its arguments, and how large its groups are.
struct Entry {
  // Of the fields of the struct of arguments, the first group's number first. Empty: it reads none.
  std::vector<uint32_t> offsets;
  bool is_by_address = false;       // an address of the struct is pushed, not the struct
  bool has_group_constant = false;  // constant 0 is a group's size in x
  // It multiplies matrices that a subgroup holds, whose size must then be the device's.
  bool has_matrices = false;
  bool has_shuffles = false;        // it, or another kernel of the module, reads values of a subgroup's items
  uint32_t group[3] = {1, 1, 1};    // what the module says; x is a default if there is the constant
};

// Read a module's kernels, and add what keeps floats as they are written: no contraction, and where
// the device has them signs of zeros, infinities, NaN, denormals and rounding to nearest. A module
// that has all that stays as it is. Return false, with a sentence, for words that are no module.
bool prepare_module(const VkPhysicalDeviceVulkan12Properties& device, std::vector<uint32_t>* words,
                    std::map<std::string, Entry>* out_entries, std::string* out_error);

}  // namespace vulkan

// SPDX-License-Identifier: BSD-3-Clause
#include "spirv.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <span>
#include <utility>

namespace vulkan {
namespace {

constexpr uint32_t kMagic = 0x07230203;
constexpr size_t kHeaderWords = 5;
constexpr uint32_t kVersion14 = 0x00010400;  // has the modes of floats in its core

enum : uint32_t {
  kOpSource = 3,
  kOpMemoryModel = 14,
  kOpEntryPoint = 15,
  kOpExecutionMode = 16,
  kOpCapability = 17,
  kOpTypeFirst = 19,
  kOpTypeInt = 21,
  kOpTypeFloat = 22,
  kOpTypeStruct = 30,
  kOpTypePointer = 32,
  kOpValueFirst = 41,
  kOpConstant = 43,
  kOpSpecConstant = 50,
  kOpSpecConstantComposite = 51,
  kOpSpecConstantOp = 52,
  kOpFunction = 54,
  kOpVariable = 59,
  kOpLoad = 61,
  kOpStore = 62,
  kOpDecorate = 71,
  kOpMemberDecorate = 72,
  kOpCompositeConstruct = 80,
  kOpCompositeExtract = 81,
  kOpUConvert = 113,
  kOpSConvert = 114,
  kOpFNegate = 127,
  kOpFAdd = 129,
  kOpFSub = 131,
  kOpFMul = 133,
  kOpFDiv = 136,
  kOpShiftRightArithmetic = 195,
  kOpShiftLeftLogical = 196,
  kOpControlBarrier = 224,
  kOpMemoryBarrier = 225,
  kOpExecutionModeId = 331,
  kOpCopyLogical = 400,
  kOpCooperativeMatrixLoad = 4457,
  kOpCooperativeMatrixStore = 4458,
  kModelGlCompute = 5,
  kModeLocalSize = 17,
  kModeLocalSizeId = 38,
  kModeDenormPreserve = 4459,
  kModeSignedZeroInfNanPreserve = 4461,
  kModeRoundingRte = 4462,
  kCapabilityDenormPreserve = 4464,
  kCapabilitySignedZeroInfNanPreserve = 4466,
  kCapabilityRoundingRte = 4467,
  kCapabilityGroupNonUniformShuffle = 65,
  kCapabilityCooperativeMatrix = 6022,
  kDecorationSpecId = 1,
  kDecorationBuiltIn = 11,
  kDecorationOffset = 35,
  kDecorationNoContraction = 42,
  kBuiltInWorkgroupSize = 25,
  kMemoryModelVulkan = 3,
  kNonPrivatePointer = 0x20,  // of an access
  kAcquires = 0x2 | 0x8,      // of a barrier
  kReleases = 0x4 | 0x8,
  kMakeAvailable = 0x2000,
  kMakeVisible = 0x4000,
  kStorageWorkgroup = 4,
  kStoragePushConstant = 9,
  kStoragePhysical = 5349
};

using Operands = std::span<const uint32_t>;

struct EntryPoint {
  uint32_t id;
  std::string name;
  std::vector<uint32_t> interface;
};

struct Module {
  std::vector<EntryPoint> entries;
  std::map<uint32_t, std::vector<uint32_t>> sizes;        // of an entry's groups: three ids
  std::map<uint32_t, std::vector<uint32_t>> fixed_sizes;  // or three numbers
  // the ids of the built-in variable, which counts for all
  std::vector<uint32_t> size_of_all;
  std::map<uint32_t, uint32_t> spec_ids;
  std::map<uint32_t, uint32_t> constants;
  std::map<uint32_t, std::map<uint32_t, uint32_t>> offsets;  // by struct and member
  std::map<uint32_t, std::vector<uint32_t>> structs;         // members' types
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> pointers;  // storage class and type
  std::map<uint32_t, uint32_t> pushed;                         // variables' types
  std::map<uint32_t, std::vector<uint32_t>> composites;
  std::set<uint32_t> workgroup_sizes;
  std::set<uint32_t> widths;     // of floats
  std::vector<uint32_t> floats;  // results that may not be contracted
  std::set<uint32_t> kept;       // of them those that say so already
  std::set<uint32_t> capabilities;
  std::set<std::vector<uint32_t>> modes;
  size_t modes_end = 0;   // where modes may be added
  size_t types_begin = 0;  // where decorations may be
};

std::string text_at(Operands words) {
  std::string text;
  for (const uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) {
      const char c = static_cast<char>(word >> shift & 0xFF);
      if (c == '\0') return text;
      text += c;
    }
  }
  return text;
}

void read_entry(Operands given, Module& module) {
  if (given.size() < 3 || given[0] != kModelGlCompute) return;
  EntryPoint entry{given[1], text_at(given.subspan(2)), {}};
  const size_t name_words = entry.name.size() / 4 + 1;
  for (size_t i = 2 + name_words; i < given.size(); ++i) entry.interface.push_back(given[i]);
  module.entries.push_back(std::move(entry));
}

void read_mode(uint32_t op, Operands given, Module& module) {
  module.modes.emplace(given.begin(), given.end());
  if (given.size() != 5) return;
  const std::vector<uint32_t> size(given.begin() + 2, given.end());
  if (op == kOpExecutionMode && given[1] == kModeLocalSize) module.fixed_sizes[given[0]] = size;
  if (op == kOpExecutionModeId && given[1] == kModeLocalSizeId) module.sizes[given[0]] = size;
}

void read_decoration(Operands given, Module& module) {
  if (given.size() < 2) return;
  if (given[1] == kDecorationNoContraction) module.kept.insert(given[0]);
  if (given.size() < 3) return;
  if (given[1] == kDecorationSpecId) module.spec_ids[given[0]] = given[2];
  if (given[1] == kDecorationBuiltIn && given[2] == kBuiltInWorkgroupSize) module.workgroup_sizes.insert(given[0]);
}

void read_declaration(uint32_t op, Operands given, Module& module) {
  switch (op) {
    case kOpTypeFloat:
      if (given.size() >= 2) module.widths.insert(given[1]);
      break;
    case kOpTypeStruct:
      if (!given.empty()) module.structs[given[0]].assign(given.begin() + 1, given.end());
      break;
    case kOpTypePointer:
      if (given.size() == 3) module.pointers[given[0]] = {given[1], given[2]};
      break;
    case kOpConstant:
    case kOpSpecConstant:
      if (given.size() == 3) module.constants[given[1]] = given[2];
      break;
    case kOpSpecConstantComposite:
      if (given.size() == 5) module.composites[given[1]].assign(given.begin() + 2, given.end());
      break;
    case kOpVariable:
      if (given.size() >= 3 && given[2] == kStoragePushConstant) module.pushed[given[1]] = given[0];
      break;
    default:
      break;
  }
}

bool read_module(std::vector<uint32_t>& words, Module& module, std::string* out_error) {
  if (words.size() < kHeaderWords || words[0] != kMagic) {
    *out_error = "this is not SPIR-V";
    return false;
  }
  for (size_t at = kHeaderWords; at < words.size();) {
    const size_t count = words[at] >> 16;
    const uint32_t op = words[at] & 0xFFFF;
    if (count == 0 || count > words.size() - at) {
      *out_error = "the SPIR-V ends within an instruction";
      return false;
    }
    const Operands given(words.data() + at + 1, count - 1);
    const bool is_type = (op >= kOpTypeFirst && op <= kOpSpecConstantOp) || op == kOpVariable;
    if (is_type && module.types_begin == 0) module.types_begin = at;
    // Tools refuse languages that are newer than the tools.
    if (op == kOpSource && count > 1) words[at + 1] = 0;
    if (op == kOpCapability && !given.empty()) module.capabilities.insert(given[0]);
    if (op == kOpEntryPoint) read_entry(given, module);
    if (op == kOpExecutionMode || op == kOpExecutionModeId) read_mode(op, given, module);
    if (op == kOpEntryPoint || op == kOpExecutionMode || op == kOpExecutionModeId) module.modes_end = at + count;
    if (op == kOpDecorate) read_decoration(given, module);
    if (op == kOpMemberDecorate && given.size() == 4 && given[2] == kDecorationOffset) {
      module.offsets[given[0]][given[1]] = given[3];
    }
    if (is_type) read_declaration(op, given, module);
    const bool is_float = op == kOpFNegate || op == kOpFAdd || op == kOpFSub || op == kOpFMul || op == kOpFDiv;
    if (is_float && given.size() >= 2) module.floats.push_back(given[1]);
    at += count;
  }
  for (const uint32_t id : module.workgroup_sizes) {
    if (const auto found = module.composites.find(id); found != module.composites.end()) {
      module.size_of_all = found->second;
    }
  }
  if (module.entries.empty() || module.types_begin == 0) {
    *out_error = "the SPIR-V has no kernel";
    return false;
  }
  return true;
}

// Find the struct of an entry's arguments: the pushed struct, without a struct that a compiler may
// put around it, or the struct at the pushed address.
void find_arguments(const Module& module, const EntryPoint& point, Entry& entry) {
  uint32_t type = 0;
  for (const uint32_t id : point.interface) {
    const auto variable = module.pushed.find(id);
    if (variable == module.pushed.end()) continue;
    if (const auto pointer = module.pointers.find(variable->second); pointer != module.pointers.end()) {
      type = pointer->second.second;
    }
  }
  for (auto found = module.structs.find(type); found != module.structs.end(); found = module.structs.find(type)) {
    const std::vector<uint32_t>& members = found->second;
    if (members.size() == 1 && module.structs.count(members[0]) != 0) {
      type = members[0];
      continue;
    }
    const auto pointer = members.size() == 1 ? module.pointers.find(members[0]) : module.pointers.end();
    if (!entry.is_by_address && pointer != module.pointers.end() && pointer->second.first == kStoragePhysical) {
      entry.is_by_address = true;
      type = pointer->second.second;
      continue;
    }
    const auto offsets = module.offsets.find(type);
    if (offsets == module.offsets.end()) return;
    for (const auto& [member, offset] : offsets->second) entry.offsets.push_back(offset);
    return;
  }
}

void find_group(const Module& module, const EntryPoint& point, Entry& entry) {
  if (const auto fixed = module.fixed_sizes.find(point.id); fixed != module.fixed_sizes.end()) {
    std::copy(fixed->second.begin(), fixed->second.end(), entry.group);
  }
  std::vector<uint32_t> ids = module.size_of_all;
  if (const auto own = module.sizes.find(point.id); own != module.sizes.end()) ids = own->second;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (const auto value = module.constants.find(ids[i]); value != module.constants.end()) {
      entry.group[i] = value->second;
    }
    const auto constant = module.spec_ids.find(ids[i]);
    if (i == 0 && constant != module.spec_ids.end()) entry.has_group_constant = constant->second == 0;
  }
}

// A floating-point mode, and the widths (16, 32 and 64 bits) for which the device supports it.
struct FloatMode {
  uint32_t mode;
  uint32_t capability;
  VkBool32 has[3];
  // 0: 32 bits apart from the others, 1: each, 2: all alike; of the first mode none matters
  int32_t independence;
};

std::vector<uint32_t> widths_of(const FloatMode& mode, const std::set<uint32_t>& used) {
  std::vector<uint32_t> widths;
  for (const uint32_t width : used) {
    const bool is_there = width == 16 ? mode.has[0] : width == 32 ? mode.has[1] : width == 64 && mode.has[2];
    if (is_there) widths.push_back(width);
  }
  const bool has_all = widths.size() == used.size();
  if (mode.independence == 2 && !has_all) return {};
  if (mode.independence == 0 && !has_all) std::erase_if(widths, [](uint32_t width) { return width != 32; });
  return widths;
}

// The integers of a module: width and sign of each type, and the type of each value.
struct Integers {
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> types;
  std::map<uint32_t, uint32_t> type_of;
  size_t functions_begin = 0;

  uint32_t width_of(uint32_t value) const {
    const auto type = type_of.find(value);
    return type == type_of.end() ? 0 : types.at(type->second).first;
  }
  uint32_t find(uint32_t width, uint32_t sign) const {
    for (const auto& [id, type] : types) {
      if (type == std::pair(width, sign)) return id;
    }
    return 0;
  }
};

template <class Visit>
void for_each_instruction(const std::vector<uint32_t>& words, Visit&& visit) {
  for (size_t at = kHeaderWords; at < words.size(); at += words[at] >> 16) {
    visit(words[at] & 0xFFFF, at, Operands(words.data() + at + 1, (words[at] >> 16) - 1));
  }
}

Integers integers_of(const std::vector<uint32_t>& words) {
  Integers found;
  for_each_instruction(words, [&](uint32_t op, size_t at, Operands given) {
    if (op == kOpTypeInt && given.size() == 3) found.types[given[0]] = {given[1], given[2]};
    if (op == kOpFunction && found.functions_begin == 0) found.functions_begin = at;
    // Every instruction that begins with a type, except names and decorations, defines a value of
    // that type.
    const bool is_value = op >= kOpValueFirst && op != kOpDecorate && op != kOpMemberDecorate;
    if (is_value && given.size() >= 2 && found.types.count(given[0]) != 0) found.type_of[given[1]] = given[0];
  });
  return found;
}

// Widen signed integers to 64 bits by two shifts. Mesa 22.3 compares results of OpSConvert with
// constants wrongly.
void widen_by_shifts(std::vector<uint32_t>* words) {
  const Integers integers = integers_of(*words);
  if (integers.functions_begin == 0) return;
  uint32_t bound = (*words)[3];
  std::vector<uint32_t> declared;  // before the functions
  const auto type = [&](uint32_t width) {
    if (const uint32_t known = integers.find(width, 0); known != 0) return known;
    declared.insert(declared.end(), {4u << 16 | kOpTypeInt, bound, width, 0});
    return bound++;
  };
  const uint32_t wide = type(64);
  const uint32_t narrow = type(32);
  std::map<uint32_t, uint32_t> shifts;  // by the width that is widened
  std::vector<uint32_t> body;
  for_each_instruction(*words, [&](uint32_t op, size_t at, Operands given) {
    if (at < integers.functions_begin) return;
    const bool is_convert = op == kOpSConvert && given.size() == 3;
    const uint32_t width = is_convert ? integers.width_of(given[2]) : 0;
    const auto target = is_convert ? integers.types.find(given[0]) : integers.types.end();
    if (width == 0 || width >= 64 || target == integers.types.end() || target->second.first != 64) {
      body.push_back((*words)[at]);
      body.insert(body.end(), given.begin(), given.end());
      return;
    }
    uint32_t& shift = shifts[width];
    if (shift == 0) {
      shift = bound++;
      declared.insert(declared.end(), {4u << 16 | kOpConstant, narrow, shift, 64 - width});
    }
    const uint32_t zeros = bound++;
    const uint32_t high = bound++;
    body.insert(body.end(), {4u << 16 | kOpUConvert, wide, zeros, given[2]});
    body.insert(body.end(), {5u << 16 | kOpShiftLeftLogical, wide, high, zeros, shift});
    body.insert(body.end(), {5u << 16 | kOpShiftRightArithmetic, given[0], given[1], high, shift});
  });
  if (shifts.empty()) return;
  words->resize(integers.functions_begin);
  (*words)[3] = bound;
  words->insert(words->end(), declared.begin(), declared.end());
  words->insert(words->end(), body.begin(), body.end());
}

// Copy structs member by member where their layout changes, as in a load of a struct from memory.
// Mesa 22.3 refuses OpCopyLogical.
void copy_members(const std::map<uint32_t, std::vector<uint32_t>>& structs, std::vector<uint32_t>* words) {
  std::map<uint32_t, uint32_t> type_of;  // of values that are structs
  uint32_t bound = (*words)[3];
  std::vector<uint32_t> body(words->begin(), words->begin() + kHeaderWords);
  const std::function<void(uint32_t, uint32_t, uint32_t, uint32_t)> copy = [&](uint32_t to, uint32_t result,
                                                                               uint32_t from, uint32_t value) {
    if (structs.count(from) == 0 || structs.count(to) == 0) {
      body.insert(body.end(), {4u << 16 | kOpCopyLogical, to, result, value});
      return;
    }
    const std::vector<uint32_t>& old_types = structs.at(from);
    const std::vector<uint32_t>& new_types = structs.at(to);
    std::vector<uint32_t> members;
    for (uint32_t i = 0; i < new_types.size(); ++i) {
      members.push_back(bound++);
      body.insert(body.end(), {5u << 16 | kOpCompositeExtract, old_types[i], members[i], value, i});
      if (old_types[i] == new_types[i]) continue;
      const uint32_t old_member = std::exchange(members[i], bound++);
      copy(new_types[i], members[i], old_types[i], old_member);
    }
    const auto count = static_cast<uint32_t>(3 + members.size());
    body.insert(body.end(), {count << 16 | kOpCompositeConstruct, to, result});
    body.insert(body.end(), members.begin(), members.end());
  };
  for_each_instruction(*words, [&](uint32_t op, size_t at, Operands given) {
    if (op >= kOpValueFirst && given.size() >= 2 && structs.count(given[0]) != 0) type_of[given[1]] = given[0];
    if (op == kOpCopyLogical && given.size() == 3 && type_of.count(given[2]) != 0) {
      copy(given[0], given[1], type_of.at(given[2]), given[2]);
      return;
    }
    body.push_back((*words)[at]);
    body.insert(body.end(), given.begin(), given.end());
  });
  body[3] = bound;
  *words = std::move(body);
}

// Say of each access to memory that items share it, and of each barrier that it makes stores
// available and visible: in the Vulkan memory model accesses are the item's own otherwise, and no
// barrier orders them. Slang says neither.
void share_memory(std::vector<uint32_t>* words) {
  std::set<uint32_t> shared_types;
  std::set<uint32_t> shared;  // pointers
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> constants;  // type and value
  bool is_vulkan = false;
  uint32_t bound = (*words)[3];
  std::map<uint32_t, uint32_t> semantics;  // by the ones that a barrier had
  std::vector<uint32_t> declared;          // before the functions
  std::vector<uint32_t> body;
  size_t functions_begin = 0;
  for_each_instruction(*words, [&](uint32_t op, size_t at, Operands given) {
    if (op == kOpMemoryModel && given.size() == 2) is_vulkan = given[1] == kMemoryModelVulkan;
    if (op == kOpTypePointer && (given[1] == kStorageWorkgroup || given[1] == kStoragePhysical)) {
      shared_types.insert(given[0]);
    }
    if (op == kOpConstant && given.size() == 3) constants[given[1]] = {given[0], given[2]};
    if (op == kOpFunction && functions_begin == 0) functions_begin = at;
    if (op >= kOpValueFirst && given.size() >= 2 && shared_types.count(given[0]) != 0) shared.insert(given[1]);
    if (functions_begin == 0) return;
    const size_t start = body.size();
    body.push_back((*words)[at]);
    body.insert(body.end(), given.begin(), given.end());
    const bool is_load = op == kOpLoad || op == kOpCooperativeMatrixLoad;
    const bool is_store = op == kOpStore || op == kOpCooperativeMatrixStore;
    if ((is_load || is_store) && shared.count(given[is_load ? 2 : 0]) != 0) {
      const bool is_matrix = op == kOpCooperativeMatrixLoad || op == kOpCooperativeMatrixStore;
      const size_t mask = (is_load ? 3u : 2u) + (is_matrix ? 2 : 0);  // behind a matrix's layout and stride
      if (given.size() > mask) {
        body[start + 1 + mask] |= kNonPrivatePointer;
      } else if (given.size() == mask) {
        body.push_back(kNonPrivatePointer);
        body[start] += 1u << 16;
      }
    }
    if (op != kOpControlBarrier && op != kOpMemoryBarrier) return;
    const auto found = constants.find(given.back());
    if (found == constants.end()) return;
    const auto [type, value] = found->second;
    const uint32_t wanted = value | ((value & kReleases) != 0 ? uint32_t{kMakeAvailable} : 0) |
                            ((value & kAcquires) != 0 ? uint32_t{kMakeVisible} : 0);
    if (wanted == value) return;
    uint32_t& id = semantics[value];
    if (id == 0) {
      id = bound++;
      declared.insert(declared.end(), {4u << 16 | kOpConstant, type, id, wanted});
    }
    body.back() = id;
  });
  if (!is_vulkan || functions_begin == 0) return;
  words->resize(functions_begin);
  (*words)[3] = bound;
  words->insert(words->end(), declared.begin(), declared.end());
  words->insert(words->end(), body.begin(), body.end());
}

}  // namespace

bool prepare_module(const VkPhysicalDeviceVulkan12Properties& device, std::vector<uint32_t>* words,
                    std::map<std::string, Entry>* out_entries, std::string* out_error) {
  Module module;
  if (!read_module(*words, module, out_error)) return false;
  for (const EntryPoint& point : module.entries) {
    Entry entry;
    find_arguments(module, point, entry);
    find_group(module, point, entry);
    entry.has_matrices = module.capabilities.count(kCapabilityCooperativeMatrix) != 0;
    entry.has_shuffles = module.capabilities.count(kCapabilityGroupNonUniformShuffle) != 0;
    (*out_entries)[point.name] = std::move(entry);
  }
  const FloatMode modes[] = {
      {kModeSignedZeroInfNanPreserve,
       kCapabilitySignedZeroInfNanPreserve,
       {device.shaderSignedZeroInfNanPreserveFloat16, device.shaderSignedZeroInfNanPreserveFloat32,
        device.shaderSignedZeroInfNanPreserveFloat64},
       1},
      {kModeDenormPreserve,
       kCapabilityDenormPreserve,
       {device.shaderDenormPreserveFloat16, device.shaderDenormPreserveFloat32, device.shaderDenormPreserveFloat64},
       device.denormBehaviorIndependence},
      {kModeRoundingRte,
       kCapabilityRoundingRte,
       {device.shaderRoundingModeRTEFloat16, device.shaderRoundingModeRTEFloat32, device.shaderRoundingModeRTEFloat64},
       device.roundingModeIndependence}};
  std::vector<uint32_t> capabilities;
  std::vector<uint32_t> added_modes;
  for (const FloatMode& mode : modes) {
    const std::vector<uint32_t> widths = widths_of(mode, module.widths);
    if ((*words)[1] < kVersion14 || widths.empty()) continue;
    if (module.capabilities.count(mode.capability) == 0) {
      capabilities.insert(capabilities.end(), {2u << 16 | kOpCapability, mode.capability});
    }
    for (const EntryPoint& point : module.entries) {
      for (const uint32_t width : widths) {
        if (module.modes.count({point.id, mode.mode, width}) != 0) continue;
        added_modes.insert(added_modes.end(), {4u << 16 | kOpExecutionMode, point.id, mode.mode, width});
      }
    }
  }
  std::vector<uint32_t> decorations;
  for (const uint32_t id : module.floats) {
    if (module.kept.count(id) != 0) continue;
    decorations.insert(decorations.end(), {3u << 16 | kOpDecorate, id, kDecorationNoContraction});
  }
  const auto begin = words->begin();
  const auto at = [&](size_t index) { return begin + static_cast<std::ptrdiff_t>(index); };
  std::vector<uint32_t> result(begin, at(kHeaderWords));
  const auto add = [&](const auto& first, const auto& last) { result.insert(result.end(), first, last); };
  add(capabilities.begin(), capabilities.end());
  add(at(kHeaderWords), at(module.modes_end));
  add(added_modes.begin(), added_modes.end());
  add(at(module.modes_end), at(module.types_begin));
  add(decorations.begin(), decorations.end());
  add(at(module.types_begin), words->end());
  *words = std::move(result);
  share_memory(words);
  if (device.driverID == VK_DRIVER_ID_MESA_LLVMPIPE) {
    widen_by_shifts(words);
    copy_members(module.structs, words);
  }
  return true;
}

}  // namespace vulkan

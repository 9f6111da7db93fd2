// SPDX-License-Identifier: BSD-3-Clause
#include "enumerate.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "torch_outboard/support/lookup.h"

namespace vulkan {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string version_text(uint32_t version) {
  return std::to_string(version >> 22 & 0x7F) + "." + std::to_string(version >> 12 & 0x3FF) + "." +
         std::to_string(version & 0xFFF);
}

void read_extensions(const Api& api, FoundDevice& found) {
  uint32_t count = 0;
  if (api.EnumerateDeviceExtensionProperties(found.device, nullptr, &count, nullptr) != VK_SUCCESS) return;
  std::vector<VkExtensionProperties> extensions(count);
  const VkResult code = api.EnumerateDeviceExtensionProperties(found.device, nullptr, &count, extensions.data());
  if (code != VK_SUCCESS && code != VK_INCOMPLETE) return;
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = extensions[i].extensionName;
    found.has_atomics |= std::strcmp(name, "VK_EXT_shader_atomic_float") == 0;
    found.has_budget |= std::strcmp(name, "VK_EXT_memory_budget") == 0;
    found.has_own_clocks |= std::strcmp(name, "VK_KHR_calibrated_timestamps") == 0;
    found.has_other_clocks |= std::strcmp(name, "VK_EXT_calibrated_timestamps") == 0;
    found.has_matrices |= std::strcmp(name, "VK_KHR_cooperative_matrix") == 0;
    found.has_bfloats |= std::strcmp(name, "VK_KHR_shader_bfloat16") == 0;
  }
}

// Return whether the device's clock can be compared with CLOCK_MONOTONIC.
bool has_clocks(const Api& api, const FoundDevice& found) {
  const auto ask = found.has_own_clocks     ? api.GetPhysicalDeviceCalibrateableTimeDomainsKHR
                   : found.has_other_clocks ? api.GetPhysicalDeviceCalibrateableTimeDomainsEXT
                                            : nullptr;
  uint32_t count = 0;
  if (ask == nullptr || ask(found.device, &count, nullptr) != VK_SUCCESS) return false;
  std::vector<int32_t> domains(count);
  if (ask(found.device, &count, domains.data()) != VK_SUCCESS) return false;
  return std::count(domains.begin(), domains.end(), VK_TIME_DOMAIN_DEVICE_EXT) > 0 &&
         std::count(domains.begin(), domains.end(), VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT) > 0;
}

std::vector<VkCooperativeMatrixPropertiesKHR> products_of(const Api& api, const FoundDevice& found) {
  const auto ask = api.GetPhysicalDeviceCooperativeMatrixPropertiesKHR;
  uint32_t count = 0;
  if (ask == nullptr || ask(found.device, &count, nullptr) != VK_SUCCESS) return {};
  VkCooperativeMatrixPropertiesKHR empty = {};
  empty.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
  std::vector<VkCooperativeMatrixPropertiesKHR> products(count, empty);
  const VkResult code = ask(found.device, &count, products.data());
  if (code != VK_SUCCESS && code != VK_INCOMPLETE) return {};
  products.resize(count);
  return products;
}

void read_subgroups(FoundDevice& found) {
  const VkBool32* has = found.features13.has;
  const VkPhysicalDeviceVulkan11Properties& properties = found.properties11;
  found.fixes_subgroups = has[kSubgroupSizeControl13] != 0 && has[kComputeFullSubgroups13] != 0 &&
                          (found.properties13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
  found.has_shuffles = found.fixes_subgroups &&
                       (properties.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
                       (properties.subgroupSupportedOperations & VK_SUBGROUP_FEATURE_SHUFFLE_BIT) != 0;
}

// Return the products of small matrices that kernels use, as ob_device_properties.matrix_units says
// them: of halves, by all lanes of a subgroup, with sums in float32. The largest comes first.
std::string read_matrix_units(const Api& api, const FoundDevice& found) {
  if (!found.has_matrices || found.matrices.has[kCooperativeMatrix] == 0) return "";
  const VkBool32* has12 = found.features12.has;
  if (!found.fixes_subgroups || has12[kVulkanMemoryModel12] == 0 || !found.has_int16()) return "";
  std::vector<VkCooperativeMatrixPropertiesKHR> products = products_of(api, found);
  const auto size = [](const auto& product) { return uint64_t{product.MSize} * product.NSize * product.KSize; };
  std::stable_sort(products.begin(), products.end(), [&](const auto& a, const auto& b) { return size(a) > size(b); });
  std::string text;
  for (const VkCooperativeMatrixPropertiesKHR& product : products) {
    const bool is_half = product.AType == VK_COMPONENT_TYPE_FLOAT16_KHR && has12[kShaderFloat16In12] != 0;
    const bool is_bfloat =
        product.AType == VK_COMPONENT_TYPE_BFLOAT16_KHR && found.bfloats.has[kBfloat16CooperativeMatrix] != 0;
    const bool is_float = product.CType == VK_COMPONENT_TYPE_FLOAT32_KHR && product.ResultType == product.CType;
    if ((!is_half && !is_bfloat) || product.BType != product.AType || !is_float) continue;
    if (product.scope != VK_SCOPE_SUBGROUP_KHR || product.saturatingAccumulation != 0) continue;
    const std::string next = (text.empty() ? "" : ", ") + std::string(is_half ? "float16 " : "bfloat16 ") +
                             std::to_string(product.MSize) + "x" + std::to_string(product.NSize) + "x" +
                             std::to_string(product.KSize);
    if (text.size() + next.size() >= sizeof(ob_device_properties::matrix_units)) break;
    text += next;
  }
  return text;
}

// Choose the first queue family with compute. Prefer one whose clock can be read.
void choose_family(const Api& api, FoundDevice& found) {
  uint32_t count = 0;
  api.GetPhysicalDeviceQueueFamilyProperties2(found.device, &count, nullptr);
  std::vector<VkQueueFamilyProperties2> families(count);
  for (VkQueueFamilyProperties2& family : families) family.sType = VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2;
  api.GetPhysicalDeviceQueueFamilyProperties2(found.device, &count, families.data());
  for (uint32_t i = 0; i < count; ++i) {
    const VkQueueFamilyProperties2& family = families[i];
    if ((family.queueFlags & VK_QUEUE_COMPUTE_BIT) == 0 || family.queueCount == 0) continue;
    if (found.family != UINT32_MAX && (found.timestamp_bits > 0 || family.timestampValidBits == 0)) continue;
    found.family = i;
    found.queue_count = family.queueCount;
    found.timestamp_bits = family.timestampValidBits;
  }
}

FoundDevice read_device(const Api& api, VkPhysicalDevice device) {
  FoundDevice found;
  found.device = device;
  api.GetPhysicalDeviceProperties(device, &found.properties);
  if (found.properties.apiVersion < kVulkan13) return found;  // which may lack the other functions
  read_extensions(api, found);
  found.has_clocks = has_clocks(api, found);
  choose_family(api, found);
  found.properties11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES;
  found.properties12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES;
  found.properties13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES;
  found.properties11.pNext = &found.properties12;
  found.properties12.pNext = &found.properties13;
  VkPhysicalDeviceProperties2 properties = {};
  properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  properties.pNext = &found.properties11;
  api.GetPhysicalDeviceProperties2(device, &properties);
  api.GetPhysicalDeviceFeatures2(device, link_features(found));
  read_subgroups(found);
  found.matrix_units = read_matrix_units(api, found);
  found.memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  api.GetPhysicalDeviceMemoryProperties2(device, &found.memory);
  return found;
}

// Return why a device cannot be used, or "".
std::string obstacle(const FoundDevice& found) {
  if (found.properties.apiVersion < kVulkan13) {
    return "it has Vulkan " + version_text(found.properties.apiVersion) + ", but 1.3 is needed";
  }
  if (found.family == UINT32_MAX) return "it has no compute queue";
  struct RequiredFeature {
    const char* name;
    VkBool32 is_there;
  };
  const VkBool32* has12 = found.features12.has;
  const RequiredFeature required[] = {{"shaderInt64", found.features.has[kShaderInt64]},
                                      {"shaderInt8", has12[kShaderInt8In12]},
                                      {"storageBuffer8BitAccess", has12[kStorageBuffer8BitAccess12]},
                                      {"scalarBlockLayout", has12[kScalarBlockLayout12]},
                                      {"hostQueryReset", has12[kHostQueryReset12]},
                                      {"timelineSemaphore", has12[kTimelineSemaphore12]},
                                      {"bufferDeviceAddress", has12[kBufferDeviceAddress12]},
                                      {"synchronization2", found.features13.has[kSynchronization2In13]},
                                      {"maintenance4", found.features13.has[kMaintenance4In13]}};
  std::string missing;
  for (const RequiredFeature& feature : required) {
    if (feature.is_there == 0) missing += (missing.empty() ? "" : ", ") + std::string(feature.name);
  }
  return missing.empty() ? "" : "it lacks " + missing;
}

int rank(const FoundDevice& found) {
  switch (found.properties.deviceType) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return 0;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return 1;
    default:
      return found.is_cpu() ? 3 : 2;
  }
}

// Keep the devices that the option asks for.
void select_devices(const std::string& wanted, Enumeration* result) {
  std::vector<FoundDevice>& all = result->devices;
  std::vector<FoundDevice> chosen;
  std::string names;
  const bool is_number = !wanted.empty() && wanted.find_first_not_of("0123456789") == std::string::npos;
  for (size_t i = 0; i < all.size(); ++i) {
    names += (i == 0 ? "" : ", ") + std::to_string(i) + " " + all[i].name();
    const bool is_asked = is_number        ? wanted == std::to_string(i)
                          : wanted.empty() ? !all[i].is_cpu() || all[0].is_cpu()
                                           : lower(all[i].name()).find(lower(wanted)) != std::string::npos;
    if (is_asked) chosen.push_back(all[i]);
  }
  if (chosen.empty()) {
    result->error =
        "no Vulkan device has the number '" + wanted + "' or a name that contains it. The devices are: " + names;
  }
  all = std::move(chosen);
}

// Return the child's report: the count, the error, then a line for each device that is left out.
std::string report(const Enumeration& found) {
  std::string text = std::to_string(found.devices.size()) + "\n" + found.error + "\n";
  for (const std::string& line : found.unusable_devices) text += line + "\n";
  return text;
}

}  // namespace

VkPhysicalDeviceFeatures2* link_features(FoundDevice& found) {
  found.features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  found.features11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  found.features12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  found.features13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
  found.atomics.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT;
  found.features.pNext = &found.features11;
  found.features11.pNext = &found.features12;
  found.features12.pNext = &found.features13;
  found.matrices.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
  found.bfloats.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR;
  void* next = nullptr;
  const auto link = [&](bool is_known, auto& features) {
    features.pNext = next;
    if (is_known) next = &features;
  };
  link(found.has_bfloats, found.bfloats);
  link(found.has_matrices, found.matrices);
  link(found.has_atomics, found.atomics);
  found.features13.pNext = next;
  return &found.features;
}

ob_status parse_options(const ob_options* given, Options* out_options, std::string* out_error) {
  if (const char* device = std::getenv("OUTBOARD_VULKAN_DEVICE")) out_options->device = device;
  for (size_t i = 0; given != nullptr && i < given->count; ++i) {
    const std::string key = given->keys[i];
    const std::string value = given->values[i];
    if (key == "library") {
      out_options->library = value;
    } else if (key == "device") {
      out_options->device = value;
    } else if (key == "slang") {
      out_options->slang = value;
    } else if (key == "host_access") {
      if (value != "0" && value != "1") {
        *out_error = "option host_access must be 0 or 1, not '" + value + "'";
        return OB_INVALID_ARGUMENT;
      }
      out_options->host_access = value == "1";
    } else {
      *out_error = "unknown option '" + key + "'; the options are library, device, slang and host_access";
      return OB_INVALID_ARGUMENT;
    }
  }
  return OB_OK;
}

Enumeration enumerate(const Api& api, const Options& options) {
  Enumeration result;
  uint32_t count = 0;
  VkResult code = api.EnumeratePhysicalDevices(api.instance, &count, nullptr);
  std::vector<VkPhysicalDevice> handles(count);
  if (code == VK_SUCCESS && count > 0) code = api.EnumeratePhysicalDevices(api.instance, &count, handles.data());
  if ((code != VK_SUCCESS && code != VK_INCOMPLETE) || count == 0) {
    result.error =
        "Vulkan's drivers find no device (vkEnumeratePhysicalDevices returned " +
        (code == VK_SUCCESS ? std::string("none") : error_name(code)) +
        "). Install a driver (for CPUs, AMD and Intel: Debian's mesa-vulkan-drivers), or set VK_DRIVER_FILES to the "
        ".json file of a driver.";
    return result;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const FoundDevice found = read_device(api, handles[i]);
    if (const std::string why = obstacle(found); !why.empty()) {
      result.unusable_devices.push_back("Vulkan device '" + found.name() + "' is left out: " + why);
      continue;
    }
    result.devices.push_back(found);
  }
  std::stable_sort(result.devices.begin(), result.devices.end(),
                   [](const FoundDevice& a, const FoundDevice& b) { return rank(a) < rank(b); });
  if (result.devices.size() > kMaxDevices) result.devices.resize(kMaxDevices);
  if (!result.devices.empty()) {
    select_devices(options.device, &result);
    return result;
  }
  result.error = "none of the Vulkan devices can be used";
  for (const std::string& line : result.unusable_devices) result.error += "; " + line;
  return result;
}

int32_t probe(const Options& options, Enumeration* out_enumeration) {
  const auto work = [&] {
    Api api;
    Enumeration found;
    if (api.load(options.library, &found.error)) found = enumerate(api, options);
    return report(found);
  };
  return support::count_in_child(work, "Vulkan",
                                 "Leave out a driver with VK_DRIVER_FILES, which names the .json files of the others.",
                                 out_enumeration);
}

}  // namespace vulkan

// SPDX-License-Identifier: BSD-3-Clause
// The Vulkan devices: which are used, and why the others are not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vk.h"

namespace vulkan {

constexpr int32_t kMaxDevices = 64;

struct Options {
  std::string library = "libvulkan.so.1";
  // a number, or part of a name in any case; "": all but CPUs, if there are others
  std::string device;
  std::string slang;        // the compiler's library; "": the usual names
  // True lets the host access device memory where it can. If unset, only for CPUs, so that
  // integrated GPUs run their own kernels.
  std::optional<bool> host_access;
};

// Return OB_INVALID_ARGUMENT and a sentence on failure.
ob_status parse_options(const ob_options* given, Options* out_options, std::string* out_error);

// A device's features and properties. The chain of structs is linked only while they are queried.
struct FoundDevice {
  VkPhysicalDevice device = nullptr;
  VkPhysicalDeviceProperties properties = {};
  VkPhysicalDeviceVulkan11Properties properties11 = {};
  VkPhysicalDeviceVulkan12Properties properties12 = {};
  VkPhysicalDeviceVulkan13Properties properties13 = {};
  VkPhysicalDeviceFeatures2 features = {};
  VkPhysicalDeviceVulkan11Features features11 = {};
  VkPhysicalDeviceVulkan12Features features12 = {};
  VkPhysicalDeviceVulkan13Features features13 = {};
  VkPhysicalDeviceShaderAtomicFloatFeaturesEXT atomics = {};
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices = {};
  VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloats = {};
  VkPhysicalDeviceMemoryProperties2 memory = {};
  bool has_atomics = false;               // VK_EXT_shader_atomic_float
  bool has_budget = false;                // VK_EXT_memory_budget
  bool has_own_clocks = false;            // VK_KHR_calibrated_timestamps
  bool has_other_clocks = false;          // VK_EXT_calibrated_timestamps
  bool has_clocks = false;                // one of them, with CLOCK_MONOTONIC
  bool has_matrices = false;              // VK_KHR_cooperative_matrix
  bool has_bfloats = false;               // VK_KHR_shader_bfloat16
  bool fixes_subgroups = false;           // kernels can ask for full subgroups of the device's size
  bool has_shuffles = false;              // and their items read each other's values
  std::string matrix_units;               // as of ob_device_properties
  uint32_t family = UINT32_MAX;           // of queues that compute
  uint32_t queue_count = 0;
  uint32_t timestamp_bits = 0;

  std::string name() const { return properties.deviceName; }
  bool has_int16() const { return features.has[kShaderInt16] != 0 && features11.has[kStorageBuffer16BitAccess11] != 0; }
  bool is_cpu() const { return properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU; }
};

struct Enumeration {
  std::vector<FoundDevice> devices;
  std::vector<std::string> unusable_devices;  // a sentence for each device that cannot be used
  std::string error;                  // why no device is usable; empty if one is
};

// Ask every driver, in this process. Discrete GPUs come first, then integrated and virtual ones,
// then CPUs, which are used only if there is nothing else or if the option asks for them.
Enumeration enumerate(const Api& api, const Options& options);

// Return the same count without opening anything in this process. Drivers start threads and do not
// survive a fork, so a child process asks. `devices` stays empty.
int32_t probe(const Options& options, Enumeration* out_enumeration);

// Link the structs of features that the device knows, for a question or for vkCreateDevice. Return
// the first.
VkPhysicalDeviceFeatures2* link_features(FoundDevice& found);

}  // namespace vulkan

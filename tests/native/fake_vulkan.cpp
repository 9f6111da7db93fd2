// SPDX-License-Identifier: BSD-3-Clause A Vulkan loader with faults, for tests, on top of the real
// one. FAKE_VULKAN names the faults, with commas between. What the machine's drivers can't show:
// other devices, old ones, small ones, lost ones.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "../../drivers/vulkan/vk.h"

namespace {

using namespace vulkan;

bool is_fault(const char* name) {
  const char* given = std::getenv("FAKE_VULKAN");
  return given != nullptr && ("," + std::string(given) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

using GetInstanceProc = VkVoidFunction (*)(VkInstance, const char*);

GetInstanceProc real_loader() {
  static void* library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<GetInstanceProc>(dlsym(library, "vkGetInstanceProcAddr"));
}

// The real functions, which the functions below call. There is one instance and one driver.
#define OB_FAKE_REAL(result, name, parameters) result(*real_##name) parameters = nullptr;
OB_FAKE_REAL(VkResult, EnumeratePhysicalDevices, (VkInstance, uint32_t*, VkPhysicalDevice*))
OB_FAKE_REAL(void, GetPhysicalDeviceProperties, (VkPhysicalDevice, VkPhysicalDeviceProperties*))
OB_FAKE_REAL(void, GetPhysicalDeviceProperties2, (VkPhysicalDevice, VkPhysicalDeviceProperties2*))
OB_FAKE_REAL(void, GetPhysicalDeviceFeatures2, (VkPhysicalDevice, VkPhysicalDeviceFeatures2*))
OB_FAKE_REAL(void, GetPhysicalDeviceMemoryProperties2, (VkPhysicalDevice, VkPhysicalDeviceMemoryProperties2*))
OB_FAKE_REAL(void, GetPhysicalDeviceQueueFamilyProperties2, (VkPhysicalDevice, uint32_t*, VkQueueFamilyProperties2*))
OB_FAKE_REAL(VkResult, EnumerateDeviceExtensionProperties,
             (VkPhysicalDevice, const char*, uint32_t*, VkExtensionProperties*))
OB_FAKE_REAL(VkResult, CreateDevice, (VkPhysicalDevice, const VkDeviceCreateInfo*, const void*, VkDevice*))
OB_FAKE_REAL(VkVoidFunction, GetDeviceProcAddr, (VkDevice, const char*))
OB_FAKE_REAL(VkResult, QueueSubmit2, (VkQueue, uint32_t, const VkSubmitInfo2*, VkFence))
OB_FAKE_REAL(VkResult, AllocateMemory, (VkDevice, const VkMemoryAllocateInfo*, const void*, VkDeviceMemory*))
OB_FAKE_REAL(void, GetBufferMemoryRequirements, (VkDevice, VkBuffer, VkMemoryRequirements*))
OB_FAKE_REAL(VkResult, CreateSemaphore, (VkDevice, const VkCreateInfo*, const void*, VkSemaphore*))
OB_FAKE_REAL(VkResult, WaitSemaphores, (VkDevice, const VkSemaphoreWaitInfo*, uint64_t))
OB_FAKE_REAL(VkResult, CreateComputePipelines,
             (VkDevice, VkPipelineCache, uint32_t, const VkComputePipelineCreateInfo*, const void*, VkPipeline*))

VkResult EnumeratePhysicalDevices(VkInstance instance, uint32_t* count, VkPhysicalDevice* devices) {
  if (is_fault("crash")) std::abort();
  if (is_fault("none")) {
    *count = 0;
    return VK_SUCCESS;
  }
  const uint32_t room = *count;
  const VkResult code = real_EnumeratePhysicalDevices(instance, count, devices);
  if (!is_fault("twice") || code != VK_SUCCESS) return code;
  if (devices != nullptr && room > 1) devices[1] = devices[0];
  *count = 2;
  return VK_SUCCESS;
}

void GetPhysicalDeviceProperties(VkPhysicalDevice device, VkPhysicalDeviceProperties* properties) {
  static std::atomic<int> asked{0};
  real_GetPhysicalDeviceProperties(device, properties);
  if (is_fault("old") || (is_fault("one_old") && asked++ % 2 == 0)) properties->apiVersion = 1u << 22 | 2u << 12;
  if (is_fault("gpu")) properties->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
  if (is_fault("integrated")) properties->deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
  if (is_fault("small")) {  // what the standard promises at least
    properties->limits.maxComputeSharedMemorySize = 16 << 10;
    properties->limits.maxComputeWorkGroupInvocations = 128;
    properties->limits.maxComputeWorkGroupSize[0] = 128;
  }
  if (is_fault("few_groups")) properties->limits.maxComputeWorkGroupCount[0] = 3;
}

// Let subgroups have 64 items, as on AMD's older GPUs, and allocations be as small as is allowed.
void GetPhysicalDeviceProperties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2* properties) {
  real_GetPhysicalDeviceProperties2(device, properties);
  for (auto* next = static_cast<VkPhysicalDeviceProperties2*>(properties->pNext); next != nullptr;
       next = static_cast<VkPhysicalDeviceProperties2*>(next->pNext)) {
    if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES) {
      auto* found = reinterpret_cast<VkPhysicalDeviceVulkan11Properties*>(next);
      if (is_fault("subgroups_of_64")) found->subgroupSize = 64;
      if (is_fault("no_shuffles")) found->subgroupSupportedOperations &= ~VkFlags{VK_SUBGROUP_FEATURE_SHUFFLE_BIT};
      if (is_fault("small")) found->maxMemoryAllocationSize = 1 << 30;
    }
  }
}

// Two kinds of memory, of which the host sees one.
void GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2* memory) {
  real_GetPhysicalDeviceMemoryProperties2(device, memory);
  if (!is_fault("two_memories")) return;
  memory->memoryHeapCount = memory->memoryTypeCount = 2;
  memory->memoryHeaps[1] = {memory->memoryHeaps[0].size, 0};
  memory->memoryTypes[0] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0};
  memory->memoryTypes[1] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 1};
}

void GetPhysicalDeviceQueueFamilyProperties2(VkPhysicalDevice device, uint32_t* count, VkQueueFamilyProperties2* all) {
  real_GetPhysicalDeviceQueueFamilyProperties2(device, count, all);
  for (uint32_t i = 0; all != nullptr && is_fault("no_timestamps") && i < *count; ++i) all[i].timestampValidBits = 0;
}

void GetPhysicalDeviceFeatures2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* features) {
  real_GetPhysicalDeviceFeatures2(device, features);
  for (auto* next = static_cast<VkPhysicalDeviceFeatures2*>(features->pNext); next != nullptr;
       next = static_cast<VkPhysicalDeviceFeatures2*>(next->pNext)) {
    const bool is_11 = next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
    const bool is_12 = next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    const bool is_13 = next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
    if (is_11 && is_fault("no_storage16")) next->has[kStorageBuffer16BitAccess11] = 0;
    if (is_12 && is_fault("no_int64_atomics")) next->has[kBufferInt64Atomics12] = 0;
    if (is_13 && is_fault("no_subgroup_size")) next->has[kSubgroupSizeControl13] = 0;
  }
  if (is_fault("no_int64")) features->has[kShaderInt64] = 0;
  if (is_fault("no_float64")) features->has[kShaderFloat64] = 0;
  if (is_fault("no_int16")) features->has[kShaderInt16] = 0;
  if (!is_fault("matrices")) return;
  for (auto* next = static_cast<VkPhysicalDeviceFeatures2*>(features->pNext); next != nullptr;
       next = static_cast<VkPhysicalDeviceFeatures2*>(next->pNext)) {
    if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR) {
      next->has[kCooperativeMatrix] = 1;
    } else if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR) {
      next->has[kBfloat16CooperativeMatrix] = is_fault("no_bfloats") ? 0 : 1;
    } else if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
      next->has[kShaderFloat16In12] = next->has[kVulkanMemoryModel12] = 1;
    } else if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES) {
      next->has[kSubgroupSizeControl13] = is_fault("no_subgroup_size") ? 0 : 1;
      next->has[kComputeFullSubgroups13] = 1;
    }
  }
}

VkResult EnumerateDeviceExtensionProperties(VkPhysicalDevice device, const char* layer, uint32_t* count,
                                            VkExtensionProperties* properties) {
  const uint32_t room = *count;
  const VkResult code = real_EnumerateDeviceExtensionProperties(device, layer, count, properties);
  if (!is_fault("matrices") || code != VK_SUCCESS) return code;
  for (const char* name : {"VK_KHR_cooperative_matrix", "VK_KHR_shader_bfloat16"}) {
    if (properties != nullptr && *count < room) std::strcpy(properties[*count].extensionName, name);
    ++*count;
  }
  return VK_SUCCESS;
}

VkResult CooperativeMatrixProperties(VkPhysicalDevice, uint32_t* count, VkCooperativeMatrixPropertiesKHR* all) {
  constexpr int32_t kHalf = VK_COMPONENT_TYPE_FLOAT16_KHR;
  constexpr int32_t kFloat = VK_COMPONENT_TYPE_FLOAT32_KHR;
  constexpr int32_t kBfloat = VK_COMPONENT_TYPE_BFLOAT16_KHR;
  constexpr int32_t kSubgroup = VK_SCOPE_SUBGROUP_KHR;
  constexpr VkStructureType kType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
  static constexpr VkCooperativeMatrixPropertiesKHR kListed[] = {
      {kType, nullptr, 16, 8, 8, kHalf, kHalf, kFloat, kFloat, 0, kSubgroup},
      {kType, nullptr, 32, 32, 32, kHalf, kHalf, kHalf, kHalf, 0, kSubgroup},      // sums in halves
      {kType, nullptr, 32, 32, 32, kHalf, kHalf, kFloat, kFloat, 1, kSubgroup},    // saturates
      {kType, nullptr, 64, 64, 64, kHalf, kHalf, kFloat, kFloat, 0, 2},            // of whole groups
      {kType, nullptr, 16, 16, 16, kHalf, kHalf, kFloat, kFloat, 0, kSubgroup},
      {kType, nullptr, 16, 16, 16, kHalf, kBfloat, kFloat, kFloat, 0, kSubgroup},  // of two types
      {kType, nullptr, 16, 16, 32, 3, 3, 5, 5, 0, kSubgroup},                      // of integers
      {kType, nullptr, 16, 16, 16, kBfloat, kBfloat, kFloat, kFloat, 0, kSubgroup},
  };
  if (all == nullptr) {
    *count = std::size(kListed);
    return VK_SUCCESS;
  }
  *count = std::min<uint32_t>(*count, std::size(kListed));
  std::copy_n(kListed, *count, all);
  return *count < std::size(kListed) ? VK_INCOMPLETE : VK_SUCCESS;
}

// Take away what the real device does not know.
VkResult CreateDevice(VkPhysicalDevice device, const VkDeviceCreateInfo* info, const void* unused, VkDevice* created) {
  VkDeviceCreateInfo own = *info;
  if (is_fault("matrices")) {
    own.enabledExtensionCount -= 2;  // the driver names these two last
    auto* last = static_cast<VkPhysicalDeviceFeatures2*>(const_cast<void*>(own.pNext));
    while (last->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES) {
      last = static_cast<VkPhysicalDeviceFeatures2*>(last->pNext);
    }
    last->pNext = nullptr;
  }
  return real_CreateDevice(device, &own, unused, created);
}

VkResult QueueSubmit2(VkQueue queue, uint32_t count, const VkSubmitInfo2* infos, VkFence fence) {
  if (is_fault("lost")) return VK_ERROR_DEVICE_LOST;
  if (is_fault("refuse_commands") && infos->commandBufferInfoCount > 0) return VK_ERROR_OUT_OF_HOST_MEMORY;
  return real_QueueSubmit2(queue, count, infos, fence);
}

VkResult AllocateMemory(VkDevice device, const VkMemoryAllocateInfo* info, const void* unused, VkDeviceMemory* memory) {
  if (is_fault("full")) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  VkMemoryAllocateInfo own = *info;
  if (is_fault("two_memories")) own.memoryTypeIndex = 0;
  return real_AllocateMemory(device, &own, unused, memory);
}

void GetBufferMemoryRequirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements* needed) {
  real_GetBufferMemoryRequirements(device, buffer, needed);
  if (is_fault("two_memories")) needed->memoryTypeBits = 3;
}

VkResult CreateSemaphore(VkDevice device, const VkCreateInfo* info, const void* unused, VkSemaphore* semaphore) {
  static std::atomic<int> made{0};
  if (is_fault("few_semaphores") && made++ >= 8) return VK_ERROR_OUT_OF_HOST_MEMORY;
  return real_CreateSemaphore(device, info, unused, semaphore);
}

VkResult WaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo* info, uint64_t timeout) {
  if (is_fault("lost_in_wait")) return VK_ERROR_DEVICE_LOST;
  return real_WaitSemaphores(device, info, timeout);
}

VkResult CreateComputePipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                const VkComputePipelineCreateInfo* infos, const void* unused, VkPipeline* pipelines) {
  if (is_fault("no_pipelines")) return VK_ERROR_UNKNOWN;
  return real_CreateComputePipelines(device, cache, count, infos, unused, pipelines);
}

// Keep the real function, and return the one above instead.
template <class Function>
VkVoidFunction replace(Function** real, Function* fake, VkVoidFunction found) {
  *real = reinterpret_cast<Function*>(found);
  return reinterpret_cast<VkVoidFunction>(fake);
}

#define OB_FAKE_REPLACE(function) \
  if (std::strcmp(name, "vk" #function) == 0) return replace(&real_##function, function, found)

VkVoidFunction GetDeviceProcAddr(VkDevice device, const char* name) {
  const VkVoidFunction found = real_GetDeviceProcAddr(device, name);
  if (found == nullptr) return nullptr;
  if (is_fault("no_clocks") && std::strncmp(name, "vkGetCalibratedTimestamps", 25) == 0) return nullptr;
  OB_FAKE_REPLACE(QueueSubmit2);
  OB_FAKE_REPLACE(AllocateMemory);
  OB_FAKE_REPLACE(GetBufferMemoryRequirements);
  OB_FAKE_REPLACE(CreateSemaphore);
  OB_FAKE_REPLACE(WaitSemaphores);
  OB_FAKE_REPLACE(CreateComputePipelines);
  return found;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) VkVoidFunction vkGetInstanceProcAddr(VkInstance instance,
                                                                                       const char* name) {
  const GetInstanceProc get = real_loader();
  const VkVoidFunction found = get == nullptr ? nullptr : get(instance, name);
  if (is_fault("matrices") && std::strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") == 0) {
    return reinterpret_cast<VkVoidFunction>(CooperativeMatrixProperties);
  }
  if (found == nullptr) return nullptr;
  OB_FAKE_REPLACE(EnumeratePhysicalDevices);
  OB_FAKE_REPLACE(GetPhysicalDeviceProperties);
  OB_FAKE_REPLACE(GetPhysicalDeviceProperties2);
  OB_FAKE_REPLACE(GetPhysicalDeviceFeatures2);
  OB_FAKE_REPLACE(GetPhysicalDeviceMemoryProperties2);
  OB_FAKE_REPLACE(GetPhysicalDeviceQueueFamilyProperties2);
  OB_FAKE_REPLACE(EnumerateDeviceExtensionProperties);
  OB_FAKE_REPLACE(CreateDevice);
  OB_FAKE_REPLACE(GetDeviceProcAddr);
  return found;
}

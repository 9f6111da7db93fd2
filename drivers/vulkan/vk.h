// SPDX-License-Identifier: BSD-3-Clause
// The part of Vulkan 1.3 that this driver uses, declared here so that it builds without an SDK. The
// loader is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "torch_outboard/driver.h"

namespace vulkan {

using VkBool32 = uint32_t;
using VkFlags = uint32_t;
using VkFlags64 = uint64_t;
using VkDeviceSize = uint64_t;
using VkResult = int32_t;
using VkStructureType = int32_t;
using VkVoidFunction = void (*)();

using VkInstance = struct InstanceHandle*;
using VkPhysicalDevice = struct PhysicalDeviceHandle*;
using VkDevice = struct DeviceHandle*;
using VkQueue = struct QueueHandle*;
using VkCommandBuffer = struct CommandBufferHandle*;
// Handles of 64 bits on every platform; all supported ones have pointers of that size.
using VkBuffer = struct BufferHandle*;
using VkDeviceMemory = struct DeviceMemoryHandle*;
using VkSemaphore = struct SemaphoreHandle*;
using VkFence = struct FenceHandle*;
using VkCommandPool = struct CommandPoolHandle*;
using VkQueryPool = struct QueryPoolHandle*;
using VkShaderModule = struct ShaderModuleHandle*;
using VkPipelineLayout = struct PipelineLayoutHandle*;
using VkPipelineCache = struct PipelineCacheHandle*;
using VkPipeline = struct PipelineHandle*;

enum : VkResult {
  VK_SUCCESS = 0,
  VK_NOT_READY = 1,
  VK_TIMEOUT = 2,
  VK_INCOMPLETE = 5,
  VK_ERROR_OUT_OF_HOST_MEMORY = -1,
  VK_ERROR_OUT_OF_DEVICE_MEMORY = -2,
  VK_ERROR_INITIALIZATION_FAILED = -3,
  VK_ERROR_DEVICE_LOST = -4,
  VK_ERROR_MEMORY_MAP_FAILED = -5,
  VK_ERROR_EXTENSION_NOT_PRESENT = -7,
  VK_ERROR_FEATURE_NOT_PRESENT = -8,
  VK_ERROR_INCOMPATIBLE_DRIVER = -9,
  VK_ERROR_TOO_MANY_OBJECTS = -10,
  VK_ERROR_UNKNOWN = -13,
  VK_ERROR_FRAGMENTATION = -1000161000
};

enum : VkStructureType {
  VK_STRUCTURE_TYPE_APPLICATION_INFO = 0,
  VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO = 1,
  VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO = 2,
  VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO = 3,
  VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO = 5,
  VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO = 9,
  VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO = 11,
  VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO = 12,
  VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO = 16,
  VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO = 18,
  VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO = 29,
  VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO = 30,
  VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO = 39,
  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO = 40,
  VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO = 41,
  VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO = 42,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES = 49,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES = 50,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES = 51,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES = 52,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES = 53,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES = 54,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2 = 1000059000,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2 = 1000059001,
  VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2 = 1000059005,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2 = 1000059006,
  VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO = 1000060000,
  VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT = 1000184000,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR = 1000141000,
  VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO = 1000207002,
  VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO = 1000207004,
  VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO = 1000225001,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT = 1000237000,
  VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO = 1000244001,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT = 1000260000,
  VK_STRUCTURE_TYPE_MEMORY_BARRIER_2 = 1000314000,
  VK_STRUCTURE_TYPE_DEPENDENCY_INFO = 1000314003,
  VK_STRUCTURE_TYPE_SUBMIT_INFO_2 = 1000314004,
  VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO = 1000314005,
  VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO = 1000314006,
  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR = 1000506000,
  VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR = 1000506001
};

enum : VkFlags {
  VK_QUEUE_COMPUTE_BIT = 2,
  VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT = 1,
  VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT = 2,
  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT = 4,
  VK_MEMORY_PROPERTY_HOST_CACHED_BIT = 8,
  VK_MEMORY_PROPERTY_PROTECTED_BIT = 0x20,
  VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD = 0x40,
  VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT = 2,
  VK_BUFFER_USAGE_TRANSFER_SRC_BIT = 1,
  VK_BUFFER_USAGE_TRANSFER_DST_BIT = 2,
  VK_BUFFER_USAGE_STORAGE_BUFFER_BIT = 0x20,
  VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT = 0x20000,
  VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT = 2,
  VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT = 1,
  VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT = 4,
  VK_SHADER_STAGE_COMPUTE_BIT = 0x20,
  VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT = 2,
  VK_SUBGROUP_FEATURE_SHUFFLE_BIT = 0x10,
  VK_QUERY_RESULT_64_BIT = 1
};

enum : VkFlags64 {
  VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT = 0x800,
  VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT = 0x1000,
  VK_PIPELINE_STAGE_2_HOST_BIT = 0x4000,
  VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT = 0x10000,
  VK_ACCESS_2_SHADER_READ_BIT = 0x20,
  VK_ACCESS_2_SHADER_WRITE_BIT = 0x40,
  VK_ACCESS_2_TRANSFER_READ_BIT = 0x800,
  VK_ACCESS_2_TRANSFER_WRITE_BIT = 0x1000,
  VK_ACCESS_2_HOST_READ_BIT = 0x2000
};

enum : int32_t {
  VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU = 1,
  VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU = 2,
  VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU = 3,
  VK_PHYSICAL_DEVICE_TYPE_CPU = 4,
  VK_COMMAND_BUFFER_LEVEL_PRIMARY = 0,
  VK_COMMAND_BUFFER_LEVEL_SECONDARY = 1,
  VK_PIPELINE_BIND_POINT_COMPUTE = 1,
  VK_SEMAPHORE_TYPE_TIMELINE = 1,
  VK_QUERY_TYPE_TIMESTAMP = 2,
  VK_DRIVER_ID_MESA_LLVMPIPE = 13,
  VK_COMPONENT_TYPE_FLOAT16_KHR = 0,
  VK_COMPONENT_TYPE_FLOAT32_KHR = 1,
  VK_COMPONENT_TYPE_BFLOAT16_KHR = 1000141000,
  VK_SCOPE_SUBGROUP_KHR = 3,
  VK_TIME_DOMAIN_DEVICE_EXT = 0,
  VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT = 1
};

constexpr uint32_t kVulkan13 = 1u << 22 | 3u << 12;

struct VkApplicationInfo {
  VkStructureType sType;
  const void* pNext;
  const char* pApplicationName;
  uint32_t applicationVersion;
  const char* pEngineName;
  uint32_t engineVersion;
  uint32_t apiVersion;
};

struct VkInstanceCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  const VkApplicationInfo* pApplicationInfo;
  uint32_t enabledLayerCount;
  const char* const* ppEnabledLayerNames;
  uint32_t enabledExtensionCount;
  const char* const* ppEnabledExtensionNames;
};

struct VkExtensionProperties {
  char extensionName[256];
  uint32_t specVersion;
};

// Of the limits, which are many, those that are used; the numbers say how much lies between them.
struct VkPhysicalDeviceLimits {
  uint32_t before_push[8];
  uint32_t maxPushConstantsSize;
  uint32_t maxMemoryAllocationCount;
  uint32_t before_compute[44];
  uint32_t maxComputeSharedMemorySize;
  uint32_t maxComputeWorkGroupCount[3];
  uint32_t maxComputeWorkGroupInvocations;
  uint32_t maxComputeWorkGroupSize[3];
  uint32_t before_timestamps[43];
  VkBool32 timestampComputeAndGraphics;
  float timestampPeriod;
  uint32_t after_timestamps[13];
  VkDeviceSize last[3];
};

struct VkPhysicalDeviceProperties {
  uint32_t apiVersion;
  uint32_t driverVersion;
  uint32_t vendorID;
  uint32_t deviceID;
  int32_t deviceType;
  char deviceName[256];
  uint8_t pipelineCacheUUID[16];
  VkPhysicalDeviceLimits limits;
  VkBool32 sparse[5];
};

struct VkPhysicalDeviceProperties2 {
  VkStructureType sType;
  void* pNext;
  VkPhysicalDeviceProperties properties;
};

struct VkPhysicalDeviceVulkan11Properties {
  VkStructureType sType;
  void* pNext;
  uint8_t deviceUUID[16];
  uint8_t driverUUID[16];
  uint8_t deviceLUID[8];
  uint32_t deviceNodeMask;
  VkBool32 deviceLUIDValid;
  uint32_t subgroupSize;
  VkFlags subgroupSupportedStages;
  VkFlags subgroupSupportedOperations;
  uint32_t before_allocation[6];
  VkDeviceSize maxMemoryAllocationSize;
};

struct VkPhysicalDeviceVulkan12Properties {
  VkStructureType sType;
  void* pNext;
  int32_t driverID;
  char driverName[256];
  char driverInfo[256];
  uint8_t conformanceVersion[4];
  int32_t denormBehaviorIndependence;
  int32_t roundingModeIndependence;
  VkBool32 shaderSignedZeroInfNanPreserveFloat16;
  VkBool32 shaderSignedZeroInfNanPreserveFloat32;
  VkBool32 shaderSignedZeroInfNanPreserveFloat64;
  VkBool32 shaderDenormPreserveFloat16;
  VkBool32 shaderDenormPreserveFloat32;
  VkBool32 shaderDenormPreserveFloat64;
  VkBool32 shaderDenormFlushToZeroFloat16;
  VkBool32 shaderDenormFlushToZeroFloat32;
  VkBool32 shaderDenormFlushToZeroFloat64;
  VkBool32 shaderRoundingModeRTEFloat16;
  VkBool32 shaderRoundingModeRTEFloat32;
  VkBool32 shaderRoundingModeRTEFloat64;
  uint32_t descriptors[32];
  uint64_t maxTimelineSemaphoreValueDifference;
  VkFlags framebufferIntegerColorSampleCounts;
};

struct VkPhysicalDeviceVulkan13Properties {
  VkStructureType sType;
  void* pNext;
  uint32_t minSubgroupSize;
  uint32_t maxSubgroupSize;
  uint32_t maxComputeWorkgroupSubgroups;
  VkFlags requiredSubgroupSizeStages;
  uint32_t before_texels[38];
  VkDeviceSize texels[2];
  VkBool32 single[2];
  VkDeviceSize maxBufferSize;
};

// The features of a version are switches in a row. All that a device has are switched on.
template <int kCount>
struct Features {
  VkStructureType sType;
  void* pNext;
  VkBool32 has[kCount];
};
using VkPhysicalDeviceFeatures2 = Features<55>;
using VkPhysicalDeviceVulkan11Features = Features<12>;
using VkPhysicalDeviceVulkan12Features = Features<47>;
using VkPhysicalDeviceVulkan13Features = Features<15>;
using VkPhysicalDeviceShaderAtomicFloatFeaturesEXT = Features<12>;
using VkPhysicalDeviceShaderBfloat16FeaturesKHR = Features<3>;
using VkPhysicalDeviceCooperativeMatrixFeaturesKHR = Features<2>;

enum : int {
  kRobustBufferAccess = 0,
  kShaderFloat64 = 39,
  kShaderInt64 = 40,
  kShaderInt16 = 41,
  kStorageBuffer16BitAccess11 = 0,
  kStorageBuffer8BitAccess12 = 2,
  kBufferInt64Atomics12 = 5,
  kShaderFloat16In12 = 7,
  kShaderInt8In12 = 8,
  kScalarBlockLayout12 = 31,
  kHostQueryReset12 = 36,
  kTimelineSemaphore12 = 37,
  kBufferDeviceAddress12 = 38,
  kBufferDeviceAddressCaptureReplay12 = 39,
  kBufferDeviceAddressMultiDevice12 = 40,
  kVulkanMemoryModel12 = 41,
  kRobustImageAccess13 = 0,
  kSubgroupSizeControl13 = 7,
  kComputeFullSubgroups13 = 8,
  kSynchronization2In13 = 9,
  kMaintenance4In13 = 14,
  kBfloat16CooperativeMatrix = 2,
  kCooperativeMatrix = 0,
  kCooperativeMatrixRobustBufferAccess = 1
};

struct VkCooperativeMatrixPropertiesKHR {
  VkStructureType sType;
  void* pNext;
  uint32_t MSize;
  uint32_t NSize;
  uint32_t KSize;
  int32_t AType;
  int32_t BType;
  int32_t CType;
  int32_t ResultType;
  VkBool32 saturatingAccumulation;
  int32_t scope;
};

struct VkMemoryType {
  VkFlags propertyFlags;
  uint32_t heapIndex;
};

struct VkMemoryHeap {
  VkDeviceSize size;
  VkFlags flags;
};

struct VkPhysicalDeviceMemoryProperties2 {
  VkStructureType sType;
  void* pNext;
  uint32_t memoryTypeCount;
  VkMemoryType memoryTypes[32];
  uint32_t memoryHeapCount;
  VkMemoryHeap memoryHeaps[16];
};

struct VkPhysicalDeviceMemoryBudgetPropertiesEXT {
  VkStructureType sType;
  void* pNext;
  VkDeviceSize heapBudget[16];
  VkDeviceSize heapUsage[16];
};

struct VkQueueFamilyProperties2 {
  VkStructureType sType;
  void* pNext;
  VkFlags queueFlags;
  uint32_t queueCount;
  uint32_t timestampValidBits;
  uint32_t minImageTransferGranularity[3];
};

struct VkDeviceQueueCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t queueFamilyIndex;
  uint32_t queueCount;
  const float* pQueuePriorities;
};

struct VkDeviceCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t queueCreateInfoCount;
  const VkDeviceQueueCreateInfo* pQueueCreateInfos;
  uint32_t enabledLayerCount;
  const char* const* ppEnabledLayerNames;
  uint32_t enabledExtensionCount;
  const char* const* ppEnabledExtensionNames;
  const void* pEnabledFeatures;
};

struct VkBufferCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  VkDeviceSize size;
  VkFlags usage;
  int32_t sharingMode;
  uint32_t queueFamilyIndexCount;
  const uint32_t* pQueueFamilyIndices;
};

struct VkMemoryRequirements {
  VkDeviceSize size;
  VkDeviceSize alignment;
  uint32_t memoryTypeBits;
};

struct VkMemoryAllocateFlagsInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t deviceMask;
};

struct VkMemoryAllocateInfo {
  VkStructureType sType;
  const void* pNext;
  VkDeviceSize allocationSize;
  uint32_t memoryTypeIndex;
};

struct VkBufferDeviceAddressInfo {
  VkStructureType sType;
  const void* pNext;
  VkBuffer buffer;
};

struct VkSemaphoreTypeCreateInfo {
  VkStructureType sType;
  const void* pNext;
  int32_t semaphoreType;
  uint64_t initialValue;
};

struct VkCreateInfo {  // of what needs no more: a semaphore
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
};

struct VkSemaphoreWaitInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t semaphoreCount;
  const VkSemaphore* pSemaphores;
  const uint64_t* pValues;
};

struct VkSemaphoreSubmitInfo {
  VkStructureType sType;
  const void* pNext;
  VkSemaphore semaphore;
  uint64_t value;
  VkFlags64 stageMask;
  uint32_t deviceIndex;
};

struct VkCommandBufferSubmitInfo {
  VkStructureType sType;
  const void* pNext;
  VkCommandBuffer commandBuffer;
  uint32_t deviceMask;
};

struct VkSubmitInfo2 {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t waitSemaphoreInfoCount;
  const VkSemaphoreSubmitInfo* pWaitSemaphoreInfos;
  uint32_t commandBufferInfoCount;
  const VkCommandBufferSubmitInfo* pCommandBufferInfos;
  uint32_t signalSemaphoreInfoCount;
  const VkSemaphoreSubmitInfo* pSignalSemaphoreInfos;
};

struct VkCommandPoolCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t queueFamilyIndex;
};

struct VkCommandBufferAllocateInfo {
  VkStructureType sType;
  const void* pNext;
  VkCommandPool commandPool;
  int32_t level;
  uint32_t commandBufferCount;
};

struct VkCommandBufferBeginInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  const void* pInheritanceInfo;
};

// Of commands outside render passes.
struct VkCommandBufferInheritanceInfo {
  VkStructureType sType;
  const void* pNext;
  void* renderPass;
  uint32_t subpass;
  void* framebuffer;
  VkBool32 occlusionQueryEnable;
  VkFlags queryFlags;
  VkFlags pipelineStatistics;
};

struct VkMemoryBarrier2 {
  VkStructureType sType;
  const void* pNext;
  VkFlags64 srcStageMask;
  VkFlags64 srcAccessMask;
  VkFlags64 dstStageMask;
  VkFlags64 dstAccessMask;
};

struct VkDependencyInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags dependencyFlags;
  uint32_t memoryBarrierCount;
  const VkMemoryBarrier2* pMemoryBarriers;
  uint32_t bufferMemoryBarrierCount;
  const void* pBufferMemoryBarriers;
  uint32_t imageMemoryBarrierCount;
  const void* pImageMemoryBarriers;
};

struct VkBufferCopy {
  VkDeviceSize srcOffset;
  VkDeviceSize dstOffset;
  VkDeviceSize size;
};

struct VkQueryPoolCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  int32_t queryType;
  uint32_t queryCount;
  VkFlags pipelineStatistics;
};

struct VkCalibratedTimestampInfoEXT {
  VkStructureType sType;
  const void* pNext;
  int32_t timeDomain;
};

struct VkShaderModuleCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  size_t codeSize;
  const uint32_t* pCode;
};

struct VkSpecializationMapEntry {
  uint32_t constantID;
  uint32_t offset;
  size_t size;
};

struct VkSpecializationInfo {
  uint32_t mapEntryCount;
  const VkSpecializationMapEntry* pMapEntries;
  size_t dataSize;
  const void* pData;
};

struct VkPipelineShaderStageRequiredSubgroupSizeCreateInfo {
  VkStructureType sType;
  void* pNext;
  uint32_t requiredSubgroupSize;
};

struct VkPipelineShaderStageCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  VkFlags stage;
  VkShaderModule module;
  const char* pName;
  const VkSpecializationInfo* pSpecializationInfo;
};

struct VkPushConstantRange {
  VkFlags stageFlags;
  uint32_t offset;
  uint32_t size;
};

struct VkPipelineLayoutCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  uint32_t setLayoutCount;
  const void* pSetLayouts;
  uint32_t pushConstantRangeCount;
  const VkPushConstantRange* pPushConstantRanges;
};

struct VkComputePipelineCreateInfo {
  VkStructureType sType;
  const void* pNext;
  VkFlags flags;
  VkPipelineShaderStageCreateInfo stage;
  VkPipelineLayout layout;
  VkPipeline basePipelineHandle;
  int32_t basePipelineIndex;
};

// Allocators, which nothing here has, are void pointers.
#define OB_VK_GLOBAL_FUNCTIONS(X)                                                       \
  X(VkResult, EnumerateInstanceVersion, (uint32_t*))                                    \
  X(VkResult, CreateInstance, (const VkInstanceCreateInfo*, const void*, VkInstance*))

#define OB_VK_INSTANCE_FUNCTIONS(X)                                                                               \
  X(void, DestroyInstance, (VkInstance, const void*))                                                             \
  X(VkResult, EnumeratePhysicalDevices, (VkInstance, uint32_t*, VkPhysicalDevice*))                               \
  X(void, GetPhysicalDeviceProperties, (VkPhysicalDevice, VkPhysicalDeviceProperties*))                           \
  X(void, GetPhysicalDeviceProperties2, (VkPhysicalDevice, VkPhysicalDeviceProperties2*))                         \
  X(void, GetPhysicalDeviceFeatures2, (VkPhysicalDevice, VkPhysicalDeviceFeatures2*))                             \
  X(void, GetPhysicalDeviceMemoryProperties2, (VkPhysicalDevice, VkPhysicalDeviceMemoryProperties2*))             \
  X(void, GetPhysicalDeviceQueueFamilyProperties2, (VkPhysicalDevice, uint32_t*, VkQueueFamilyProperties2*))      \
  X(VkResult, EnumerateDeviceExtensionProperties,                                                                 \
    (VkPhysicalDevice, const char*, uint32_t*, VkExtensionProperties*))                                           \
  X(VkResult, CreateDevice, (VkPhysicalDevice, const VkDeviceCreateInfo*, const void*, VkDevice*))                \
  X(VkVoidFunction, GetDeviceProcAddr, (VkDevice, const char*))

// What an extension of a device brings; null if no driver knows it.
#define OB_VK_OPTIONAL_INSTANCE_FUNCTIONS(X)                     \
  X(VkResult, GetPhysicalDeviceCalibrateableTimeDomainsEXT, (VkPhysicalDevice, uint32_t*, int32_t*)) \
  X(VkResult, GetPhysicalDeviceCalibrateableTimeDomainsKHR, (VkPhysicalDevice, uint32_t*, int32_t*)) \
  X(VkResult, GetPhysicalDeviceCooperativeMatrixPropertiesKHR,   \
    (VkPhysicalDevice, uint32_t*, VkCooperativeMatrixPropertiesKHR*))

#define OB_VK_DEVICE_FUNCTIONS(X)                                                                                 \
  X(void, DestroyDevice, (VkDevice, const void*))                                                                 \
  X(VkResult, DeviceWaitIdle, (VkDevice))                                                                         \
  X(void, GetDeviceQueue, (VkDevice, uint32_t, uint32_t, VkQueue*))                                               \
  X(VkResult, QueueSubmit2, (VkQueue, uint32_t, const VkSubmitInfo2*, VkFence))                                   \
  X(VkResult, CreateBuffer, (VkDevice, const VkBufferCreateInfo*, const void*, VkBuffer*))                        \
  X(void, DestroyBuffer, (VkDevice, VkBuffer, const void*))                                                       \
  X(void, GetBufferMemoryRequirements, (VkDevice, VkBuffer, VkMemoryRequirements*))                               \
  X(VkResult, AllocateMemory, (VkDevice, const VkMemoryAllocateInfo*, const void*, VkDeviceMemory*))              \
  X(void, FreeMemory, (VkDevice, VkDeviceMemory, const void*))                                                    \
  X(VkResult, BindBufferMemory, (VkDevice, VkBuffer, VkDeviceMemory, VkDeviceSize))                               \
  X(VkResult, MapMemory, (VkDevice, VkDeviceMemory, VkDeviceSize, VkDeviceSize, VkFlags, void**))                 \
  X(uint64_t, GetBufferDeviceAddress, (VkDevice, const VkBufferDeviceAddressInfo*))                               \
  X(VkResult, CreateSemaphore, (VkDevice, const VkCreateInfo*, const void*, VkSemaphore*))                        \
  X(void, DestroySemaphore, (VkDevice, VkSemaphore, const void*))                                                 \
  X(VkResult, GetSemaphoreCounterValue, (VkDevice, VkSemaphore, uint64_t*))                                       \
  X(VkResult, WaitSemaphores, (VkDevice, const VkSemaphoreWaitInfo*, uint64_t))                                   \
  X(VkResult, CreateCommandPool, (VkDevice, const VkCommandPoolCreateInfo*, const void*, VkCommandPool*))         \
  X(void, DestroyCommandPool, (VkDevice, VkCommandPool, const void*))                                             \
  X(VkResult, AllocateCommandBuffers, (VkDevice, const VkCommandBufferAllocateInfo*, VkCommandBuffer*))           \
  X(VkResult, BeginCommandBuffer, (VkCommandBuffer, const VkCommandBufferBeginInfo*))                             \
  X(VkResult, EndCommandBuffer, (VkCommandBuffer))                                                                \
  X(void, CmdPipelineBarrier2, (VkCommandBuffer, const VkDependencyInfo*))                                        \
  X(void, CmdCopyBuffer, (VkCommandBuffer, VkBuffer, VkBuffer, uint32_t, const VkBufferCopy*))                    \
  X(void, CmdFillBuffer, (VkCommandBuffer, VkBuffer, VkDeviceSize, VkDeviceSize, uint32_t))                       \
  X(void, CmdBindPipeline, (VkCommandBuffer, int32_t, VkPipeline))                                                \
  X(void, CmdPushConstants, (VkCommandBuffer, VkPipelineLayout, VkFlags, uint32_t, uint32_t, const void*))        \
  X(void, CmdDispatch, (VkCommandBuffer, uint32_t, uint32_t, uint32_t))                                           \
  X(void, CmdExecuteCommands, (VkCommandBuffer, uint32_t, const VkCommandBuffer*))                                \
  X(void, CmdWriteTimestamp2, (VkCommandBuffer, VkFlags64, VkQueryPool, uint32_t))                                \
  X(VkResult, CreateQueryPool, (VkDevice, const VkQueryPoolCreateInfo*, const void*, VkQueryPool*))               \
  X(void, DestroyQueryPool, (VkDevice, VkQueryPool, const void*))                                                 \
  X(void, ResetQueryPool, (VkDevice, VkQueryPool, uint32_t, uint32_t))                                            \
  X(VkResult, GetQueryPoolResults,                                                                                \
    (VkDevice, VkQueryPool, uint32_t, uint32_t, size_t, void*, VkDeviceSize, VkFlags))                            \
  X(VkResult, CreateShaderModule, (VkDevice, const VkShaderModuleCreateInfo*, const void*, VkShaderModule*))      \
  X(void, DestroyShaderModule, (VkDevice, VkShaderModule, const void*))                                           \
  X(VkResult, CreatePipelineLayout, (VkDevice, const VkPipelineLayoutCreateInfo*, const void*, VkPipelineLayout*)) \
  X(void, DestroyPipelineLayout, (VkDevice, VkPipelineLayout, const void*))                                       \
  X(VkResult, CreateComputePipelines,                                                                             \
    (VkDevice, VkPipelineCache, uint32_t, const VkComputePipelineCreateInfo*, const void*, VkPipeline*))          \
  X(void, DestroyPipeline, (VkDevice, VkPipeline, const void*))

// What an extension brings; null without it.
#define OB_VK_OPTIONAL_FUNCTIONS(X)            \
  X(VkResult, GetCalibratedTimestampsEXT,      \
    (VkDevice, uint32_t, const VkCalibratedTimestampInfoEXT*, uint64_t*, uint64_t*)) \
  X(VkResult, GetCalibratedTimestampsKHR,      \
    (VkDevice, uint32_t, const VkCalibratedTimestampInfoEXT*, uint64_t*, uint64_t*))

#define OB_VK_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
// The loader, and the functions that need an instance at most.
struct Api {
  OB_VK_GLOBAL_FUNCTIONS(OB_VK_MEMBER)
  OB_VK_INSTANCE_FUNCTIONS(OB_VK_MEMBER)
  OB_VK_OPTIONAL_INSTANCE_FUNCTIONS(OB_VK_MEMBER)
  VkVoidFunction (*GetInstanceProcAddr)(VkInstance, const char*) = nullptr;
  VkInstance instance = nullptr;

  // Open the loader and make an instance. Return false, with a sentence, if that fails.
  bool load(const std::string& library, std::string* out_error);
};

// A device's functions, which call its driver without the loader between.
struct DeviceApi {
  OB_VK_DEVICE_FUNCTIONS(OB_VK_MEMBER)
  OB_VK_OPTIONAL_FUNCTIONS(OB_VK_MEMBER)

  bool load(const Api& api, VkDevice device, std::string* out_error);
};
#undef OB_VK_MEMBER

// "VK_ERROR_DEVICE_LOST (-4)"
std::string error_name(VkResult code);

// Store "<what>: <function> gave <code>" as the last error, and return the status for the code.
ob_status vk_fail(VkResult code, const char* function, const std::string& what);

}  // namespace vulkan

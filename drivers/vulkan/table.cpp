// SPDX-License-Identifier: BSD-3-Clause
// ob_driver_table, and the entries about devices.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"
#include "torch_outboard/support/lookup.h"
#include "torch_outboard/support/table.h"

namespace vulkan {
namespace {

using support::guarded;
using support::with_device;

constexpr uint32_t kMaxQueues = 8;
// Memory that needs features which are not switched on, or that the device reaches past its caches.
constexpr VkFlags kUnusableFlags = VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD;

Driver& driver_of(void* self) {
  return *static_cast<Driver*>(self);
}

int32_t device_count(void* self) {
  return support::count_devices(driver_of(self), probe);
}

const char* vendor_of(uint32_t id) {
  switch (id) {
    case 0x1002:
      return "AMD";
    case 0x10DE:
      return "NVIDIA";
    case 0x8086:
      return "Intel";
    case 0x13B5:
      return "Arm";
    case 0x5143:
      return "Qualcomm";
    case 0x106B:
      return "Apple";
    case 0x10005:
      return "Mesa";
    default:
      return "";
  }
}

uint64_t kernel_dtypes(const FoundDevice& found) {
  uint64_t bits = 0;
  const auto add = [&](std::initializer_list<int> dtypes) {
    for (const int dtype : dtypes) bits |= uint64_t{1} << dtype;
  };
  // Sums by atomics of float64 need those of int64.
  const bool has_float64 = found.features.has[kShaderFloat64] != 0 && found.features12.has[kBufferInt64Atomics12] != 0;
  add({OB_UINT8, OB_INT8, OB_INT32, OB_INT64, OB_FLOAT32, OB_COMPLEX64, OB_BOOL, OB_FLOAT8_E5M2, OB_FLOAT8_E4M3FN,
       OB_UINT32, OB_UINT64, OB_FLOAT16, OB_BFLOAT16, OB_COMPLEX32});
  // Halves are computed in float, and loaded as two bytes where there are no 16-bit types.
  if (found.has_int16()) add({OB_INT16, OB_UINT16});
  if (has_float64) add({OB_FLOAT64, OB_COMPLEX128});
  return bits;
}

// Choose the memory of tensors: the device's own, which the host reaches on CPUs and integrated
// GPUs. Memory that a discrete GPU exposes through its bus is not used, because it has no cache.
void choose_local_memory(Device& device, uint32_t allowed, bool host_access) {
  constexpr VkFlags kHostVisibleFlags =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  const VkPhysicalDeviceMemoryProperties2& memory = device.found.memory;
  uint64_t best = 0;
  for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
    const VkFlags flags = memory.memoryTypes[i].propertyFlags;
    const uint64_t size = memory.memoryHeaps[memory.memoryTypes[i].heapIndex].size;
    const bool is_local = (flags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) != 0;
    const bool is_host_visible = host_access && (flags & kHostVisibleFlags) == kHostVisibleFlags;
    // The largest heap first, then memory that the host reaches. Memory types are ordered by speed.
    const bool is_better = size > best || (size == best && is_host_visible && !device.is_mapped);
    if ((allowed >> i & 1) == 0 || !is_local || !is_better || (flags & kUnusableFlags) != 0) continue;
    best = size;
    device.local_type = i;
    device.is_mapped = is_host_visible;
  }
  device.total_memory = best;
}

// Choose the memory through which the host and the device exchange data.
bool choose_host_memory(Device& device, uint32_t allowed) {
  constexpr VkFlags kHostFlags = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const VkPhysicalDeviceMemoryProperties2& memory = device.found.memory;
  for (const VkFlags wanted : {kHostFlags | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, kHostFlags}) {
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
      const bool is_wanted = (memory.memoryTypes[i].propertyFlags & (wanted | kUnusableFlags)) == wanted;
      if ((allowed >> i & 1) == 0 || !is_wanted) continue;
      device.host_type = i;
      return true;
    }
  }
  return false;
}

ob_status make_device(const Api& api, Device& device) {
  FoundDevice& found = device.found;
  const uint32_t queues = std::min(found.queue_count, kMaxQueues);
  const std::vector<float> priorities(queues, 1.0F);
  const VkDeviceQueueCreateInfo queue = {
      VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, nullptr, 0, found.family, queues, priorities.data()};
  std::vector<const char*> extensions;
  if (found.has_atomics) extensions.push_back("VK_EXT_shader_atomic_float");
  if (found.has_budget) extensions.push_back("VK_EXT_memory_budget");
  if (found.has_clocks) {
    extensions.push_back(found.has_own_clocks ? "VK_KHR_calibrated_timestamps" : "VK_EXT_calibrated_timestamps");
  }
  if (found.has_matrices) extensions.push_back("VK_KHR_cooperative_matrix");
  if (found.has_bfloats) extensions.push_back("VK_KHR_shader_bfloat16");
  VkDeviceCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = link_features(found);
  // Bounds checks cost time and find nothing, because kernels use addresses.
  found.features.has[kRobustBufferAccess] = 0;
  found.features13.has[kRobustImageAccess13] = 0;
  found.matrices.has[kCooperativeMatrixRobustBufferAccess] = 0;
  found.features12.has[kBufferDeviceAddressCaptureReplay12] = 0;
  found.features12.has[kBufferDeviceAddressMultiDevice12] = 0;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  const VkResult code = api.CreateDevice(found.device, &info, nullptr, &device.device);
  if (code != VK_SUCCESS) return vk_fail(code, "vkCreateDevice", where(device));
  std::string error;
  if (!device.api.load(api, device.device, &error)) {
    return fail(OB_UNAVAILABLE, "%s: %s", where(device).c_str(), error.c_str());
  }
  for (uint32_t i = 0; i < queues; ++i) {
    device.queues.push_back(nullptr);
    device.api.GetDeviceQueue(device.device, found.family, i, &device.queues.back());
  }
  const VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 128};
  VkPipelineLayoutCreateInfo layout = {};
  layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &range;
  const VkResult made = device.api.CreatePipelineLayout(device.device, &layout, nullptr, &device.layout);
  return made == VK_SUCCESS ? OB_OK : vk_fail(made, "vkCreatePipelineLayout", where(device));
}

ob_status choose_memory(Device& device, bool host_access) {
  uint32_t allowed = 0;
  if (const ob_status status = find_memory_types(device, &allowed); status != OB_OK) return status;
  choose_local_memory(device, allowed, host_access);
  const FoundDevice& found = device.found;
  device.max_allocation =
      std::min({found.properties11.maxMemoryAllocationSize, found.properties13.maxBufferSize, device.total_memory});
  if (device.total_memory > 0 && choose_host_memory(device, allowed)) return OB_OK;
  return fail(OB_UNAVAILABLE, "%s has no device memory for buffers, or none that the host can reach",
              where(device).c_str());
}

// Return true if kernels can use the host's addresses of host_alloc memory, tried with one page.
bool has_host_addresses(Device& device) {
  Buffer buffer;
  if (make_buffer(device, 4096, device.host_type, true, &buffer) != OB_OK) return false;
  const bool is_same = reinterpret_cast<uint64_t>(buffer.host) == buffer.address;
  free_buffer(device, buffer);
  return is_same;
}

void end_device(Driver& driver, Device& device) {
  if (device.submitter.joinable()) {
    {
      const std::lock_guard lock(device.list_mutex);
      device.is_closing = true;
      device.list_changed.notify_one();
    }
    device.submitter.join();
    // The last work of abandoned streams. A failure does not matter any more.
    submit_ready_batches(device);
    for (const std::unique_ptr<Stream>& stream : device.retired) {
      static_cast<void>(wait_for({stream->timeline, stream->closed}));
    }
  }
  if (device.device == nullptr) return;
  driver.activities.forget(device);
  if (device.api.DeviceWaitIdle != nullptr) static_cast<void>(device.api.DeviceWaitIdle(device.device));
  std::unique_ptr<Stream> own;
  if (driver.streams.take(device.own_stream, &own)) device.retired.push_back(std::move(own));
  for (const std::unique_ptr<Stream>& stream : device.retired) destroy_stream(*stream);
  device.retired.clear();
  std::unique_ptr<Program> program;
  if (driver.programs.take(device.own_program, &program)) destroy_program(driver, device, *program);
  device.used_queries.clear();
  for (const VkQueryPool pool : device.query_pools) device.api.DestroyQueryPool(device.device, pool, nullptr);
  if (device.layout != nullptr) device.api.DestroyPipelineLayout(device.device, device.layout, nullptr);
  if (device.api.DestroyDevice != nullptr) device.api.DestroyDevice(device.device, nullptr);
}

ob_status open_device(Driver& driver, int32_t index) {
  const std::lock_guard opening(driver.open_mutex);
  const FoundDevice* found = nullptr;
  if (const ob_status status = driver.find_devices(index, &found); status != OB_OK) return status;
  if (driver.devices[index].load() != nullptr) return OB_OK;
  auto device = std::make_unique<Device>();
  device->index = index;
  device->found = *found;
  ob_status status = make_device(driver.api, *device);
  const bool host_access = driver.options.host_access.value_or(found->is_cpu());
  if (status == OB_OK) status = choose_memory(*device, host_access);
  std::unique_ptr<Stream> own;
  if (status == OB_OK) status = make_stream(*device, &own);
  if (status != OB_OK) {
    end_device(driver, *device);
    return status;
  }
  device->activities = &driver.activities;
  device->own_stream = driver.streams.make(std::move(own));
  device->addresses_host_memory = host_access && has_host_addresses(*device);
  device->submitter = std::thread(run_submitter, std::ref(*device));
  driver.publish(std::move(device));
  return OB_OK;
}

ob_status device_open(void* self, int32_t index) {
  return guarded("device_open", [&] { return open_device(driver_of(self), index); });
}

ob_status device_close(void* self, int32_t index) {
  return with_device<Driver>(self, index, "device_close", [&](Driver& driver, Device* device) -> ob_status {
    driver.devices[index].store(nullptr);
    end_device(driver, *device);
    driver.drop(device);
    return OB_OK;
  });
}

ob_status device_properties(void* self, int32_t index, ob_device_properties* out_properties) {
  return guarded("device_properties", [&]() -> ob_status {
    Driver& driver = driver_of(self);
    Device* device = nullptr;
    // Whether kernels use the host's addresses can only be tried.
    if (const ob_status status = open_device(driver, index); status != OB_OK) return status;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    const FoundDevice& found = device->found;
    const VkPhysicalDeviceLimits& limits = found.properties.limits;
    ob_device_properties p = {};
    support::copy_name(found.name(), p.name);
    support::copy_name(vendor_of(found.properties.vendorID), p.vendor);
    support::copy_name(found.name(), p.architecture);
    support::copy_name(found.properties12.driverInfo, p.driver_version);
    std::memcpy(p.uuid, found.properties11.deviceUUID, sizeof p.uuid);
    p.major = static_cast<int32_t>(found.properties.apiVersion >> 22 & 0x7F);
    p.minor = static_cast<int32_t>(found.properties.apiVersion >> 12 & 0x3FF);
    p.total_memory = device->total_memory;
    p.max_allocation = device->max_allocation;
    p.dtypes = kernel_dtypes(found);
    p.warp_size = static_cast<int32_t>(found.properties11.subgroupSize);
    p.max_threads_per_block =
        static_cast<int32_t>(std::min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]));
    p.shared_memory_per_block = limits.maxComputeSharedMemorySize;
    p.is_integrated = found.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || found.is_cpu() ? 1 : 0;
    // Also for lavapipe, which silently ends an item's loops after 65,535 iterations. Kernels for
    // CPUs have one item per row.
    p.machine = OB_MACHINE_GPU;
    p.addresses_host_memory = device->addresses_host_memory ? 1 : 0;
    p.follows_addresses = 1;
    support::copy_name(found.matrix_units, p.matrix_units);
    support::return_struct(p, out_properties);
    return OB_OK;
  });
}

void destroy(void* self) {
  const Driver& driver = driver_of(self);
  // The end of the process frees what a caller left open: its submitter still runs.
  if (driver.owned.empty()) delete &driver;
}

}  // namespace

std::string where(const Device& device) {
  return "device " + std::to_string(device.index) + " (" + device.found.name() + ")";
}

ob_status Driver::find_devices(int32_t index, const FoundDevice** out_found) {
  return support::find_devices(*this, "Vulkan", enumerate, index, out_found);
}

void fill_device_entries(ob_driver* table) {
  table->device_count = device_count;
  table->device_properties = device_properties;
  table->device_open = device_open;
  table->device_close = device_close;
  table->last_error = support::last_error;
  table->destroy = destroy;
}

}  // namespace vulkan

extern "C" OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error,
                                               size_t error_size) {
  const auto fill = [](vulkan::Options parsed, ob_driver& table) {
    vulkan::fill_device_entries(&table);
    vulkan::fill_memory_entries(&table);
    vulkan::fill_stream_entries(&table);
    vulkan::fill_event_entries(&table);
    vulkan::fill_copy_entries(&table);
    vulkan::fill_program_entries(&table);
    vulkan::fill_activity_entries(&table);
    vulkan::fill_graph_entries(&table);
    table.self = new vulkan::Driver(std::move(parsed));
  };
  return support::return_table(vulkan::parse_options, options, out_driver, error, error_size, fill);
}

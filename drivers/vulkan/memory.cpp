// SPDX-License-Identifier: BSD-3-Clause
// Device memory: a buffer with its own memory for each segment of the caching allocator. Host
// memory for copies.
#include <cinttypes>
#include <cstdlib>

#include "driver.h"

namespace vulkan {
namespace {

using support::guarded;
using support::with_device;

constexpr uint64_t kAlignment = 512;
constexpr size_t kHostAlignment = 64;
// What is as small is no segment of tensors, but records that kernels write and the host reads. It
// lies where both see it, also on GPUs whose own memory the host does not see.
constexpr uint64_t kMaxHostVisibleBytes = 64 << 10;

ob_status try_bare_buffer(Device& device, uint64_t bytes, Buffer& buffer, VkMemoryRequirements* out_requirements) {
  VkBufferCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
               VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  const VkResult code = device.api.CreateBuffer(device.device, &info, nullptr, &buffer.buffer);
  if (code != VK_SUCCESS) return vk_fail(code, "vkCreateBuffer", where(device));
  device.api.GetBufferMemoryRequirements(device.device, buffer.buffer, out_requirements);
  return OB_OK;
}

ob_status try_buffer(Device& device, uint64_t bytes, uint32_t type, bool is_mapped, Buffer& buffer) {
  const DeviceApi& api = device.api;
  const std::string place = where(device);
  VkMemoryRequirements requirements = {};
  if (const ob_status status = try_bare_buffer(device, bytes, buffer, &requirements); status != OB_OK) return status;
  if ((requirements.memoryTypeBits >> type & 1) == 0) {
    return fail(OB_INTERNAL, "%s: memory of type %u cannot hold buffers", place.c_str(), type);
  }
  const VkMemoryAllocateFlagsInfo flags = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, nullptr,
                                           VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, 0};
  const VkMemoryAllocateInfo memory = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags, requirements.size, type};
  VkResult code = api.AllocateMemory(device.device, &memory, nullptr, &buffer.memory);
  if (code != VK_SUCCESS) return vk_fail(code, "vkAllocateMemory", place + ": " + std::to_string(bytes) + " bytes");
  code = api.BindBufferMemory(device.device, buffer.buffer, buffer.memory, 0);
  if (code != VK_SUCCESS) return vk_fail(code, "vkBindBufferMemory", place);
  if (is_mapped) {
    void* host = nullptr;
    code = api.MapMemory(device.device, buffer.memory, 0, UINT64_MAX, 0, &host);
    if (code != VK_SUCCESS) return vk_fail(code, "vkMapMemory", place);
    buffer.host = static_cast<char*>(host);
  }
  const VkBufferDeviceAddressInfo asked = {VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, nullptr, buffer.buffer};
  buffer.address = api.GetBufferDeviceAddress(device.device, &asked);
  buffer.bytes = bytes;
  return OB_OK;
}

ob_status mem_alloc(void* self, int32_t index, uint64_t bytes, uint64_t* out_address) {
  return with_device<Driver>(self, index, "mem_alloc", [&](Driver& driver, Device* device) -> ob_status {
    if (bytes == 0) return fail(OB_INVALID_ARGUMENT, "device %d: mem_alloc of 0 bytes", index);
    if (bytes > device->max_allocation) {
      const FoundDevice& found = device->found;
      const char* limit = device->max_allocation == found.properties11.maxMemoryAllocationSize
                              ? "maxMemoryAllocationSize"
                          : device->max_allocation == found.properties13.maxBufferSize ? "maxBufferSize"
                                                                                       : "the size of its heap";
      return fail(OB_OUT_OF_MEMORY,
                  "%s: an allocation of %" PRIu64 " bytes exceeds the limit %s of its Vulkan driver, %" PRIu64
                  " bytes. Split the tensor",
                  where(*device).c_str(), bytes, limit, device->max_allocation);
    }
    // CPU drivers allocate more memory than exists, and the system kills the process when it is
    // used.
    if (device->allocated.fetch_add(bytes) + bytes > device->total_memory) {
      device->allocated.fetch_sub(bytes);
      return fail(OB_OUT_OF_MEMORY, "%s: %" PRIu64 " bytes exceed the free part of the device's %" PRIu64 " bytes",
                  where(*device).c_str(), bytes, device->total_memory);
    }
    auto buffer = std::make_unique<Buffer>();
    const bool is_host_visible = device->is_mapped || bytes <= kMaxHostVisibleBytes;
    const uint32_t type = device->is_mapped || !is_host_visible ? device->local_type : device->host_type;
    ob_status status = make_buffer(*device, bytes, type, is_host_visible, buffer.get());
    // Memory begins on pages in practice, and so do buffers, but the specification does not
    // guarantee it.
    if (status == OB_OK && buffer->address % kAlignment != 0) {
      free_buffer(*device, *buffer);
      status = make_buffer(*device, bytes + kAlignment, type, is_host_visible, buffer.get());
    }
    if (status != OB_OK) {
      device->allocated.fetch_sub(bytes);
      return status;
    }
    *out_address = (buffer->address + kAlignment - 1) / kAlignment * kAlignment;
    device->memory.add(*out_address, {bytes, reinterpret_cast<uint64_t>(buffer.get())});
    static_cast<void>(buffer.release());
    return OB_OK;
  });
}

ob_status mem_free(void* self, int32_t index, uint64_t address) {
  return with_device<Driver>(self, index, "mem_free", [&](Driver& driver, Device* device) -> ob_status {
    support::Range range;
    if (!device->memory.take(address, &range)) {
      return fail(OB_INVALID_ARGUMENT, "device %d: no allocation begins at 0x%" PRIx64, index, address);
    }
    const std::unique_ptr<Buffer> buffer(reinterpret_cast<Buffer*>(range.owner));
    free_buffer(*device, *buffer);
    device->allocated.fetch_sub(range.bytes);
    return OB_OK;
  });
}

ob_status mem_info(void* self, int32_t index, uint64_t* out_free, uint64_t* out_total) {
  return with_device<Driver>(self, index, "mem_info", [&](Driver& driver, Device* device) -> ob_status {
    *out_total = device->total_memory;
    const uint64_t allocated = device->allocated.load();
    *out_free = device->total_memory - std::min(allocated, device->total_memory);
    if (!device->found.has_budget) return OB_OK;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {};
    budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    VkPhysicalDeviceMemoryProperties2 memory = {};
    memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    memory.pNext = &budget;
    driver.api.GetPhysicalDeviceMemoryProperties2(device->found.device, &memory);
    const uint32_t heap = memory.memoryTypes[device->local_type].heapIndex;
    const uint64_t used = std::min(budget.heapUsage[heap], budget.heapBudget[heap]);
    *out_free = std::min(*out_free, budget.heapBudget[heap] - used);
    return OB_OK;
  });
}

ob_status host_address(void* self, int32_t index, uint64_t address, uint64_t bytes, uint64_t* out_address) {
  return with_device<Driver>(self, index, "host_address", [&](Driver& driver, Device* device) -> ob_status {
    if (const ob_status status = device->memory.check(index, address, bytes); status != OB_OK) return status;
    *out_address = 0;
    const auto* buffer = reinterpret_cast<const Buffer*>(device->memory.owner_of(address, bytes));
    if (buffer == nullptr || buffer->host == nullptr) return OB_OK;  // the range spans two allocations, or is unseen
    *out_address = reinterpret_cast<uint64_t>(buffer->host) + (address - buffer->address);
    return OB_OK;
  });
}

// A device copies at full speed only from and to its own buffers, so pinned memory is one.
ob_status host_alloc(void* self, uint64_t bytes, void** out_pointer) {
  return guarded("host_alloc", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* owner = nullptr;
    for (std::atomic<Device*>& slot : driver.devices) {
      if (owner == nullptr) owner = slot.load(std::memory_order_acquire);
    }
    auto block = std::make_unique<HostBlock>();
    if (owner != nullptr && bytes <= owner->max_allocation) {
      block->device = owner->index;
      if (const ob_status status = make_buffer(*owner, bytes, owner->host_type, true, &block->buffer);
          status != OB_OK) {
        return status;
      }
      *out_pointer = block->buffer.host;
      if (reinterpret_cast<uint64_t>(*out_pointer) % kHostAlignment != 0) {
        free_buffer(*owner, block->buffer);
        return fail(OB_INTERNAL, "%s: vkMapMemory returned an address that is not aligned to 64 bytes",
                    where(*owner).c_str());
      }
    } else if (bytes > SIZE_MAX / 2 || posix_memalign(out_pointer, kHostAlignment, bytes) != 0) {
      return fail(OB_OUT_OF_MEMORY, "the host cannot allocate %" PRIu64 " bytes", bytes);
    }
    driver.host_memory.add(reinterpret_cast<uint64_t>(*out_pointer), {bytes, reinterpret_cast<uint64_t>(block.get())});
    static_cast<void>(block.release());
    return OB_OK;
  });
}

ob_status host_free(void* self, void* pointer) {
  return guarded("host_free", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    support::Range range;
    if (!driver.host_memory.take(reinterpret_cast<uint64_t>(pointer), &range)) {
      return fail(OB_INVALID_ARGUMENT, "%p is not from host_alloc", pointer);
    }
    const std::unique_ptr<HostBlock> block(reinterpret_cast<HostBlock*>(range.owner));
    if (block->device < 0) {
      std::free(pointer);
      return OB_OK;
    }
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(block->device, &device); status != OB_OK) return status;
    free_buffer(*device, block->buffer);
    return OB_OK;
  });
}

}  // namespace

ob_status find_memory_types(Device& device, uint32_t* out_types) {
  Buffer buffer;
  VkMemoryRequirements requirements = {};
  const ob_status status = try_bare_buffer(device, 1 << 16, buffer, &requirements);
  free_buffer(device, buffer);
  *out_types = requirements.memoryTypeBits;
  return status;
}

ob_status make_buffer(Device& device, uint64_t bytes, uint32_t type, bool is_mapped, Buffer* out_buffer) {
  *out_buffer = {};
  const ob_status status = try_buffer(device, bytes, type, is_mapped, *out_buffer);
  if (status != OB_OK) free_buffer(device, *out_buffer);
  return status;
}

void free_buffer(Device& device, Buffer& buffer) {
  if (buffer.buffer != nullptr) device.api.DestroyBuffer(device.device, buffer.buffer, nullptr);
  if (buffer.memory != nullptr) device.api.FreeMemory(device.device, buffer.memory, nullptr);
  buffer = {};
}

void fill_memory_entries(ob_driver* table) {
  table->mem_alloc = mem_alloc;
  table->mem_free = mem_free;
  table->mem_info = mem_info;
  table->host_address = host_address;
  table->host_alloc = host_alloc;
  table->host_free = host_free;
}

}  // namespace vulkan

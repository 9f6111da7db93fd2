// SPDX-License-Identifier: BSD-3-Clause
// Device memory: shared virtual memory, one allocation for each segment of the caching
// allocator. Host memory for copies.
#include <cinttypes>
#include <cstdlib>

#include "driver.h"

namespace opencl {
namespace {

using support::guarded;
using support::with_device;

constexpr uint64_t kAlignment = 512;
constexpr size_t kHostAlignment = 64;

ob_status mem_alloc(void* self, int32_t index, uint64_t bytes, uint64_t* out_address) {
  return with_device<Driver>(self, index, "mem_alloc", [&](Driver& driver, Device* device) -> ob_status {
    if (bytes == 0) return fail(OB_INVALID_ARGUMENT, "device %d: mem_alloc of 0 bytes", index);
    // The API aligns to 128 bytes at most; the rest is done here.
    if (bytes > device->max_allocation || device->max_allocation - bytes < kAlignment) {
      return fail(OB_OUT_OF_MEMORY,
                  "%s: %" PRIu64 " bytes exceed the limit of one allocation (CL_DEVICE_MAX_MEM_ALLOC_SIZE is %" PRIu64
                  ")",
                  where(driver, index).c_str(), bytes, device->max_allocation);
    }
    // CPU runtimes allocate more memory than exists, and the system kills the process when it is
    // used.
    if (device->allocated.fetch_add(bytes) + bytes > device->total_memory) {
      device->allocated.fetch_sub(bytes);
      return fail(OB_OUT_OF_MEMORY, "%s: %" PRIu64 " bytes exceed the free part of the device's %" PRIu64 " bytes",
                  where(driver, index).c_str(), bytes, device->total_memory);
    }
    const cl_bitfield fine_grain = device->is_fine_grain ? CL_MEM_SVM_FINE_GRAIN_BUFFER : cl_bitfield{0};
    const cl_bitfield flags = CL_MEM_READ_WRITE | fine_grain;
    void* base = driver.api.SVMAlloc(device->context, flags, bytes + kAlignment, 0);
    if (base == nullptr) {
      device->allocated.fetch_sub(bytes);
      return fail(OB_OUT_OF_MEMORY, "%s: clSVMAlloc could not allocate %" PRIu64 " bytes", where(driver, index).c_str(),
                  bytes);
    }
    const uint64_t address = (reinterpret_cast<uint64_t>(base) + kAlignment - 1) / kAlignment * kAlignment;
    device->memory.add(address, {bytes, reinterpret_cast<uint64_t>(base)});
    *out_address = address;
    return OB_OK;
  });
}

ob_status mem_free(void* self, int32_t index, uint64_t address) {
  return with_device<Driver>(self, index, "mem_free", [&](Driver& driver, Device* device) -> ob_status {
    support::Range range;
    if (!device->memory.take(address, &range)) {
      return fail(OB_INVALID_ARGUMENT, "device %d: no allocation begins at 0x%" PRIx64, index, address);
    }
    driver.api.SVMFree(device->context, reinterpret_cast<void*>(range.owner));
    device->allocated.fetch_sub(range.bytes);
    return OB_OK;
  });
}

ob_status host_address(void* self, int32_t index, uint64_t address, uint64_t bytes, uint64_t* out_address) {
  return with_device<Driver>(self, index, "host_address", [&](Driver& driver, Device* device) -> ob_status {
    if (const ob_status status = device->memory.check(index, address, bytes); status != OB_OK) return status;
    // Coarse-grain memory would have to be mapped around each access; copies do as well.
    *out_address = device->is_fine_grain ? address : 0;
    return OB_OK;
  });
}

// A runtime with its own memory copies quickly only from and to host memory that it allocated.
ob_status make_pinned(Driver& driver, Device& device, uint64_t bytes, HostBlock* out_block, void** out_pointer) {
  cl_int code = CL_SUCCESS;
  const Api& api = driver.api;
  out_block->device = device.index;
  out_block->buffer =
      api.CreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, nullptr, &code);
  if (code != CL_SUCCESS) {
    return cl_fail(code, "clCreateBuffer", where(driver, device.index), FailedStep::kAllocation);
  }
  const std::lock_guard lock(device.queue_mutex);
  *out_pointer =
      api.EnqueueMapBuffer(device.queue, out_block->buffer, 1, CL_MAP_READ_WRITE, 0, bytes, 0, nullptr, nullptr, &code);
  if (code == CL_SUCCESS && reinterpret_cast<uint64_t>(*out_pointer) % kHostAlignment == 0) return OB_OK;
  api.ReleaseMemObject(out_block->buffer);
  if (code == CL_SUCCESS)
    return fail(OB_INTERNAL, "clEnqueueMapBuffer returned an address that is not aligned to 64 bytes");
  return cl_fail(code, "clEnqueueMapBuffer", where(driver, device.index), FailedStep::kAllocation);
}

ob_status host_alloc(void* self, uint64_t bytes, void** out_pointer) {
  return guarded("host_alloc", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* owner = nullptr;
    for (std::atomic<Device*>& slot : driver.devices) {
      Device* device = slot.load(std::memory_order_acquire);
      if (device != nullptr && !device->is_fine_grain) owner = device;
      if (owner != nullptr) break;
    }
    HostBlock block;
    if (owner != nullptr) {
      if (const ob_status status = make_pinned(driver, *owner, bytes, &block, out_pointer); status != OB_OK)
        return status;
    } else if (bytes > SIZE_MAX / 2 || posix_memalign(out_pointer, kHostAlignment, bytes) != 0) {
      return fail(OB_OUT_OF_MEMORY, "the host cannot allocate %" PRIu64 " bytes", bytes);
    }
    const std::lock_guard lock(driver.host_mutex);
    driver.host_blocks[*out_pointer] = block;
    return OB_OK;
  });
}

ob_status host_free(void* self, void* pointer) {
  return guarded("host_free", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    HostBlock block;
    {
      const std::lock_guard lock(driver.host_mutex);
      const auto entry = driver.host_blocks.find(pointer);
      if (entry == driver.host_blocks.end()) return fail(OB_INVALID_ARGUMENT, "%p is not from host_alloc", pointer);
      block = entry->second;
      driver.host_blocks.erase(entry);
    }
    if (block.buffer == nullptr) {
      std::free(pointer);
      return OB_OK;
    }
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(block.device, &device); status != OB_OK) return status;
    const std::lock_guard lock(device->queue_mutex);
    const cl_int code = driver.api.EnqueueUnmapMemObject(device->queue, block.buffer, pointer, 0, nullptr, nullptr);
    driver.api.ReleaseMemObject(block.buffer);
    return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clEnqueueUnmapMemObject", where(driver, block.device));
  });
}

}  // namespace

void fill_memory_entries(ob_driver* table) {
  table->mem_alloc = mem_alloc;
  table->mem_free = mem_free;
  table->host_address = host_address;
  table->host_alloc = host_alloc;
  table->host_free = host_free;
}

}  // namespace opencl

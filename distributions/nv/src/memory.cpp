// SPDX-License-Identifier: BSD-3-Clause
// Device memory, pinned host memory, mapped memory, sharing between processes.
#include <algorithm>
#include <cstring>

#include "driver.h"

namespace nv {
namespace {

constexpr uint64_t kAlignment = 512;

// Lets this thread allocate while a stream captures: an allocation is not part of a graph.
class CaptureModeGuard {
 public:
  explicit CaptureModeGuard(const Driver& driver) : driver_(driver) { exchange(); }
  ~CaptureModeGuard() { exchange(); }

 private:
  void exchange() { static_cast<void>(driver_.api.ThreadExchangeStreamCaptureMode(&mode_)); }
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
};

ob_status out_of_memory(const Driver& driver, const Device& device, uint64_t bytes) {
  size_t free = 0;
  size_t total = 0;
  static_cast<void>(driver.api.MemGetInfo(&free, &total));
  return fail(OB_OUT_OF_MEMORY, "%s: cannot allocate %" PRIu64 " bytes; %zu of %zu are free", device.where.c_str(),
              bytes, free, total);
}

ob_status mem_alloc(void* self, int32_t index, uint64_t bytes, uint64_t* out_address) {
  return on_device(self, index, "mem_alloc", [&](Driver& driver, Device& device) -> ob_status {
    if (bytes == 0) return fail(OB_INVALID_ARGUMENT, "device %d: mem_alloc of 0 bytes", index);
    if (bytes > device.total_memory) return out_of_memory(driver, device, bytes);
    const CaptureModeGuard uncaptured(driver);
    CUdeviceptr base = 0;
    CUresult code = driver.api.MemAlloc(&base, bytes);
    if (code == CUDA_SUCCESS && base % kAlignment != 0) {  // CUDA guarantees only 256
      code = driver.api.MemFree(base);
      if (code == CUDA_SUCCESS) code = driver.api.MemAlloc(&base, bytes + kAlignment);
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY) return out_of_memory(driver, device, bytes);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuMemAlloc", device.where);
    *out_address = (base + kAlignment - 1) / kAlignment * kAlignment;
    device.memory.add(*out_address, {bytes, base});
    return OB_OK;
  });
}

ob_status mem_free(void* self, int32_t index, uint64_t address) {
  return on_device(self, index, "mem_free", [&](Driver& driver, Device& device) -> ob_status {
    support::Range range;
    if (!device.memory.take(address, &range)) {
      return fail(OB_INVALID_ARGUMENT, "device %d: no allocation begins at 0x%" PRIx64, index, address);
    }
    const CaptureModeGuard uncaptured(driver);
    return check(driver, device, driver.api.MemFree(range.owner), "cuMemFree");
  });
}

ob_status mem_info(void* self, int32_t index, uint64_t* out_free, uint64_t* out_total) {
  return on_device(self, index, "mem_info", [&](Driver& driver, Device& device) {
    size_t free = 0;
    size_t total = 0;
    const ob_status status = check(driver, device, driver.api.MemGetInfo(&free, &total), "cuMemGetInfo");
    *out_free = free;
    *out_total = total;
    return status;
  });
}

// Run the body with a context of any open device: pinned memory belongs to all contexts, but
// allocating it needs a current one.
template <class Body>
ob_status on_any_device(void* self, const char* entry, Body&& body) {
  Driver& driver = *static_cast<Driver*>(self);
  for (int32_t index = 0; index < kMaxDevices; ++index) {
    if (driver.devices[index].load(std::memory_order_acquire) != nullptr) return on_device(self, index, entry, body);
  }
  return fail(OB_FAILED_PRECONDITION, "%s: no device is open", entry);
}

ob_status host_alloc(void* self, uint64_t bytes, void** out_pointer) {
  return on_any_device(self, "host_alloc", [&](Driver& driver, Device& device) {
    const CaptureModeGuard uncaptured(driver);
    return check(driver, device, driver.api.MemHostAlloc(out_pointer, bytes, kHostPortable), "cuMemHostAlloc");
  });
}

ob_status host_free(void* self, void* pointer) {
  return on_any_device(self, "host_free", [&](Driver& driver, Device& device) {
    const CaptureModeGuard uncaptured(driver);
    return check(driver, device, driver.api.MemFreeHost(pointer), "cuMemFreeHost");
  });
}

ob_status host_register(void* self, void* pointer, uint64_t bytes) {
  return on_any_device(self, "host_register", [&](Driver& driver, Device& device) {
    const CUresult code = driver.api.MemHostRegister(pointer, bytes, kHostPortable);
    // For memory from cuMemHostAlloc, such as torch.cuda's, CUDA returns
    // "invalid value", as for a bad pointer.
    unsigned flags = 0;
    if (code != CUDA_SUCCESS && driver.api.MemHostGetFlags(&flags, pointer) == CUDA_SUCCESS) {
      return fail(OB_ALREADY_EXISTS, "cuMemHostRegister: the memory at %p is already pinned", pointer);
    }
    return check(driver, device, code, "cuMemHostRegister");
  });
}

ob_status host_unregister(void* self, void* pointer) {
  return on_any_device(self, "host_unregister", [&](Driver& driver, Device& device) {
    return check(driver, device, driver.api.MemHostUnregister(pointer), "cuMemHostUnregister");
  });
}

ob_status mem_reserve(void* self, int32_t index, uint64_t bytes, uint64_t* out_address) {
  return on_device(self, index, "mem_reserve", [&](Driver& driver, Device& device) -> ob_status {
    if (device.granularity == 0)
      return fail(OB_UNIMPLEMENTED, "%s does not support memory mapping", device.where.c_str());
    CUdeviceptr address = 0;
    const CUresult code = driver.api.MemAddressReserve(&address, bytes, 0, 0, 0);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuMemAddressReserve", device.where);
    device.reserved.add(address, {bytes, address});
    *out_address = address;
    return OB_OK;
  });
}

ob_status mem_release(void* self, int32_t index, uint64_t address, uint64_t bytes) {
  return on_device(self, index, "mem_release", [&](Driver& driver, Device& device) -> ob_status {
    support::Range range;
    if (!device.reserved.take(address, &range) || range.bytes != bytes) {
      return fail(OB_INVALID_ARGUMENT, "device %d: no reserved range of %" PRIu64 " bytes begins at 0x%" PRIx64, index,
                  bytes, address);
    }
    return check(driver, device, driver.api.MemAddressFree(address, bytes), "cuMemAddressFree");
  });
}

// Unmap and free pieces of one granule each. Continue after a failure and return the first.
ob_status unmap(Driver& driver, Device& device, uint64_t address, uint64_t end) {
  CUresult first = CUDA_SUCCESS;
  for (; address < end; address += device.granularity) {
    support::Range piece;
    if (!device.memory.take(address, &piece)) continue;
    CUresult code = driver.api.MemUnmap(address, piece.bytes);
    if (code == CUDA_SUCCESS) code = driver.api.MemRelease(piece.owner);
    if (first == CUDA_SUCCESS) first = code;
  }
  return check(driver, device, first, "cuMemUnmap");
}

ob_status map(Driver& driver, Device& device, uint64_t address, uint64_t bytes) {
  CUmemAllocationProp prop = {};
  prop.type = kAllocationPinned;
  prop.location = {kLocationDevice, device.id};
  uint64_t at = address;
  CUresult code = CUDA_SUCCESS;
  // A piece for each granule: memory that was mapped at once may be unmapped in parts, and
  // CUDA unmaps only whole pieces.
  for (; at < address + bytes && code == CUDA_SUCCESS; at += device.granularity) {
    CUmemHandle piece = 0;
    code = driver.api.MemCreate(&piece, device.granularity, &prop, 0);
    if (code != CUDA_SUCCESS) break;
    code = driver.api.MemMap(at, device.granularity, 0, piece, 0);
    if (code != CUDA_SUCCESS) {
      static_cast<void>(driver.api.MemRelease(piece));
      break;
    }
    device.memory.add(at, {device.granularity, piece});
  }
  if (code == CUDA_SUCCESS) {
    const CUmemAccessDesc access = {{kLocationDevice, device.id}, kAccessReadWrite};
    code = driver.api.MemSetAccess(address, bytes, &access, 1);
  }
  if (code == CUDA_SUCCESS) return OB_OK;
  const ob_status undone = unmap(driver, device, address, at);
  if (undone != OB_OK) return undone;
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return out_of_memory(driver, device, bytes);
  return cuda_fail(driver.api, code, "cuMemMap", device.where);
}

ob_status check_granules(const Device& device, uint64_t address, uint64_t bytes) {
  const bool is_whole = device.granularity != 0 && bytes != 0 && (address | bytes) % device.granularity == 0;
  if (is_whole && device.reserved.has(address, bytes)) return OB_OK;
  return fail(OB_INVALID_ARGUMENT,
              "device %d: the %" PRIu64 " bytes at 0x%" PRIx64 " are not whole granules of %" PRIu64
              " bytes in a reserved range",
              device.index, bytes, address, device.granularity);
}

ob_status mem_map(void* self, int32_t index, uint64_t address, uint64_t bytes) {
  return on_device(self, index, "mem_map", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = check_granules(device, address, bytes); status != OB_OK) return status;
    for (uint64_t at = address; at < address + bytes; at += device.granularity) {
      if (device.memory.has(at, 1))
        return fail(OB_INVALID_ARGUMENT, "device %d: 0x%" PRIx64 " is already mapped", index, at);
    }
    return map(driver, device, address, bytes);
  });
}

ob_status mem_unmap(void* self, int32_t index, uint64_t address, uint64_t bytes) {
  return on_device(self, index, "mem_unmap", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = check_granules(device, address, bytes); status != OB_OK) return status;
    if (const ob_status status = device.memory.check(index, address, bytes); status != OB_OK) return status;
    return unmap(driver, device, address, address + bytes);
  });
}

ob_status ipc_export(void* self, int32_t index, uint64_t address, void* out_handle, size_t* inout_size) {
  return on_device(self, index, "ipc_export", [&](Driver& driver, Device& device) -> ob_status {
    CUipcMemHandle handle = {};
    const size_t size = *inout_size;
    *inout_size = sizeof handle;
    if (size < sizeof handle) return fail(OB_OUT_OF_RANGE, "a handle has %zu bytes, not %zu", sizeof handle, size);
    const CUresult code = driver.api.IpcGetMemHandle(&handle, address);
    if (code == CUDA_SUCCESS) std::memcpy(out_handle, &handle, sizeof handle);
    return check(driver, device, code, "cuIpcGetMemHandle");
  });
}

ob_status ipc_open(void* self, int32_t index, const void* handle, size_t size, uint64_t* out_address) {
  return on_device(self, index, "ipc_open", [&](Driver& driver, Device& device) -> ob_status {
    CUipcMemHandle ipc_handle = {};
    if (size != sizeof ipc_handle) {
      return fail(OB_INVALID_ARGUMENT, "a handle has %zu bytes, not %zu", sizeof ipc_handle, size);
    }
    std::memcpy(&ipc_handle, handle, sizeof ipc_handle);
    CUresult code = driver.api.IpcOpenMemHandle(out_address, ipc_handle, kIpcLazyPeerAccess);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuIpcOpenMemHandle", device.where);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    code = driver.api.MemGetAddressRange(&base, &bytes, *out_address);
    if (code == CUDA_SUCCESS) {
      device.memory.add(*out_address, {bytes - (*out_address - base), *out_address});
    } else {
      static_cast<void>(driver.api.IpcCloseMemHandle(*out_address));
    }
    return check(driver, device, code, "cuMemGetAddressRange");
  });
}

ob_status ipc_close(void* self, int32_t index, uint64_t address) {
  return on_device(self, index, "ipc_close", [&](Driver& driver, Device& device) -> ob_status {
    support::Range range;
    if (!device.memory.take(address, &range)) {
      return fail(OB_INVALID_ARGUMENT, "device %d: ipc_open did not return 0x%" PRIx64, index, address);
    }
    return check(driver, device, driver.api.IpcCloseMemHandle(address), "cuIpcCloseMemHandle");
  });
}

}  // namespace

void fill_memory_entries(ob_driver* table) {
  table->mem_alloc = mem_alloc;
  table->mem_free = mem_free;
  table->mem_info = mem_info;
  table->host_alloc = host_alloc;
  table->host_free = host_free;
  table->host_register = host_register;
  table->host_unregister = host_unregister;
  table->mem_reserve = mem_reserve;
  table->mem_release = mem_release;
  table->mem_map = mem_map;
  table->mem_unmap = mem_unmap;
  table->ipc_export = ipc_export;
  table->ipc_open = ipc_open;
  table->ipc_close = ipc_close;
}

}  // namespace nv

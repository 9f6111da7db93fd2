// SPDX-License-Identifier: BSD-3-Clause
// ob_driver_table, and the entries about devices.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"
#include "torch_outboard/support/lookup.h"
#include "torch_outboard/support/table.h"

namespace nv {
namespace {

using support::guarded;

int32_t device_count(void* self) {
  Driver& driver = *static_cast<Driver*>(self);
  int32_t count = 0;
  const ob_status status = guarded("device_count", [&]() -> ob_status {
    const std::lock_guard lock(driver.mutex);
    if (!driver.is_counted) {
      driver.counted = count_devices(driver.options.library, &driver.count_error);
      driver.is_counted = true;
    }
    count = driver.counted;
    if (count == 0) return fail(OB_UNAVAILABLE, "%s", driver.count_error.c_str());
    return OB_OK;
  });
  return status == OB_OK ? count : -status;
}

int attribute(const Api& api, CUdevice id, int which) {
  int value = 0;
  return api.DeviceGetAttribute(&value, which, id) == CUDA_SUCCESS ? value : 0;
}

// Return the unit of mapped memory; 0 if the device maps none.
uint64_t map_granularity(const Api& api, CUdevice id) {
  if (attribute(api, id, kVirtualMemory) == 0) return 0;
  CUmemAllocationProp prop = {};
  prop.type = kAllocationPinned;
  prop.location = {kLocationDevice, id};
  size_t bytes = 0;
  return api.MemGetAllocationGranularity(&bytes, &prop, 0) == CUDA_SUCCESS ? bytes : 0;
}

ob_status device_properties(void* self, int32_t index, ob_device_properties* out_properties) {
  return guarded("device_properties", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    CUdevice id = 0;
    if (const ob_status status = driver.find_id(index, &id); status != OB_OK) return status;
    const Api& api = driver.api;
    ob_device_properties p = {};
    size_t total = 0;
    int version = 0;
    CUuuid uuid = {};
    CUresult code = api.DeviceGetName(p.name, sizeof p.name, id);
    if (code == CUDA_SUCCESS) code = api.DeviceTotalMem(&total, id);
    if (code == CUDA_SUCCESS) code = api.DriverGetVersion(&version);
    if (code == CUDA_SUCCESS) code = api.DeviceGetUuid(&uuid, id);
    if (code != CUDA_SUCCESS) return cuda_fail(api, code, "cuDeviceGet…", "device " + std::to_string(index));
    p.total_memory = total;
    p.major = attribute(api, id, kMajor);
    p.minor = attribute(api, id, kMinor);
    std::snprintf(p.vendor, sizeof p.vendor, "NVIDIA");
    std::snprintf(p.architecture, sizeof p.architecture, "sm_%d%d", p.major, p.minor);
    std::snprintf(p.driver_version, sizeof p.driver_version, "%d.%d", version / 1000, version % 1000 / 10);
    std::memcpy(p.uuid, uuid.bytes, sizeof p.uuid);
    p.multi_processor_count = attribute(api, id, kMultiprocessorCount);
    p.warp_size = attribute(api, id, kWarpSize);
    p.max_threads_per_block = attribute(api, id, kMaxThreadsPerBlock);
    p.max_threads_per_multi_processor = attribute(api, id, kMaxThreadsPerMultiprocessor);
    p.regs_per_multiprocessor = attribute(api, id, kRegistersPerMultiprocessor);
    p.clock_rate = attribute(api, id, kClockRate);
    p.shared_memory_per_block = static_cast<uint64_t>(attribute(api, id, kSharedMemoryPerBlock));
    p.shared_memory_per_multiprocessor = attribute(api, id, kSharedMemoryPerMultiprocessor);
    p.l2_cache_size = static_cast<uint64_t>(attribute(api, id, kL2CacheSize));
    p.is_integrated = attribute(api, id, kIntegrated);
    p.machine = OB_MACHINE_GPU;
    p.follows_addresses = 1;
    // With one address space, which all of these systems have, pinned
    // memory has the host's addresses.
    p.addresses_host_memory =
        attribute(api, id, kCanMapHostMemory) != 0 && attribute(api, id, kUnifiedAddressing) != 0 ? 1 : 0;
    // The exact range needs a context to query; stream_create clamps to it.
    if (attribute(api, id, kStreamPriorities) != 0) p.stream_priority_greatest = p.major >= 7 ? -5 : -1;
    p.mem_granularity = map_granularity(api, id);
    support::return_struct(p, out_properties);
    return OB_OK;
  });
}

// Set what needs the new context.
CUresult complete(const Api& api, Device* device) {
  int least = 0;
  CUresult code = api.CtxGetStreamPriorityRange(&least, &device->greatest_priority);
  if (code == CUDA_SUCCESS) code = api.StreamCreateWithPriority(&device->anchor_stream, kStreamNonBlocking, 0);
  if (code == CUDA_SUCCESS) code = api.EventCreate(&device->anchor, 0);
  return code;
}

ob_status open_device(Driver& driver, int32_t index) {
  CUdevice id = 0;
  if (const ob_status status = driver.find_id(index, &id); status != OB_OK) return status;
  if (driver.devices[index].load() != nullptr) return OB_OK;
  const Api& api = driver.api;
  auto device = std::make_unique<Device>();
  char name[256] = "";
  size_t total = 0;
  device->index = index;
  device->id = id;
  CUresult code = api.DeviceGetName(name, sizeof name, id);
  device->where = "device " + std::to_string(index) + " (" + name + ")";
  if (code == CUDA_SUCCESS) code = api.DeviceTotalMem(&total, id);
  // The primary context, which CUDA's runtime uses, and therefore everything else in the process.
  if (code == CUDA_SUCCESS) code = api.DevicePrimaryCtxRetain(&device->context, id);
  if (code != CUDA_SUCCESS) return cuda_fail(api, code, "cuDevicePrimaryCtxRetain", device->where);
  device->total_memory = total;
  device->major = attribute(api, id, kMajor);
  device->minor = attribute(api, id, kMinor);
  device->multiprocessors = attribute(api, id, kMultiprocessorCount);
  device->granularity = map_granularity(api, id);
  for (int i = 0; i < 3; ++i) {
    device->max_block[i] = static_cast<uint32_t>(attribute(api, id, kMaxBlockX + i));
    device->max_grid[i] = static_cast<uint32_t>(attribute(api, id, kMaxGridX + i));
  }
  device->max_shared = static_cast<uint32_t>(
      std::max(attribute(api, id, kSharedMemoryOptIn), attribute(api, id, kSharedMemoryPerBlock)));
  {
    const ContextGuard current(api, *device);
    code = current.code() == CUDA_SUCCESS ? complete(api, device.get()) : current.code();
    if (code != CUDA_SUCCESS && device->anchor_stream != nullptr) api.StreamDestroy(device->anchor_stream);
  }
  if (code != CUDA_SUCCESS) {
    api.DevicePrimaryCtxRelease(id);
    return cuda_fail(api, code, "opening the context", device->where);
  }
  const std::lock_guard lock(driver.mutex);
  driver.devices[index].store(device.get(), std::memory_order_release);
  driver.owned.push_back(std::move(device));
  return OB_OK;
}

ob_status device_open(void* self, int32_t index) {
  return guarded("device_open", [&] { return open_device(*static_cast<Driver*>(self), index); });
}

ob_status device_close(void* self, int32_t index) {
  Device* closed = nullptr;
  const ob_status status = on_device(self, index, "device_close", [&](Driver& driver, Device& device) -> ob_status {
    device.products.reset();
    device.cudnn.reset();
    CUresult code = CUDA_SUCCESS;
    for (const auto& [type, handle] : device.own_modules) {
      std::unique_ptr<Module> own;
      if (code == CUDA_SUCCESS && driver.modules.take(handle, &own)) code = unload(driver, *own);
    }
    if (code == CUDA_SUCCESS) code = driver.api.EventDestroy(device.anchor);
    if (code == CUDA_SUCCESS) code = driver.api.StreamDestroy(device.anchor_stream);
    driver.devices[index].store(nullptr);
    closed = &device;
    return check(driver, device, code, "closing the context");
  });
  if (closed == nullptr) return status;
  Driver& driver = *static_cast<Driver*>(self);
  const CUresult code = driver.api.DevicePrimaryCtxRelease(closed->id);
  const ob_status released =
      code == CUDA_SUCCESS ? OB_OK : cuda_fail(driver.api, code, "cuDevicePrimaryCtxRelease", closed->where);
  const std::lock_guard lock(driver.mutex);
  std::erase_if(driver.owned, [&](const std::unique_ptr<Device>& owned) { return owned.get() == closed; });
  return status != OB_OK ? status : released;
}

ob_status device_synchronize(void* self, int32_t index) {
  return on_device(self, index, "device_synchronize", [](Driver& driver, Device& device) {
    return check(driver, device, driver.api.CtxSynchronize(), "cuCtxSynchronize");
  });
}

ob_status peer_access(void* self, int32_t index, int32_t peer, int32_t* out_can_access) {
  return on_device(self, index, "peer_access", [&](Driver& driver, Device& device) -> ob_status {
    Device* other = nullptr;
    if (const ob_status status = driver.find_open(peer, &other); status != OB_OK) return status;
    int can_access = 0;
    CUresult code = driver.api.DeviceCanAccessPeer(&can_access, device.id, other->id);
    if (code == CUDA_SUCCESS && can_access != 0) {
      code = driver.api.CtxEnablePeerAccess(other->context, 0);
      if (code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) code = CUDA_SUCCESS;
    }
    *out_can_access = can_access;
    return check(driver, device, code, "cuCtxEnablePeerAccess");
  });
}

void destroy(void* self) {
  delete static_cast<Driver*>(self);
}

ob_status parse_options(const ob_options* options, Options* out_options, std::string* out_error) {
  for (size_t i = 0; options != nullptr && i < options->count; ++i) {
    const std::string key = options->keys[i];
    if (key == "library") {
      out_options->library = options->values[i];
    } else if (key == "nvrtc") {
      out_options->nvrtc = options->values[i];
    } else if (key == "cublaslt") {
      out_options->cublaslt = options->values[i];
    } else if (key == "cudnn") {
      out_options->cudnn = options->values[i];
    } else if (key == "nccl") {
      out_options->nccl = options->values[i];
    } else {
      *out_error = "unknown option '" + key + "'; the options are library, nvrtc, cublaslt, cudnn and nccl";
      return OB_INVALID_ARGUMENT;
    }
  }
  return OB_OK;
}

}  // namespace

ob_status Driver::start() {
  const std::lock_guard lock(mutex);
  if (is_started && owner != getpid()) {
    return fail(
        OB_FAILED_PRECONDITION,
        "CUDA was initialized before this process was forked and cannot be used in the child: use the start method "
        "'spawn'");
  }
  if (is_started) return OB_OK;
  if (std::string error; !api.load(options.library, &error)) return fail(OB_UNAVAILABLE, "%s", error.c_str());
  CUresult code = api.Init(0);
  if (code == CUDA_ERROR_NOT_INITIALIZED) {
    return fail(OB_FAILED_PRECONDITION, "cuInit returned CUDA_ERROR_NOT_INITIALIZED (3), because a parent process had "
                                        "initialized CUDA before it forked: use the start method 'spawn'");
  }
  if (code == CUDA_SUCCESS) code = api.DeviceGetCount(&count);
  if (code != CUDA_SUCCESS) return cuda_fail(api, code, "cuInit", "CUDA cannot be initialized");
  is_started = true;
  owner = getpid();
  return OB_OK;
}

ob_status Driver::find_id(int32_t index, CUdevice* out_id) {
  if (const ob_status status = start(); status != OB_OK) return status;
  if (index < 0 || index >= count || index >= kMaxDevices) {
    if (is_counted && index >= 0 && index < counted) {
      return fail(OB_UNAVAILABLE, "device %d existed when the devices were counted, but CUDA now reports %d devices",
                  index, count);
    }
    return fail(OB_INVALID_ARGUMENT, "there is no device %d; the number of devices is %d", index, count);
  }
  const CUresult code = api.DeviceGet(out_id, index);
  return code == CUDA_SUCCESS ? OB_OK : cuda_fail(api, code, "cuDeviceGet", "device " + std::to_string(index));
}

ob_status Driver::find_open(int32_t index, Device** out_device) {
  return support::find_open(devices, index, out_device);
}

ob_status Driver::find_event(int32_t index, uint64_t handle, CUevent* out_event) {
  const Event* event = events.find(handle);
  if (event == nullptr || event->device != index) [[unlikely]] {
    return fail(OB_INVALID_ARGUMENT,
                "device %d has no event 0x%" PRIx64
                ": it was never created, was destroyed, or belongs to another device",
                index, handle);
  }
  *out_event = event->event;
  return OB_OK;
}

ob_status Driver::check_stream(int32_t index, uint64_t handle) const {
  const StreamSet::State state = streams.find(handle, index);
  if (state == StreamSet::State::kLive) [[likely]]
    return OB_OK;
  // CUDA's own streams (0 to 2) and streams made by others are legal. A value that cannot be
  // a pointer would crash in CUDA.
  if (state == StreamSet::State::kUnknown && (handle <= 2 || (handle % 8 == 0 && handle >> 47 == 0))) return OB_OK;
  return fail(OB_INVALID_ARGUMENT,
              "device %d has no stream 0x%" PRIx64
              ": it was never created, was destroyed, or belongs to another device",
              index, handle);
}

void fill_device_entries(ob_driver* table) {
  table->device_count = device_count;
  table->device_properties = device_properties;
  table->device_open = device_open;
  table->device_close = device_close;
  table->device_synchronize = device_synchronize;
  table->peer_access = peer_access;
  table->last_error = support::last_error;
  table->destroy = destroy;
}

}  // namespace nv

extern "C" OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error,
                                               size_t error_size) {
  const auto fill = [](nv::Options parsed, ob_driver& table) {
    nv::fill_device_entries(&table);
    nv::fill_memory_entries(&table);
    nv::fill_stream_entries(&table);
    nv::fill_graph_entries(&table);
    nv::fill_copy_entries(&table);
    nv::fill_program_entries(&table);
    nv::fill_operator_entries(&table);
    table.self = new nv::Driver(std::move(parsed));
  };
  return support::return_table(nv::parse_options, options, out_driver, error, error_size, fill);
}

// SPDX-License-Identifier: BSD-3-Clause
// ob_driver_table, and the entries about devices.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"
#include "torch_outboard/support/lookup.h"
#include "torch_outboard/support/table.h"

namespace opencl {
namespace {

using support::guarded;
using support::with_device;

Driver& driver_of(void* self) {
  return *static_cast<Driver*>(self);
}

int32_t device_count(void* self) {
  return support::count_devices(driver_of(self), probe);
}

bool has_extension(const std::string& extensions, const char* name) {
  return (" " + extensions + " ").find(" " + std::string(name) + " ") != std::string::npos;
}

// Return how many work-items run in step, if the runtime reports it.
int32_t sub_group_size(const Api& api, cl_device_id id, const std::string& extensions) {
  if (has_extension(extensions, "cl_nv_device_attribute_query")) {
    return static_cast<int32_t>(device_info<cl_uint>(api, id, CL_DEVICE_WARP_SIZE_NV));
  }
  if (!has_extension(extensions, "cl_intel_required_subgroup_size")) return 0;
  size_t sizes[16] = {};
  size_t bytes = 0;
  if (api.GetDeviceInfo(id, CL_DEVICE_SUB_GROUP_SIZES_INTEL, sizeof sizes, sizes, &bytes) != CL_SUCCESS) return 0;
  return static_cast<int32_t>(*std::max_element(sizes, sizes + std::size(sizes)));
}

uint64_t kernel_dtypes(bool has_double) {
  // Half types can be loaded, computed in float and stored everywhere
  // (vload_half is in OpenCL C's core).
  uint64_t bits = 0;
  for (const int dtype :
       {OB_UINT8, OB_INT8, OB_INT16, OB_INT32, OB_INT64, OB_FLOAT16, OB_FLOAT32, OB_COMPLEX32, OB_COMPLEX64, OB_BOOL,
        OB_BFLOAT16, OB_FLOAT8_E5M2, OB_FLOAT8_E4M3FN, OB_UINT16, OB_UINT32, OB_UINT64}) {
    bits |= uint64_t{1} << dtype;
  }
  return has_double ? bits | uint64_t{1} << OB_FLOAT64 | uint64_t{1} << OB_COMPLEX128 : bits;
}

ob_status device_properties(void* self, int32_t index, ob_device_properties* out_properties) {
  return guarded("device_properties", [&]() -> ob_status {
    Driver& driver = driver_of(self);
    const FoundDevice* found_device = nullptr;
    if (const ob_status status = driver.find_devices(index, &found_device); status != OB_OK) return status;
    const Api& api = driver.api;
    const cl_device_id id = found_device->device;
    const std::string extensions = device_text(api, id, CL_DEVICE_EXTENSIONS);
    const std::string version = device_text(api, id, CL_DEVICE_VERSION);
    ob_device_properties p = {};
    support::copy_name(device_text(api, id, CL_DEVICE_NAME), p.name);
    support::copy_name(device_text(api, id, CL_DEVICE_VENDOR), p.vendor);
    support::copy_name(device_text(api, id, CL_DEVICE_NAME), p.architecture);
    support::copy_name(device_text(api, id, CL_DRIVER_VERSION), p.driver_version);
    std::sscanf(version.c_str(), "OpenCL %" SCNd32 ".%" SCNd32, &p.major, &p.minor);
    // PoCL reports these for its GPUs too, but cannot build the text that drivers/opencl.py chooses
    // because of them.
    if (has_extension(extensions, "cl_nv_device_attribute_query") && version.ends_with(" CUDA")) {
      p.major = static_cast<int32_t>(device_info<cl_uint>(api, id, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV));
      p.minor = static_cast<int32_t>(device_info<cl_uint>(api, id, CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV));
    }
    if (has_extension(extensions, "cl_khr_device_uuid")) {
      static_cast<void>(api.GetDeviceInfo(id, CL_DEVICE_UUID_KHR, sizeof p.uuid, p.uuid, nullptr));
    }
    p.total_memory = device_info<cl_ulong>(api, id, CL_DEVICE_GLOBAL_MEM_SIZE);
    p.max_allocation = device_info<cl_ulong>(api, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    p.dtypes = kernel_dtypes(device_info<cl_bitfield>(api, id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0);
    p.multi_processor_count = static_cast<int32_t>(device_info<cl_uint>(api, id, CL_DEVICE_MAX_COMPUTE_UNITS));
    p.warp_size = sub_group_size(api, id, extensions);
    p.max_threads_per_block = static_cast<int32_t>(device_info<size_t>(api, id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
    p.clock_rate = static_cast<int32_t>(device_info<cl_uint>(api, id, CL_DEVICE_MAX_CLOCK_FREQUENCY)) * 1000;
    p.shared_memory_per_block = device_info<cl_ulong>(api, id, CL_DEVICE_LOCAL_MEM_SIZE);
    p.l2_cache_size = device_info<cl_ulong>(api, id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
    p.is_integrated = device_info<cl_bool>(api, id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0 ? 1 : 0;
    p.machine = (found_device->type & CL_DEVICE_TYPE_GPU) != 0   ? OB_MACHINE_GPU
                : (found_device->type & CL_DEVICE_TYPE_CPU) != 0 ? OB_MACHINE_CPU
                                                                 : OB_MACHINE_UNKNOWN;
    p.follows_addresses = 1;
    support::return_struct(p, out_properties);
    return OB_OK;
  });
}

int64_t monotonic_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// Measure the device's clock against the host's: a marker on an idle queue ends shortly before its
// wait does. The shortest of several waits is the best measurement.
ob_status measure_clock(Driver& driver, Device& device, int64_t* out_offset) {
  int64_t best = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    cl_event marker = nullptr;
    cl_int code = driver.api.EnqueueMarkerWithWaitList(device.queue, 0, nullptr, &marker);
    if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueMarkerWithWaitList", where(driver, device.index));
    code = driver.api.WaitForEvents(1, &marker);
    const int64_t now = monotonic_ns();
    cl_ulong end = 0;
    if (code == CL_SUCCESS) {
      code = driver.api.GetEventProfilingInfo(marker, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr);
    }
    driver.api.ReleaseEvent(marker);
    if (code != CL_SUCCESS) return cl_fail(code, "the first wait", where(driver, device.index), FailedStep::kWait);
    best = std::min(best, now - static_cast<int64_t>(end));
  }
  *out_offset = best;
  device.clock_time.store(monotonic_ns());
  return OB_OK;
}

ob_status open_device(Driver& driver, int32_t index) {
  const FoundDevice* found_device = nullptr;
  if (const ob_status status = driver.find_devices(index, &found_device); status != OB_OK) return status;
  if (driver.devices[index].load() != nullptr) return OB_OK;
  const Api& api = driver.api;
  auto device = std::make_unique<Device>();
  device->index = index;
  device->found = *found_device;
  // Every device with fine-grain memory has coarse-grain memory too.
  device->is_fine_grain = driver.options.host_access && (found_device->svm & CL_SVM_FINE_GRAIN_BUFFER) != 0;
  device->has_native_kernels = (device_info<cl_bitfield>(api, found_device->device, CL_DEVICE_EXECUTION_CAPABILITIES) &
                                CL_EXEC_NATIVE_KERNEL) != 0;
  device->max_allocation = device_info<cl_ulong>(api, found_device->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  device->total_memory = device_info<cl_ulong>(api, found_device->device, CL_DEVICE_GLOBAL_MEM_SIZE);
  device->max_group = device_info<size_t>(api, found_device->device, CL_DEVICE_MAX_WORK_GROUP_SIZE);
  static_cast<void>(api.GetDeviceInfo(found_device->device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof device->max_items,
                                      device->max_items, nullptr));
  cl_int code = CL_SUCCESS;
  // One context for each device: the memory of a context with several
  // devices may migrate between them.
  device->context = api.CreateContext(nullptr, 1, &found_device->device, nullptr, nullptr, &code);
  if (code != CL_SUCCESS) return cl_fail(code, "clCreateContext", where(driver, index), FailedStep::kAllocation);
  const cl_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  device->queue = api.CreateCommandQueueWithProperties(device->context, found_device->device, properties, &code);
  ob_status status = OB_OK;
  if (code != CL_SUCCESS) {
    status = cl_fail(code, "clCreateCommandQueueWithProperties", where(driver, index), FailedStep::kAllocation);
  } else {
    int64_t offset = 0;
    status = measure_clock(driver, *device, &offset);
    device->clock_offset.store(offset);
  }
  if (status != OB_OK) {
    if (device->queue != nullptr) api.ReleaseCommandQueue(device->queue);
    api.ReleaseContext(device->context);
    return status;
  }
  driver.publish(std::move(device));
  return OB_OK;
}

ob_status device_open(void* self, int32_t index) {
  return guarded("device_open", [&] { return open_device(driver_of(self), index); });
}

ob_status device_close(void* self, int32_t index) {
  return with_device<Driver>(self, index, "device_close", [&](Driver& driver, Device* device) -> ob_status {
    std::unique_ptr<Program> own;
    if (device->own_program != 0 && driver.programs.take(device->own_program, &own)) {
      for (const auto& [name, handle] : own->kernels) {
        std::unique_ptr<Kernel> kernel;
        if (driver.kernels.take(handle, &kernel)) driver.api.ReleaseKernel(kernel->kernel);
      }
      driver.api.ReleaseProgram(own->program);
    }
    driver.devices[index].store(nullptr);
    driver.api.ReleaseCommandQueue(device->queue);
    driver.api.ReleaseContext(device->context);
    driver.drop(device);
    return OB_OK;
  });
}

void destroy(void* self) {
  delete static_cast<Driver*>(self);
}

}  // namespace

// The clocks of a GPU and its host drift by some microseconds a second.
ob_status update_clock_offset(Driver& driver, Device& device) {
  constexpr int64_t kClockInterval = 100'000'000;
  constexpr int64_t kNoise = 50'000;
  if (monotonic_ns() - device.clock_time.load() < kClockInterval) return OB_OK;
  const std::unique_lock lock(device.queue_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return OB_OK;  // a copy is under way; the next time suffices
  int64_t offset = 0;
  if (const ob_status status = measure_clock(driver, device, &offset); status != OB_OK) return status;
  // A measurement is too large by the time of its wait, so a smaller one is better, and a
  // slightly larger one is ignored.
  const int64_t known = device.clock_offset.load();
  if (offset < known || offset > known + kNoise) device.clock_offset.store(offset);
  return OB_OK;
}

Driver::~Driver() {
  // The end of the process frees what a caller left; a runtime with work under
  // way must not lose its context.
}

std::string where(const Driver& driver, int32_t device) {
  std::string text = "device " + std::to_string(device);
  if (driver.is_enumerated && device >= 0 && static_cast<size_t>(device) < driver.enumeration.devices.size()) {
    const cl_device_id id = driver.enumeration.devices[static_cast<size_t>(device)].device;
    text += " (" + device_text(driver.api, id, CL_DEVICE_NAME) + ")";
  }
  return text;
}

ob_status Driver::find_devices(int32_t index, const FoundDevice** out_found) {
  return support::find_devices(*this, "OpenCL", enumerate, index, out_found);
}

void fill_device_entries(ob_driver* table) {
  table->device_count = device_count;
  table->device_properties = device_properties;
  table->device_open = device_open;
  table->device_close = device_close;
  table->last_error = support::last_error;
  table->destroy = destroy;
}

}  // namespace opencl

extern "C" OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error,
                                               size_t error_size) {
  const auto fill = [](opencl::Options parsed, ob_driver& table) {
    opencl::fill_device_entries(&table);
    opencl::fill_memory_entries(&table);
    opencl::fill_stream_entries(&table);
    opencl::fill_copy_entries(&table);
    opencl::fill_program_entries(&table);
    table.self = new opencl::Driver(std::move(parsed));
  };
  return support::return_table(opencl::parse_options, options, out_driver, error, error_size, fill);
}

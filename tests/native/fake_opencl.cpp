// SPDX-License-Identifier: BSD-3-Clause
// An OpenCL loader with faults, for tests. It is linked with the real loader, and the functions
// here replace the real ones. FAKE_OPENCL names the fault.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

bool is_fault(const char* name) {
  const char* given = std::getenv("FAKE_OPENCL");
  return given != nullptr && std::strcmp(given, name) == 0;
}

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int queues = 0;

}  // namespace

extern "C" {

int clGetDeviceInfo(void* device, unsigned what, size_t size, void* value, size_t* out_size) {
  constexpr unsigned kSvmCapabilities = 0x1053;
  const int code = real(&clGetDeviceInfo, "clGetDeviceInfo")(device, what, size, value, out_size);
  if (what == kSvmCapabilities && value != nullptr) {
    if (is_fault("no_svm")) std::memset(value, 0, size);
    if (is_fault("coarse") && code == 0) *static_cast<uint64_t*>(value) = 1;
  }
  return code;
}

int clEnqueueSVMMemcpy(void* queue, unsigned is_blocking, void* dst, const void* src, size_t bytes, unsigned count,
                       void* const* events, void** out_event) {
  if (is_fault("vanish")) return -2;  // CL_DEVICE_NOT_AVAILABLE
  return real(&clEnqueueSVMMemcpy, "clEnqueueSVMMemcpy")(queue, is_blocking, dst, src, bytes, count, events, out_event);
}

int clFinish(void* queue) {
  if (is_fault("illegal")) return -36;  // CL_INVALID_COMMAND_QUEUE, as a GPU says after an illegal access
  return real(&clFinish, "clFinish")(queue);
}

void* clCreateCommandQueueWithProperties(void* context, void* device, const uint64_t* properties, int* code) {
  if (is_fault("queues") && ++queues > 8) {
    *code = -5;  // CL_OUT_OF_RESOURCES
    return nullptr;
  }
  return real(&clCreateCommandQueueWithProperties, "clCreateCommandQueueWithProperties")(context, device, properties,
                                                                                         code);
}

void* clCreateProgramWithSource(void* context, unsigned count, const char** texts, const size_t* sizes, int* code) {
  if (is_fault("no_compiler")) {
    *code = -6;
    return nullptr;
  }
  return real(&clCreateProgramWithSource, "clCreateProgramWithSource")(context, count, texts, sizes, code);
}

int clSetKernelExecInfo(void* kernel, unsigned what, size_t size, const void* value) {
  if (is_fault("deaf")) return -59;  // CL_INVALID_OPERATION
  return real(&clSetKernelExecInfo, "clSetKernelExecInfo")(kernel, what, size, value);
}

int clGetPlatformIDs(unsigned count, void** platforms, unsigned* out_count) {
  if (is_fault("crash")) std::abort();
  return real(&clGetPlatformIDs, "clGetPlatformIDs")(count, platforms, out_count);
}

}  // extern "C"

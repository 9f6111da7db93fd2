// SPDX-License-Identifier: BSD-3-Clause
#include "cl.h"

#include <dlfcn.h>

#include "torch_outboard/support/error.h"

namespace opencl {

bool Api::load(const std::string& library, std::string* out_error) {
  // Never closed: runtimes leave threads and exit handlers behind.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    *out_error = "OpenCL cannot be loaded (" + std::string(reason != nullptr ? reason : library) +
                 "). Install an OpenCL loader (Debian: ocl-icd-libopencl1) and a runtime for the device (for CPUs: "
                 "pocl-opencl-icd), or name the loader with the option `library`.";
    return false;
  }
#define OB_CL_LOAD(result, name, parameters)                                                                  \
  name = reinterpret_cast<result(*) parameters>(dlsym(handle, "cl" #name));                                   \
  if (name == nullptr) {                                                                                      \
    *out_error = library + " lacks cl" #name ": the OpenCL loader is older than OpenCL 2.0. Install another."; \
    return false;                                                                                             \
  }
  OB_CL_FUNCTIONS(OB_CL_LOAD)
#undef OB_CL_LOAD
  return true;
}

std::string error_name(cl_int code) {
  struct Named {
    cl_int code;
    const char* name;
  };
  static constexpr Named kNames[] = {
      {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND"},
      {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
      {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
      {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
      {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
      {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
      {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
      {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
      {-34, "CL_INVALID_CONTEXT"},
      {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE"},
      {-42, "CL_INVALID_BINARY"},
      {-43, "CL_INVALID_BUILD_OPTIONS"},
      {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
      {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
      {CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX"},
      {CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE"},
      {CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE"},
      {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS"},
      {CL_INVALID_WORK_DIMENSION, "CL_INVALID_WORK_DIMENSION"},
      {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE"},
      {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE"},
      {-58, "CL_INVALID_EVENT"},
      {-59, "CL_INVALID_OPERATION"},
      {-61, "CL_INVALID_BUFFER_SIZE"},
      {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE"},
      {CL_PLATFORM_NOT_FOUND_KHR, "CL_PLATFORM_NOT_FOUND_KHR"},
  };
  for (const Named& named : kNames) {
    if (named.code == code) return std::string(named.name) + " (" + std::to_string(code) + ")";
  }
  return "error " + std::to_string(code);
}

namespace {

ob_status status_of(cl_int code, FailedStep step) {
  switch (code) {
    case CL_SUCCESS:
      return OB_OK;
    case CL_DEVICE_NOT_AVAILABLE:
      return OB_DEVICE_LOST;
    case CL_DEVICE_NOT_FOUND:
    case CL_PLATFORM_NOT_FOUND_KHR:
      return OB_UNAVAILABLE;
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
      return OB_OUT_OF_MEMORY;
    case CL_OUT_OF_RESOURCES:
    case CL_INVALID_COMMAND_QUEUE:
      // In a wait, GPU runtimes report with these codes that a kernel made an illegal
      // access and the context is lost.
      if (step == FailedStep::kWait) return OB_DEVICE_LOST;
      return step == FailedStep::kAllocation ? OB_OUT_OF_MEMORY : OB_INTERNAL;
    case CL_INVALID_KERNEL_NAME:
      return OB_NOT_FOUND;
    case CL_BUILD_PROGRAM_FAILURE:
    case CL_INVALID_VALUE:
    case CL_INVALID_ARG_INDEX:
    case CL_INVALID_ARG_VALUE:
    case CL_INVALID_ARG_SIZE:
    case CL_INVALID_KERNEL_ARGS:
    case CL_INVALID_WORK_DIMENSION:
    case CL_INVALID_WORK_GROUP_SIZE:
    case CL_INVALID_WORK_ITEM_SIZE:
    case CL_INVALID_GLOBAL_WORK_SIZE:
      return OB_INVALID_ARGUMENT;
    case -9999:  // NVIDIA's code for a kernel's illegal read or write
      return OB_DEVICE_LOST;
    default:
      return OB_INTERNAL;
  }
}

}  // namespace

ob_status cl_fail(cl_int code, const char* function, const std::string& what, FailedStep step) {
  return support::fail(status_of(code, step), "%s: %s returned %s", what.c_str(), function, error_name(code).c_str());
}

}  // namespace opencl

// SPDX-License-Identifier: BSD-3-Clause
// The part of OpenCL 3.0 that this driver uses, declared here so that it builds without an SDK. The
// library is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "torch_outboard/driver.h"

namespace opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_properties = cl_ulong;

using cl_platform_id = struct PlatformHandle*;
using cl_device_id = struct DeviceHandle*;
using cl_context = struct ContextHandle*;
using cl_command_queue = struct QueueHandle*;
using cl_mem = struct MemHandle*;
using cl_program = struct ProgramHandle*;
using cl_kernel = struct KernelHandle*;
using cl_event = struct EventHandle*;

// All supported runtimes are for Linux, where OpenCL's calling convention is the platform's own.
#define OB_CL_FUNCTIONS(X)                                                                                            \
  X(cl_int, GetPlatformIDs, (cl_uint, cl_platform_id*, cl_uint*))                                                     \
  X(cl_int, GetPlatformInfo, (cl_platform_id, cl_uint, size_t, void*, size_t*))                                       \
  X(cl_int, GetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))                            \
  X(cl_int, GetDeviceInfo, (cl_device_id, cl_uint, size_t, void*, size_t*))                                           \
  X(cl_context, CreateContext,                                                                                        \
    (const intptr_t*, cl_uint, const cl_device_id*, void (*)(const char*, const void*, size_t, void*), void*,         \
     cl_int*))                                                                                                        \
  X(cl_int, ReleaseContext, (cl_context))                                                                             \
  X(cl_command_queue, CreateCommandQueueWithProperties, (cl_context, cl_device_id, const cl_properties*, cl_int*))    \
  X(cl_int, ReleaseCommandQueue, (cl_command_queue))                                                                  \
  X(cl_int, Flush, (cl_command_queue))                                                                                \
  X(cl_int, Finish, (cl_command_queue))                                                                               \
  X(void*, SVMAlloc, (cl_context, cl_bitfield, size_t, cl_uint))                                                      \
  X(void, SVMFree, (cl_context, void*))                                                                               \
  X(cl_int, EnqueueSVMMemcpy,                                                                                         \
    (cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*, cl_event*))                     \
  X(cl_int, EnqueueSVMMemFill,                                                                                        \
    (cl_command_queue, void*, const void*, size_t, size_t, cl_uint, const cl_event*, cl_event*))                      \
  X(cl_int, EnqueueMarkerWithWaitList, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                       \
  X(cl_int, EnqueueBarrierWithWaitList, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                      \
  X(cl_int, EnqueueNativeKernel,                                                                                      \
    (cl_command_queue, void (*)(void*), void*, size_t, cl_uint, const cl_mem*, const void**, cl_uint,                 \
     const cl_event*, cl_event*))                                                                                     \
  X(cl_int, EnqueueNDRangeKernel,                                                                                     \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,     \
     cl_event*))                                                                                                      \
  X(cl_int, WaitForEvents, (cl_uint, const cl_event*))                                                                \
  X(cl_int, GetEventInfo, (cl_event, cl_uint, size_t, void*, size_t*))                                                \
  X(cl_int, GetEventProfilingInfo, (cl_event, cl_uint, size_t, void*, size_t*))                                       \
  X(cl_int, SetEventCallback, (cl_event, cl_int, void (*)(cl_event, cl_int, void*), void*))                           \
  X(cl_event, CreateUserEvent, (cl_context, cl_int*))                                                                 \
  X(cl_int, SetUserEventStatus, (cl_event, cl_int))                                                                   \
  X(cl_int, RetainEvent, (cl_event))                                                                                  \
  X(cl_int, ReleaseEvent, (cl_event))                                                                                 \
  X(cl_mem, CreateBuffer, (cl_context, cl_bitfield, size_t, void*, cl_int*))                                          \
  X(cl_int, ReleaseMemObject, (cl_mem))                                                                               \
  X(void*, EnqueueMapBuffer,                                                                                          \
    (cl_command_queue, cl_mem, cl_bool, cl_bitfield, size_t, size_t, cl_uint, const cl_event*, cl_event*, cl_int*))   \
  X(cl_int, EnqueueUnmapMemObject, (cl_command_queue, cl_mem, void*, cl_uint, const cl_event*, cl_event*))            \
  X(cl_program, CreateProgramWithSource, (cl_context, cl_uint, const char**, const size_t*, cl_int*))                 \
  X(cl_program, CreateProgramWithBinary,                                                                              \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*, cl_int*))               \
  X(cl_int, BuildProgram,                                                                                             \
    (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*))                      \
  X(cl_int, GetProgramInfo, (cl_program, cl_uint, size_t, void*, size_t*))                                            \
  X(cl_int, GetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                         \
  X(cl_int, ReleaseProgram, (cl_program))                                                                             \
  X(cl_kernel, CreateKernel, (cl_program, const char*, cl_int*))                                                      \
  X(cl_int, ReleaseKernel, (cl_kernel))                                                                               \
  X(cl_int, GetKernelInfo, (cl_kernel, cl_uint, size_t, void*, size_t*))                                              \
  X(cl_int, GetKernelWorkGroupInfo, (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                       \
  X(cl_int, SetKernelArg, (cl_kernel, cl_uint, size_t, const void*))                                                  \
  X(cl_int, SetKernelArgSVMPointer, (cl_kernel, cl_uint, const void*))                                                \
  X(cl_int, SetKernelExecInfo, (cl_kernel, cl_uint, size_t, const void*))

struct Api {
#define OB_CL_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  OB_CL_FUNCTIONS(OB_CL_MEMBER)
#undef OB_CL_MEMBER

  // Open the library. Return false, with a sentence, if it is missing or too old.
  bool load(const std::string& library, std::string* out_error);
};

enum : cl_int {
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_FOUND = -1,
  CL_DEVICE_NOT_AVAILABLE = -2,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_BUILD_PROGRAM_FAILURE = -11,
  CL_INVALID_VALUE = -30,
  CL_INVALID_COMMAND_QUEUE = -36,
  CL_INVALID_KERNEL_NAME = -46,
  CL_INVALID_ARG_INDEX = -49,
  CL_INVALID_ARG_VALUE = -50,
  CL_INVALID_ARG_SIZE = -51,
  CL_INVALID_KERNEL_ARGS = -52,
  CL_INVALID_WORK_DIMENSION = -53,
  CL_INVALID_WORK_GROUP_SIZE = -54,
  CL_INVALID_WORK_ITEM_SIZE = -55,
  CL_INVALID_GLOBAL_WORK_SIZE = -63,
  CL_PLATFORM_NOT_FOUND_KHR = -1001
};

enum : cl_bitfield {
  CL_DEVICE_TYPE_CPU = 2,
  CL_DEVICE_TYPE_GPU = 4,
  CL_DEVICE_TYPE_ACCELERATOR = 8,
  CL_DEVICE_TYPE_ALL = 0xFFFFFFFF,
  CL_EXEC_NATIVE_KERNEL = 2,
  CL_SVM_COARSE_GRAIN_BUFFER = 1,
  CL_SVM_FINE_GRAIN_BUFFER = 2,
  CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 128,
  CL_QUEUE_PROFILING_ENABLE = 2,
  CL_MEM_READ_WRITE = 1,
  CL_MEM_ALLOC_HOST_PTR = 16,
  CL_MEM_SVM_FINE_GRAIN_BUFFER = 1024,
  CL_MAP_READ_WRITE = 3
};

enum : cl_uint {
  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005,
  CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
  CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_AVAILABLE = 0x1027,
  CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
  CL_DEVICE_EXECUTION_CAPABILITIES = 0x1029,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032,
  CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_SVM_CAPABILITIES = 0x1053,
  CL_DEVICE_UUID_KHR = 0x106A,
  CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV = 0x4000,
  CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV = 0x4001,
  CL_DEVICE_WARP_SIZE_NV = 0x4003,
  CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108,
  CL_QUEUE_PROPERTIES = 0x1093,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_NUM_ARGS = 0x1191,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_KERNEL_EXEC_INFO_SVM_PTRS = 0x11B6,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_PROFILING_COMMAND_END = 0x1283
};

constexpr cl_int CL_COMPLETE = 0;

// "CL_OUT_OF_RESOURCES (-5)"
std::string error_name(cl_int code);

// The kind of call that failed, which decides the status: the same code means
// different things in different calls.
enum class FailedStep : uint8_t { kAllocation, kWait, kOther };

// Store "<what>: <function> gave <code>" as the last error, and return the status for the code.
ob_status cl_fail(cl_int code, const char* function, const std::string& what, FailedStep step = FailedStep::kOther);

}  // namespace opencl

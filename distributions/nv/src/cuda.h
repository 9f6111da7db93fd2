// SPDX-License-Identifier: BSD-3-Clause
// The part of NVIDIA's driver API that this driver uses, declared here so that it builds without a
// toolkit. The library is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "torch_outboard/driver.h"

namespace nv {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uint64_t;
using CUcontext = struct ContextHandle*;
using CUstream = struct StreamHandle*;
using CUevent = struct EventHandle*;
using CUmodule = struct ModuleHandle*;
using CUfunction = struct FunctionHandle*;
using CUgraph = struct GraphHandle*;
using CUgraphExec = struct GraphExecHandle*;
using CUmemHandle = uint64_t;

struct CUuuid {
  uint8_t bytes[16];
};

struct CUipcMemHandle {
  char reserved[64];
};

struct CUmemLocation {
  int type;
  int id;
};

struct CUmemAllocationProp {
  int type;
  int handle_types;
  CUmemLocation location;
  void* win32_metadata;
  uint8_t flags[8];
};

struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};

struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int cooperative;
    uint32_t cluster[3];
    void* align;
  } value;
};

struct CUlaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_memory;
  CUstream stream;
  CUlaunchAttribute* attributes;
  uint32_t attribute_count;
};

static_assert(sizeof(CUmemAllocationProp) == 32 && sizeof(CUmemAccessDesc) == 12);
static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56);

// Name in the table, symbol of the library, parameters. All return CUresult.
#define OB_CU_FUNCTIONS(X)                                                                                     \
  X(Init, "cuInit", (unsigned))                                                                                \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                                            \
  X(GetErrorName, "cuGetErrorName", (CUresult, const char**))                                                  \
  X(GetErrorString, "cuGetErrorString", (CUresult, const char**))                                              \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                                \
  X(DeviceGet, "cuDeviceGet", (CUdevice*, int))                                                                \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, CUdevice))                                                  \
  X(DeviceGetUuid, "cuDeviceGetUuid", (CUuuid*, CUdevice))                                                     \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, CUdevice))                                                \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, CUdevice))                                         \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int*, CUdevice, CUdevice))                                  \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))                                \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                                       \
  X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext*))                                                            \
  X(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                             \
  X(CtxSynchronize, "cuCtxSynchronize", ())                                                                    \
  X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int*, int*))                                    \
  X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext, unsigned))                                       \
  X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr*, size_t))                                                         \
  X(MemFree, "cuMemFree_v2", (CUdeviceptr))                                                                    \
  X(MemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                                         \
  X(MemGetAddressRange, "cuMemGetAddressRange_v2", (CUdeviceptr*, size_t*, CUdeviceptr))                       \
  X(MemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                                \
  X(MemFreeHost, "cuMemFreeHost", (void*))                                                                     \
  X(MemHostRegister, "cuMemHostRegister_v2", (void*, size_t, unsigned))                                        \
  X(MemHostUnregister, "cuMemHostUnregister", (void*))                                                         \
  X(MemHostGetFlags, "cuMemHostGetFlags", (unsigned*, void*))                                                  \
  X(MemcpyAsync, "cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                \
  X(MemcpyPeerAsync, "cuMemcpyPeerAsync", (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))  \
  X(MemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                          \
  X(MemsetD16Async, "cuMemsetD16Async", (CUdeviceptr, unsigned short, size_t, CUstream))                       \
  X(MemsetD32Async, "cuMemsetD32Async", (CUdeviceptr, unsigned, size_t, CUstream))                             \
  X(MemAddressReserve, "cuMemAddressReserve", (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)) \
  X(MemAddressFree, "cuMemAddressFree", (CUdeviceptr, size_t))                                                 \
  X(MemCreate, "cuMemCreate", (CUmemHandle*, size_t, const CUmemAllocationProp*, unsigned long long))          \
  X(MemRelease, "cuMemRelease", (CUmemHandle))                                                                 \
  X(MemMap, "cuMemMap", (CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long))                        \
  X(MemUnmap, "cuMemUnmap", (CUdeviceptr, size_t))                                                             \
  X(MemSetAccess, "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc*, size_t))                     \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", (size_t*, const CUmemAllocationProp*, int))  \
  X(IpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle*, CUdeviceptr))                                      \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (CUdeviceptr*, CUipcMemHandle, unsigned))                       \
  X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr))                                                   \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream*, unsigned, int))                        \
  X(StreamDestroy, "cuStreamDestroy_v2", (CUstream))                                                           \
  X(StreamSynchronize, "cuStreamSynchronize", (CUstream))                                                      \
  X(StreamQuery, "cuStreamQuery", (CUstream))                                                                  \
  X(StreamWaitEvent, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                                       \
  X(StreamAddCallback, "cuStreamAddCallback",                                                                  \
    (CUstream, void (*)(CUstream, CUresult, void*), void*, unsigned))                                          \
  X(LaunchHostFunc, "cuLaunchHostFunc", (CUstream, void (*)(void*), void*))                                    \
  X(StreamIsCapturing, "cuStreamIsCapturing", (CUstream, int*))                                                \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int))                                            \
  X(StreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph*))                                              \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))                              \
  X(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", (CUgraphExec*, CUgraph, unsigned long long))     \
  X(GraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                     \
  X(GraphDestroy, "cuGraphDestroy", (CUgraph))                                                                 \
  X(GraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))                                                     \
  X(EventCreate, "cuEventCreate", (CUevent*, unsigned))                                                        \
  X(EventDestroy, "cuEventDestroy_v2", (CUevent))                                                              \
  X(EventRecord, "cuEventRecord", (CUevent, CUstream))                                                         \
  X(EventQuery, "cuEventQuery", (CUevent))                                                                     \
  X(EventSynchronize, "cuEventSynchronize", (CUevent))                                                         \
  X(EventElapsedTime, "cuEventElapsedTime", (float*, CUevent, CUevent))                                        \
  X(ModuleLoadDataEx, "cuModuleLoadDataEx", (CUmodule*, const void*, unsigned, int*, void**))                  \
  X(ModuleUnload, "cuModuleUnload", (CUmodule))                                                                \
  X(ModuleGetFunction, "cuModuleGetFunction", (CUfunction*, CUmodule, const char*))                            \
  X(FuncGetAttribute, "cuFuncGetAttribute", (int*, int, CUfunction))                                           \
  X(FuncSetAttribute, "cuFuncSetAttribute", (CUfunction, int, int))                                            \
  X(LaunchKernel, "cuLaunchKernel",                                                                            \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**))

// Functions of newer drivers; null on older ones.
#define OB_CU_NEWER_FUNCTIONS(X)                                                      \
  X(LaunchKernelEx, "cuLaunchKernelEx", (const CUlaunchConfig*, CUfunction, void**, void**)) \
  X(FuncGetParamInfo, "cuFuncGetParamInfo", (CUfunction, size_t, size_t*, size_t*))

struct Api {
#define OB_CU_MEMBER(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  OB_CU_FUNCTIONS(OB_CU_MEMBER)
  OB_CU_NEWER_FUNCTIONS(OB_CU_MEMBER)
#undef OB_CU_MEMBER

  // Open the library, and nothing else. Return false, with a sentence, if it is missing or too old.
  bool load(const std::string& library, std::string* out_error);
};

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
};

enum Attribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockX = 2,
  kMaxGridX = 5,
  kSharedMemoryPerBlock = 8,
  kWarpSize = 10,
  kClockRate = 13,
  kMultiprocessorCount = 16,
  kIntegrated = 18,
  kCanMapHostMemory = 19,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiprocessor = 39,
  kUnifiedAddressing = 41,
  kMajor = 75,
  kMinor = 76,
  kStreamPriorities = 78,
  kSharedMemoryPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedMemoryOptIn = 97,
  kVirtualMemory = 102
};

enum : int {
  kFunctionMaxThreads = 0,
  kFunctionStaticShared = 1,
  kFunctionMaxDynamicShared = 8,
  kLaunchCooperative = 2,
  kLaunchCluster = 4,
  kJitInfoLog = 3,
  kJitInfoLogSize = 4,
  kJitErrorLog = 5,
  kJitErrorLogSize = 6,
  kCaptureRelaxed = 2,
  kAllocationPinned = 1,
  kLocationDevice = 1,
  kAccessReadWrite = 3
};

enum : unsigned {
  kStreamNonBlocking = 1,
  kEventBlockingSync = 1,
  kEventDisableTiming = 2,
  kEventInterprocess = 4,
  kHostPortable = 1,
  kIpcLazyPeerAccess = 1
};

// Return the status for a result. Errors that CUDA makes sticky are OB_DEVICE_LOST.
ob_status status_of(CUresult code);

// Store "<what>: <function> gave CUDA_ERROR_… (n): <CUDA's sentence>" as the
// last error, and return the status.
ob_status cuda_fail(const Api& api, CUresult code, const char* function, const std::string& what);

}  // namespace nv

// SPDX-License-Identifier: BSD-3-Clause
// The driver's objects, and the code that every entry runs around its own work.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cinttypes>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "count.h"
#include "cuda.h"
#include "libraries/cudnn_graphs.h"
#include "libraries/products.h"
#include "libraries/recurrent_plans.h"
#include "stream_set.h"
#include "torch_outboard/support/error.h"
#include "torch_outboard/support/handles.h"
#include "torch_outboard/support/ranges.h"
#include "torch_outboard/support/strided.h"

namespace nv {

using support::fail;

struct Event {
  int32_t device = -1;
  CUevent event = nullptr;
};

struct Module {
  int32_t device = -1;
  CUmodule module = nullptr;
  std::mutex mutex;
  std::map<std::string, uint64_t> kernels;
  std::string cubin;  // NVRTC's output, until a kernel is requested
};

struct Kernel {
  int32_t device = -1;
  CUfunction function = nullptr;
  std::string name;
  uint32_t max_threads = 0;
  uint32_t static_shared = 0;
  std::atomic<uint32_t> dynamic_shared{0};  // the most that CUDA was asked for
  bool has_parameters = false;              // true if the sizes below are known
  std::vector<size_t> parameters;
};

struct Graph {
  int32_t device = -1;
  CUgraph graph = nullptr;
};

struct Executable {
  int32_t device = -1;
  CUgraphExec executable = nullptr;
};

struct Device {
  // The compiler's name of the chip: "sm_90".
  std::string architecture() const { return "sm_" + std::to_string(major) + std::to_string(minor); }

  int32_t index = -1;
  CUdevice id = 0;
  CUcontext context = nullptr;
  uint64_t total_memory = 0;
  uint64_t granularity = 0;  // of mapped memory; 0: none
  int greatest_priority = 0;
  int major = 0;  // of the compute capability
  int minor = 0;
  int multiprocessors = 0;
  uint32_t max_block[3] = {};
  uint32_t max_grid[3] = {};
  uint32_t max_shared = 0;
  std::string where;        // "device 0 (NVIDIA H200)"
  support::Ranges memory;   // mem_alloc, mem_map and ipc_open
  support::Ranges reserved;

  std::mutex anchor_mutex;  // a moment that is known on both clocks
  CUstream anchor_stream = nullptr;
  CUevent anchor = nullptr;
  int64_t anchor_ns = 0;

  std::mutex own_mutex;  // guards what follows
  std::unique_ptr<Products> products;  // null until the first, as the next
  std::unique_ptr<cudnn::Session> cudnn;
  recurrent::Plans recurrent_plans;
  // The driver's own kernels by their names, the modules by types, and why there are none.
  std::map<std::string, uint64_t> own_kernels;
  std::map<std::string, uint64_t> own_modules;
  std::string own_refusal;
};

struct Options {
  std::string library = "libcuda.so.1";
  std::string nvrtc;     // "" for the usual names, here and below
  std::string cublaslt;
  std::string cudnn;
  std::string nccl;
};

struct Driver {
  explicit Driver(Options all_options) : options(std::move(all_options)) {}

  // Initialize CUDA in this process.
  ob_status start();
  ob_status find_id(int32_t index, CUdevice* out_id);
  ob_status find_open(int32_t index, Device** out_device);
  ob_status find_event(int32_t index, uint64_t handle, CUevent* out_event);
  ob_status check_stream(int32_t index, uint64_t handle) const;

  Options options;
  Api api;
  // The core's store of bytes for later processes, and its threads, from kernel_register on.
  decltype(ob_registrar::keep) keep = nullptr;
  decltype(ob_registrar::recall) recall = nullptr;
  decltype(ob_registrar::build_in_background) build_in_background = nullptr;
  std::mutex mutex;  // guards what follows up to `devices`
  bool is_started = false;
  pid_t owner = 0;  // the process that started CUDA
  int32_t count = 0;
  bool is_counted = false;
  int32_t counted = 0;
  std::string count_error;
  std::vector<std::unique_ptr<Device>> owned;
  std::atomic<Device*> devices[kMaxDevices] = {};

  StreamSet streams;  // a stream's handle is its CUstream, for code that launches beside this driver
  std::atomic<int32_t> captures{0};
  support::Handles<Event, 2> events;
  // Behind pointers, because a handle's object moves when it is taken and these cannot move.
  support::Handles<std::unique_ptr<Module>, 3> modules;
  support::Handles<std::unique_ptr<Kernel>, 4> kernels;
  support::Handles<Graph, 5> graphs;
  support::Handles<Executable, 6> executables;
};

inline CUstream to_stream(uint64_t handle) {
  return reinterpret_cast<CUstream>(handle);
}

// Makes a context current for one entry and restores the earlier one: others in the process,
// torch's own CUDA device among them, take the current context for the current device.
class ContextGuard {
 public:
  ContextGuard(const Api& api, const Device& device) : api_(api) {
    CUcontext before = nullptr;
    code_ = api.CtxGetCurrent(&before);
    if (code_ != CUDA_SUCCESS || before == device.context) [[likely]]
      return;
    code_ = api.CtxSetCurrent(device.context);
    before_ = before;
    // If none was current, CUDA's default is device 0.
    is_changed_ = code_ == CUDA_SUCCESS && (before != nullptr || device.index != 0);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  ~ContextGuard() {
    if (is_changed_) [[unlikely]]
      static_cast<void>(api_.CtxSetCurrent(before_));
  }
  CUresult code() const { return code_; }

 private:
  const Api& api_;
  CUresult code_ = CUDA_SUCCESS;
  CUcontext before_ = nullptr;
  bool is_changed_ = false;
};

// Run an entry's body with its open device, whose context is current.
template <class Body>
ob_status on_device(void* self, int32_t index, const char* entry, Body&& body) noexcept {
  return support::guarded(entry, [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    const ContextGuard current(driver.api, *device);
    if (current.code() != CUDA_SUCCESS) {
      return cuda_fail(driver.api, current.code(), "cuCtxSetCurrent", device->where);
    }
    return body(driver, *device);
  });
}

// Return OB_OK, or a call's failure as the last error.
inline ob_status check(const Driver& driver, const Device& device, CUresult code, const char* function) {
  if (code == CUDA_SUCCESS) [[likely]]
    return OB_OK;
  return cuda_fail(driver.api, code, function, device.where);
}

// Do the same for a queue's state, whose "not yet" is not an error.
inline ob_status check_query(const Driver& driver, const Device& device, CUresult code, const char* function) {
  return code == CUDA_ERROR_NOT_READY ? OB_NOT_READY : check(driver, device, code, function);
}

// Return whether a graph is recorded from the stream.
inline ob_status is_capturing(const Driver& driver, const Device& device, CUstream stream, bool* out_is_capturing) {
  int answer = 0;
  if (driver.captures.load() > 0) {
    const CUresult code = driver.api.StreamIsCapturing(stream, &answer);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuStreamIsCapturing", device.where);
  }
  *out_is_capturing = answer != 0;
  return OB_OK;
}

ob_status build_image(Driver& driver, Device& device, const void* image, const char* source, uint64_t* out_program);
CUresult unload(Driver& driver, const Module& module);  // and forget its kernels
ob_status kernel_get(Driver& driver, Device& device, uint64_t program, const char* name, uint64_t* out_kernel);
ob_status launch(Driver& driver, Device& device, CUstream stream, const ob_launch& request);
ob_status copy_nd(Driver& driver, Device& device, CUstream stream, const ob_copy_nd& copy);

void fill_device_entries(ob_driver* table);
void fill_memory_entries(ob_driver* table);
void fill_stream_entries(ob_driver* table);
void fill_graph_entries(ob_driver* table);
void fill_copy_entries(ob_driver* table);
void fill_program_entries(ob_driver* table);
void fill_operator_entries(ob_driver* table);

}  // namespace nv

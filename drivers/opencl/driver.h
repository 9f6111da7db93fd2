// SPDX-License-Identifier: BSD-3-Clause
// The driver's objects: devices, streams, events, programs, kernels.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "enumerate.h"
#include "torch_outboard/support/error.h"
#include "torch_outboard/support/handles.h"
#include "torch_outboard/support/lookup.h"
#include "torch_outboard/support/ranges.h"
#include "torch_outboard/support/strided.h"

namespace opencl {

using support::fail;

// A command queue. OpenCL cannot say whether a queue is idle, so commands are counted, and the
// count that is known to have ended is stored.
struct Stream {
  int32_t device = -1;
  cl_command_queue queue = nullptr;
  std::atomic<uint64_t> queued{0};  // commands so far
  std::atomic<uint64_t> done{0};    // how many of them are known to have ended
  std::mutex mutex;                 // guards the two below
  cl_event tail = nullptr;          // a marker behind `tail_queued` commands, for queries
  uint64_t tail_queued = 0;
};

// The latest record. A wait takes its marker at that moment, so the event may
// be recorded again or destroyed.
struct Event {
  int32_t device = -1;
  std::mutex mutex;
  cl_event marker = nullptr;  // null: never recorded
  bool is_host = false;       // the marker is a user event, which the host completes
  bool is_signalled = false;  // under the mutex
};

struct Kernel {
  cl_kernel kernel = nullptr;
  std::string name;
  int32_t device = -1;
  cl_uint arg_count = 0;
  size_t max_group = 0;
  std::mutex mutex;  // arguments belong to the kernel, and a launch sets them first
  uint64_t known_memory = 0;  // the count of memory changes at the last report to the runtime
};

struct Program {
  int32_t device = -1;
  cl_program program = nullptr;
  std::string options;
  std::mutex mutex;
  std::map<std::string, uint64_t> kernels;
};

struct Device {
  int32_t index = -1;
  FoundDevice found;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;  // for the driver's own copies; one user at a time
  std::mutex queue_mutex;
  bool is_fine_grain = false;
  bool has_native_kernels = false;
  uint64_t max_allocation = 0;
  uint64_t total_memory = 0;
  std::atomic<uint64_t> allocated{0};
  size_t max_group = 0;
  size_t max_items[3] = {};
  std::atomic<int64_t> clock_offset{0};  // CLOCK_MONOTONIC minus the device's clock, nanoseconds
  std::atomic<int64_t> clock_time{0};    // when that was measured
  support::Ranges memory;

  std::mutex own_mutex;
  uint64_t own_program = 0;  // of the driver's own kernels
  std::map<std::string, uint64_t> own_kernels;
};

// A block of host_alloc.
struct HostBlock {
  cl_mem buffer = nullptr;  // null: ordinary memory
  int32_t device = -1;
};

struct Driver : support::LateDriver<Options, Api, Enumeration, Device, Stream, Event, Program, Kernel, kMaxDevices,
                                    &Stream::device> {
  using LateDriver::LateDriver;
  ~Driver();

  // Find the devices of this process, once; not before a device is to be opened.
  ob_status find_devices(int32_t index, const FoundDevice** out_found);

  std::mutex host_mutex;
  std::map<void*, HostBlock> host_blocks;
};

// "device 0 (NVIDIA H200)"
std::string where(const Driver& driver, int32_t device);

// Count a command that was queued.
inline void note_queued(Stream& stream) {
  stream.queued.fetch_add(1, std::memory_order_release);
}

// Build from OpenCL C, or with `is_binary` from bytes of program_binary.
ob_status program_build(Driver& driver, Device& device, const std::string& source, const std::string& source_options,
                        bool is_binary, uint64_t* out_program);
ob_status kernel_get(Driver& driver, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel);
// Measure the device's clock again if the last measurement is old.
ob_status update_clock_offset(Driver& driver, Device& device);
ob_status launch(Driver& driver, Device& device, Stream& stream, const ob_launch& request);

void fill_device_entries(ob_driver* table);
void fill_memory_entries(ob_driver* table);
void fill_stream_entries(ob_driver* table);
void fill_copy_entries(ob_driver* table);
void fill_program_entries(ob_driver* table);

}  // namespace opencl

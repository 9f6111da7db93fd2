// SPDX-License-Identifier: BSD-3-Clause
#include "api/register.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>

#include <mutex>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "graph/graph.h"
#include "inductor/model_runner.h"
#include "memory/caching_allocator.h"
#include "memory/host_allocator.h"
#include "memory/management.h"
#include "ops/register.h"
#include "ops/register_native.h"
#include "torch/autograd_threads.h"
#include "torch/graphs.h"
#include "torch/guard.h"
#include "torch/hooks.h"
#include "torch/profiler.h"

namespace outboard {

void register_with_torch() {
  if (!is_attached()) {
    raise(ErrorKind::Registration, OB_FAILED_PRECONDITION,
          "register_with_torch: no driver is attached. Attach one first");
  }
  static std::once_flag once;
  bool is_first = false;
  std::call_once(once, [&is_first] {
    register_guard();
    c10::SetAllocator(kDeviceType, &device_allocator());
    set_after_wait([](c10::DeviceIndex device) {
      free_done_graphs();
      process_deferred(device);
    });
    set_after_open(begin_autograd_after_fork);
    set_memory_reclaimer(reclaim_graphs);
    at::setHostAllocator(kDeviceType, &host_allocator());
    register_hooks();
    register_graphs();
    register_profiler();
    register_profiler_stubs();
    register_operators();
    register_model_runner();
    is_first = true;
  });
  if (!is_first) {
    register_driver_kernels();  // of a table that has replaced the first
  }
}

}  // namespace outboard

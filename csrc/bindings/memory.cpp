// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/method.h"
#include "bindings/statistics.h"
#include "core/device.h"
#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "memory/management.h"

namespace outboard::bindings {

namespace {

std::pair<uint64_t, uint64_t> free_and_total(c10::DeviceIndex device) {
  std::pair<uint64_t, uint64_t> result;
  memory_info(device, &result.first, &result.second);
  return result;
}

PyObject* attach_observer(PyObject* function) {
  if (!PyCallable_Check(function)) {
    PyErr_SetString(PyExc_TypeError,
                    "an out-of-memory observer is a function (device, requested, device_total, device_free)");
    return nullptr;
  }
  return to_python(attach_out_of_memory_observer(make_observer(function)));
}

}  // namespace

PyMethodDef memory_methods[] = {
    unlocked<"mem_info", free_and_total>(
        "Return the device's free and total memory in bytes, as the driver reports them."),
    unlocked<"set_memory_fraction", set_memory_fraction>(
        "Limit this process's share of a device's memory: (device, fraction)."),
    method<"memory_fraction", memory_fraction>("Return the device's memory fraction."),
    unlocked<"raw_allocate", +[](c10::DeviceIndex device, int64_t stream,
                                 uint64_t bytes) { return raw_allocate(get_stream(device, stream), bytes); }>(
        "Allocate memory and return its address: (device, stream id, bytes)."),
    unlocked<"raw_free", raw_free>("Free memory from raw_allocate."),
    method<"enable_caching", enable_caching>("Turn caching on, or off so that each allocation asks the driver."),
    method<"is_caching_enabled", is_caching_enabled>("Return whether freed memory is cached for reuse."),
    method<"host_memory_stats", host_statistics>("Return the nested statistics of pinned memory."),
    unlocked<"reset_host_memory_stats", reset_host_statistics>(
        "Reset the peaks (True) or the totals (False) of pinned memory."),
    method<"attach_out_of_memory_observer", attach_observer>(
        "Call a function before torch.OutOfMemoryError is raised. Return a number for detaching it."),
    method<"detach_out_of_memory_observer", detach_out_of_memory_observer>(
        "Detach an observer by its number. Return whether it was attached."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

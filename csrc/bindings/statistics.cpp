// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/statistics.h"

#include <ATen/core/CachingHostAllocator.h>

#include <memory>

#include "memory/host_allocator.h"

namespace outboard::bindings {

namespace {

using c10::CachingAllocator::DurationStat;
using c10::CachingAllocator::Stat;

// Each adds a value to the dict, and returns false with a Python error set.
bool add(PyObject* dict, const char* key, int64_t value) {
  return set_item(dict, key, PyLong_FromLongLong(value));
}
bool add(PyObject* dict, const char* key, const Stat& stat) {
  Object entry(PyDict_New());
  return entry && add(entry.get(), "current", stat.current) && add(entry.get(), "peak", stat.peak) &&
         add(entry.get(), "allocated", stat.allocated) && add(entry.get(), "freed", stat.freed) &&
         set_item(dict, key, entry.release());
}
bool add(PyObject* dict, const char* key, const DurationStat& stat) {
  Object entry(PyDict_New());
  const double average = stat.count == 0 ? 0 : static_cast<double>(stat.total) / static_cast<double>(stat.count);
  return entry && add(entry.get(), "total", stat.total) && add(entry.get(), "max", stat.max) &&
         add(entry.get(), "min", stat.min) && add(entry.get(), "count", stat.count) &&
         set_item(entry.get(), "avg", PyFloat_FromDouble(average)) && set_item(dict, key, entry.release());
}

}  // namespace

PyObject* host_statistics() {
  const at::HostStats stats = unlocked_call([] { return host_allocator().get_stats(); });
  Object result(PyDict_New());
  PyObject* dict = result.get();
  const bool is_whole =
      dict && add(dict, "num_host_alloc", stats.num_host_alloc) && add(dict, "num_host_free", stats.num_host_free) &&
      add(dict, "allocations", stats.allocations) && add(dict, "allocated_bytes", stats.allocated_bytes) &&
      add(dict, "active_requests", stats.active_requests) && add(dict, "active_bytes", stats.active_bytes) &&
      add(dict, "host_alloc_time", stats.host_alloc_time) && add(dict, "host_free_time", stats.host_free_time);
  return is_whole ? result.release() : nullptr;
}

void reset_host_statistics(bool is_peak) {
  is_peak ? host_allocator().reset_peak_stats() : host_allocator().reset_accumulated_stats();
}

OutOfMemoryObserver make_observer(PyObject* function) {
  const std::shared_ptr<PyObject> shared(Py_NewRef(function), [](PyObject* object) {
    if (!python_is_gone()) {
      const WithGil gil;
      Py_DECREF(object);
    }
  });
  return [shared](c10::DeviceIndex device, size_t requested, size_t total, size_t free) {
    if (python_is_gone()) {
      return;
    }
    const WithGil gil;
    const Object result(PyObject_CallFunction(shared.get(), "innn", static_cast<int>(device),
                                              static_cast<Py_ssize_t>(requested), static_cast<Py_ssize_t>(total),
                                              static_cast<Py_ssize_t>(free)));
    if (!result) {
      throw_python_error();
    }
  };
}

}  // namespace outboard::bindings

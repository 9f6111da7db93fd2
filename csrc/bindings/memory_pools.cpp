// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/method.h"
#include "memory/caching_allocator.h"
#include "memory/management.h"

namespace outboard::bindings {

bool to_mempool(PyObject* object, c10::MempoolId_t* out) {
  unsigned long long first = 0;
  unsigned long long second = 0;
  if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "KK", &first, &second)) {
    PyErr_SetString(PyExc_TypeError, "the id of a memory pool is a tuple of two ints");
    return false;
  }
  *out = {first, second};
  return true;
}

namespace {

using Source = const memory::SegmentSource*;

PyObject* new_source(uint64_t alloc, uint64_t free) {
  if (alloc == 0 || free == 0) {
    PyErr_SetString(PyExc_ValueError, "a pluggable allocator needs the addresses of two functions, but one is 0");
    return nullptr;
  }
  memory::SegmentSource source;
  source.alloc = reinterpret_cast<decltype(source.alloc)>(alloc);
  source.free = reinterpret_cast<decltype(source.free)>(free);
  return to_python(reinterpret_cast<uint64_t>(make_segment_source(source)));
}

}  // namespace

PyMethodDef memory_pool_methods[] = {
    method<"new_mempool_id", new_mempool_id>("Return an unused id for a memory pool."),
    method<"use_pool",
           +[](c10::DeviceIndex device, c10::MempoolId_t id, bool is_fallback, bool is_whole, uint64_t source) {
             use_pool(device, id, {is_fallback, is_whole, reinterpret_cast<Source>(source)});
           }>("Count one more use of a pool: (device, id, use_on_oom, no_split, source or 0)."),
    method<"release_pool", release_pool>("Count one use less of a pool: (device, id)."),
    method<"pool_use_count", pool_use_count>("Return how many uses a memory pool has on a device: (device, id)."),
    method<"begin_allocate_thread_to_pool", begin_allocate_thread_to_pool>(
        "Use a pool and allocate from it in this thread: (device, id)."),
    method<"end_allocate_thread_to_pool", end_allocate_thread_to_pool>(
        "Stop allocating from the pool, but keep its use: (device, id)."),
    unlocked<"empty_pool_cache", +[](c10::MempoolId_t id) { device_allocator().emptyCache(id); }>(
        "Empty the cache of a pool that is not in use."),
    method<"make_segment_source", new_source>("Return a source of segments from the addresses of two C functions."),
    method<"change_current_allocator",
           +[](uint64_t source) { change_current_allocator(reinterpret_cast<Source>(source)); }>(
        "Allocate all memory from a source."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/python.h"
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

PyObject* from_mempool(c10::MempoolId_t id) {
  return Py_BuildValue("(KK)", static_cast<unsigned long long>(id.first), static_cast<unsigned long long>(id.second));
}

namespace {

PyObject* py_new_mempool_id(PyObject*, PyObject*) {
  return from_mempool(new_mempool_id());
}

PyObject* py_use_pool(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    c10::MempoolId_t mempool;
    uint64_t source = 0;
    if (!has_arguments("use_pool", count, 5) || !to_device(arguments[0], &device) ||
        !to_mempool(arguments[1], &mempool) || !to_uint64(arguments[4], &source)) {
      return nullptr;
    }
    const int is_fallback = PyObject_IsTrue(arguments[2]);
    const int is_whole = PyObject_IsTrue(arguments[3]);
    if (is_fallback < 0 || is_whole < 0) {
      return nullptr;
    }
    use_pool(device, mempool,
             {is_fallback != 0, is_whole != 0, reinterpret_cast<const memory::SegmentSource*>(source)});
    return none();
  });
}

// Call a function that takes a device and a memory pool.
template <class Function>
PyObject* with_pool(const char* name, Function function, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    c10::MempoolId_t mempool;
    if (!has_arguments(name, count, 2) || !to_device(arguments[0], &device) || !to_mempool(arguments[1], &mempool)) {
      return nullptr;
    }
    function(device, mempool);
    return none();
  });
}

PyObject* py_release_pool(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return with_pool("release_pool", release_pool, arguments, count);
}

PyObject* py_begin_pool(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return with_pool("begin_allocate_thread_to_pool", begin_allocate_thread_to_pool, arguments, count);
}

PyObject* py_end_pool(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return with_pool("end_allocate_thread_to_pool", end_allocate_thread_to_pool, arguments, count);
}

PyObject* py_pool_use_count(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    c10::MempoolId_t mempool;
    if (!has_arguments("pool_use_count", count, 2) || !to_device(arguments[0], &device) ||
        !to_mempool(arguments[1], &mempool)) {
      return nullptr;
    }
    return PyLong_FromLong(pool_use_count(device, mempool));
  });
}

PyObject* py_empty_pool_cache(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::MempoolId_t mempool;
    if (!to_mempool(argument, &mempool)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      device_allocator().emptyCache(mempool);
    }
    return none();
  });
}

PyObject* py_make_segment_source(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    uint64_t alloc = 0;
    uint64_t free = 0;
    if (!has_arguments("make_segment_source", count, 2) || !to_uint64(arguments[0], &alloc) ||
        !to_uint64(arguments[1], &free)) {
      return nullptr;
    }
    if (alloc == 0 || free == 0) {
      PyErr_SetString(PyExc_ValueError, "a pluggable allocator has two functions; an address is 0");
      return nullptr;
    }
    memory::SegmentSource source;
    source.alloc = reinterpret_cast<decltype(source.alloc)>(alloc);
    source.free = reinterpret_cast<decltype(source.free)>(free);
    return PyLong_FromUnsignedLongLong(reinterpret_cast<uint64_t>(make_segment_source(source)));
  });
}

PyObject* py_change_current_allocator(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    uint64_t source = 0;
    if (!to_uint64(argument, &source)) {
      return nullptr;
    }
    change_current_allocator(reinterpret_cast<const memory::SegmentSource*>(source));
    return none();
  });
}

}  // namespace

PyMethodDef memory_pool_methods[] = {
    {"new_mempool_id", py_new_mempool_id, METH_NOARGS, PyDoc_STR("Return an unused id for a memory pool.")},
    OUTBOARD_FASTCALL("use_pool", py_use_pool,
                      "Count one more use of a pool: (device, id, use_on_oom, no_split, source or 0)."),
    OUTBOARD_FASTCALL("release_pool", py_release_pool, "Count one use less of a pool: (device, id)."),
    OUTBOARD_FASTCALL("pool_use_count", py_pool_use_count,
                      "Return how many uses a memory pool has on a device: (device, id)."),
    OUTBOARD_FASTCALL("begin_allocate_thread_to_pool", py_begin_pool,
                      "Use a pool and allocate from it in this thread: (device, id)."),
    OUTBOARD_FASTCALL("end_allocate_thread_to_pool", py_end_pool,
                      "Stop allocating from the pool, but keep its use: (device, id)."),
    {"empty_pool_cache", py_empty_pool_cache, METH_O, PyDoc_STR("Empty the cache of a pool that is not in use.")},
    OUTBOARD_FASTCALL("make_segment_source", py_make_segment_source,
                      "Return a source of segments from the addresses of two C functions."),
    {"change_current_allocator", py_change_current_allocator, METH_O, PyDoc_STR("Allocate all memory from a source.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

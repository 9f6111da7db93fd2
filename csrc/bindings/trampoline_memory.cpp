// SPDX-License-Identifier: BSD-3-Clause
// Trampolines of devices, memory, streams and events.
#include <cstring>
#include <mutex>

#include "bindings/host_work.h"
#include "bindings/trampoline.h"

namespace outboard::bindings::trampoline {

// ---- Required ----

int32_t on_device_count(void*) {
  int64_t count = 0;
  const ob_status status = call(Entry::device_count, [] { return arguments(); }, into(&count));
  if (status != OB_OK) {
    return -status;
  }
  return static_cast<int32_t>(count < 0 ? -OB_INTERNAL : count > INT32_MAX ? INT32_MAX : count);
}

namespace {

// Write a property that a method returned. Return false with a Python error for a value that
// does not fit.
template <size_t kSize>
bool fill_property(const char* name, PyObject* value, char (&out)[kSize]) {
  std::string text;
  if (!to_text(value, name, &text)) {
    return false;
  }
  std::memcpy(out, text.c_str(), std::min(text.size(), kSize - 1));
  return true;
}

template <size_t kSize>
bool fill_property(const char*, PyObject* value, uint8_t (&out)[kSize]) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(value, &data, &size) < 0) {
    return false;
  }
  std::memcpy(out, data, std::min(static_cast<size_t>(size), kSize));
  return true;
}

bool fill_property(const char* name, PyObject* value, int32_t& out) {
  int64_t number = 0;
  if (!to_int64(value, &number) || number < INT32_MIN || number > INT32_MAX) {
    if (!PyErr_Occurred()) {
      PyErr_Format(PyExc_OverflowError, "%s does not fit into 32 bits", name);
    }
    return false;
  }
  out = static_cast<int32_t>(number);
  return true;
}

bool fill_property(const char*, PyObject* value, uint64_t& out) {
  return to_uint64(value, &out);
}

// Write the property if the dict has it.
template <class Field>
bool fill_from(PyObject* dict, const char* name, Field& out) {
  PyObject* value = PyDict_GetItemString(dict, name);  // borrowed
  return value == nullptr || fill_property(name, value, out);
}

}  // namespace

ob_status on_device_properties(void*, int32_t device, ob_device_properties* out) {
  return call(
      Entry::device_properties, [&] { return arguments(device); },
      [&](PyObject* result) {
        if (!PyDict_Check(result)) {
          PyErr_SetString(PyExc_TypeError, "device_properties must return a dict");
          return OB_INTERNAL;
        }
#define X(name) fill_from(result, #name, out->name)&&
        return OB_PROPERTIES(X) true ? OB_OK : OB_INTERNAL;
#undef X
      });
}

ob_status on_copy_async(void*, int32_t device, uint64_t stream, const ob_copy* copy) {
  return call(
      Entry::copy_async,
      [&] { return arguments(device, stream, copy->dst, copy->src, copy->bytes, copy->dst_device, copy->src_device); },
      nothing);
}

// ---- Optional ----

void on_destroy(void*) {
  call(Entry::destroy, [] { return arguments(); }, nothing);
}

ob_status on_fill_async(void*, int32_t device, uint64_t stream, uint64_t dst, const void* pattern,
                        uint32_t pattern_size, uint64_t count) {
  return call(
      Entry::fill_async, [&] { return arguments(device, stream, dst, to_bytes(pattern, pattern_size), count); },
      nothing);
}

ob_status on_copy_nd_async(void*, int32_t device, uint64_t stream, const ob_copy_nd* copy) {
  return call(
      Entry::copy_nd_async,
      [&] {
        return arguments(device, stream, copy->dst, copy->src, copy->dst_device, copy->src_device, copy->element_size,
                         to_tuple(copy->sizes, copy->ndim), to_tuple(copy->dst_strides, copy->ndim),
                         to_tuple(copy->src_strides, copy->ndim));
      },
      nothing);
}

ob_status on_mem_info(void*, int32_t device, uint64_t* out_free, uint64_t* out_total) {
  return call(
      Entry::mem_info, [&] { return arguments(device); },
      [&](PyObject* result) {
        unsigned long long free = 0;
        unsigned long long total = 0;
        if (!PyTuple_Check(result) || PyTuple_Size(result) != 2) {
          PyErr_SetString(PyExc_TypeError, "mem_info must return the tuple (free, total)");
          return OB_INTERNAL;
        }
        if (!PyArg_ParseTuple(result, "KK", &free, &total)) {
          return OB_INTERNAL;
        }
        *out_free = free;
        *out_total = total;
        return OB_OK;
      });
}

ob_status on_host_address(void*, int32_t device, uint64_t address, uint64_t bytes, uint64_t* out_address) {
  return call(
      Entry::host_address, [&] { return arguments(device, address, bytes); },
      [&](PyObject* result) {
        *out_address = 0;
        return result == Py_None || to_uint64(result, out_address) ? OB_OK : OB_INTERNAL;
      });
}

ob_status on_peer_access(void*, int32_t device, int32_t peer, int32_t* out_can_access) {
  return call(
      Entry::peer_access, [&] { return arguments(device, peer); },
      [&](PyObject* result) {
        const int is_true = PyObject_IsTrue(result);
        *out_can_access = is_true == 1;
        return is_true < 0 ? OB_INTERNAL : OB_OK;
      });
}

ob_status on_ipc_export(void*, int32_t device, uint64_t address, void* out_handle, size_t* inout_size) {
  return call(
      Entry::ipc_export, [&] { return arguments(device, address); },
      [&](PyObject* result) {
        char* data = nullptr;
        Py_ssize_t size = 0;
        if (PyBytes_AsStringAndSize(result, &data, &size) < 0) {
          return OB_INTERNAL;
        }
        const size_t capacity = std::exchange(*inout_size, static_cast<size_t>(size));
        if (static_cast<size_t>(size) > capacity) {
          set_failure(Entry::ipc_export, "the handle needs " + std::to_string(size) + " bytes");
          return OB_OUT_OF_RANGE;
        }
        std::memcpy(out_handle, data, static_cast<size_t>(size));
        return OB_OK;
      });
}

ob_status on_ipc_open(void*, int32_t device, const void* handle, size_t size, uint64_t* out_address) {
  return call(Entry::ipc_open, [&] { return arguments(device, to_bytes(handle, size)); }, into(out_address));
}

ob_status on_host_callback(void*, int32_t device, uint64_t stream, ob_host_fn fn, void* user) {
  HostWork* work = nullptr;
  ob_status status = call(
      Entry::host_callback,
      [&] {
        Object callable = make_host_work(fn, user, &work);
        return callable ? arguments(device, stream, std::move(callable)) : Object();
      },
      nothing);
  return work ? finish_host_work(work, status) : status;
}

}  // namespace outboard::bindings::trampoline

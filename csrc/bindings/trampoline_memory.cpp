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

struct PropertyField {
  const char* name;
  size_t offset;
  size_t size;
  enum { Text, Bytes, Signed, Unsigned } kind;
};

#define FIELD(name, kind) \
  {#name, offsetof(ob_device_properties, name), sizeof(ob_device_properties::name), PropertyField::kind}
const PropertyField property_fields[] = {
    FIELD(name, Text),
    FIELD(vendor, Text),
    FIELD(architecture, Text),
    FIELD(driver_version, Text),
    FIELD(uuid, Bytes),
    FIELD(total_memory, Unsigned),
    FIELD(dtypes, Unsigned),
    FIELD(major, Signed),
    FIELD(minor, Signed),
    FIELD(multi_processor_count, Signed),
    FIELD(warp_size, Signed),
    FIELD(max_threads_per_block, Signed),
    FIELD(max_threads_per_multi_processor, Signed),
    FIELD(regs_per_multiprocessor, Signed),
    FIELD(clock_rate, Signed),
    FIELD(shared_memory_per_block, Unsigned),
    FIELD(l2_cache_size, Unsigned),
    FIELD(is_integrated, Signed),
    FIELD(stream_priority_least, Signed),
    FIELD(stream_priority_greatest, Signed),
    FIELD(mem_granularity, Unsigned),
    FIELD(max_allocation, Unsigned),
    FIELD(machine, Signed),
    FIELD(addresses_host_memory, Signed),
    FIELD(follows_addresses, Signed),
    FIELD(shared_memory_per_multiprocessor, Signed),
};
#undef FIELD

bool fill_property(const PropertyField& field, PyObject* value, ob_device_properties* out) {
  char* target = reinterpret_cast<char*>(out) + field.offset;
  switch (field.kind) {
    case PropertyField::Text: {
      std::string text;
      if (!to_text(value, field.name, &text)) {
        return false;
      }
      std::memcpy(target, text.c_str(), std::min(text.size(), field.size - 1));
      return true;
    }
    case PropertyField::Bytes: {
      char* data = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(value, &data, &size) < 0) {
        return false;
      }
      std::memcpy(target, data, std::min(static_cast<size_t>(size), field.size));
      return true;
    }
    case PropertyField::Signed: {
      int64_t number = 0;
      if (!to_int64(value, &number) || number < INT32_MIN || number > INT32_MAX) {
        if (!PyErr_Occurred()) {
          PyErr_Format(PyExc_OverflowError, "%s does not fit into 32 bits", field.name);
        }
        return false;
      }
      const auto narrow = static_cast<int32_t>(number);
      std::memcpy(target, &narrow, sizeof(narrow));
      return true;
    }
    default: {
      uint64_t number = 0;
      if (!to_uint64(value, &number)) {
        return false;
      }
      std::memcpy(target, &number, sizeof(number));
      return true;
    }
  }
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
        for (const PropertyField& field : property_fields) {
          PyObject* value = PyDict_GetItemString(result, field.name);  // borrowed
          if (value && !fill_property(field, value, out)) {
            return OB_INTERNAL;
          }
        }
        return OB_OK;
      });
}

ob_status on_mem_alloc(void*, int32_t device, uint64_t bytes, uint64_t* out_address) {
  return call(Entry::mem_alloc, [&] { return arguments(device, bytes); }, into(out_address));
}

ob_status on_mem_free(void*, int32_t device, uint64_t address) {
  return call(Entry::mem_free, [&] { return arguments(device, address); }, nothing);
}

ob_status on_copy_async(void*, int32_t device, uint64_t stream, const ob_copy* copy) {
  return call(
      Entry::copy_async,
      [&] { return arguments(device, stream, copy->dst, copy->src, copy->bytes, copy->dst_device, copy->src_device); },
      nothing);
}

ob_status on_stream_create(void*, int32_t device, int32_t priority, uint64_t* out_stream) {
  return call(Entry::stream_create, [&] { return arguments(device, priority); }, into(out_stream));
}

ob_status on_stream_destroy(void*, int32_t device, uint64_t stream) {
  return call(Entry::stream_destroy, [&] { return arguments(device, stream); }, nothing);
}

ob_status on_stream_synchronize(void*, int32_t device, uint64_t stream) {
  return call(Entry::stream_synchronize, [&] { return arguments(device, stream); }, nothing);
}

ob_status on_event_create(void*, int32_t device, uint32_t flags, uint64_t* out_event) {
  return call(Entry::event_create, [&] { return arguments(device, flags); }, into(out_event));
}

ob_status on_event_destroy(void*, int32_t device, uint64_t event) {
  return call(Entry::event_destroy, [&] { return arguments(device, event); }, nothing);
}

ob_status on_event_record(void*, int32_t device, uint64_t stream, uint64_t event) {
  return call(Entry::event_record, [&] { return arguments(device, stream, event); }, nothing);
}

ob_status on_event_query(void*, int32_t device, uint64_t event) {
  return call(Entry::event_query, [&] { return arguments(device, event); }, readiness);
}

ob_status on_stream_wait_event(void*, int32_t device, uint64_t stream, int32_t event_device, uint64_t event) {
  return call(Entry::stream_wait_event, [&] { return arguments(device, stream, event_device, event); }, nothing);
}

// ---- Optional ----

void on_destroy(void*) {
  call(Entry::destroy, [] { return arguments(); }, nothing);
}

ob_status on_device_open(void*, int32_t device) {
  return call(Entry::device_open, [&] { return arguments(device); }, nothing);
}

ob_status on_device_close(void*, int32_t device) {
  return call(Entry::device_close, [&] { return arguments(device); }, nothing);
}

ob_status on_device_synchronize(void*, int32_t device) {
  return call(Entry::device_synchronize, [&] { return arguments(device); }, nothing);
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

ob_status on_host_alloc(void*, uint64_t bytes, void** out_pointer) {
  uint64_t address = 0;
  const ob_status status = call(Entry::host_alloc, [&] { return arguments(bytes); }, into(&address));
  *out_pointer = reinterpret_cast<void*>(address);
  return status;
}

ob_status on_host_free(void*, void* pointer) {
  return call(Entry::host_free, [&] { return arguments(static_cast<const void*>(pointer)); }, nothing);
}

ob_status on_host_register(void*, void* pointer, uint64_t bytes) {
  return call(Entry::host_register, [&] { return arguments(static_cast<const void*>(pointer), bytes); }, nothing);
}

ob_status on_host_unregister(void*, void* pointer) {
  return call(Entry::host_unregister, [&] { return arguments(static_cast<const void*>(pointer)); }, nothing);
}

ob_status on_host_address(void*, int32_t device, uint64_t address, uint64_t bytes, uint64_t* out_address) {
  return call(
      Entry::host_address, [&] { return arguments(device, address, bytes); },
      [&](PyObject* result) {
        *out_address = 0;
        return result == Py_None || to_uint64(result, out_address) ? OB_OK : OB_INTERNAL;
      });
}

ob_status on_stream_query(void*, int32_t device, uint64_t stream) {
  return call(Entry::stream_query, [&] { return arguments(device, stream); }, readiness);
}

ob_status on_event_synchronize(void*, int32_t device, uint64_t event) {
  return call(Entry::event_synchronize, [&] { return arguments(device, event); }, nothing);
}

ob_status on_event_signal(void*, int32_t device, uint64_t event) {
  return call(Entry::event_signal, [&] { return arguments(device, event); }, nothing);
}

ob_status on_event_elapsed(void*, int32_t device, uint64_t start, uint64_t end, double* out_milliseconds) {
  return call(Entry::event_elapsed, [&] { return arguments(device, start, end); }, into(out_milliseconds));
}

ob_status on_event_timestamp(void*, int32_t device, uint64_t event, int64_t* out_nanoseconds) {
  return call(Entry::event_timestamp, [&] { return arguments(device, event); }, into(out_nanoseconds));
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

ob_status on_mem_reserve(void*, int32_t device, uint64_t bytes, uint64_t* out_address) {
  return call(Entry::mem_reserve, [&] { return arguments(device, bytes); }, into(out_address));
}

ob_status on_mem_release(void*, int32_t device, uint64_t address, uint64_t bytes) {
  return call(Entry::mem_release, [&] { return arguments(device, address, bytes); }, nothing);
}

ob_status on_mem_map(void*, int32_t device, uint64_t address, uint64_t bytes) {
  return call(Entry::mem_map, [&] { return arguments(device, address, bytes); }, nothing);
}

ob_status on_mem_unmap(void*, int32_t device, uint64_t address, uint64_t bytes) {
  return call(Entry::mem_unmap, [&] { return arguments(device, address, bytes); }, nothing);
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

ob_status on_ipc_close(void*, int32_t device, uint64_t address) {
  return call(Entry::ipc_close, [&] { return arguments(device, address); }, nothing);
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
  return work ? settle_host_work(work, status) : status;
}

}  // namespace outboard::bindings::trampoline

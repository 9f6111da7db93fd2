// SPDX-License-Identifier: BSD-3-Clause
// Driver entries that are Python methods. A trampoline takes the interpreter lock, and turns the arguments into Python
// objects and the result into out arguments. An exception becomes a status: its text is last_error, and the exception
// is the cause of the error that the core raises.
//
// torch_outboard/driver.py documents the arguments and the result of each method, beside the entry in class Driver.
#include <cstring>
#include <mutex>
#include <string>

#include "bindings/entries.h"
#include "bindings/host_work.h"
#include "core/error.h"

namespace outboard::bindings {

namespace {

#define OB_PYTHON_ENTRIES(X)                                                                                        \
  X(device_count) X(device_properties) X(mem_alloc) X(mem_free) X(copy_async) X(stream_create) X(stream_destroy)    \
  X(stream_synchronize) X(event_create) X(event_destroy) X(event_record) X(event_query) X(stream_wait_event)        \
  X(destroy) X(device_open) X(device_close) X(device_synchronize) X(fill_async) X(copy_nd_async) X(mem_info)        \
  X(host_alloc) X(host_free) X(host_register) X(host_unregister) X(host_address) X(stream_query)                    \
  X(event_synchronize) X(event_elapsed) X(event_timestamp) X(peer_access) X(mem_reserve) X(mem_release) X(mem_map)  \
  X(mem_unmap) X(ipc_export) X(ipc_open) X(ipc_close) X(host_callback) X(program_build) X(program_destroy)          \
  X(kernel_get) X(kernel_launch) X(graph_capture_begin) X(graph_capture_end) X(graph_instantiate) X(graph_launch)   \
  X(graph_destroy) X(graph_executable_destroy) X(activity_enable) X(activity_correlate) X(activity_read)             \
  X(program_binary) X(event_signal)

enum class Entry : int {
#define X(name) name,
  OB_PYTHON_ENTRIES(X)
#undef X
      count
};

const char* const entry_names[] = {
#define X(name) #name,
    OB_PYTHON_ENTRIES(X)
#undef X
};

// The methods by entry. bind_entries sets them before the table is installed. They are kept: trampolines read them from
// any thread.
struct Methods {
  PyObject* of[static_cast<int>(Entry::count)];
  void (*library_last_error)(void*, char*, size_t);
};
Methods methods{};
// The methods of the driver that an attach is replacing: its `destroy` is called when the new one is already bound.
const Methods* replaced = nullptr;

// The failure of this thread's last trampoline. take_… or the next trampoline releases the exception: a handled one
// must not become the cause of a later error.
thread_local const char* failed_in = nullptr;
thread_local std::string failure;
thread_local PyObject* failed_exception = nullptr;

// Return true if the core asks about that failure: entries that are C functions fail without a trampoline.
bool is_asked_about() {
  const char* asked = failed_entry();
  return failed_in != nullptr && (asked == nullptr || std::strcmp(asked, failed_in) == 0);
}

void set_failure(Entry entry, std::string text) {
  failed_in = entry_names[static_cast<int>(entry)];
  failure = std::move(text);
}

std::string text_of(PyObject* object) {
  const Object text(PyObject_Str(object));
  Py_ssize_t size = 0;
  const char* data = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (!data) {
    PyErr_Clear();
    return "(its text cannot be had)";
  }
  return {data, static_cast<size_t>(size)};
}

// Return the code of an exception that carries one (DriverError), else the code of its class.
ob_status status_of(PyObject* exception, bool* out_has_code) {
  *out_has_code = false;
  if (PyErr_GivenExceptionMatches(exception, PyExc_MemoryError)) {
    return OB_OUT_OF_MEMORY;
  }
  if (PyErr_GivenExceptionMatches(exception, PyExc_NotImplementedError)) {
    return OB_UNIMPLEMENTED;
  }
  if (PyErr_GivenExceptionMatches(exception, PyExc_KeyboardInterrupt)) {
    return OB_CANCELLED;
  }
  const Object errors(PyImport_ImportModule("torch_outboard._errors"));
  const Object driver_error(errors ? PyObject_GetAttrString(errors.get(), "DriverError") : nullptr);
  if (driver_error && PyErr_GivenExceptionMatches(exception, driver_error.get())) {
    const Object code(PyObject_GetAttrString(exception, "code"));
    const long value = code ? PyLong_AsLong(code.get()) : -1;
    PyErr_Clear();
    if (value > 0 && value <= INT32_MAX) {
      *out_has_code = true;
      return static_cast<ob_status>(value);
    }
  }
  PyErr_Clear();
  return OB_INTERNAL;
}

// Return the status for the current Python error, and clear it.
ob_status take_error(Entry entry) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) {
    PyException_SetTraceback(value, traceback);
  }
  Object exception(value);
  const Object type_owner(type);
  const Object traceback_owner(traceback);
  bool has_code = false;
  const ob_status status = status_of(value, &has_code);
  std::string text = text_of(value);
  if (!has_code) {
    const Object name(PyType_GetName(Py_TYPE(value)));
    text = (name ? text_of(name.get()) : std::string("an exception")) + (text.empty() ? "" : ": ") + text;
  }
  set_failure(entry, std::move(text));
  Py_XDECREF(std::exchange(failed_exception, exception.release()));
  return status;
}

// Arguments, one by one.
PyObject* to_python(int32_t value) {
  return PyLong_FromLong(value);
}
PyObject* to_python(uint32_t value) {
  return PyLong_FromUnsignedLong(value);
}
PyObject* to_python(int64_t value) {
  return PyLong_FromLongLong(value);
}
PyObject* to_python(uint64_t value) {
  return PyLong_FromUnsignedLongLong(value);
}
PyObject* to_python(const char* value) {
  return from_text(value);
}
PyObject* to_python(const void* pointer) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<uintptr_t>(pointer));
}
PyObject* to_python(Object value) {
  return value.release();
}

Object to_bytes(const void* data, size_t size) {
  return Object(PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size)));
}

template <class Value>
Object to_tuple(const Value* values, size_t count) {
  Object tuple(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; tuple && i < count; ++i) {
    PyObject* item = to_python(values[i]);
    if (!item) {
      return Object();
    }
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), item);
  }
  return tuple;
}

template <class... Values>
Object arguments(Values&&... values) {
  Object tuple(PyTuple_New(sizeof...(values)));
  if (!tuple) {
    return tuple;
  }
  Py_ssize_t index = 0;
  [[maybe_unused]] const auto put = [&](PyObject* item) {
    PyTuple_SetItem(tuple.get(), index++, item);
    return item != nullptr;
  };
  const bool is_whole = (put(to_python(std::forward<Values>(values))) && ...);
  return is_whole ? std::move(tuple) : Object();
}

// Results: each returns OB_OK if the object is what the entry must return; else another status with the Python error
// set.
ob_status nothing(PyObject*) {
  return OB_OK;
}

auto into(uint64_t* out) {
  return [out](PyObject* result) { return to_uint64(result, out) ? OB_OK : OB_INTERNAL; };
}
auto into(int64_t* out) {
  return [out](PyObject* result) { return to_int64(result, out) ? OB_OK : OB_INTERNAL; };
}
auto into(double* out) {
  return [out](PyObject* result) {
    *out = PyFloat_AsDouble(result);
    return *out == -1.0 && PyErr_Occurred() ? OB_INTERNAL : OB_OK;
  };
}
// True: done, False: under way.
ob_status readiness(PyObject* result) {
  if (result != Py_True && result != Py_False) {
    PyErr_SetString(PyExc_TypeError, "a query must return True (done) or False");
    return OB_INTERNAL;
  }
  return result == Py_True ? OB_OK : OB_NOT_READY;
}

PyObject* method_of(Entry entry) {
  const Methods& bound = entry == Entry::destroy && replaced != nullptr ? *replaced : methods;
  return bound.of[static_cast<int>(entry)];
}

thread_local int calls_under_way = 0;

template <class MakeArguments, class TakeResult>
ob_status call(Entry entry, MakeArguments&& make_arguments, TakeResult&& take_result) {
  if (python_is_gone()) {
    set_failure(entry, "Python is shutting down");
    return OB_UNAVAILABLE;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  failed_in = nullptr;
  Py_CLEAR(failed_exception);
  ob_status status = OB_INTERNAL;
  ++calls_under_way;
  {
    const Object given = make_arguments();
    const Object result(given ? PyObject_CallObject(method_of(entry), given.get()) : nullptr);
    if (result) {
      status = take_result(result.get());
    }
    if (PyErr_Occurred()) {
      status = take_error(entry);
      if (result) {
        failure = std::string("what ") + entry_names[static_cast<int>(entry)] + " returned is not usable: " + failure;
      }
    }
  }
  --calls_under_way;
  PyGILState_Release(gil);
  return status;
}

// ---- Required ----

int32_t on_device_count(void*) {
  int64_t count = 0;
  const ob_status status = call(Entry::device_count, [] { return arguments(); }, into(&count));
  if (status != OB_OK) {
    return -status;
  }
  return static_cast<int32_t>(count < 0 ? -OB_INTERNAL : count > INT32_MAX ? INT32_MAX : count);
}

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
          if (value && field.offset + field.size <= out->struct_size && !fill_property(field, value, out)) {
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

void on_last_error(void* self, char* buffer, size_t size) {
  if (!is_asked_about()) {
    if (methods.library_last_error) {
      methods.library_last_error(self, buffer, size);
    } else if (size > 0) {
      buffer[0] = '\0';
    }
    return;
  }
  if (size > 0) {
    const size_t count = std::min(failure.size(), size - 1);
    std::memcpy(buffer, failure.data(), count);
    buffer[count] = '\0';
  }
}

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

ob_status on_program_build(void*, int32_t device, const ob_program_source* source, uint64_t* out_program) {
  return call(
      Entry::program_build,
      [&] { return arguments(device, source->language, to_bytes(source->code, source->code_size), source->options); },
      into(out_program));
}

ob_status on_program_destroy(void*, int32_t device, uint64_t program) {
  return call(Entry::program_destroy, [&] { return arguments(device, program); }, nothing);
}

ob_status on_program_binary(void*, int32_t device, uint64_t program, void* context, ob_take_fn take) {
  return call(
      Entry::program_binary, [&] { return arguments(device, program); },
      [&](PyObject* result) {
        char* data = nullptr;
        Py_ssize_t size = 0;
        if (result == Py_None) {
          return OB_UNIMPLEMENTED;
        }
        if (PyBytes_AsStringAndSize(result, &data, &size) < 0) {
          return OB_INTERNAL;
        }
        take(context, data, static_cast<size_t>(size));
        return OB_OK;
      });
}

ob_status on_kernel_get(void*, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel) {
  return call(Entry::kernel_get, [&] { return arguments(device, program, name); }, into(out_kernel));
}

// Pairs of kind and address, bytes or size.
Object kernel_arguments(const ob_launch& launch) {
  Object tuple(PyTuple_New(static_cast<Py_ssize_t>(launch.arg_count)));
  for (size_t i = 0; tuple && i < launch.arg_count; ++i) {
    const auto* arg =
        reinterpret_cast<const ob_kernel_arg*>(reinterpret_cast<const char*>(launch.args) + i * launch.arg_stride);
    Object pair = arg->kind == OB_ARG_POINTER ? arguments(arg->kind, arg->pointer)
                  : arg->kind == OB_ARG_VALUE ? arguments(arg->kind, to_bytes(arg->value, arg->size))
                                              : arguments(arg->kind, arg->size);
    if (!pair) {
      return pair;
    }
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), pair.release());
  }
  return tuple;
}

ob_status on_kernel_launch(void*, int32_t device, uint64_t stream, const ob_launch* launch) {
  return call(
      Entry::kernel_launch,
      [&] {
        return arguments(device, stream, launch->kernel, to_tuple(launch->grid, 3), to_tuple(launch->block, 3),
                         kernel_arguments(*launch), launch->shared_memory, to_tuple(launch->cluster, 3),
                         Object(PyBool_FromLong(static_cast<long>(launch->is_cooperative))),
                         Object(PyBool_FromLong(static_cast<long>(launch->follows_addresses))));
      },
      nothing);
}

ob_status on_graph_capture_begin(void*, int32_t device, uint64_t stream) {
  return call(Entry::graph_capture_begin, [&] { return arguments(device, stream); }, nothing);
}

ob_status on_graph_capture_end(void*, int32_t device, uint64_t stream, uint64_t* out_graph) {
  return call(Entry::graph_capture_end, [&] { return arguments(device, stream); }, into(out_graph));
}

ob_status on_graph_instantiate(void*, int32_t device, uint64_t graph, uint64_t* out_executable) {
  return call(Entry::graph_instantiate, [&] { return arguments(device, graph); }, into(out_executable));
}

ob_status on_graph_launch(void*, int32_t device, uint64_t stream, uint64_t executable) {
  return call(Entry::graph_launch, [&] { return arguments(device, stream, executable); }, nothing);
}

ob_status on_graph_destroy(void*, int32_t device, uint64_t graph) {
  return call(Entry::graph_destroy, [&] { return arguments(device, graph); }, nothing);
}

ob_status on_graph_executable_destroy(void*, int32_t device, uint64_t executable) {
  return call(Entry::graph_executable_destroy, [&] { return arguments(device, executable); }, nothing);
}

ob_status on_activity_enable(void*, uint32_t kinds) {
  return call(Entry::activity_enable, [&] { return arguments(kinds); }, nothing);
}

ob_status on_activity_correlate(void*, uint64_t correlation) {
  return call(Entry::activity_correlate, [&] { return arguments(correlation); }, nothing);
}

// (kind, device, stream, correlation, start, end, bytes, src_device, dst_device, name)
bool fill_activity(PyObject* item, size_t stride, ob_activity* out) {
  unsigned int kind = 0;
  int device = 0;
  int src_device = 0;
  int dst_device = 0;
  unsigned long long stream = 0;
  unsigned long long correlation = 0;
  unsigned long long bytes = 0;
  long long start = 0;
  long long end = 0;
  const char* name = nullptr;
  if (!PyTuple_Check(item)) {
    PyErr_SetString(PyExc_TypeError, "activity_read must return a list of tuples");
    return false;
  }
  if (!PyArg_ParseTuple(item, "IiKKLLKiis", &kind, &device, &stream, &correlation, &start, &end, &bytes, &src_device,
                        &dst_device, &name)) {
    return false;
  }
  ob_activity record{};
  record.struct_size = std::min(stride, sizeof(record));
  record.kind = kind;
  record.device = device;
  record.stream = stream;
  record.correlation = correlation;
  record.start = start;
  record.end = end;
  record.bytes = bytes;
  record.src_device = src_device;
  record.dst_device = dst_device;
  std::memcpy(record.name, name, std::min(std::strlen(name), sizeof(record.name) - 1));
  std::memcpy(out, &record, record.struct_size);
  return true;
}

ob_status on_activity_read(void*, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count) {
  *out_count = 0;
  return call(
      Entry::activity_read, [&] { return arguments(static_cast<uint64_t>(capacity)); },
      [&](PyObject* result) {
        if (!PyList_Check(result) || static_cast<size_t>(PyList_Size(result)) > capacity) {
          PyErr_SetString(PyExc_TypeError, "activity_read must return a list of at most `capacity` tuples");
          return OB_INTERNAL;
        }
        const auto count = static_cast<size_t>(PyList_Size(result));
        for (size_t i = 0; i < count; ++i) {
          auto* record = reinterpret_cast<ob_activity*>(reinterpret_cast<char*>(out_records) + i * stride);
          if (!fill_activity(PyList_GetItem(result, static_cast<Py_ssize_t>(i)), stride, record)) {
            return OB_INTERNAL;
          }
        }
        *out_count = count;
        return OB_OK;
      });
}

// Return the index, or -1 for an entry that has no trampoline.
int index_of(const char* name) {
  for (int i = 0; i < static_cast<int>(Entry::count); ++i) {
    if (std::strcmp(entry_names[i], name) == 0) {
      return i;
    }
  }
  return -1;
}

void set_entry(ob_driver* table, const EntryInfo& entry, void* function) {
  std::memcpy(reinterpret_cast<char*>(table) + entry.offset, &function, sizeof(function));
}

void set_registration_error(const char* driver, const char* entry, const char* why) {
  const Object errors(PyImport_ImportModule("torch_outboard._errors"));
  const Object type(errors ? PyObject_GetAttrString(errors.get(), "RegistrationError") : nullptr);
  if (type) {
    PyErr_Format(type.get(), "driver '%s' cannot be attached: entry `%s` %s", driver, entry, why);
  }
}

bool bind_entry(const char* driver, const EntryInfo& entry, PyObject* value, ob_driver* table) {
  if (PyLong_Check(value)) {
    uint64_t address = 0;
    const bool is_address = to_uint64(value, &address) && address != 0;
    PyErr_Clear();
    if (!is_address) {
      set_registration_error(driver, entry.name, "is an int, but not the address of a C function");
      return false;
    }
    set_entry(table, entry, reinterpret_cast<void*>(address));
    return true;
  }
  if (!PyCallable_Check(value)) {
    set_registration_error(driver, entry.name, "must be a method, or the address of a C function as an int");
    return false;
  }
  if (!entry.trampoline) {
    set_registration_error(driver, entry.name, "cannot be a Python method: bind the address of a C function");
    return false;
  }
  methods.of[index_of(entry.name)] = Py_NewRef(value);
  set_entry(table, entry, entry.trampoline);
  return true;
}

}  // namespace

#define ENTRY(name) {#name, offsetof(ob_driver, name), reinterpret_cast<void*>(on_##name)},
const EntryInfo entries[] = {
    OB_PYTHON_ENTRIES(ENTRY)
    // A Python driver's failures are exceptions, and its kernels are `Driver.kernels`.
    {"last_error", offsetof(ob_driver, last_error), nullptr},
    {"kernel_register", offsetof(ob_driver, kernel_register), nullptr},
};
#undef ENTRY
const size_t entry_count = sizeof(entries) / sizeof(entries[0]);

bool has_entry(const ob_driver& table, const EntryInfo& entry) {
  void* function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + entry.offset, sizeof(function));
  return function != nullptr;
}

bool bind_entries(const char* driver, PyObject* dict, ob_driver* table) {
  Py_ssize_t bound = 0;
  bool has_method = false;
  for (size_t i = 0; i < entry_count; ++i) {
    PyObject* value = PyDict_GetItemString(dict, entries[i].name);  // borrowed
    if (!value) {
      continue;
    }
    if (!bind_entry(driver, entries[i], value, table)) {
      return false;
    }
    has_method |= !PyLong_Check(value);
    ++bound;
  }
  if (bound != PyDict_Size(dict)) {
    PyErr_SetString(PyExc_ValueError, "the entries name something that ob_driver does not have");
    return false;
  }
  if (has_method) {
    methods.library_last_error = table->last_error;
    table->last_error = on_last_error;
  }
  return true;
}

bool is_in_entry() noexcept {
  return calls_under_way > 0;
}

bool is_python_method(const char* entry) noexcept {
  for (const Entry one :
       {Entry::stream_synchronize, Entry::event_synchronize, Entry::device_synchronize, Entry::program_build}) {
    if (methods.of[static_cast<int>(one)] != nullptr && std::strcmp(entry_names[static_cast<int>(one)], entry) == 0) {
      return true;
    }
  }
  return false;
}

struct Rebinding::Before {
  Methods methods;
};

Rebinding::Rebinding() : before_(std::make_unique<Before>(Before{methods})) {
  replaced = &before_->methods;
}

Rebinding::~Rebinding() {
  replaced = nullptr;
  // The references of released methods are kept: a thread may be about to call one.
  if (!is_kept_) {
    methods = before_->methods;
  }
}

Object take_trampoline_exception() {
  return failed_entry() != nullptr && is_asked_about() ? Object(std::exchange(failed_exception, nullptr)) : Object();
}

}  // namespace outboard::bindings

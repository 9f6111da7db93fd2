// SPDX-License-Identifier: BSD-3-Clause
// Driver entries that are Python methods. A trampoline takes the interpreter lock, and turns the
// arguments into Python objects and the result into out arguments. An exception becomes a status:
// its text is last_error, and the exception is the cause of the error that the core raises.
//
// torch_outboard/driver.py documents each method's arguments and result, at the entry in class
// Driver.
#pragma once

#include <torch_outboard/driver.h>
#include <built/contract.inc>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "bindings/method.h"

namespace outboard::bindings::trampoline {

// In the order of driver.h's table.
enum class Entry : int {
#define X(name) name,
  OB_ENTRIES(X)
#undef X
      count
};

// Entries whose arguments or result are more than numbers, texts and addresses. Their trampolines
// are hand-written, such as on_copy_async for copy_async; plain() generates all others.
#define OB_WRITTEN_TRAMPOLINES(X)                                                                        \
  X(device_count)                                                                                        \
  X(device_properties) X(copy_async) X(destroy) X(fill_async) X(copy_nd_async) X(mem_info) X(host_address) \
  X(peer_access) X(ipc_export) X(ipc_open) X(host_callback) X(program_build) X(program_binary)           \
  X(kernel_launch) X(activity_read)

#define X(name) std::remove_pointer_t<decltype(ob_driver::name)> on_##name;
OB_WRITTEN_TRAMPOLINES(X)
#undef X
std::remove_pointer_t<decltype(ob_driver::last_error)> on_last_error;

// The methods by entry. bind_entries sets them before the table is installed. They are never freed,
// because trampolines read them from any thread.
struct Methods {
  PyObject* of[static_cast<int>(Entry::count)];
  void (*library_last_error)(void*, char*, size_t);
};
extern Methods methods;
// The methods of the driver that an attach is replacing: its `destroy` is called after the new
// driver's methods were bound.
extern const Methods* replaced;

const char* name_of(Entry entry) noexcept;
// Return true while this thread is in a method.
bool is_in_method() noexcept;
// Return the exception of this thread's last trampoline if the core is handling that failure, else
// null.
Object take_exception();

// ---- Arguments ----

using bindings::to_python;
inline PyObject* to_python(const void* pointer) {
  return to_python(reinterpret_cast<uintptr_t>(pointer));
}
Object to_bytes(const void* data, size_t size);

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

// ---- Results ----

// Each returns OB_OK if the object is a valid result of the entry; otherwise another status, with
// the Python error set.
inline ob_status nothing(PyObject*) {
  return OB_OK;
}

inline auto into(uint64_t* out) {
  return [out](PyObject* result) { return to_uint64(result, out) ? OB_OK : OB_INTERNAL; };
}
inline auto into(int64_t* out) {
  return [out](PyObject* result) { return to_int64(result, out) ? OB_OK : OB_INTERNAL; };
}
inline auto into(void** out) {
  return [out](PyObject* result) {
    uint64_t address = 0;
    const bool is_address = to_uint64(result, &address);
    *out = reinterpret_cast<void*>(address);
    return is_address ? OB_OK : OB_INTERNAL;
  };
}
inline auto into(double* out) {
  return [out](PyObject* result) {
    *out = PyFloat_AsDouble(result);
    return *out == -1.0 && PyErr_Occurred() ? OB_INTERNAL : OB_OK;
  };
}
// True: done, False: under way.
inline ob_status readiness(PyObject* result) {
  if (result != Py_True && result != Py_False) {
    PyErr_SetString(PyExc_TypeError, "a query must return True (done) or False");
    return OB_INTERNAL;
  }
  return result == Py_True ? OB_OK : OB_NOT_READY;
}

// ---- Calls ----

void set_failure(Entry entry, std::string text);
// Return the status for the current Python error, and clear it. `has_result`: the method returned
// an unusable result instead of raising.
ob_status take_error(Entry entry, bool has_result);
PyObject* method_of(Entry entry);
PyGILState_STATE begin_call();
void end_call(PyGILState_STATE gil);

// Call the method. `make_arguments` and `take_result` run with the interpreter lock.
template <class MakeArguments, class TakeResult>
ob_status call(Entry entry, MakeArguments&& make_arguments, TakeResult&& take_result) {
  if (python_is_gone()) {
    set_failure(entry, "Python is shutting down");
    return OB_UNAVAILABLE;
  }
  const PyGILState_STATE gil = begin_call();
  ob_status status = OB_INTERNAL;
  {
    const Object arguments_of_call = make_arguments();
    const Object result(arguments_of_call ? PyObject_CallObject(method_of(entry), arguments_of_call.get()) : nullptr);
    if (result) {
      status = take_result(result.get());
    }
    if (PyErr_Occurred()) {
      status = take_error(entry, static_cast<bool>(result));
    }
  }
  end_call(gil);
  return status;
}

// ---- Trampolines of entries with plain arguments ----

template <class Value>
constexpr bool is_argument =
    std::is_same_v<Value, int32_t> || std::is_same_v<Value, uint32_t> || std::is_same_v<Value, uint64_t> ||
    std::is_same_v<Value, void*> || std::is_same_v<Value, const char*>;

template <class Value>
constexpr bool is_result = std::is_same_v<Value, uint64_t*> || std::is_same_v<Value, int64_t*> ||
                           std::is_same_v<Value, double*> || std::is_same_v<Value, void**>;

// An entry that writes its result, if it has one, through its last argument.
template <Entry entry, class... Values>
ob_status plain(void*, Values... values) {
  const std::tuple<Values...> all(values...);
  constexpr size_t count = sizeof...(Values);
  using Last = std::tuple_element_t<count - 1, std::tuple<Values...>>;
  const auto call_with = [&]<size_t... i>(std::index_sequence<i...>, auto&& take_result) {
    static_assert((is_argument<std::tuple_element_t<i, std::tuple<Values...>>> && ...),
                  "add the entry to OB_WRITTEN_TRAMPOLINES, and write its trampoline");
    return call(entry, [&] { return arguments(std::get<i>(all)...); }, take_result);
  };
  if constexpr (is_result<Last>) {
    return call_with(std::make_index_sequence<count - 1>(), into(std::get<count - 1>(all)));
  } else if constexpr (entry == Entry::event_query || entry == Entry::stream_query) {
    return call_with(std::make_index_sequence<count>(), readiness);
  } else {
    return call_with(std::make_index_sequence<count>(), nothing);
  }
}

}  // namespace outboard::bindings::trampoline

// SPDX-License-Identifier: BSD-3-Clause
// Methods of the module made from C++ functions. A method reads its arguments by the types of the
// function's parameters, and makes an object of the function's result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/python.h"

namespace outboard::bindings {

// ---- Results. Each returns an owned object, or null with a Python error set. ----

inline PyObject* to_python(PyObject* owned) {
  return owned;
}
inline PyObject* to_python(Object object) {
  return object.release();
}
inline PyObject* to_python(const std::string& text) {
  return from_text(text);
}
inline PyObject* to_python(const char* text) {
  return from_text(text);
}
inline PyObject* to_python(double number) {
  return PyFloat_FromDouble(number);
}
template <class Number>
  requires std::is_integral_v<Number>
PyObject* to_python(Number number) {
  if constexpr (std::is_same_v<Number, bool>) {
    return PyBool_FromLong(number);
  } else if constexpr (std::is_signed_v<Number>) {
    return PyLong_FromLongLong(number);
  } else {
    return PyLong_FromUnsignedLongLong(number);
  }
}
template <class... Items>
PyObject* to_python(const std::tuple<Items...>& items);
template <class First, class Second>
PyObject* to_python(const std::pair<First, Second>& items) {
  return to_python(std::tuple<const First&, const Second&>(items.first, items.second));
}
template <class Item>
PyObject* to_python(const std::vector<Item>& items) {
  Object list(PyList_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; list && i < items.size(); ++i) {
    PyObject* item = to_python(items[i]);
    if (item == nullptr) {
      return nullptr;
    }
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return list.release();
}
template <class... Items>
PyObject* to_python(const std::tuple<Items...>& items) {
  Object tuple(PyTuple_New(sizeof...(Items)));
  Py_ssize_t next = 0;
  const auto put = [&](PyObject* item) {
    if (item != nullptr) {
      PyTuple_SET_ITEM(tuple.get(), next++, item);
    }
    return item != nullptr;
  };
  const bool is_whole = tuple && std::apply([&](const auto&... item) { return (put(to_python(item)) && ...); }, items);
  return is_whole ? tuple.release() : nullptr;
}

// ---- Arguments. Each returns false with a Python error set for an object of another type. ----

inline bool from_python(PyObject* object, const char*, PyObject** out) {
  *out = object;  // borrowed
  return true;
}
inline bool from_python(PyObject* object, const char*, c10::DeviceIndex* out) {
  return to_device(object, out);
}
inline bool from_python(PyObject* object, const char*, int64_t* out) {
  return to_int64(object, out);
}
inline bool from_python(PyObject* object, const char*, uint64_t* out) {
  return to_uint64(object, out);
}
inline bool from_python(PyObject* object, const char*, double* out) {
  *out = PyFloat_AsDouble(object);
  return *out != -1 || !PyErr_Occurred();
}
inline bool from_python(PyObject* object, const char*, bool* out) {
  const int is_true = PyObject_IsTrue(object);
  *out = is_true == 1;
  return is_true >= 0;
}
// An argument that must be a Python bytes object.
struct Bytes {
  std::string content;
};
inline bool from_python(PyObject* object, const char*, Bytes* out) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object, &data, &size) != 0) {
    return false;
  }
  out->content.assign(data, static_cast<size_t>(size));
  return true;
}
inline bool from_python(PyObject* object, const char* method, std::string* out) {
  return to_text(object, ("an argument of " + std::string(method) + "()").c_str(), out);
}
inline bool from_python(PyObject* object, const char*, c10::MempoolId_t* out) {
  return to_mempool(object, out);
}

// ---- Methods ----

// Whether the interpreter lock is held while the function runs.
enum class Gil { Held, Released };

template <size_t size>
struct MethodName {
  char text[size];
  consteval MethodName(const char (&given)[size]) { std::copy_n(given, size, text); }
};

template <MethodName name, auto function, Gil gil>
struct Method {
  template <class Result, class... Values>
  static PyObject* call(Result (*)(Values...), PyObject* const* given) {
    return guarded([&]() -> PyObject* {
      std::tuple<std::decay_t<Values>...> values;
      return [&]<size_t... i>(std::index_sequence<i...>) -> PyObject* {
        if (!(from_python(given[i], name.text, &std::get<i>(values)) && ...)) {
          return nullptr;
        }
        const auto run = [&]() -> Result {
          if constexpr (gil == Gil::Held) {
            return function(std::get<i>(values)...);
          } else {
            static_assert(!std::is_same_v<Result, PyObject*>, "objects are made with the lock");
            const WithoutGil without_gil;
            return function(std::get<i>(values)...);
          }
        };
        if constexpr (std::is_void_v<Result>) {
          run();
          return none();
        } else {
          return to_python(run());
        }
      }(std::index_sequence_for<Values...>());
    });
  }

  template <class Result, class... Values>
  static consteval Py_ssize_t count_of(Result (*)(Values...)) {
    return sizeof...(Values);
  }
  static constexpr Py_ssize_t count = count_of(function);

  static PyObject* of_one(PyObject*, PyObject* given) { return call(function, &given); }  // or of none
  static PyObject* of_several(PyObject*, PyObject* const* given, Py_ssize_t given_count) {
    return has_arguments(name.text, given_count, count) ? call(function, given) : nullptr;
  }
};

using VectorCall = PyObject* (*)(PyObject* self, PyObject* const* given, Py_ssize_t count);

// Return the entry of a method that reads its arguments itself, and takes an object as `self`.
inline PyMethodDef bound_method(const char* name, VectorCall function, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, doc};
}
// Return the contents of the capsule that is the `self` of such a method; null, without a Python
// error, for another object.
inline void* self_of(PyObject* method, const char* capsule) {
  PyObject* const self = PyCFunction_Check(method) ? PyCFunction_GetSelf(method) : nullptr;
  return self != nullptr && PyCapsule_IsValid(self, capsule) ? PyCapsule_GetPointer(self, capsule) : nullptr;
}

// Return the table's entry for a function, or for a lambda without captures and with a `+` before
// it. The function may throw; a null object that it returns means that a Python error is set.
template <MethodName name, auto function, Gil gil = Gil::Held>
PyMethodDef method(const char* doc) {
  using Own = Method<name, function, gil>;
  if constexpr (Own::count <= 1) {
    return {name.text, Own::of_one, Own::count == 0 ? METH_NOARGS : METH_O, doc};
  } else {
    return bound_method(name.text, Own::of_several, doc);
  }
}
// The same, without the interpreter lock while the function runs.
template <MethodName name, auto function>
PyMethodDef unlocked(const char* doc) {
  return method<name, function, Gil::Released>(doc);
}

}  // namespace outboard::bindings

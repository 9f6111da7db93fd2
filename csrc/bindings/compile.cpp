// SPDX-License-Identifier: BSD-3-Clause
// The functions that compiler-generated code calls: launches and allocations.
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/method.h"
#include "bindings/records.h"
#include "bindings/tensors.h"
#include "core/device.h"
#include "core/stream.h"
#include "inductor/compiled.h"
#include "inductor/compiled_kernel.h"
#include "kernels/device_kernel.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard::bindings {

namespace {

using kernels::ArgumentKind;

constexpr char kCapsule[] = "torch_outboard.compiled_kernel";

// Return false with a Python error set.
bool to_argument(const CompiledKernel& kernel, size_t index, PyObject* object, CompiledArgument* out) {
  switch (kernel.arguments[index]) {
    case ArgumentKind::Kept:
    case ArgumentKind::Int64: {
      int64_t value = 0;
      if (!to_int64(object, &value)) {
        return false;
      }
      std::memcpy(&out->bits, &value, sizeof(value));
      return true;
    }
    case ArgumentKind::Int32:
    case ArgumentKind::Int16:
    case ArgumentKind::Int8: {
      int64_t value = 0;
      if (!to_int64(object, &value)) {
        return false;
      }
      const int bits = 8 * kernels::info_of(kernel.arguments[index]).bytes;
      if (const int64_t half = int64_t{1} << (bits - 1); value < -half || value >= half) {
        PyErr_Format(PyExc_OverflowError,
                     "argument %zu of the compiled kernel %s is an integer of %d bits, which cannot hold %lld", index,
                     kernel.name.c_str(), bits, static_cast<long long>(value));
        return false;
      }
      std::memcpy(&out->bits, &value, sizeof(value));
      return true;
    }
    case ArgumentKind::Float:
    case ArgumentKind::Double: {
      const double value = PyFloat_AsDouble(object);
      if (value == -1.0 && PyErr_Occurred()) {
        return false;
      }
      if (kernel.arguments[index] == ArgumentKind::Double) {
        std::memcpy(&out->bits, &value, sizeof(value));
      } else {
        const auto single = static_cast<float>(value);
        std::memcpy(&out->bits, &single, sizeof(single));
      }
      return true;
    }
    default:
      out->tensor = as_tensor(object);
      if (!out->tensor) {
        PyErr_Format(PyExc_TypeError, "argument %zu of the compiled kernel %s must be a tensor, not %s", index,
                     kernel.name.c_str(), Py_TYPE(object)->tp_name);
        return false;
      }
      return true;
  }
}

PyObject* launch(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    const auto* kernel = static_cast<const CompiledKernel*>(PyCapsule_GetPointer(self, kCapsule));
    if (!kernel || !has_arguments(kernel->name.c_str(), count, static_cast<Py_ssize_t>(kernel->arguments.size()))) {
      return nullptr;
    }
    c10::SmallVector<CompiledArgument, 12> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      if (!to_argument(*kernel, i, arguments[i], &values[i])) {
        return nullptr;
      }
    }
    // A driver may run the kernel before it returns, or wait for room in its queue.
    unlocked_call([&] { launch_compiled(*kernel, values); });
    return none();
  });
}

PyMethodDef launch_method =
    bound_method("compiled_kernel", launch, "Queue the kernel on the current stream of its tensors' device.");

PyObject* to_launcher(std::unique_ptr<CompiledKernel> kernel) {
  const Object capsule(PyCapsule_New(kernel.get(), kCapsule, nullptr));
  if (!capsule) {
    return nullptr;
  }
  static_cast<void>(kernel.release());  // never freed: queued launches refer to it
  return PyCFunction_NewEx(&launch_method, capsule.get(), nullptr);
}

PyObject* new_compiled_kernel(const std::string& name, uint64_t address, const std::string& letters) {
  TORCH_CHECK_VALUE(address != 0, "the entry of the kernel ", name, " has the address 0");
  return to_launcher(make_compiled(name, reinterpret_cast<CompiledEntry>(address), letters));
}

PyObject* new_device_kernel(PyObject* record) {
  return to_launcher(make_compiled(device_kernel_of(record)));
}

// Build the program of a launcher for a device.
PyObject* build_device_kernel(PyObject* launcher, c10::DeviceIndex device) {
  const auto* kernel = static_cast<const CompiledKernel*>(self_of(launcher, kCapsule));
  if (kernel == nullptr || kernel->program == nullptr) {
    PyErr_SetString(PyExc_TypeError, "build_kernel takes a launcher from device_kernel");
    return nullptr;
  }
  check_device_index(device);
  unlocked_call([&] { kernel->program->build(device); });
  return none();
}

bool to_sizes(PyObject* object, c10::SmallVectorImpl<int64_t>* out) {
  if (!PyTuple_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "empty_strided takes sizes and strides as tuples of int");
    return false;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(object);
  out->resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!to_int64(PyTuple_GET_ITEM(object, i), &(*out)[static_cast<size_t>(i)])) {
      return false;
    }
  }
  return true;
}

PyObject* new_empty_strided(PyObject* given_sizes, PyObject* given_strides, PyObject* given_dtype,
                            c10::DeviceIndex device) {
  c10::SmallVector<int64_t, 8> sizes;
  c10::SmallVector<int64_t, 8> strides;
  if (!to_sizes(given_sizes, &sizes) || !to_sizes(given_strides, &strides)) {
    return nullptr;
  }
  at::ScalarType dtype = at::ScalarType::Undefined;
  if (!to_dtype(given_dtype, &dtype)) {
    PyErr_SetString(PyExc_TypeError, "empty_strided takes a torch.dtype as its third argument");
    return nullptr;
  }
  return from_tensor(unlocked_call([&] { return empty_compiled(device, dtype, sizes, strides); }));
}

// Read pairs of a device's index and a stream's id.
bool to_streams(PyObject* object, std::vector<Stream*>* out) {
  if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) % 2 != 0) {
    PyErr_SetString(PyExc_TypeError,
                    "call_compiled takes streams as one tuple of alternating device indices and stream ids");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i += 2) {
    c10::DeviceIndex device = 0;
    int64_t id = 0;
    if (!to_device(PyTuple_GET_ITEM(object, i), &device) || !to_int64(PyTuple_GET_ITEM(object, i + 1), &id)) {
      return false;
    }
    out->push_back(&get_stream(device, id));
  }
  return true;
}

// Save the Python error. An operator in Python throws an exception that leaves the error itself
// with the thread, where it would be lost.
void secure_python_error() {
  try {
    throw;
  } catch (python_error& error) {
    error.persist();
  } catch (...) {
    // The exception holds everything.
  }
}

// Call generated code, which turns its exceptions into a RuntimeError. An error
// of ours gets its own type again.
PyObject* call_compiled(PyObject* function, PyObject* streams_given, PyObject* argument) {
  std::vector<Stream*> parsed;
  if (!to_streams(streams_given, &parsed)) {
    return nullptr;
  }
  const CompiledStreams streams(std::move(parsed));
  const CompiledErrors errors(secure_python_error);
  PyObject* result = PyObject_CallOneArg(function, argument);
  if (result == nullptr && errors.first() != nullptr) {
    PyErr_Clear();
    std::rethrow_exception(errors.first());
  }
  return result;
}

PyObject* describe_argument_kinds() {
  Object list(PyList_New(0));
  for (const kernels::ArgumentKindInfo& info : kernels::kArgumentKinds) {
    const Object row(Py_BuildValue("{s:N,s:s,s:s,s:N,s:N}", "letter", from_text({static_cast<char>(info.kind)}), "type",
                                   info.type, "meaning", info.meaning, "is_passed", PyBool_FromLong(info.is_passed),
                                   "is_on_host", PyBool_FromLong(info.is_on_host)));
    if (!list || !row || PyList_Append(list.get(), row.get()) < 0) {
      return nullptr;
    }
  }
  return list.release();
}

}  // namespace

PyMethodDef compile_methods[] = {
    method<"compiled_kernel", new_compiled_kernel>("Return a launcher: (name, address of its entry, arguments)."),
    method<"device_kernel", new_device_kernel>("Return a launcher for a KernelRecord."),
    method<"build_kernel", build_device_kernel>("Build a launcher from device_kernel: (launcher, device)."),
    method<"empty_strided", new_empty_strided>("Return a new tensor: (sizes, strides, dtype, device)."),
    method<"call_compiled", call_compiled>("Call generated C++: (function, streams, argument)."),
    method<"argument_kinds", describe_argument_kinds>(
        "Return the kinds of kernel arguments as dictionaries (csrc/kernels/argument_kind.h)."),
    unlocked<"reaches_memory", reaches_memory>("Return whether the host reaches a device's memory; open the device."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

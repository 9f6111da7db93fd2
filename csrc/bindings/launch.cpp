// SPDX-License-Identifier: BSD-3-Clause
// Kernels in the driver's language that users build and launch, through torch_outboard/_launch.py.
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/typed_kernel.h"
#include "bindings/method.h"
#include "bindings/records.h"
#include "bindings/tensors.h"
#include "core/device.h"
#include "core/stream.h"

namespace outboard::bindings {

namespace {

constexpr char kTypedKernelCapsule[] = "torch_outboard.typed_kernel";
constexpr size_t kInlineArguments = 12;

using Kind = KernelParameter::Kind;

bool is_number(PyObject* object) {
  return PyLong_Check(object) || PyFloat_Check(object) || (PyNumber_Check(object) && as_tensor(object) == nullptr);
}

// Each returns false with a Python error set.

bool refuse_number(PyObject* number, const TypedKernel& kernel, size_t index) {
  PyErr_Format(PyExc_OverflowError, "argument %zu of the kernel %s is %R, which %s cannot hold", index,
               kernel.program.name().c_str(), number, c10::toString(kernel.parameters[index].dtype));
  return false;
}

template <typename Number>
bool put_integer(PyObject* object, const TypedKernel& kernel, size_t index, uint64_t* out_bits) {
  const Object integer(PyNumber_Index(object));
  if (!integer) {
    return false;
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(integer.get(), &overflow);
  uint64_t bits = static_cast<uint64_t>(value);
  bool fits = overflow == 0 && value >= static_cast<long long>(std::numeric_limits<Number>::min());
  if constexpr (std::numeric_limits<Number>::digits < 63) {
    fits = fits && value <= static_cast<long long>(std::numeric_limits<Number>::max());
  } else if constexpr (!std::numeric_limits<Number>::is_signed) {
    if (overflow > 0) {
      bits = PyLong_AsUnsignedLongLong(integer.get());
      fits = !PyErr_Occurred();
      PyErr_Clear();
    }
  }
  if (!fits) {
    return refuse_number(integer.get(), kernel, index);
  }
  const auto number = static_cast<Number>(bits);
  std::memcpy(out_bits, &number, sizeof(number));
  return true;
}

template <typename Number>
bool put_real(PyObject* object, const TypedKernel& kernel, size_t index, uint64_t* out_bits) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred()) {
    return false;
  }
  const auto number = static_cast<Number>(static_cast<float>(value));
  if (std::isfinite(value) && !std::isfinite(static_cast<float>(number))) {
    return refuse_number(object, kernel, index);
  }
  std::memcpy(out_bits, &number, sizeof(number));
  return true;
}

template <>
bool put_real<double>(PyObject* object, const TypedKernel&, size_t, uint64_t* out_bits) {
  const double value = PyFloat_AsDouble(object);
  std::memcpy(out_bits, &value, sizeof(value));
  return value != -1.0 || !PyErr_Occurred();
}

bool put_number(PyObject* object, const TypedKernel& kernel, size_t index, uint64_t* out_bits) {
  switch (kernel.parameters[index].dtype) {
    case c10::ScalarType::Bool:
      return put_integer<bool>(object, kernel, index, out_bits);
    case c10::ScalarType::Byte:
      return put_integer<uint8_t>(object, kernel, index, out_bits);
    case c10::ScalarType::Char:
      return put_integer<int8_t>(object, kernel, index, out_bits);
    case c10::ScalarType::Short:
      return put_integer<int16_t>(object, kernel, index, out_bits);
    case c10::ScalarType::UInt16:
      return put_integer<uint16_t>(object, kernel, index, out_bits);
    case c10::ScalarType::Int:
      return put_integer<int32_t>(object, kernel, index, out_bits);
    case c10::ScalarType::UInt32:
      return put_integer<uint32_t>(object, kernel, index, out_bits);
    case c10::ScalarType::Long:
      return put_integer<int64_t>(object, kernel, index, out_bits);
    case c10::ScalarType::UInt64:
      return put_integer<uint64_t>(object, kernel, index, out_bits);
    case c10::ScalarType::Half:
      return put_real<c10::Half>(object, kernel, index, out_bits);
    case c10::ScalarType::BFloat16:
      return put_real<c10::BFloat16>(object, kernel, index, out_bits);
    case c10::ScalarType::Float:
      return put_real<float>(object, kernel, index, out_bits);
    default:
      return put_real<double>(object, kernel, index, out_bits);
  }
}

bool is_passed_by_value(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true) || dtype == c10::ScalarType::Half ||
         dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double;
}

bool to_argument(PyObject* object, const TypedKernel& kernel, size_t index, TypedArgument* out) {
  const Kind kind = kernel.parameters[index].kind;
  if (kind == Kind::Tensor) {
    out->tensor = as_tensor(object);
    if (out->tensor == nullptr) {
      PyErr_Format(PyExc_TypeError, "argument %zu of the kernel %s must be a tensor, not %s", index,
                   kernel.program.name().c_str(), Py_TYPE(object)->tp_name);
    }
    return out->tensor != nullptr;
  }
  if (!is_number(object)) {
    PyErr_Format(PyExc_TypeError, "argument %zu of the kernel %s must be a number, not %s%s", index,
                 kernel.program.name().c_str(), Py_TYPE(object)->tp_name,
                 as_tensor(object) != nullptr ? ": pass x.item(), which waits for it" : "");
    return false;
  }
  if (kind == Kind::Number) {
    return put_number(object, kernel, index, &out->bits);
  }
  if (!to_uint64(object, &out->bits)) {
    return false;
  }
  if (out->bits == 0 || out->bits > UINT32_MAX) {
    PyErr_Format(PyExc_ValueError, "argument %zu of the kernel %s, bytes of local memory, must be from 1 to %u, not %R",
                 index, kernel.program.name().c_str(), UINT32_MAX, object);
    return false;
  }
  return true;
}

bool to_sizes(PyObject* object, const TypedKernel& kernel, const char* what, std::array<uint32_t, 3>* out) {
  if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 3) {
    PyErr_Format(PyExc_TypeError, "the %s of the kernel %s must be three integers, not %R", what,
                 kernel.program.name().c_str(), object);
    return false;
  }
  for (Py_ssize_t i = 0; i < 3; ++i) {
    const Object size(PyNumber_Index(PyTuple_GET_ITEM(object, i)));
    const unsigned long long value = size ? PyLong_AsUnsignedLongLong(size.get()) : 0;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) {
      return false;
    }
    if (PyErr_Occurred() || value > UINT32_MAX) {
      PyErr_Clear();
      PyErr_Format(PyExc_ValueError, "the %s of the kernel %s must contain numbers from 0 to %u, not %R", what,
                   kernel.program.name().c_str(), UINT32_MAX, object);
      return false;
    }
    (*out)[static_cast<size_t>(i)] = static_cast<uint32_t>(value);
  }
  return true;
}

// (is cooperative, follows addresses, device and id of a stream; a
// device of -1: the current stream)
bool to_options(PyObject* const* arguments, const TypedKernel& kernel, LaunchOptions* out) {
  c10::DeviceIndex device = 0;
  int64_t id = 0;
  if (!to_sizes(arguments[1], kernel, "grid", &out->grid) || !to_sizes(arguments[2], kernel, "block", &out->block) ||
      !to_sizes(arguments[3], kernel, "cluster", &out->cluster) || !to_uint64(arguments[4], &out->shared_memory) ||
      !to_device(arguments[7], &device) || !to_int64(arguments[8], &id)) {
    return false;
  }
  out->is_cooperative = PyObject_IsTrue(arguments[5]) == 1;
  out->follows_addresses = PyObject_IsTrue(arguments[6]) == 1;
  out->stream = device < 0 ? nullptr : &get_stream(device, id);
  return !PyErr_Occurred();
}

PyObject* launch_typed(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    const auto* kernel = static_cast<const TypedKernel*>(PyCapsule_GetPointer(self, kTypedKernelCapsule));
    LaunchOptions options;
    if (!kernel || !has_arguments("launch", count, 9) || !to_options(arguments, *kernel, &options)) {
      return nullptr;
    }
    // A tuple keeps its items alive while the lock is released.
    PyObject* const tuple = arguments[0];
    const Py_ssize_t parameter_count = static_cast<Py_ssize_t>(kernel->parameters.size());
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != parameter_count) {
      PyErr_Format(PyExc_TypeError, "the kernel %s takes a tuple of %zd arguments, got %s of %zd",
                   kernel->program.name().c_str(), parameter_count, Py_TYPE(tuple)->tp_name,
                   PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : Py_ssize_t{-1});
      return nullptr;
    }
    c10::SmallVector<TypedArgument, kInlineArguments> values(static_cast<size_t>(parameter_count));
    for (size_t i = 0; i < values.size(); ++i) {
      if (!to_argument(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)), *kernel, i, &values[i])) {
        return nullptr;
      }
    }
    // A driver may run the kernel before it returns, or wait for room in its queue.
    unlocked_call([&] { launch_typed(*kernel, values, options); });
    return none();
  });
}

PyMethodDef typed_launch_method = bound_method(
    "launch", launch_typed,
    "Queue a launch: (arguments, grid, block, cluster, bytes of shared memory, whether it is cooperative, whether it"
    " follows addresses, device of a stream or -1, id of the stream).");

Kind kind_named(const std::string& name) {
  if (name == "tensor") {
    return Kind::Tensor;
  }
  TORCH_CHECK_VALUE(name == "number" || name == "local",
                    "the field 'kind' of a ParameterRecord must be 'tensor',"
                    " 'number' or 'local', not '",
                    name, "'");
  return name == "number" ? Kind::Number : Kind::Local;
}

KernelParameter parameter_of(PyObject* object) {
  const Record record(object, "ParameterRecord");
  KernelParameter result{kind_named(record.text("kind")), c10::ScalarType::Undefined, record.flag("is_written"),
                         record.flag("is_strided")};
  const Object dtype = record.field("dtype");
  TORCH_CHECK_TYPE(dtype.get() == Py_None || to_dtype(dtype.get(), &result.dtype),
                   "the field 'dtype' of a ParameterRecord must be a torch.dtype or None");
  TORCH_CHECK_VALUE(result.kind != Kind::Number || is_passed_by_value(result.dtype),
                    "a kernel cannot take a number of dtype ", c10::toString(result.dtype), " by value");
  return result;
}

void destroy_typed_kernel(PyObject* capsule) {
  delete static_cast<TypedKernel*>(PyCapsule_GetPointer(capsule, kTypedKernelCapsule));
}

PyObject* new_typed_kernel(PyObject* object) {
  const Record record(object, "TypedKernelRecord");
  std::vector<KernelParameter> parameters;
  for (const Object& parameter : record.items("parameters")) {
    parameters.push_back(parameter_of(parameter.get()));
  }
  auto kernel = std::make_unique<TypedKernel>(record.text("name"), program_text_of(record), std::move(parameters));
  const Object capsule(PyCapsule_New(kernel.get(), kTypedKernelCapsule, destroy_typed_kernel));
  if (!capsule) {
    return nullptr;
  }
  static_cast<void>(kernel.release());
  return PyCFunction_NewEx(&typed_launch_method, capsule.get(), nullptr);
}

PyObject* build_typed_kernel(PyObject* launcher, c10::DeviceIndex device) {
  const auto* kernel = static_cast<const TypedKernel*>(self_of(launcher, kTypedKernelCapsule));
  if (kernel == nullptr) {
    PyErr_SetString(PyExc_TypeError, "build_typed_kernel takes a launcher from typed_kernel");
    return nullptr;
  }
  check_device_index(device);
  unlocked_call([&] { kernel->program.handle(device); });
  return none();
}

}  // namespace

PyMethodDef launch_methods[] = {
    method<"typed_kernel", new_typed_kernel>("Return a launcher for a TypedKernelRecord."),
    method<"build_typed_kernel", build_typed_kernel>("Build a launcher from typed_kernel: (launcher, device)."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
// Coverage, the mode of the fallback, and operator kernels written in Python.
#include "distributed/api.h"
#include "ops/native/native_c.h"
#include "ops/operator/api.h"
#include "ops/register_native.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "api/register.h"
#include "bindings/kernel_arguments.h"
#include "bindings/python.h"
#include "core/capture.h"
#include "ops/call/acceptance.h"
#include "ops/call/call.h"
#include "ops/operator/shape_classes.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard::bindings {

namespace {

PyObject* py_coverage(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    Object list(PyList_New(0));
    const auto add = [&list](const std::string& op, const char* provider, uint64_t calls) {
      const Object row(Py_BuildValue("(NsK)", from_text(op), provider, static_cast<unsigned long long>(calls)));
      return row && PyList_Append(list.get(), row.get()) == 0;
    };
    if (!list) {
      return nullptr;
    }
    for (const CoverageRow& row : coverage()) {
      if (!add(row.op, provider_name(row.provider), row.calls)) {
        return nullptr;
      }
    }
    for (const CollectiveRow& row : collective_coverage()) {
      if (!add(row.op, row.provider, row.calls)) {
        return nullptr;
      }
    }
    return list.release();
  });
}

PyObject* py_reset_coverage(PyObject*, PyObject*) {
  return guarded([] {
    reset_coverage();
    reset_collective_coverage();
    return none();
  });
}

PyObject* py_host_counters(PyObject*, PyObject*) {
  return guarded([] {
    const HostCounters counters = host_counters();
    return Py_BuildValue("(KK)", static_cast<unsigned long long>(counters.queued),
                         static_cast<unsigned long long>(counters.waited));
  });
}

PyObject* py_waited_operators(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    Object dict(PyDict_New());
    for (const auto& [op, calls] : waited_operators()) {
      const Object count(PyLong_FromUnsignedLongLong(calls));
      if (!dict || !count || PyDict_SetItemString(dict.get(), op.c_str(), count.get()) < 0) {
        return nullptr;
      }
    }
    return dict.release();
  });
}

PyObject* py_shape_disagreements(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    Object list(PyList_New(0));
    for (const ShapeDisagreement& found : shape_disagreements()) {
      const Object row(Py_BuildValue("(NNK)", from_text(found.op), from_text(found.difference),
                                     static_cast<unsigned long long>(found.waits)));
      if (!list || !row || PyList_Append(list.get(), row.get()) < 0) {
        return nullptr;
      }
    }
    return list.release();
  });
}

// known, fresh: bytes of calls whose class is known, and of first calls. Returns the previous
// limits.
PyObject* py_limit_asked_calls(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    uint64_t known = 0, fresh = 0;
    if (!has_arguments("limit_asked_calls", count, 2) || !to_uint64(arguments[0], &known) ||
        !to_uint64(arguments[1], &fresh)) {
      return nullptr;
    }
    const AskedBytes before = limit_asked_calls({known, fresh});
    return Py_BuildValue("(KK)", static_cast<unsigned long long>(before.known),
                         static_cast<unsigned long long>(before.fresh));
  });
}

PyObject* py_native_operators(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    Object list(PyList_New(0));
    for (const std::string& op : native_operators()) {
      const Object name(from_text(op));
      if (!list || !name || PyList_Append(list.get(), name.get()) < 0) {
        return nullptr;
      }
    }
    return list.release();
  });
}

PyObject* py_set_fallback_mode(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    std::string mode;
    if (!to_text(argument, "the fallback mode", &mode)) {
      return nullptr;
    }
    if (mode == "warn") {
      set_fallback_mode(FallbackMode::Warn);
    } else if (mode == "error") {
      set_fallback_mode(FallbackMode::Error);
    } else if (mode == "silent") {
      set_fallback_mode(FallbackMode::Silent);
    } else {
      PyErr_Format(PyExc_ValueError, "the fallback mode must be 'warn', 'error' or 'silent', not '%s'", mode.c_str());
      return nullptr;
    }
    return none();
  });
}

// Return the argument that a return stands for: the one with the same alias
// annotation, if the operator writes to it.
std::optional<size_t> written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!result.alias_info() || !result.alias_info()->isWrite()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias && *alias == *result.alias_info()) {
      return i;
    }
  }
  return std::nullopt;
}

// A kernel's call while the core records the stream. Work that the kernel launches
// itself, with a driver handle or through an address, runs at once and is missing in each
// replay. Then nothing was recorded.
class CapturedCall {
 public:
  explicit CapturedCall(const Call& call) : capture_(capture_of(current_stream(call.device()))) {
    if (capture_ != nullptr && !capture_->is_native()) {
      before_ = capture_->command_count();
    } else {
      capture_ = nullptr;
    }
  }

  // Raise CaptureError for a call that has results with elements and added nothing to the graph.
  void check(const Call& call, const std::vector<c10::IValue>& results) const {
    if (C10_LIKELY(capture_ == nullptr) || capture_->command_count() != before_) {
      return;
    }
    for (const c10::IValue& value : results) {
      if (value.isTensor() && makes_elements(call, value.toTensor())) {
        capture_->refuse("the kernel in Python for " + call.op().name +
                         ", which queued nothing that a graph could replay (launch with torch_outboard.launch or "
                         "torch's operators, or return NotImplemented),");
      }
    }
  }

 private:
  // Return true if the tensor has elements that the call must write;
  // false for a view of an argument.
  static bool makes_elements(const Call& call, const at::Tensor& result) {
    if (!result.defined() || result.numel() == 0 || !is_ours(*result.unsafeGetTensorImpl())) {
      return false;
    }
    bool is_written = false;
    bool is_view = false;
    for (size_t i = 0; i < call.op().args.size(); ++i) {
      call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage() && result.has_storage() && tensor.is_alias_of(result)) {
          is_written |= call.op().args[i].is_written;
          is_view = true;
        }
      });
    }
    return is_written || !is_view;
  }

  Capture* capture_;
  uint64_t before_ = 0;
};

class PythonKernel {
 public:
  explicit PythonKernel(PyObject* callable) : callable_(Py_NewRef(callable)) {}

  // The callable is never freed: a kernel stays registered until the process ends, and the
  // interpreter may be gone before the registration.
  bool operator()(const Call& call, torch::jit::Stack* stack) const {
    if (python_is_gone()) {
      return false;
    }
    const pybind11::gil_scoped_acquire gil;
    const CapturedCall captured(call);
    const c10::FunctionSchema& schema = call.op().handle.schema();
    const size_t count = schema.arguments().size();
    const c10::IValue* arguments = stack->data() + (stack->size() - count);
    std::vector<c10::IValue> results;
    try {
      py::list positional;
      py::dict named;
      for (size_t i = 0; i < count; ++i) {
        const c10::Argument& argument = schema.arguments()[i];
        py::object value = to_kernel_argument(arguments[i], argument);
        if (argument.kwarg_only()) {
          named[py::str(argument.name())] = std::move(value);
        } else {
          positional.append(std::move(value));
        }
      }
      const Object positional_tuple(PyList_AsTuple(positional.ptr()));
      py::object result =
          py::reinterpret_steal<py::object>(PyObject_Call(callable_, positional_tuple.get(), named.ptr()));
      if (!result) {
        throw py::error_already_set();
      }
      if (result.is(py::handle(Py_NotImplemented))) {
        return false;
      }
      results = convert_results(schema, arguments, result);
    } catch (py::error_already_set& error) {
      error.restore();
      throw_python_error();
    }
    captured.check(call, results);
    torch::jit::drop(*stack, count);
    for (c10::IValue& value : results) {
      stack->push_back(std::move(value));
    }
    return true;
  }

 private:
  // None in place of a result that the operator writes to an argument stands for that argument.
  static std::vector<c10::IValue> convert_results(const c10::FunctionSchema& schema, const c10::IValue* arguments,
                                                  const py::object& result) {
    const auto& returns = schema.returns();
    std::vector<c10::IValue> values;
    values.reserve(returns.size());
    if (returns.size() > 1 && !result.is_none()) {
      TORCH_CHECK_TYPE(py::isinstance<py::sequence>(result) && py::len(result) == returns.size(), "the kernel for ",
                       schema.name(), " must return ", returns.size(), " values");
    }
    for (size_t i = 0; i < returns.size(); ++i) {
      const py::object item = returns.size() == 1 || result.is_none() ? result : py::object(result[py::int_(i)]);
      if (item.is_none()) {
        if (const std::optional<size_t> written = written_argument(schema, returns[i])) {
          values.push_back(arguments[*written]);
          continue;
        }
      }
      values.push_back(torch::jit::toIValue(item, returns[i].type()));
    }
    return values;
  }

  PyObject* callable_;
};

PyObject* py_register_native_kernel(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    std::string op;
    if (!has_arguments("register_native_kernel", count, 2) || !to_text(arguments[0], "the operator", &op)) {
      return nullptr;
    }
    if (!PyCallable_Check(arguments[1])) {
      PyErr_Format(PyExc_TypeError, "the kernel for %s must be callable", op.c_str());
      return nullptr;
    }
    register_native_kernel(op, PythonKernel(arguments[1]));
    return none();
  });
}

PyObject* py_inferred_shapes(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(inferred_shapes());
}

PyObject* py_infers_shapes(PyObject*, PyObject*) {
  return PyBool_FromLong(infers_shapes() ? 1 : 0);
}

PyObject* py_register_with_torch(PyObject*, PyObject*) {
  return guarded([] {
    register_with_torch();
    return none();
  });
}

}  // namespace

PyMethodDef ops_methods[] = {
    {"coverage", py_coverage, METH_NOARGS, PyDoc_STR("Return rows of operator, provider and number of calls.")},
    {"reset_coverage", py_reset_coverage, METH_NOARGS, PyDoc_STR("Reset all counters to 0.")},
    {"host_counters", py_host_counters, METH_NOARGS,
     PyDoc_STR("Return the numbers of host calls that were queued and that waited.")},
    {"shape_disagreements", py_shape_disagreements, METH_NOARGS,
     PyDoc_STR(
         "Return (operator, difference, calls that waited) for each class of calls whose meta kernel was wrong.")},
    OUTBOARD_FASTCALL("limit_asked_calls", py_limit_asked_calls,
                      "Set the bytes up to which the CPU is asked, and return the previous limits: (known, fresh)."),
    {"waited_operators", py_waited_operators, METH_NOARGS, PyDoc_STR("Return the calls that waited, by operator.")},
    {"native_operators", py_native_operators, METH_NOARGS,
     PyDoc_STR("Return the operators that have a kernel from the driver.")},
    {"set_fallback_mode", py_set_fallback_mode, METH_O,
     PyDoc_STR("Set the fallback mode: 'warn', 'error' or 'silent'.")},
    OUTBOARD_FASTCALL("register_native_kernel", py_register_native_kernel,
                      "Register a callable as an operator's kernel."),
    {"inferred_shapes", py_inferred_shapes, METH_NOARGS,
     PyDoc_STR("Return how often a meta kernel was asked for the shapes of a call's results.")},
    {"infers_shapes", py_infers_shapes, METH_NOARGS,
     PyDoc_STR("Return whether a meta kernel is running for a call in this thread.")},
    {"register_with_torch", py_register_with_torch, METH_NOARGS,
     PyDoc_STR("Register with all of torch's interfaces, once.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

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
#include "bindings/method.h"
#include "core/capture.h"
#include "ops/call/acceptance.h"
#include "ops/call/call.h"
#include "ops/operator/shape_classes.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard::bindings {

namespace {

using CallRow = std::tuple<std::string, const char*, uint64_t>;

std::vector<CallRow> all_coverage() {
  std::vector<CallRow> rows;
  for (const CoverageRow& row : coverage()) {
    rows.emplace_back(row.op, provider_name(row.provider), row.calls);
  }
  for (const CollectiveRow& row : collective_coverage()) {
    rows.emplace_back(row.op, row.provider, row.calls);
  }
  return rows;
}

void reset_all_coverage() {
  reset_coverage();
  reset_collective_coverage();
}

std::pair<uint64_t, uint64_t> count_host_calls() {
  const HostCounters counters = host_counters();
  return {counters.queued, counters.waited};
}

PyObject* waits_by_operator() {
  Object dict(PyDict_New());
  for (const auto& [op, calls] : waited_operators()) {
    if (!dict || !set_item(dict.get(), op.c_str(), to_python(calls))) {
      return nullptr;
    }
  }
  return dict.release();
}

std::vector<std::tuple<std::string, std::string, uint64_t>> list_disagreements() {
  std::vector<std::tuple<std::string, std::string, uint64_t>> rows;
  for (const ShapeDisagreement& disagreement : shape_disagreements()) {
    rows.emplace_back(disagreement.op, disagreement.difference, disagreement.waits);
  }
  return rows;
}

// known, fresh: bytes of calls whose class is known, and of first calls.
std::pair<uint64_t, uint64_t> exchange_limits(uint64_t known, uint64_t fresh) {
  const CheckedBytes before = limit_checked_calls({known, fresh});
  return {before.known, before.fresh};
}

PyObject* choose_fallback(const std::string& mode) {
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
    if (!result.defined() || result.numel() == 0 || !is_device_tensor(*result.unsafeGetTensorImpl())) {
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

PyObject* register_python_kernel(const std::string& op, PyObject* callable) {
  if (!PyCallable_Check(callable)) {
    PyErr_Format(PyExc_TypeError, "the kernel for %s must be callable", op.c_str());
    return nullptr;
  }
  register_native_kernel(op, PythonKernel(callable));
  return none();
}

}  // namespace

PyMethodDef ops_methods[] = {
    method<"coverage", all_coverage>("Return rows of operator, provider and number of calls."),
    method<"reset_coverage", reset_all_coverage>("Reset all counters to 0."),
    method<"host_counters", count_host_calls>("Return the numbers of host calls that were queued and that waited."),
    method<"shape_disagreements", list_disagreements>(
        "Return (operator, difference, calls that waited) for each class of calls whose meta kernel was wrong."),
    method<"limit_checked_calls", exchange_limits>(
        "Set the bytes up to which the CPU is asked, and return the previous limits: (known, fresh)."),
    method<"waited_operators", waits_by_operator>("Return the calls that waited, by operator."),
    method<"native_operators", native_operators>("Return the operators that have a kernel from the driver."),
    method<"set_fallback_mode", choose_fallback>("Set the fallback mode: 'warn', 'error' or 'silent'."),
    method<"register_native_kernel", register_python_kernel>("Register a callable as an operator's kernel."),
    method<"inferred_shapes", inferred_shapes>(
        "Return how often a meta kernel was asked for the shapes of a call's results."),
    method<"infers_shapes", infers_shapes>("Return whether a meta kernel is running for a call in this thread."),
    method<"register_with_torch", register_with_torch>("Register with all of torch's interfaces, once."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

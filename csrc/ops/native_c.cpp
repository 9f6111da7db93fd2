// SPDX-License-Identifier: BSD-3-Clause
#include "ops/native_c.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <deque>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "ops/api.h"
#include "ops/call.h"
#include "ops/results.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

// An argument list as the driver sees it; owns the arrays that the values point into.
class DriverValues {
 public:
  void add(const ArgInfo& info, const c10::IValue& value) {
    ob_value result{};
    result.struct_size = sizeof(result);
    if (value.isTensor()) {
      result.kind = OB_VALUE_TENSOR;
      result.count = 1;
      result.tensors = add_tensors({value.toTensor()});
    } else if (info.kind == ArgKind::TensorList || info.kind == ArgKind::OptionalTensorList) {
      if (!value.isNone()) {
        std::vector<at::Tensor> tensors;
        for (const c10::IValue& element : value.toListRef()) {
          tensors.push_back(element.isTensor() ? element.toTensor() : at::Tensor());
        }
        result.kind = OB_VALUE_TENSOR_LIST;
        result.count = tensors.size();
        result.tensors = add_tensors(tensors);
      }
    } else if (value.isInt() || value.isBool()) {
      result.kind = value.isInt() ? OB_VALUE_INT : OB_VALUE_BOOL;
      result.count = 1;
      result.ints = ints_.emplace_back(std::vector<int64_t>{value.isInt() ? value.toInt() : value.toBool()}).data();
    } else if (value.isDouble()) {
      result.kind = OB_VALUE_DOUBLE;
      result.count = 1;
      result.doubles = doubles_.emplace_back(std::vector<double>{value.toDouble()}).data();
    } else if (value.isIntList()) {
      std::vector<int64_t>& list = ints_.emplace_back(value.toIntVector());
      result.kind = OB_VALUE_INT_LIST;
      result.count = list.size();
      result.ints = list.data();
    } else if (value.isDoubleList()) {
      std::vector<double>& list = doubles_.emplace_back(value.toDoubleVector());
      result.kind = OB_VALUE_DOUBLE_LIST;
      result.count = list.size();
      result.doubles = list.data();
    } else if (value.isString()) {
      result.kind = OB_VALUE_STRING;
      result.count = value.toStringRef().size();
      result.string = value.toStringRef().c_str();
    } else if (!value.isNone()) {
      is_complete_ = false;
    }
    values_.push_back(result);
  }

  const ob_tensor* add_tensors(const std::vector<at::Tensor>& tensors) {
    std::vector<ob_tensor>& result = tensors_.emplace_back();
    for (const at::Tensor& tensor : tensors) {
      ob_tensor described{};
      described.struct_size = sizeof(described);
      if (tensor.defined()) {
        described.is_defined = 1;
        described.data = tensor.numel() > 0 ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
        described.dtype = static_cast<ob_dtype>(tensor.scalar_type());
        described.device = tensor.device().is_cpu() ? OB_HOST : tensor.device().index();
        described.ndim = static_cast<int32_t>(tensor.dim());
        described.sizes = tensor.sizes().data();
        described.strides = tensor.strides().data();
        is_complete_ &= !tensor.is_conj() && !tensor.is_neg() && tensor.layout() == c10::kStrided;
      }
      result.push_back(described);
    }
    return result.data();
  }

  const std::vector<ob_value>& values() const { return values_; }
  // False if an argument has no form in the contract: the call goes to the next provider.
  bool is_complete() const { return is_complete_; }

 private:
  std::vector<ob_value> values_;
  std::deque<std::vector<ob_tensor>> tensors_;
  std::deque<std::vector<int64_t>> ints_;
  std::deque<std::vector<double>> doubles_;
  bool is_complete_ = true;
};

struct DriverKernel {
  ob_operator_fn fn;
  void* user;

  bool operator()(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    OpPlan& plan = plan_for(op);
    if (plan.kind != OpKind::Makes && plan.kind != OpKind::Writes) {
      return false;
    }
    const Call call(plan, *stack);
    const std::shared_ptr<const CallShape> shape = shape_of(call);
    if (shape->must_wait) {
      return false;
    }
    for (const auto& [index, wanted] : shape->resized) {
      resize_output(call.arg(index).toTensor(), wanted.sizes, wanted.strides);
    }
    DriverValues values;
    for (size_t i = 0; i < plan.args.size(); ++i) {
      values.add(plan.args[i], call.arg(i));
    }
    if (!values.is_complete()) {
      return false;
    }
    ensure_open(call.device());
    Stream& stream = current_stream(call.device());
    std::vector<at::Tensor> outputs;
    for (const OutputShape& output : shape->outputs) {
      outputs.push_back(output.is_defined
                            ? make_device_tensor(stream, output.dtype, output.sizes, output.strides, output.nbytes)
                            : at::Tensor());
    }
    ob_kernel_call kernel_call{};
    kernel_call.struct_size = sizeof(kernel_call);
    kernel_call.op = plan.name.c_str();
    kernel_call.device = call.device();
    kernel_call.stream = stream_handle(stream);
    kernel_call.arg_count = values.values().size();
    kernel_call.arg_stride = sizeof(ob_value);
    kernel_call.args = values.values().data();
    kernel_call.output_count = outputs.size();
    kernel_call.output_stride = sizeof(ob_tensor);
    kernel_call.outputs = values.add_tensors(outputs);
    const ob_status status = fn(user, &kernel_call);
    if (is_unimplemented(status)) {
      return false;
    }
    check(status, plan.name.c_str(), call.device());
    return_results(call, *shape, outputs, stack);
    return true;
  }
};

ob_status add_kernel(void*, const char* op, ob_operator_fn fn, void* user) {
  try {
    register_native_kernel(op, DriverKernel{fn, user});
    return OB_OK;
  } catch (const std::exception&) {
    return OB_NOT_FOUND;  // the only error that it raises: the driver is told, and decides
  }
}

}  // namespace

void register_driver_kernels() {
  if (!driver().kernel_register) {
    return;
  }
  ob_registrar registrar{};
  registrar.struct_size = sizeof(registrar);
  registrar.add = add_kernel;
  const ob_status status = driver().kernel_register(driver().self, &registrar);
  if (!is_unimplemented(status)) {
    check(status, "kernel_register", OB_HOST);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/call.h"

#include <c10/core/TensorImpl.h>

#include <bit>
#include <string_view>

#include "core/device.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

bool is_allowed_on_cpu(const ArgInfo& info, const c10::TensorImpl& tensor) {
  return !info.is_written && (info.may_be_on_cpu || tensor.dim() == 0);
}

}  // namespace

Call::Call(Operator& op, const torch::jit::Stack& stack)
    : op_(op), stack_(stack), first_(stack.size() - op.args.size()) {
  // The default dtype decides the result's dtype if integers become real numbers.
  if (const auto dtype = c10::get_default_dtype_as_scalartype(); C10_UNLIKELY(dtype != c10::kFloat)) {
    add(kContext | static_cast<uint64_t>(dtype) << 8);
  }
  // Find the device first: torch's message names the first device tensor, wherever a CPU tensor is.
  for (size_t i = 0; i < op.args.size() && device_ < 0; ++i) {
    if (op.args[i].kind == ArgKind::Tensor || op.args[i].kind == ArgKind::TensorList ||
        op.args[i].kind == ArgKind::OptionalTensorList) {
      for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
        if (device_ < 0 && tensor.device().type() == kDeviceType) {
          device_ = tensor.device().index();
        }
      });
    }
  }
  for (size_t i = 0; i < op.args.size(); ++i) {
    const ArgInfo& info = op.args[i];
    const c10::IValue& value = arg(i);
    switch (info.kind) {
      case ArgKind::Tensor:
        if (value.isTensor() && value.toTensor().defined()) {
          add_tensor(i, info, value.toTensor());
        } else {
          add(kUndefined);
        }
        break;
      case ArgKind::TensorList:
      case ArgKind::OptionalTensorList:
        if (value.isNone()) {
          add(kNone);
          break;
        }
        add(kList | (value.toListRef().size() << 8));
        for (const c10::IValue& element : value.toListRef()) {
          if (element.isTensor() && element.toTensor().defined()) {
            add_tensor(i, info, element.toTensor());
          } else {
            add(kUndefined);
          }
        }
        break;
      case ArgKind::Generator:
        break;
      case ArgKind::Device:
        if (device_ < 0 && value.isDevice() && value.toDevice().type() == kDeviceType) {
          const c10::Device device = value.toDevice();
          device_ = device.has_index() ? device.index() : current_device();
        }
        break;
      case ArgKind::Other:
        add_constant(value, info.decides);
        break;
    }
  }
  if (device_ < 0) {
    refuse_generator();
    device_ = current_device();
  }
}

// Raise for a call that was dispatched here only by its generator: its tensors are on the CPU.
void Call::refuse_generator() const {
  for (size_t i = 0; i < op_.args.size(); ++i) {
    TORCH_CHECK(op_.args[i].kind != ArgKind::Generator || !arg(i).isGenerator() || !arg(i).toGenerator().defined() ||
                    arg(i).toGenerator().device().type() != kDeviceType,
                "Expected a 'cpu' device type for generator but found '", kDeviceType, "'");
  }
}

void Call::add_tensor(size_t index, const ArgInfo& info, const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::Device device = impl.device();
  const bool is_cpu = device.is_cpu();
  if (C10_UNLIKELY(device.type() != kDeviceType || device.index() != device_)) {
    if (device_ >= 0 && !(is_cpu && is_allowed_on_cpu(info, impl))) {
      raise_devices(index, device);
    }
  }
  if (C10_UNLIKELY(impl.layout() != c10::kStrided)) {
    has_sparse_ = true;
    has_signature_ = false;
    return;
  }
  if (!is_cpu) {
    some_dense_ = &impl;
  }
  const auto dim = static_cast<uint64_t>(impl.dim());
  const uint64_t flags = (is_cpu ? 1u : 0u) | (impl.is_wrapped_number() ? 2u : 0u) | (impl.is_conj() ? 4u : 0u) |
                         (impl.is_neg() ? 8u : 0u);
  add(kTensor | static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype())) << 8 | flags << 16 | dim << 24);
  const c10::IntArrayRef sizes = impl.sizes();
  const c10::IntArrayRef strides = impl.strides();
  for (size_t i = 0; i < dim; ++i) {
    add(static_cast<uint64_t>(sizes[i]));
    add(static_cast<uint64_t>(strides[i]));
  }
}

void Call::add_number(Tag tag, uint64_t value, Decides decides) {
  add(tag);
  if (decides == Decides::Value) {
    add(value);
  }
}

void Call::add_constant(const c10::IValue& value, Decides decides) {
  if (value.isNone()) {
    add(kNone);
  } else if (decides == Decides::Presence) {
    add(kOther);
  } else if (value.isInt()) {
    add_number(kInt, static_cast<uint64_t>(value.toInt()), decides);
  } else if (value.isBool()) {
    add_number(kBool, value.toBool() ? 1 : 0, decides);
  } else if (value.isDouble()) {
    add_number(kDouble, std::bit_cast<uint64_t>(value.toDouble()), decides);
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    add_number(kComplex, std::bit_cast<uint64_t>(number.real()), decides);
    add_number(kComplex, std::bit_cast<uint64_t>(number.imag()), decides);
  } else if (value.isIntList()) {
    const auto list = value.toListRef();
    add(kIntList | (list.size() << 8));
    for (const c10::IValue& element : list) {
      add(static_cast<uint64_t>(element.toInt()));
    }
  } else if (value.isString()) {
    add(kString);
    add(std::hash<std::string_view>{}(value.toStringRef()));
  } else if (value.isList()) {
    add(kList | (value.toListRef().size() << 8));
    for (const c10::IValue& element : value.toListRef()) {
      add_constant(element, decides);
    }
  } else {
    has_signature_ = false;
  }
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte;
}

bool has_mask(const Call& call) {
  bool result = false;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    if (call.op().args[i].kind == ArgKind::OptionalTensorList) {
      call.for_each_tensor(i, [&result](size_t, const at::Tensor& index) { result |= is_mask(index); });
    }
  }
  return result;
}

void Call::raise_devices(size_t index, c10::Device actual) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kDeviceType, device_), " and ", actual, "! (when checking argument for argument ",
              op_.handle.schema().arguments()[index].name(), " in method ", op_.name, ")");
}

}  // namespace outboard

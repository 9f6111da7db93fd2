// SPDX-License-Identifier: BSD-3-Clause
#include "ops/native/driver_values.h"

#include <ATen/Context.h>

#include <bit>
#include <cstring>
#include <string_view>

namespace outboard {

uint64_t call_flags() {
  const at::Context& context = at::globalContext();
  const auto rounds = [&context](at::Float32Op op) {
    return context.float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
  };
  const auto bit = [](bool is_set, uint64_t flag) { return is_set ? flag : 0; };
  const bool repeats = context.deterministicAlgorithms();
  return bit(repeats, OB_CALL_REPEATS) | bit(repeats || context.deterministicCuDNN(), OB_CALL_REPEATS_CONVOLUTIONS) |
         bit(context.benchmarkCuDNN(), OB_CALL_MEASURES_CONVOLUTIONS) |
         bit(rounds(at::Float32Op::MATMUL), OB_CALL_ROUNDS_PRODUCTS) |
         bit(rounds(at::Float32Op::CONV), OB_CALL_ROUNDS_CONVOLUTIONS) |
         bit(rounds(at::Float32Op::RNN), OB_CALL_ROUNDS_RECURRENT);
}

void DriverValues::add(const ArgInfo& info, const c10::IValue& value) {
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
  } else if (value.isBoolList()) {
    const c10::List<bool> flags = value.toBoolList();
    std::vector<int64_t>& list = ints_.emplace_back(flags.begin(), flags.end());
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
    result.string = is_kept_ ? strings_.emplace_back(value.toStringRef()).c_str() : value.toStringRef().c_str();
  } else if (!value.isNone()) {
    is_complete_ = false;
  }
  values_.push_back(result);
}

const ob_tensor* DriverValues::add_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<ob_tensor>& result = tensors_.emplace_back();
  for (const at::Tensor& tensor : tensors) {
    ob_tensor described{};
    described.struct_size = sizeof(described);
    if (tensor.defined()) {
      described.is_defined = 1;
      if (has_memory_ && tensor.numel() > 0) {
        described.data = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
      }
      described.dtype = static_cast<ob_dtype>(tensor.scalar_type());
      described.device = tensor.device().is_cpu() ? OB_HOST : has_memory_ ? tensor.device().index() : device_;
      described.ndim = static_cast<int32_t>(tensor.dim());
      described.sizes = is_kept_ ? ints_.emplace_back(tensor.sizes().vec()).data() : tensor.sizes().data();
      described.strides = is_kept_ ? ints_.emplace_back(tensor.strides().vec()).data() : tensor.strides().data();
      if (is_kept_ && tensor.device().is_cpu() && tensor.numel() > 0) {
        // A CPU scalar: take its value now.
        auto& bytes = bytes_.emplace_back(std::make_unique<std::byte[]>(tensor.nbytes()));
        std::memcpy(bytes.get(), tensor.const_data_ptr(), tensor.nbytes());
        described.data = reinterpret_cast<uint64_t>(bytes.get());
      }
      is_complete_ &= !tensor.is_conj() && !tensor.is_neg() && tensor.layout() == c10::kStrided;
    }
    result.push_back(described);
  }
  return result.data();
}

const ob_tensor* DriverValues::add_shapes(const std::vector<OutputShape>& shapes) {
  std::vector<ob_tensor>& result = tensors_.emplace_back();
  for (const OutputShape& shape : shapes) {
    ob_tensor described{};
    described.struct_size = sizeof(described);
    if (shape.is_defined) {
      described.is_defined = 1;
      described.dtype = static_cast<ob_dtype>(shape.dtype);
      described.device = device_;
      described.ndim = static_cast<int32_t>(shape.sizes.size());
      described.sizes = shape.sizes.data();
      described.strides = shape.strides.data();
    }
    result.push_back(described);
  }
  return result.data();
}

uint64_t DriverValues::key(const std::string& op) const {
  uint64_t hash = std::hash<std::string_view>{}(op);
  const auto add = [&hash](uint64_t word) { hash = mixed(hash, word); };
  add(flags_);
  for (const ob_value& value : values_) {
    add(static_cast<uint64_t>(value.kind) << 32 | value.count);
    for (size_t i = 0; value.tensors && i < value.count; ++i) {
      const ob_tensor& tensor = value.tensors[i];
      add(static_cast<uint64_t>(tensor.dtype) << 32 | static_cast<uint64_t>(tensor.device + 1) << 16 |
          static_cast<uint64_t>(tensor.ndim) << 1 | static_cast<uint64_t>(tensor.is_defined));
      for (int32_t dim = 0; dim < tensor.ndim; ++dim) {
        add(static_cast<uint64_t>(tensor.sizes[dim]));
        add(static_cast<uint64_t>(tensor.strides[dim]));
      }
    }
    for (size_t i = 0; value.ints && i < value.count; ++i) {
      add(static_cast<uint64_t>(value.ints[i]));
    }
    for (size_t i = 0; value.doubles && i < value.count; ++i) {
      add(std::bit_cast<uint64_t>(value.doubles[i]));
    }
    if (value.string) {
      add(std::hash<std::string_view>{}(std::string_view(value.string, value.count)));
    }
  }
  return hash;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Replaces the tensors in an operator's argument.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ops/operator/operator.h"

namespace outboard {

// Return the argument with `convert` applied to each of its defined tensors. An argument without
// tensors is returned unchanged.
template <typename Convert>
c10::IValue map_tensors(const ArgInfo& info, const c10::IValue& value, Convert&& convert) {
  const auto is_defined = [](const c10::IValue& element) { return element.isTensor() && element.toTensor().defined(); };
  switch (info.kind) {
    case ArgKind::Tensor:
      return is_defined(value) ? c10::IValue(convert(value.toTensor())) : value;
    case ArgKind::TensorList: {
      if (value.isNone()) {
        return value;
      }
      c10::List<at::Tensor> result;
      for (const c10::IValue& element : value.toListRef()) {
        result.push_back(is_defined(element) ? convert(element.toTensor()) : at::Tensor());
      }
      return result;
    }
    case ArgKind::OptionalTensorList: {
      if (value.isNone()) {
        return value;
      }
      c10::List<std::optional<at::Tensor>> result;
      for (const c10::IValue& element : value.toListRef()) {
        result.push_back(is_defined(element) ? std::optional<at::Tensor>(convert(element.toTensor())) : std::nullopt);
      }
      return result;
    }
    default:
      return value;
  }
}

// Do the same for an argument that names a device: `device` replaces it.
inline c10::IValue map_device(const c10::IValue& value, c10::DeviceType device) {
  return value.isNone() ? value : c10::IValue(c10::Device(device));
}

}  // namespace outboard

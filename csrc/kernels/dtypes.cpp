// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/dtypes.h"

#include <utility>

namespace outboard::kernels {

c10::ScalarType dtype_named(std::string_view name) {
  using c10::ScalarType;
  static constexpr std::pair<std::string_view, ScalarType> kNames[] = {
      {"bool", ScalarType::Bool},
      {"uint8", ScalarType::Byte},
      {"uint16", ScalarType::UInt16},
      {"uint32", ScalarType::UInt32},
      {"uint64", ScalarType::UInt64},
      {"int8", ScalarType::Char},
      {"int16", ScalarType::Short},
      {"int32", ScalarType::Int},
      {"int64", ScalarType::Long},
      {"float16", ScalarType::Half},
      {"bfloat16", ScalarType::BFloat16},
      {"float8_e4m3fn", ScalarType::Float8_e4m3fn},
      {"float8_e4m3fnuz", ScalarType::Float8_e4m3fnuz},
      {"float8_e5m2", ScalarType::Float8_e5m2},
      {"float8_e5m2fnuz", ScalarType::Float8_e5m2fnuz},
      {"float32", ScalarType::Float},
      {"float64", ScalarType::Double},
      {"complex64", ScalarType::ComplexFloat},
      {"complex128", ScalarType::ComplexDouble},
  };
  for (const auto& [known, dtype] : kNames) {
    if (known == name) {
      return dtype;
    }
  }
  return ScalarType::Undefined;
}

}  // namespace outboard::kernels

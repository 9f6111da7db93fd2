// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/reduction.h"

#include <ATen/ops/view_as_real.h>

#include "core/collectives.h"
#include "core/error.h"

namespace outboard {

namespace {

using c10d::ReduceOp;

bool is_bitwise(ReduceOp::RedOpType op) {
  return op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
}

const char* name_of(ReduceOp::RedOpType op) {
  static const char* const names[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                      "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
  return names[op];
}

bool can_reduce(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
    case at::kComplexHalf:
      return true;
    default:
      return false;
  }
}

double factor_of(const ReduceOp& op) {
  // Torch 2.11 lacks the newer of the two names.
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "PREMUL_SUM needs a factor");
  return factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor;
}

}  // namespace

Reduction::Reduction(const ReduceOp& op, c10::ScalarType dtype, int size, const char* name) : op_(op) {
  const ReduceOp::RedOpType type = op.op_;
  if (!can_reduce(dtype)) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          c10::str(name, " of ", dtype,
                   " is not supported: Gloo, which exchanges data for the device, reduces bool, int8, uint8,"
                   " int32, int64, floats and halves. Convert the tensor first."));
  }
  const bool is_complex = c10::isComplexType(dtype);
  const bool is_integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  TORCH_CHECK_VALUE(type < ReduceOp::UNUSED, name, " got an unknown reduction");
  name_ = name_of(type);
  TORCH_CHECK_VALUE(!is_bitwise(type) || is_integral, name, " with ", name_of(type), " takes integers, not ", dtype);
  TORCH_CHECK_VALUE(!is_complex || type == ReduceOp::SUM || type == ReduceOp::AVG || type == ReduceOp::PREMUL_SUM, name,
                    " with ", name_of(type), " does not support ", dtype);
  TORCH_CHECK_VALUE(type != ReduceOp::AVG || dtype != at::kBool, name, " with AVG does not support bool");
  TORCH_CHECK_VALUE(type != ReduceOp::PREMUL_SUM || !is_integral, name, " with PREMUL_SUM takes floats, not ", dtype);
  if (type == ReduceOp::AVG) {
    op_ = ReduceOp(ReduceOp::SUM);
    adjustment_ = Adjustment::Divide;
    number_ = size;
  } else if (type == ReduceOp::PREMUL_SUM) {
    number_ = factor_of(op);
    op_ = ReduceOp(ReduceOp::SUM);
    adjustment_ = Adjustment::Multiply;
  } else if (dtype == at::kBool) {
    // As bytes, a sum of three trues would be 3, which is not a bool.
    op_ = type == ReduceOp::SUM ? ReduceOp(ReduceOp::MAX) : type == ReduceOp::PRODUCT ? ReduceOp(ReduceOp::MIN) : op_;
  }
}

at::Tensor Reduction::view(const at::Tensor& tensor) const {
  if (tensor.scalar_type() == at::kBool) {
    return tensor.view(at::kByte);
  }
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

int32_t Reduction::native() const noexcept {
  if (adjustment_ != Adjustment::None) {
    return adjustment_ == Adjustment::Divide ? OB_REDUCE_AVG : OB_REDUCE_PREMUL_SUM;
  }
  switch (static_cast<ReduceOp::RedOpType>(op_.op_)) {
    case ReduceOp::SUM:
      return OB_REDUCE_SUM;
    case ReduceOp::PRODUCT:
      return OB_REDUCE_PRODUCT;
    case ReduceOp::MIN:
      return OB_REDUCE_MIN;
    case ReduceOp::MAX:
      return OB_REDUCE_MAX;
    default:
      return -1;
  }
}

void Reduction::adjust(const at::Tensor& tensor) const {
  if (adjustment_ == Adjustment::Multiply) {
    tensor.mul_(number_);
  } else if (adjustment_ == Adjustment::Divide) {
    if (c10::isIntegralType(tensor.scalar_type(), false)) {
      tensor.div_(static_cast<int64_t>(number_), "trunc");  // as NCCL
    } else {
      tensor.div_(number_);
    }
  }
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.reshape({tensor.numel()}).view(at::kByte);
}

}  // namespace outboard

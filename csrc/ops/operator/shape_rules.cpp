// SPDX-License-Identifier: BSD-3-Clause
// Meta kernels for frequent operators that are not structured. They return the CPU kernels' results
// and layouts. A rule raises, with any message, for an argument that it does not cover. The call
// then waits for the CPU kernel, whose error users know.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/_fused_rms_norm_backward_ops.h>
#include <ATen/ops/_fused_rms_norm_ops.h>
#include <ATen/ops/_prelu_kernel_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/addr_ops.h>
#include <ATen/ops/angle_ops.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/binary_cross_entropy_ops.h>
#include <ATen/ops/clamp_min_meta_dispatch.h>
#include <ATen/ops/complex_ops.h>
#include <ATen/ops/conj_physical_ops.h>
#include <ATen/ops/count_nonzero_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip_ops.h>
#include <ATen/ops/floor_divide_ops.h>
#include <ATen/ops/frexp_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/huber_loss_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/kthvalue_ops.h>
#include <ATen/ops/linspace_ops.h>
#include <ATen/ops/log_sigmoid_forward_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/logical_xor_ops.h>
#include <ATen/ops/logit_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/mode_ops.h>
#include <ATen/ops/nan_to_num_ops.h>
#include <ATen/ops/nanmedian_ops.h>
#include <ATen/ops/nansum_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_meta_dispatch.h>
#include <ATen/ops/polar_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/std_mean_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>
#include <ATen/ops/vdot_ops.h>
#include <ATen/ops/where_ops.h>

#include <cmath>
#include <limits>

#include "ops/operator/meta_kernels.h"

namespace outboard {

namespace {

using at::IntArrayRef;
using at::OptionalIntArrayRef;
using at::ScalarType;
using at::Tensor;

// ---- Element-wise ----

// Return what empty_like returns, which torch's Python decomposes on meta tensors.
Tensor laid_out_as(const Tensor& like) {
  const bool is_dense = like.is_non_overlapping_and_dense();
  const at::DimVector strides =
      is_dense ? at::DimVector(like.strides()) : at::DimVector(at::infer_dense_strides(like.sizes(), like.strides()));
  return at::detail::empty_strided_meta(like.sizes(), strides, like.scalar_type());
}

Tensor empty_of(const Tensor& like, IntArrayRef sizes, ScalarType dtype) {
  return at::empty(sizes, like.options().dtype(dtype));
}

// Resize `out` as an iterator over these tensors does; it may have any dtype.
template <class... Inputs>
Tensor& iterate(Tensor& out, const Inputs&... inputs) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).set_check_mem_overlap(false).allow_cpu_scalars(true).add_output(out);
  (config.add_const_input(inputs), ...);
  config.build();
  return out;
}

// Like iterate, for a kernel that casts only to the inputs' dtype.
template <class... Inputs>
Tensor& iterate_alike(Tensor& out, const Tensor& self, const Inputs&... inputs) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type());
  return iterate(out, self, inputs...);
}

// Return the dtype of an operator whose results are real numbers, also for integers.
ScalarType real_dtype(const Tensor& self) {
  return at::isIntegralType(self.scalar_type(), /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype()
                                                                      : self.scalar_type();
}

template <class... Inputs>
Tensor iterated(ScalarType dtype, const Tensor& self, const Inputs&... inputs) {
  Tensor out = empty_of(self, {0}, dtype);
  return iterate(out, self, inputs...);
}

Tensor& unary_out(const Tensor& self, Tensor& out) {
  return iterate(out, self);
}

Tensor& conj_physical_out(const Tensor& self, Tensor& out) {
  return iterate_alike(out, self);
}

// Return true for real numbers that a kernel copies from complex ones to an output,
// which it resizes like any output.
bool is_copied_from_complex(const Tensor& self, const Tensor& out) {
  return self.is_complex() && !out.is_complex();
}

Tensor& resized(Tensor& out, IntArrayRef sizes) {
  if (out.sizes() != sizes) {
    out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }
  return out;
}

Tensor& abs_out(const Tensor& self, Tensor& out) {
  return is_copied_from_complex(self, out) ? resized(out, self.sizes()) : iterate_alike(out, self);
}

Tensor& angle_out(const Tensor& self, Tensor& out) {
  return is_copied_from_complex(self, out) ? resized(out, self.sizes()) : iterate(out, self);
}

Tensor& binary_out(const Tensor& self, const Tensor& other, Tensor& out) {
  return iterate(out, self, other);
}

Tensor& nan_to_num_out(const Tensor& self, std::optional<double>, std::optional<double>, std::optional<double>,
                       Tensor& out) {
  return iterate_alike(out, self);
}

Tensor relu(const Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool);
  return at::meta::clamp_min(self, 0);
}

Tensor hardswish(const Tensor& self) {
  return iterated(self.scalar_type(), self);
}

// NaN differs from itself.
Tensor isnan(const Tensor& self) {
  return at::meta::ne(self, self);
}

Tensor angle(const Tensor& self) {
  Tensor out = empty_of(self, {0}, c10::toRealValueType(real_dtype(self)));
  return angle_out(self, out);
}

Tensor floor_divide(const Tensor& self, const Tensor& other) {
  const ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(dtype != at::kBool && !c10::isComplexType(dtype));
  Tensor out = empty_of(self.is_meta() ? self : other, {0}, dtype);
  return iterate(out, self, other);
}

// The scale turns integers into real numbers.
Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double) {
  return iterated(real_dtype(grad), grad, mask);
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  TORCH_CHECK(condition.scalar_type() == at::kBool);  // uint8 warns
  Tensor out = empty_of(condition.is_meta() ? condition
                        : self.is_meta()    ? self
                                            : other,
                        {0}, at::result_type(self, other));
  return iterate(out, condition, self, other);
}

Tensor& where_out(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  TORCH_CHECK(condition.scalar_type() == at::kBool && out.scalar_type() == at::result_type(self, other));
  return iterate(out, condition, self, other);
}

void check_mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool && at::infer_size_dimvector(self.sizes(), mask.sizes()) == self.sizes());
}

Tensor& masked_fill_scalar(Tensor& self, const Tensor& mask, const at::Scalar&) {
  check_mask(self, mask);
  return self;
}

Tensor& masked_fill_tensor(Tensor& self, const Tensor& mask, const Tensor& value) {
  // Only the number itself decides whether a real number fits an integer dtype.
  TORCH_CHECK(value.dim() == 0 && c10::canCast(value.scalar_type(), self.scalar_type()));
  check_mask(self, mask);
  return self;
}

Tensor flip(const Tensor& self, IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());
  return laid_out_as(self);
}

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  TORCH_CHECK(index.dim() <= 1 && (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt));
  at::DimVector sizes(self.sizes());
  dim = c10::maybe_wrap_dim(dim, self.dim());
  if (self.dim() > 0) {
    sizes[static_cast<size_t>(dim)] = index.numel();
  } else {
    TORCH_CHECK(index.numel() == 1);
  }
  return empty_of(self, sizes, self.scalar_type());
}

Tensor hardtanh(const Tensor& self, const at::Scalar& low, const at::Scalar& high) {
  TORCH_CHECK(self.is_floating_point() && !low.isComplex() && !high.isComplex());
  return iterated(self.scalar_type(), self);
}

Tensor& hardtanh_out(const Tensor& self, const at::Scalar& low, const at::Scalar& high, Tensor& out) {
  TORCH_CHECK(self.is_floating_point() && !low.isComplex() && !high.isComplex());
  return iterate_alike(out, self);
}

Tensor logit(const Tensor& self, std::optional<double>) {
  TORCH_CHECK(!self.is_complex());
  return iterated(real_dtype(self), self);
}

Tensor& logit_out(const Tensor& self, std::optional<double>, Tensor& out) {
  TORCH_CHECK(!self.is_complex() && out.scalar_type() == real_dtype(self));
  return iterate(out, self);
}

// The second result is for the gradient. Both are contiguous, whatever the input's layout.
std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& self) {
  return {empty_of(self, self.sizes(), self.scalar_type()), empty_of(self, self.sizes(), self.scalar_type())};
}

Tensor prelu(const Tensor& self, const Tensor& weight) {
  TORCH_CHECK(self.scalar_type() == weight.scalar_type());
  return iterated(self.scalar_type(), self, weight);
}

std::tuple<Tensor&, Tensor&> frexp_out(const Tensor& self, Tensor& mantissa, Tensor& exponent) {
  TORCH_CHECK(self.is_floating_point() && mantissa.scalar_type() == self.scalar_type());
  TORCH_CHECK(exponent.scalar_type() == at::kInt);
  iterate(mantissa, self);
  iterate(exponent, self);
  return {mantissa, exponent};
}

// For complex and polar.
Tensor& complex_out(const Tensor& first, const Tensor& second, Tensor& out) {
  TORCH_CHECK(first.is_floating_point() && first.scalar_type() == second.scalar_type());
  TORCH_CHECK(out.scalar_type() == c10::toComplexType(first.scalar_type()));
  return iterate(out, first, second);
}

Tensor rsub(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  return at::meta::sub(other, self, alpha);
}

Tensor addr(const Tensor& self, const Tensor& column, const Tensor& row, const at::Scalar& beta,
            const at::Scalar& alpha) {
  const ScalarType dtype = self.scalar_type();
  TORCH_CHECK(at::isFloatingType(dtype) && column.scalar_type() == dtype && row.scalar_type() == dtype);
  TORCH_CHECK(!beta.isComplex() && !alpha.isComplex() && column.dim() == 1 && row.dim() == 1);
  const Tensor expanded = self.expand({column.size(0), row.size(0)});
  return iterated(dtype, expanded, column.unsqueeze(1), row);
}

Tensor reduced_loss(const Tensor& loss, int64_t reduction) {
  return reduction == at::Reduction::None ? loss : empty_of(loss, {}, loss.scalar_type());
}

Tensor huber_loss(const Tensor& input, const Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0 && input.is_floating_point() && input.scalar_type() == target.scalar_type());
  return reduced_loss(iterated(input.scalar_type(), input, target), reduction);
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight,
                            int64_t reduction) {
  TORCH_CHECK(self.is_floating_point() && self.scalar_type() == target.scalar_type());
  TORCH_CHECK(self.sizes() == target.sizes() && !(weight && weight->defined()));
  return reduced_loss(laid_out_as(self), reduction);
}

// ---- Reductions ----

ScalarType sum_dtype(const Tensor& self, std::optional<ScalarType> dtype) {
  const bool is_integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return dtype.value_or(is_integral ? at::kLong : self.scalar_type());
}

Tensor reduced(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, ScalarType dtype) {
  return at::meta::sum(self, dim, keepdim, dtype);
}

Tensor prod(const Tensor& self, std::optional<ScalarType> dtype) {
  return empty_of(self, {}, sum_dtype(self, dtype));
}

Tensor extremum(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0 && !self.is_complex());
  return empty_of(self, {}, self.scalar_type());
}

Tensor nansum(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, std::optional<ScalarType> dtype) {
  TORCH_CHECK(!self.is_complex());
  return reduced(self, dim, keepdim, sum_dtype(self, dtype));
}

Tensor count_nonzero(const Tensor& self, IntArrayRef dim) {
  return reduced(self, dim, false, at::kLong);
}

// For var and std.
Tensor deviation(const Tensor& self, OptionalIntArrayRef dim, const std::optional<at::Scalar>&, bool keepdim) {
  TORCH_CHECK(self.is_floating_point() || self.is_complex());
  return reduced(self, dim, keepdim, c10::toRealValueType(self.scalar_type()));
}

std::tuple<Tensor, Tensor> deviation_and_mean(const Tensor& self, OptionalIntArrayRef dim,
                                              const std::optional<at::Scalar>& correction, bool keepdim) {
  return {deviation(self, dim, correction, keepdim), reduced(self, dim, keepdim, self.scalar_type())};
}

// For median, mode and similar operators along a dimension; `values` and `indices` have no
// elements yet, or the result's shape.
std::tuple<Tensor&, Tensor&> resize_to_selection(const Tensor& self, int64_t dim, bool keepdim, Tensor& values,
                                                 Tensor& indices) {
  TORCH_CHECK(self.numel() > 0 && !self.is_complex());
  TORCH_CHECK(values.scalar_type() == self.scalar_type() && indices.scalar_type() == at::kLong);
  at::DimVector sizes(self.sizes());
  dim = c10::maybe_wrap_dim(dim, self.dim());
  if (self.dim() > 0 && keepdim) {
    sizes[static_cast<size_t>(dim)] = 1;
  } else if (self.dim() > 0) {
    sizes.erase(sizes.begin() + dim);
  }
  return {resized(values, sizes), resized(indices, sizes)};
}

std::tuple<Tensor&, Tensor&> kth_out(const Tensor& self, int64_t k, int64_t dim, bool keepdim, Tensor& values,
                                     Tensor& indices) {
  TORCH_CHECK(k > 0 && k <= (self.dim() == 0 ? 1 : self.size(dim)));
  return resize_to_selection(self, dim, keepdim, values, indices);
}

std::tuple<Tensor, Tensor> mode(const Tensor& self, int64_t dim, bool keepdim) {
  Tensor values = empty_of(self, {0}, self.scalar_type());
  Tensor indices = empty_of(self, {0}, at::kLong);
  return resize_to_selection(self, dim, keepdim, values, indices);
}

Tensor dot(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && self.sizes() == other.sizes() && self.scalar_type() == other.scalar_type());
  return empty_of(self, {}, self.scalar_type());
}

// ---- Normalisation ----

// The CPU keeps statistics in float32 if the input is half precision and a parameter is
// not, else in the input's dtype.
ScalarType statistics_dtype(const Tensor& input, const std::optional<Tensor>& weight,
                            const std::optional<Tensor>& bias) {
  const auto differs = [&](const std::optional<Tensor>& parameter) {
    return parameter && parameter->defined() && parameter->scalar_type() != input.scalar_type();
  };
  return differs(weight) || differs(bias) ? at::kFloat : input.scalar_type();
}

Tensor contiguous_like(const Tensor& tensor) {
  return empty_of(tensor, tensor.sizes(), tensor.scalar_type());
}

void check_normalized(const Tensor& input, IntArrayRef shape) {
  const size_t ndim = shape.size();
  TORCH_CHECK(ndim > 0 && static_cast<size_t>(input.dim()) >= ndim && input.sizes().slice(input.dim() - ndim) == shape);
}

// Return the sizes of statistics of rows: 1 in each normalized dimension.
at::DimVector sizes_of_rows(const Tensor& input, IntArrayRef shape) {
  at::DimVector sizes(input.sizes());
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(shape.size()), sizes.end(), 1);
  return sizes;
}

std::tuple<Tensor, Tensor> fused_rms_norm(const Tensor& input, IntArrayRef shape, const std::optional<Tensor>& weight,
                                          std::optional<double>) {
  check_normalized(input, shape);
  TORCH_CHECK(!weight.has_value() || !weight->defined() || weight->sizes() == shape);
  return {contiguous_like(input), empty_of(input, sizes_of_rows(input, shape), at::toOpMathType(input.scalar_type()))};
}

std::tuple<Tensor, Tensor> fused_rms_norm_backward(const Tensor&, const Tensor& input, IntArrayRef shape, const Tensor&,
                                                   const std::optional<Tensor>& weight, std::array<bool, 2> wanted) {
  check_normalized(input, shape);
  TORCH_CHECK(!wanted[1] || (weight && weight->defined()));
  return {wanted[0] ? laid_out_as(input) : Tensor(), wanted[1] ? laid_out_as(*weight) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const Tensor& input, IntArrayRef shape,
                                                     const std::optional<Tensor>& weight,
                                                     const std::optional<Tensor>& bias, double) {
  check_normalized(input, shape);
  for (const std::optional<Tensor>* parameter : {&weight, &bias}) {
    TORCH_CHECK(!parameter->has_value() || !(*parameter)->defined() || (*parameter)->sizes() == shape);
  }
  const at::DimVector sizes = sizes_of_rows(input, shape);
  const ScalarType dtype = statistics_dtype(input, weight, bias);
  return {contiguous_like(input), empty_of(input, sizes, dtype), empty_of(input, sizes, dtype)};
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm_backward(const Tensor&, const Tensor& input, IntArrayRef shape,
                                                              const Tensor&, const Tensor&,
                                                              const std::optional<Tensor>& weight,
                                                              const std::optional<Tensor>& bias,
                                                              std::array<bool, 3> wanted) {
  check_normalized(input, shape);
  const auto gradient_of = [](const std::optional<Tensor>& parameter, bool is_wanted) {
    if (!is_wanted) {
      return Tensor();
    }
    TORCH_CHECK(parameter && parameter->defined());
    return contiguous_like(*parameter);
  };
  return {wanted[0] ? contiguous_like(input) : Tensor(), gradient_of(weight, wanted[1]), gradient_of(bias, wanted[2])};
}

std::tuple<Tensor, Tensor, Tensor> native_group_norm(const Tensor& input, const std::optional<Tensor>& weight,
                                                     const std::optional<Tensor>& bias, int64_t n, int64_t, int64_t,
                                                     int64_t groups, double) {
  const ScalarType dtype = statistics_dtype(input, weight, bias);
  const Tensor output = at::empty(input.sizes(), input.options(), input.suggest_memory_format());
  return {output, empty_of(input, {n, groups}, dtype), empty_of(input, {n, groups}, dtype)};
}

// ---- Numbers alone ----

// Return true if the running torch counts numbers of int64 in doubles if an end or the step is not
// an integer. Older versions first drop the fraction.
bool counts_fractions() {
  static const bool counts = at::arange(0, 2.5, 1, at::kLong).numel() == 3;
  return counts;
}

// Return how many numbers arange makes: for int64 in integers, for all others in
// doubles, as the CPU kernel counts.
int64_t count_of_range(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, ScalarType dtype) {
  const double by = step.to<double>();
  const double length = end.to<double>() - start.to<double>();
  TORCH_CHECK(std::isfinite(length) && by != 0 && (by > 0 ? length >= 0 : length <= 0));
  double count = std::ceil(length / by);
  const auto is_whole = [](const at::Scalar& number) { return number.isIntegral(/*includeBool=*/true); };
  if (dtype == ScalarType::Long && ((is_whole(start) && is_whole(end) && is_whole(step)) || !counts_fractions())) {
    const auto whole = step.to<int64_t>();
    int64_t rest = 0;
    TORCH_CHECK(whole != 0 && !__builtin_sub_overflow(end.to<int64_t>(), start.to<int64_t>(), &rest) &&
                !__builtin_add_overflow(rest, whole - (whole > 0 ? 1 : -1), &rest));
    count = static_cast<double>(rest / whole);
  }
  TORCH_CHECK(count >= 0 && count <= static_cast<double>(std::numeric_limits<int64_t>::max()));
  return static_cast<int64_t>(count);
}

Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  out.resize_({count_of_range(start, end, step, out.scalar_type())});
  return out;
}

Tensor& linspace_out(const at::Scalar&, const at::Scalar&, int64_t steps, Tensor& out) {
  TORCH_CHECK(steps >= 0);
  out.resize_({steps});
  return out;
}

// ---- The table ----

template <class TorchOp>
using Function = typename c10::fn_remove_symint<typename TorchOp::schema>::type;

template <class TorchOp>
void add(std::vector<MetaKernelEntry>& entries, Function<TorchOp>* rule) {
  entries.push_back({c10::OperatorName(TorchOp::name, TorchOp::overload_name),
                     c10::KernelFunction::makeFromUnboxedRuntimeFunction(rule)});
}

}  // namespace

void add_shape_rules(std::vector<MetaKernelEntry>& entries) {
#define OB_SHAPE_RULE(op, rule) add<at::_ops::op>(entries, rule);
#include <built/book.inc>
#undef OB_SHAPE_RULE
}

}  // namespace outboard

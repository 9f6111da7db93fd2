// SPDX-License-Identifier: BSD-3-Clause
// Operators for which torch has no kernel, or a failing kernel, on devices other than its own. They
// are composed of operators that every device has, or refused at the call.
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/i0.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/range.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "core/driver.h"
#include "ops/boxed.h"
#include "ops/host/fallback.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"

namespace outboard {

namespace {

// The chain behind a check of the arguments. `prepare` returns true if it has done the call itself.
class PreparedChain final : public c10::OperatorKernel {
 public:
  using Prepare = bool (*)(torch::jit::Stack& stack);
  PreparedChain(Operator& op, Prepare prepare) : op_(op), prepare_(prepare) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (!prepare_(*stack)) {
      run_chain(op_, stack);
    }
  }

 private:
  Operator& op_;
  Prepare prepare_;
};

void prepare(torch::Library& aten, const char* name, PreparedChain::Prepare prepare) {
  const std::string full = std::string("aten::") + name;
  aten.impl(name,
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PreparedChain>(operator_named(full), prepare)));
}

// Torch passes its zero tensors, which have no memory, to products of vectors
// (forward-mode gradients consist of them).
bool multiply_zero_tensor(torch::jit::Stack& stack) {
  const at::Tensor& self = stack[stack.size() - 2].toTensor();
  const at::Tensor& other = stack.back().toTensor();
  if (C10_LIKELY(!self._is_zerotensor() && !other._is_zerotensor())) {
    return false;
  }
  at::Tensor product = at::_efficientzerotensor({}, self.options());
  torch::jit::drop(stack, 2);
  stack.emplace_back(std::move(product));
  return true;
}

// Size the statistics: per channel, the first call of this operator does it, as
// its CPU kernel does when it runs.
bool size_statistics(torch::jit::Stack& stack) {
  constexpr size_t kArguments = 13, kRunningMin = 3, kRunningMax = 4, kScale = 5, kZeroPoint = 6, kAxis = 10,
                   kPerRow = 11;
  const auto argument = [&stack](size_t index) -> const c10::IValue& {
    return stack[stack.size() - kArguments + index];
  };
  const at::Tensor& self = argument(0).toTensor();
  const int64_t axis = argument(kAxis).toInt();
  if (!argument(kPerRow).toBool() || argument(kRunningMin).toTensor().numel() > 0 || axis >= self.dim()) {
    return false;
  }
  const int64_t channels = self.size(axis);
  argument(kRunningMin).toTensor().resize_(channels).fill_(std::numeric_limits<float>::infinity());
  argument(kRunningMax).toTensor().resize_(channels).fill_(-std::numeric_limits<float>::infinity());
  argument(kScale).toTensor().resize_(channels);
  argument(kZeroPoint).toTensor().resize_(channels);
  return false;
}

// Count integers as CUDA does, for mixtures of experts; the CPU counts only floating-point
// numbers. Doubles can hold them.
bool histogram_of_integers(torch::jit::Stack& stack) {
  constexpr size_t kArguments = 4;
  const auto argument = [&stack](size_t index) -> const c10::IValue& {
    return stack[stack.size() - kArguments + index];
  };
  const at::Tensor self = argument(0).toTensor();
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return false;
  }
  at::Tensor counts =
      at::histc(self.to(c10::kDouble), argument(1).toInt(), argument(2).toScalar(), argument(3).toScalar())
          .to(self.scalar_type());
  torch::jit::drop(stack, kArguments);
  stack.emplace_back(std::move(counts));
  return true;
}

// Return the gradient. The CPU's kernel returns a sparse gradient where its meta kernel returns a
// dense one; these are two operators.
at::Tensor embedding_bag_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offsets,
                                  const at::Tensor& offset2bag, const at::Tensor& bag_size,
                                  const at::Tensor& maximum_indices, c10::SymInt num_weights, bool scale_grad_by_freq,
                                  int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                                  int64_t padding_idx) {
  return at::native::_embedding_bag_backward_symint(grad, indices, offsets, offset2bag, bag_size, maximum_indices,
                                                    std::move(num_weights), scale_grad_by_freq, mode, sparse,
                                                    per_sample_weights, padding_idx);
}

// The window of torch.kaiser_window. Torch looks up a kernel for its formula by device, and has
// none for other devices.
at::Tensor kaiser_window_beta(int64_t window_length, bool periodic, double beta, std::optional<c10::ScalarType> dtype,
                              std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                              std::optional<bool> pin_memory) {
  const c10::ScalarType type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "kaiser_window is not implemented for the layout ",
              *layout, ", only for the strided one");
  TORCH_CHECK(c10::isFloatingType(type), "kaiser_window expects floating point dtypes, got: ", type);
  TORCH_CHECK(window_length >= 0,
              "kaiser_window requires non-negative window_length, got window_length=", window_length);
  const c10::TensorOptions options = at::dtype(type).layout(layout).device(device).pinned_memory(pin_memory);
  if (window_length <= 1) {
    return at::ones({window_length}, options);
  }
  const bool is_wide = type == c10::kDouble;
  const int64_t last = periodic ? window_length : window_length - 1;
  const at::Tensor place = at::arange(window_length, options.dtype(is_wide ? c10::kDouble : c10::kFloat));
  const at::Tensor side = place.mul(2.0 / static_cast<double>(last)).sub_(1);  // from -1 to 1
  const double largest = at::i0(at::scalar_tensor(beta, at::kDouble)).item<double>();
  return at::i0(side.square_().neg_().add_(1).clamp_min_(0).sqrt_().mul_(beta)).div_(largest).to(type);
}

at::Tensor kaiser_window_periodic(int64_t window_length, bool periodic, std::optional<c10::ScalarType> dtype,
                                  std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                  std::optional<bool> pin_memory) {
  constexpr double kBeta = 12;
  return kaiser_window_beta(window_length, periodic, kBeta, dtype, layout, device, pin_memory);
}

at::Tensor kaiser_window(int64_t window_length, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  return kaiser_window_periodic(window_length, /*periodic=*/true, dtype, layout, device, pin_memory);
}

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": quantized tensors cannot be created on '",
                              driver_name(),
                              "'. Quantize on the CPU, or train with fake quantization, which uses ordinary tensors");
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()),
                              ": nested tensors of the strided layout cannot be created on '", driver_name(),
                              "'. Use layout=torch.jagged, which consists of ordinary tensors");
}

// These composites read the memory of their arguments themselves, on the host.
void compute_on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_copies(Call(operator_for(op), *stack), stack);
}

void refuse_packing(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": FBGEMM's packed weights exist only on the CPU: '",
                              driver_name(), "' cannot hold them. Move the tensors to the CPU first");
}

// In place, as torch's own, if the weight is contiguous.
at::Tensor saturate_to_half(const at::Tensor& weight) {
  TORCH_CHECK(weight.scalar_type() == c10::kFloat, "_saturate_weight_to_fp16 takes float32, got ",
              weight.scalar_type());
  constexpr double kMaxHalf = 65504;
  return weight.contiguous().clamp_(-kMaxHalf, kMaxHalf);
}

// Torch's own reads the shape's memory on the host.
at::Tensor reshape_from_tensor(const at::Tensor& self, const at::Tensor& shape) {
  TORCH_CHECK(shape.dim() == 1, "_reshape_from_tensor takes a shape of one dimension, got ", shape.dim());
  const at::Tensor sizes = shape.cpu().contiguous();
  return self.reshape(at::IntArrayRef(sizes.const_data_ptr<int64_t>(), sizes.numel()));
}

// Torch calls the CPU's kernel of another operator, on any device.
at::Tensor& range_without_step(const at::Scalar& start, const at::Scalar& end, at::Tensor& out) {
  return at::range_out(out, start, end, 1);
}

#if OUTBOARD_TORCH_MINOR < 13
// With integer exponents, torch's own operator looks for a kernel that the device does not have.
at::Tensor times_power_of_two(const at::Tensor& self, const at::Tensor& other) {
  const bool is_integral = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const at::TensorOptions options = self.options().dtype(is_integral ? c10::kFloat : self.scalar_type());
  return at::mul(self, at::pow(at::scalar_tensor(2, options), other));
}

void check_type_of_power(c10::ScalarType type) {
  TORCH_CHECK(!c10::isIntegralType(type, /*includeBool=*/true),
              "ldexp returns a floating-point result, which can't be cast to the desired output type ", type);
}

at::Tensor& times_power_of_two_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  check_type_of_power(out.scalar_type());
  at::native::resize_output(out, at::infer_size(self.sizes(), other.sizes()));
  return out.copy_(times_power_of_two(self, other));
}

at::Tensor& multiply_by_power_of_two(at::Tensor& self, const at::Tensor& other) {
  check_type_of_power(self.scalar_type());
  return self.mul_(at::pow(at::scalar_tensor(2, self.options()), other));
}
#endif

// nn.TransformerEncoder calls this before it makes a nested tensor from a padded batch. With
// this answer it keeps the padding.
bool cannot_nest(const at::Tensor&, const at::Tensor&) {
  return false;
}

}  // namespace

void register_composites(torch::Library& aten) {
  prepare(aten, "dot", multiply_zero_tensor);
  prepare(aten, "vdot", multiply_zero_tensor);
  prepare(aten, "_fused_moving_avg_obs_fq_helper", size_statistics);
  prepare(aten, "histc", histogram_of_integers);
  aten.impl("_embedding_bag_backward", embedding_bag_backward);
  aten.impl("kaiser_window", kaiser_window);
  aten.impl("kaiser_window.periodic", kaiser_window_periodic);
  aten.impl("kaiser_window.beta", kaiser_window_beta);
  for (const char* name : {"quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
                           "quantize_per_tensor_dynamic", "quantize_per_channel", "_make_per_tensor_quantized_tensor",
                           "_make_per_channel_quantized_tensor"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
  }
  for (const char* name : {"_nested_tensor_from_tensor_list", "_nested_tensor_from_mask", "_nested_from_padded",
                           "_nested_view_from_buffer"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
  }
  aten.impl("_nested_tensor_from_mask_left_aligned", cannot_nest);
  aten.impl("_saturate_weight_to_fp16", saturate_to_half);
  for (const char* name : {"choose_qparams_optimized", "fbgemm_linear_quantize_weight", "_grid_sampler_2d_cpu_fallback",
                           "_grid_sampler_2d_cpu_fallback_backward", "_sobol_engine_draw", "_sobol_engine_ff_",
                           "_sobol_engine_initialize_state_", "_sobol_engine_scramble_"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute_on_copies>());
  }
  for (const char* name :
       {"fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix", "fbgemm_pack_quantized_matrix.KN",
        "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight.out", "fbgemm_linear_fp16_weight_fp32_activation",
        "fbgemm_linear_fp16_weight_fp32_activation.out", "fbgemm_linear_int8_weight",
        "fbgemm_linear_int8_weight_fp32_activation"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_packing>());
  }
  // Permanent, like all registrations.
  auto& packed =
      *new torch::Library(torch::Library::IMPL, "_quantized", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name : {"wrapped_fbgemm_pack_gemm_matrix_fp16", "wrapped_fbgemm_linear_fp16_weight",
                           "_wrapped_linear_prepack", "_wrapped_quantized_linear_prepacked"}) {
    packed.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_packing>());
  }
  aten.impl("range.out_", range_without_step);
#if OUTBOARD_TORCH_MINOR < 13
  aten.impl("ldexp.Tensor", times_power_of_two);
  aten.impl("ldexp.out", times_power_of_two_out);
  aten.impl("ldexp_", multiply_by_power_of_two);
#endif
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto& both = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    both.impl("_reshape_from_tensor", reshape_from_tensor);
  }
}

}  // namespace outboard

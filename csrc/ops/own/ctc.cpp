// SPDX-License-Identifier: BSD-3-Clause
// Connectionist temporal classification on devices with generated kernels. Torch passes the
// sequences' lengths as lists of numbers, which differ with each batch. Kernels read them from
// tensors, so that one kernel serves every batch.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/boxed.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

constexpr auto kLoss =
    "ctc_loss(Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor target_lengths, int blank)"
    " -> (Tensor, Tensor)";
constexpr auto kLossBackward =
    "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor target_lengths,"
    " Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity) -> Tensor";

using LossAndAlpha = std::tuple<at::Tensor, at::Tensor>;

std::vector<int64_t> numbers_of(const at::Tensor& lengths) {
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

LossAndAlpha loss_on_cpu(const at::Tensor& log_probs, const at::Tensor& labels, const at::Tensor& input_lengths,
                         const at::Tensor& target_lengths, int64_t blank) {
  return at::_ctc_loss(log_probs, labels, numbers_of(input_lengths), numbers_of(target_lengths), blank);
}

LossAndAlpha loss_shapes(const at::Tensor& log_probs, const at::Tensor& labels, const at::Tensor&, const at::Tensor&,
                         int64_t) {
  const int64_t batch = log_probs.size(1);
  return {at::empty({batch}, log_probs.options()),
          at::empty({batch, log_probs.size(0), 2 * labels.size(1) + 1}, log_probs.options())};
}

at::Tensor gradient_on_cpu(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& labels,
                           const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                           const at::Tensor& neg_log_likelihood, const at::Tensor& log_alpha, int64_t blank,
                           bool zero_infinity) {
  return at::_ctc_loss_backward(grad, log_probs, labels, numbers_of(input_lengths), numbers_of(target_lengths),
                                neg_log_likelihood, log_alpha, blank, zero_infinity);
}

at::Tensor gradient_shape(const at::Tensor&, const at::Tensor& log_probs, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, bool) {
  return at::empty(log_probs.sizes(), log_probs.options());
}

at::Tensor to_device_of(const at::Tensor& like, const std::vector<int64_t>& numbers) {
  return at::tensor(numbers, at::TensorOptions(c10::kLong)).to(like.device(), /*non_blocking=*/true);
}

// Check what the CPU's kernel checks before it computes.
bool are_valid(const at::Tensor& log_probs, const at::Tensor& targets, const std::vector<int64_t>& input_lengths,
               const std::vector<int64_t>& target_lengths, int64_t blank) {
  if (log_probs.dim() != 3 || (targets.dim() != 1 && targets.dim() != 2) || blank < 0 || blank >= log_probs.size(2) ||
      (targets.scalar_type() != c10::kLong && targets.scalar_type() != c10::kInt) ||
      (log_probs.scalar_type() != c10::kFloat && log_probs.scalar_type() != c10::kDouble)) {
    return false;
  }
  const auto batch = static_cast<size_t>(log_probs.size(1));
  if (batch == 0 || input_lengths.size() != batch || target_lengths.size() != batch) {
    return false;
  }
  const auto [least, most] = std::ranges::minmax(input_lengths);
  const auto [shortest, longest] = std::ranges::minmax(target_lengths);
  if (least < 0 || most > log_probs.size(0) || shortest < 0) {
    return false;
  }
  if (targets.dim() == 2) {
    return targets.size(0) == log_probs.size(1) && targets.size(1) >= longest;
  }
  int64_t sum = 0;
  for (const int64_t length : target_lengths) {
    sum += length;
  }
  return targets.size(0) == sum;
}

// Return the targets as a row for each sequence, as long as the longest.
at::Tensor labels_of(const at::Tensor& targets, const std::vector<int64_t>& target_lengths) {
  const int64_t longest = *std::ranges::max_element(target_lengths);
  const auto batch = static_cast<int64_t>(target_lengths.size());
  if (longest == 0) {
    return at::zeros({batch, 0}, targets.options().dtype(c10::kLong));
  }
  if (targets.dim() == 2) {
    return targets.narrow(1, 0, longest).to(c10::kLong);
  }
  std::vector<int64_t> places;
  int64_t begin = 0;
  for (const int64_t length : target_lengths) {
    for (int64_t i = 0; i < longest; ++i) {
      places.push_back(i < length ? begin + i : 0);
    }
    begin += length;
  }
  return targets.index_select(0, to_device_of(targets, places)).to(c10::kLong).view({batch, longest});
}

// Torch's operator, whose arguments `lengths` and `lengths + 1` are lists. The chain gets the
// common arguments, followed by the tensor arguments of the other operator.
class CtcKernel final : public c10::OperatorKernel {
 public:
  CtcKernel(Operator& torch_op, Operator& own_op, size_t log_probs)
      : torch_op_(torch_op), own_op_(own_op), log_probs_(log_probs), arguments_(torch_op.args.size()) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto argument = [&](size_t index) -> c10::IValue& {
      return (*stack)[stack->size() - arguments_ + log_probs_ + index];
    };
    const bool is_forward = log_probs_ == 0;
    const at::Tensor log_probs = argument(0).toTensor(), targets = argument(1).toTensor();
    const std::vector<int64_t> input_lengths = argument(2).toIntVector(), target_lengths = argument(3).toIntVector();
    const int64_t blank = argument(is_forward ? 4 : 6).toInt();
    if (has_native(torch_op_) || !may_have_plan(log_probs, targets) ||
        !are_valid(log_probs, targets, input_lengths, target_lengths, blank)) {
      run_chain(torch_op_, stack);
      return;
    }
    const c10::DeviceGuard guard(log_probs.device());
    argument(1) = labels_of(targets, target_lengths);
    argument(2) = to_device_of(log_probs, input_lengths);
    argument(3) = to_device_of(log_probs, target_lengths);
    if (is_forward) {
      stack->pop_back();  // the caller replaces infinite losses by 0
    }
    run_chain(own_op_, stack);
  }

 private:
  static bool may_have_plan(const at::Tensor& log_probs, const at::Tensor& targets) {
    return allows_generated() && log_probs.device() == targets.device() &&
           is_device_tensor(*log_probs.unsafeGetTensorImpl()) && may_generate(log_probs.device().index());
  }

  Operator& torch_op_;
  Operator& own_op_;
  const size_t log_probs_;  // its index among the arguments
  const size_t arguments_;
};

}  // namespace

void register_ctc(torch::Library& aten) {
  // Permanent, like all registrations.
  auto& own = *new torch::Library(torch::Library::FRAGMENT, "outboard", std::nullopt, __FILE__, __LINE__);
  own.def(kLoss);
  own.impl("ctc_loss", torch::dispatch(c10::DispatchKey::CPU, loss_on_cpu));
  own.impl("ctc_loss", torch::dispatch(c10::DispatchKey::Meta, loss_shapes));
  own.def(kLossBackward);
  own.impl("ctc_loss_backward", torch::dispatch(c10::DispatchKey::CPU, gradient_on_cpu));
  own.impl("ctc_loss_backward", torch::dispatch(c10::DispatchKey::Meta, gradient_shape));
  aten.impl("_ctc_loss", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CtcKernel>(
                             operator_named("aten::_ctc_loss"), operator_named("outboard::ctc_loss"), 0)));
  aten.impl("_ctc_loss_backward",
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CtcKernel>(
                operator_named("aten::_ctc_loss_backward"), operator_named("outboard::ctc_loss_backward"), 1)));
}

}  // namespace outboard

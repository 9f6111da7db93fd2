// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/acceptance.h"

#include <algorithm>
#include <atomic>

#include "ops/call/results.h"
#include "ops/call/stand_ins.h"

namespace outboard {

namespace {

// Limits on the bytes of arguments and results for which the kernel is tried.
std::atomic<size_t> max_bytes_of_known_class{256 << 10};     // of a call whose class is known
std::atomic<size_t> max_bytes_of_new_class{1 << 20};   // of the first call of a class
constexpr size_t kMaxRefusedBytes = 64 << 20;     // of a call that is probably wrong

// Return true if the CPU kernel may run on zeros in place of the call's values, and its answer for
// zeros holds for all values.
bool can_try_on_stand_ins(const Call& call, bool is_refused) {
  const Operator& op = call.op();
  if (!op.is_torch_operator || call.has_sparse() || !harmless_elements(op.facts, is_refused) ||
      has_mask(call) ||  // the number of set elements decides which values fit
      (op.is_random && !op.has_generator_arg && !op.facts.is_given_samples) ||  // it draws from the CPU's generator
      !op.cpu_handle().hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return false;
  }
  bool result = true;
  for (size_t i = 0; i < op.args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      result &= tensor.layout() == c10::kStrided && !(op.args[i].is_written && tensor.is_cpu());
    });
  }
  return result;
}

// Return true if the CPU's kernel may refuse the dtypes, because there are several or one is not
// real. Most operators take real numbers of one dtype.
bool has_unusual_types(const Call& call) {
  c10::ScalarType first = c10::ScalarType::Undefined;
  bool result = false;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      first = first == c10::ScalarType::Undefined ? tensor.scalar_type() : first;
      result |= tensor.scalar_type() != first;
    });
  }
  return result || !c10::isFloatingType(first);
}

size_t bytes_of_results(const CallShape& shape) {
  size_t bytes = 0;
  for (const OutputShape& output : shape.outputs) {
    bytes += output.nbytes;
  }
  for (const auto& [index, output] : shape.resized) {
    bytes += output.nbytes;
  }
  return bytes;
}

void compare(const Call& call, const CallShape& shape, const torch::jit::Stack& results) {
  if (shape.is_known() && call.op().kind == OpKind::Makes) {
    note_results(call, shape, results);
  } else {
    call.op().shape_classes.mark_agreed(shape.shape_class);
  }
}

}  // namespace

Acceptance try_cpu_kernel(const Call& call, const CallShape& shape) {
  Operator& op = call.op();
  // A driver's own kernel may accept what the CPU's does not.
  if (!can_try_on_stand_ins(call, /*is_refused=*/false) || has_native(op)) {
    return Acceptance::NotTried;
  }
  const ShapeClasses::State state = op.shape_classes.state_of(shape.shape_class, /*is_verified=*/false);
  const bool is_new = state == ShapeClasses::State::Unknown;
  const bool checks_shapes = op.is_structured && (op.handle.hasTag(at::Tag::pointwise) || op.facts.checks_all_in_meta);
  if (!is_new && checks_shapes) {
    return Acceptance::Accepted;
  }
  size_t limit = (is_new ? max_bytes_of_new_class : max_bytes_of_known_class).load(std::memory_order_relaxed);
  if (is_new && !is_elementwise(op) && has_unusual_types(call)) {
    limit = kMaxRefusedBytes;
  }
  if (bytes_of_arguments(call) + bytes_of_results(shape) <= limit) {
    compare(call, shape, run_on_stand_ins(call, StandIn::Whole, &shape));
    return Acceptance::Accepted;
  }
  if (is_new && is_elementwise(op)) {
    run_on_stand_ins(call, StandIn::Element);
    op.shape_classes.mark_agreed(shape.shape_class);
    return Acceptance::Accepted;
  }
  return is_new ? Acceptance::NotTried : Acceptance::Accepted;
}

CheckedBytes limit_checked_calls(CheckedBytes limits) {
  return {max_bytes_of_known_class.exchange(limits.known), max_bytes_of_new_class.exchange(limits.fresh)};
}

Acceptance try_refused_call(const Call& call, bool is_refused) {
  if (!can_try_on_stand_ins(call, is_refused) || bytes_of_arguments(call) > kMaxRefusedBytes) {
    return Acceptance::NotTried;
  }
  run_on_stand_ins(call, StandIn::Whole);
  return Acceptance::Accepted;
}

}  // namespace outboard

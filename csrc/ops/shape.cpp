// SPDX-License-Identifier: BSD-3-Clause
// Shapes of results from the meta kernels: a call whose result's shape doesn't depend on data is queued into outputs
// that are there before it runs.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/late_warnings.h"
#include "ops/api.h"
#include "ops/arguments.h"
#include "ops/call.h"
#include "ops/call_context.h"
#include "ops/quirks.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

// Python's meta functions must not meet a TorchFunctionMode of the user's (torch.set_default_device is one).
class NoTorchFunction {
 public:
  NoTorchFunction() : previous_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(previous_); }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;

 private:
  at::impl::TorchFunctionDisabledState previous_;
};

at::Tensor meta_like(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.is_wrapped_number()) {
    return tensor;  // a Python number stays one: metas that are written in Python take no other
  }
  at::Tensor meta = at::detail::empty_strided_meta(impl.sizes(), impl.strides(), tensor.scalar_type());
  c10::TensorImpl* result = meta.unsafeGetTensorImpl();
  if (impl.is_conj()) {
    result->_set_conj(true);
  }
  if (impl.is_neg()) {
    result->_set_neg(true);
  }
  return meta;
}

// Of an output the meta kernel sees an empty one: it tells the result's shape, whatever the output's is, and no meta
// kernel that is written in Python warns of a size that only the first call of a signature would show it.
at::Tensor meta_output(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta({0}, {1}, tensor.scalar_type());
}

c10::IValue meta_argument(const ArgInfo& info, const c10::IValue& value) {
  if (info.is_output) {
    return map_tensors(info, value, meta_output);
  }
  switch (info.kind) {
    case ArgKind::Generator:
      return {};
    case ArgKind::Device:
      return map_device(value, c10::DeviceType::Meta);
    default:
      return map_tensors(info, value, meta_like);
  }
}

OutputShape describe(const at::Tensor& tensor) {
  OutputShape shape;
  if (!tensor.defined()) {
    return shape;
  }
  shape.is_defined = true;
  shape.dtype = tensor.scalar_type();
  shape.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  shape.strides.assign(tensor.strides().begin(), tensor.strides().end());
  shape.nbytes = span_bytes(shape.sizes, shape.strides, tensor.element_size());
  return shape;
}

bool same_shape(const at::Tensor& tensor, const at::Tensor& meta) {
  return tensor.sizes() == meta.sizes();
}

thread_local bool is_in_meta = false;
std::atomic<InterruptCheck> interrupt_check{nullptr};
std::atomic<uint64_t> inferences{0};

// Marks the time in which a meta kernel runs for a call on the device.
class MetaScope {
 public:
  MetaScope() : before_(std::exchange(is_in_meta, true)) {}
  ~MetaScope() { is_in_meta = before_; }
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

 private:
  bool before_;
};

}  // namespace

bool is_interrupt(const std::exception& error) {
  const InterruptCheck check = interrupt_check.load(std::memory_order_acquire);
  return check != nullptr && check(error);
}

// Torch's own kernel in C++ where there is one, else the dispatcher's, which may be written in Python.
void run_meta_kernel(const OpPlan& plan, torch::jit::Stack& stack) {
  const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
  const NoWarnings no_warnings;  // the CPU kernel says the same again, and resizing says itself
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::Meta);
  if (C10_LIKELY(plan.meta_kernel != nullptr)) {
    plan.meta_kernel->callBoxed(plan.op, keys, &stack);
    return;
  }
  const NoTorchFunction no_modes;
  const MetaScope scope;
  plan.op.redispatchBoxed(keys, &stack);
}

namespace {

// The operator is the plan's: of the rest of a class, dtypes, ranks and layouts.
uint64_t class_of(const Call& call) {
  uint64_t hash = 0;
  const auto add = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  };
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    add(i);
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      add(static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(tensor.layout()) << 8 |
          static_cast<uint64_t>(tensor.dim()) << 16);
    });
  }
  return hash;
}

// Whether a written tensor is one whose elements share memory. Some kernels write to it, others refuse it in some cases.
bool writes_shared_elements(const Call& call) {
  bool result = false;
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    if (call.plan().args[i].is_written) {
      call.for_each_tensor(i, [&result](size_t, const at::Tensor& tensor) {
        result |= tensor.layout() == c10::kStrided && at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
      });
    }
  }
  return result;
}

// Whether an output has another dtype than the functional form's result: few kernels cast to it, and the others say so
// when they run. `arguments` are the meta kernel's.
bool casts_results(const Call& call, const torch::jit::Stack& arguments) {
  const OpPlan* functional = call.plan().functional_form();
  if (functional == nullptr) {
    return false;
  }
  const size_t inputs = functional->args.size();
  torch::jit::Stack results(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(inputs));
  run_meta_kernel(*functional, results);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].toTensor().scalar_type() != call.arg(inputs + i).toTensor().scalar_type()) {
      return true;
    }
  }
  return false;
}

// Torch's structured kernels resize and cast as their meta kernels say, which are the C++ ones. Of the others the meta
// kernel tells the shape alone: how an output of another one is laid out, resized or refused, the CPU kernel decides.
bool asks_kernel(const Call& call, const CallShape& shape, const torch::jit::Stack& arguments) {
  const bool has_outputs =
      std::any_of(call.plan().args.begin(), call.plan().args.end(), [](const ArgInfo& info) { return info.is_output; });
  return call.plan().meta_kernel == nullptr &&
         (!shape.resized.empty() || (has_outputs && casts_results(call, arguments)));
}

void note_resized(const Call& call, const torch::jit::Stack& arguments, CallShape& shape) {
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    const ArgInfo& info = call.plan().args[i];
    if (info.kind == ArgKind::Tensor && info.is_written && call.arg(i).isTensor() && call.arg(i).toTensor().defined() &&
        !same_shape(call.arg(i).toTensor(), arguments[i].toTensor())) {
      shape.resized.emplace_back(static_cast<uint32_t>(i), describe(arguments[i].toTensor()));
    }
  }
}

CallShape run_meta(const Call& call) {
  OpPlan& plan = call.plan();
  if (keeps_shapes(plan.op.operator_name().name)) {
    return {};
  }
  if (plan.masks_decide && has_mask(call)) {
    CallShape unknown;
    unknown.must_wait = true;
    return unknown;
  }
  torch::jit::Stack stack;
  stack.reserve(plan.args.size());
  for (size_t i = 0; i < plan.args.size(); ++i) {
    stack.push_back(meta_argument(plan.args[i], call.arg(i)));
  }
  const torch::jit::Stack arguments = stack;
  inferences.fetch_add(1, std::memory_order_relaxed);
  run_meta_kernel(plan, stack);
  CallShape shape;
  shape.shape_class = class_of(call);
  for (size_t i = 0; i < plan.returned_arg.size(); ++i) {
    if (plan.returned_arg[i] >= 0) {
      continue;
    }
    const c10::IValue& returned = stack[i];
    if (returned.isTensorList()) {
      const auto list = returned.toTensorList();
      shape.list_sizes.push_back(static_cast<int32_t>(list.size()));
      for (const at::Tensor& tensor : list) {
        shape.outputs.push_back(describe(tensor));
      }
    } else {
      shape.list_sizes.push_back(-1);
      shape.outputs.push_back(returned.isTensor() ? describe(returned.toTensor()) : OutputShape{});
    }
  }
  correct_shape(plan, arguments, shape);
  note_resized(call, arguments, shape);
  shape.asks_kernel = asks_kernel(call, shape, arguments);
  return shape;
}

}  // namespace

uint64_t inferred_shapes() {
  return inferences.load(std::memory_order_relaxed);
}

bool infers_shapes() {
  return is_in_meta;
}

void set_interrupt_check(InterruptCheck check) {
  interrupt_check.store(check, std::memory_order_release);
}

std::shared_ptr<const CallShape> shape_of(const Call& call) {
  SignatureCache& cache = call.plan().signatures;
  if (C10_LIKELY(call.has_signature())) {
    if (auto known = cache.find(call.hash(), call.words())) {
      return known;
    }
  }
  auto shape = std::make_shared<CallShape>();
  bool is_known = true;
  try {
    *shape = run_meta(call);
    shape->asks_kernel |= writes_shared_elements(call);
  } catch (const std::exception& error) {
    if (is_interrupt(error)) {
      throw;
    }
    // No meta kernel, or data decides the shape, or the arguments are wrong. The CPU kernel will tell: the caller
    // waits for it, and gets its error, whose type and words are the ones that users know.
    *shape = CallShape{};
    shape->must_wait = true;
    is_known = false;
  }
  if (is_known && call.has_signature()) {
    cache.insert(call.hash(), call.words(), shape);
  }
  return shape;
}

}  // namespace outboard

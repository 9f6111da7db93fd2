// SPDX-License-Identifier: BSD-3-Clause
// Shapes of results from the meta kernels. A call whose result's shape does not depend on data is
// queued into outputs that are allocated before it runs.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/jit_type.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string_view>
#include <utility>

#include "core/late_warnings.h"
#include "ops/call/acceptance.h"
#include "ops/call/arguments.h"
#include "ops/call/call.h"
#include "ops/call/call_context.h"
#include "ops/operator/api.h"
#include "ops/operator/shape_corrections.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// A scope without the user's TorchFunctionMode (such as torch.set_default_device), which
// Python's meta functions must not meet.
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
    return tensor;  // a Python number stays one: Python meta kernels accept nothing else
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

// Return the empty tensor that the meta kernel sees as an output. It computes the result's shape
// independently of the output's shape. Also, no Python meta kernel can warn about an output size
// that it would see only in the first call of a signature.
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
std::atomic<MetaFailureClassifier> classifier{nullptr};
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

namespace {

MetaFailure kind_of(const std::exception& error) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) {
    return MetaFailure::NoKernel;
  }
  const MetaFailureClassifier classify = classifier.load(std::memory_order_acquire);
  return classify == nullptr ? MetaFailure::Refusal : classify(error);
}

}  // namespace

bool is_interrupt(const std::exception& error) {
  return kind_of(error) == MetaFailure::Interrupt;
}

// Run torch's own C++ kernel if there is one, else the dispatcher's, which may be Python's.
void run_meta_kernel(const Operator& op, torch::jit::Stack& stack) {
  const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::Meta);
  const torch::jit::Stack arguments = stack;
  run_before_call(
      [&] {
        stack = arguments;
        if (C10_LIKELY(op.meta_kernel != nullptr)) {
          op.meta_kernel->callBoxed(op.handle, keys, &stack);
          return;
        }
        const NoTorchFunction no_modes;
        const MetaScope scope;
        op.handle.redispatchBoxed(keys, &stack);
      },
      /*refuses_call=*/false);
}

namespace {

class ClassHash {
 public:
  void add(uint64_t word) { hash_ = mixed(hash_, word); }
  void add_tensor(const at::Tensor& tensor) {
    add(static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(tensor.layout()) << 8 |
        static_cast<uint64_t>(tensor.dim()) << 16 | (tensor.is_cpu() ? uint64_t{1} << 32 : 0));
  }
  // Flags, dtypes, modes and the categories of numbers decide a kernel's results,
  // and the dtypes that it accepts.
  void add_constant(const c10::Argument& declared, const c10::IValue& value) {
    add(value.isNone() ? 1 : value.isDouble() ? 2 : value.isComplexDouble() ? 3 : 4);
    if (value.isBool()) {
      add(value.toBool() ? 1 : 0);
    } else if (value.isString()) {
      add(std::hash<std::string_view>{}(value.toStringRef()));
    } else if (value.isInt() && declared.real_type()->kind() != c10::TypeKind::IntType &&
               declared.real_type()->kind() != c10::TypeKind::SymIntType) {
      add(is_dtype(declared) ? static_cast<uint64_t>(value.toInt()) : 0);
    } else if (value.isBoolList()) {
      for (const bool flag : value.toBoolList()) {
        add(flag ? 1 : 0);
      }
    }
  }
  uint64_t value() const { return hash_; }

 private:
  static bool is_dtype(const c10::Argument& declared) {
    const c10::TypePtr type = declared.real_type();
    return (type->kind() == c10::TypeKind::OptionalType ? type->castRaw<c10::OptionalType>()->getElementType() : type)
               ->kind() == c10::TypeKind::ScalarTypeType;
  }

  uint64_t hash_ = 0;
};

// Return the call's class, one of the operator's. Some results have the default dtype.
uint64_t class_of(const Call& call) {
  ClassHash hash;
  hash.add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    hash.add(i);
    if (call.op().args[i].kind == ArgKind::Other) {
      hash.add_constant(call.op().handle.schema().arguments()[i], call.arg(i));
    } else {
      call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) { hash.add_tensor(tensor); });
    }
  }
  return hash.value();
}

// Return true if the elements of a written tensor share memory. Some kernels write to it;
// others refuse in some cases.
bool writes_shared_elements(const Call& call) {
  bool result = false;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    if (call.op().args[i].is_written) {
      call.for_each_tensor(i, [&result](size_t, const at::Tensor& tensor) {
        result |= tensor.layout() == c10::kStrided && at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
      });
    }
  }
  return result;
}

// Return true if an output has another dtype than the functional form's result. Few kernels cast to
// it; the others raise when they run. `arguments` are the meta kernel's.
bool casts_results(const Call& call, const torch::jit::Stack& arguments) {
  const Operator* functional = call.op().functional_form();
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

// Return true if the call fills its outputs from numbers alone (arange, eye), the
// outputs are empty, and every kernel gives them the meta kernel's size and strides: they grow, or
// have one dimension, as new outputs do. Some kernels leave another output unchanged if its number
// of elements is already right.
bool fills_empty_outputs(const Call& call, const CallShape& shape) {
  bool are_empty = true, are_new = true;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      are_empty &= call.op().args[i].is_output && tensor.numel() == 0;
      are_new &= tensor.dim() == 1;
    });
  }
  return are_empty && (are_new || std::all_of(shape.resized.begin(), shape.resized.end(),
                                              [](const auto& resized) { return resized.second.nbytes > 0; }));
}

// Return true if only the CPU kernel decides what happens to an output. Torch's structured kernels
// resize and cast as their meta kernels say, which are the C++ ones. Other meta kernels return only
// the shape: the CPU kernel decides how an output of another shape is laid out, resized or refused.
bool requires_cpu_kernel(const Call& call, const CallShape& shape, const torch::jit::Stack& arguments) {
  if (fills_empty_outputs(call, shape)) {
    return false;
  }
  const bool has_outputs =
      std::any_of(call.op().args.begin(), call.op().args.end(), [](const ArgInfo& info) { return info.is_output; });
  // These operators' kernels decide what happens to an output of another shape that has
  // the requested number of elements.
  const bool is_decided_by_meta = call.op().meta_kernel != nullptr && !call.op().facts.has_shape_of_scalars;
  return !is_decided_by_meta && (!shape.resized.empty() || (has_outputs && casts_results(call, arguments)));
}

void note_resized(const Call& call, const torch::jit::Stack& arguments, CallShape& shape) {
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    const ArgInfo& info = call.op().args[i];
    if (info.kind == ArgKind::Tensor && info.is_written && call.arg(i).isTensor() && call.arg(i).toTensor().defined() &&
        !same_shape(call.arg(i).toTensor(), arguments[i].toTensor())) {
      shape.resized.emplace_back(static_cast<uint32_t>(i), describe(arguments[i].toTensor()));
    }
  }
}

CallShape run_meta(const Call& call) {
  Operator& op = call.op();
  if (op.facts.keeps_shapes) {
    return {};
  }
  if (op.facts.has_shape_of_masks && has_mask(call)) {
    CallShape by_data;
    by_data.state = ShapeState::ByData;
    return by_data;
  }
  torch::jit::Stack stack;
  stack.reserve(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    stack.push_back(meta_argument(op.args[i], call.arg(i)));
  }
  const torch::jit::Stack arguments = stack;
  inferences.fetch_add(1, std::memory_order_relaxed);
  run_meta_kernel(op, stack);
  CallShape shape;
  for (size_t i = 0; i < op.returned_arg.size(); ++i) {
    if (op.returned_arg[i] >= 0) {
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
      if (returned.isInt()) {
        shape.outputs.back().number = returned.toInt();
      }
    }
  }
  correct_shape(op, arguments, shape);
  note_resized(call, arguments, shape);
  shape.requires_cpu_kernel = requires_cpu_kernel(call, shape, arguments);
  return shape;
}

}  // namespace

uint64_t inferred_shapes() {
  return inferences.load(std::memory_order_relaxed);
}

bool infers_shapes() {
  return is_in_meta;
}

void set_meta_failure_classifier(MetaFailureClassifier function) {
  classifier.store(function, std::memory_order_release);
}

namespace {

// Return the shape of a call whose meta kernel raised `error`.
CallShape shape_without_meta(const Call& call, const std::exception& error) {
  const MetaFailure kind = kind_of(error);
  if (kind == MetaFailure::Interrupt) {
    throw;
  }
  CallShape shape;
  shape.state = ShapeState::Unknown;
  if (kind == MetaFailure::Refusal && try_refused_call(call, /*is_refused=*/true) == Acceptance::NotTried &&
      call.op().is_torch_operator) {
    shape.state = ShapeState::Refused;
    shape.refusal = std::current_exception();
  }
  return shape;
}

CallShape infer(const Call& call) {
  CallShape shape;
  try {
    shape = run_meta(call);
    shape.requires_cpu_kernel |= writes_shared_elements(call);
  } catch (const std::exception& error) {
    shape = shape_without_meta(call, error);
  }
  shape.shape_class = class_of(call);
  const bool runs_anyway = shape.requires_cpu_kernel;  // only that kernel may run the call, and decides then
  if (!runs_anyway && (shape.state == ShapeState::Known || shape.state == ShapeState::Unknown)) {
    shape.is_verified = try_cpu_kernel(call, shape) == Acceptance::Accepted || call.op().is_structured;
  }
  return shape;
}

}  // namespace

std::shared_ptr<const CallShape> shape_of(const Call& call) {
  SignatureCache& cache = call.op().signatures;
  if (C10_LIKELY(call.has_signature())) {
    if (auto known = cache.find(call.hash(), call.words())) {
      return known;
    }
  }
  auto shape = std::make_shared<const CallShape>(infer(call));
  if (shape->state != ShapeState::Refused && call.has_signature()) {
    cache.insert(call.hash(), call.words(), shape);
  }
  return shape;
}

bool is_trusted(const Call& call, const CallShape& shape) {
  const ShapeClasses::State state = call.op().shape_classes.state_of(shape.shape_class, shape.is_verified);
  return shape.is_known() && (state == ShapeClasses::State::Agreed ||
                              (state == ShapeClasses::State::Unknown && call.op().is_torch_operator));
}

std::shared_ptr<const CallShape> accepted_shape_of(const Call& call) {
  std::shared_ptr<const CallShape> shape = shape_of(call);
  if (C10_UNLIKELY(shape->state == ShapeState::Refused)) {
    std::rethrow_exception(shape->refusal);
  }
  return shape;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "torch/autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/driver.h"
#include "core/error.h"
#include "torch/autocast_casts.h"
#include "torch/autocast_table.h"

namespace outboard {

namespace {

constexpr c10::DispatchKey kAutocast = c10::DispatchKey::AutocastPrivateUse1;

constexpr std::array<const char*, static_cast<size_t>(CastPolicy::Count)> kNames = {
    "lower_precision_fp", "fp32", "fp32_set_opt_dtype", "fp32_append_dtype", "fp32_cast_back", "promote", "banned",
    "fallthrough",
};

// ---- Casting the arguments on a stack ----

// Visit what autocast casts: tensors, optional tensors, and lists of tensors.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor);
    }
  }
}

c10::IValue cast(const c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) {
    return at::autocast::cached_cast(dtype, value.toTensor(), kDeviceType);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorList()) {
      result.push_back(at::autocast::cached_cast(dtype, tensor, kDeviceType));
    }
    return result;
  }
  return value;
}

at::ArrayRef<c10::IValue> arguments_of(const AutocastOp& op, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, op.op.schema().arguments().size());
}

at::ScalarType widest(at::ArrayRef<c10::IValue> arguments) {
  at::ScalarType dtype = at::autocast::get_autocast_dtype(kDeviceType);
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&dtype](const at::Tensor& tensor) {
      if (tensor.defined()) {
        dtype = at::autocast::prioritize(dtype, tensor, kDeviceType);
      }
    });
  }
  return dtype;
}

void cast_arguments(const AutocastOp& op, at::ScalarType dtype, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = cast((*stack)[i], dtype);
  }
}

// Call the operator in float32. Cast its real results to the dtype of the first tensor.
void call_and_cast_back(const AutocastOp& op, torch::jit::Stack* stack) {
  std::optional<at::ScalarType> dtype;
  for (const c10::IValue& argument : arguments_of(op, *stack)) {
    for_each_tensor(argument, [&dtype](const at::Tensor& tensor) {
      if (tensor.defined() && !dtype.has_value()) {
        dtype = tensor.scalar_type();
      }
    });
  }
  cast_arguments(op, at::kFloat, stack);
  op.op.callBoxed(stack);
  if (!dtype.has_value() || !at::isFloatingType(*dtype)) {
    return;
  }
  const size_t first = stack->size() - op.op.schema().returns().size();
  for (size_t i = first; i < stack->size(); ++i) {
    if ((*stack)[i].isTensor() && (*stack)[i].toTensor().defined() && (*stack)[i].toTensor().is_floating_point()) {
      (*stack)[i] = (*stack)[i].toTensor().to(*dtype);
    }
  }
}

bool is_optional_dtype(const c10::Argument& argument) {
  const auto type = argument.real_type()->cast<c10::OptionalType>();
  return type && type->getElementType()->kind() == c10::TypeKind::ScalarTypeType;
}

void set_optional_dtype(const AutocastOp& op, torch::jit::Stack* stack) {
  const auto& schema = op.op.schema().arguments();
  const size_t first = stack->size() - schema.size();
  const c10::IValue& self = (*stack)[first];
  if (!self.isTensor() || !at::autocast::is_eligible(self.toTensor(), kDeviceType)) {
    return;
  }
  for (size_t i = 0; i < schema.size(); ++i) {
    if (is_optional_dtype(schema[i]) && (*stack)[first + i].isNone()) {
      (*stack)[first + i] = static_cast<int64_t>(at::kFloat);
    }
  }
}

// The kernel of operators without an unboxed kernel: those that the lists do not
// name, such as custom operators.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const AutocastOp& op) : op_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    run_cast_policy(op_, keys, stack);
  }

 private:
  const AutocastOp& op_;
};

// ---- The table ----

struct Table {
  std::mutex mutex;
  bool is_registered = false;
  std::map<std::string, std::unique_ptr<AutocastOp>> ops;
  // One for each namespace. Torch removes registrations when their library is destroyed.
  std::map<std::string, std::unique_ptr<torch::Library>> libraries;

  torch::Library& library(const std::string& space) {
    std::unique_ptr<torch::Library>& library = libraries[space];
    if (!library) {
      library = std::make_unique<torch::Library>(torch::Library::IMPL, space, kAutocast, __FILE__, __LINE__);
    }
    return *library;
  }
};

Table& table() {
  static auto* whole = new Table();  // operators may run until the end of the process
  return *whole;
}

[[noreturn]] void refuse(const std::string& message) {
  raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, message);
}

c10::OperatorHandle find_op(const std::string& name) {
  const size_t dot = name.rfind('.');
  const bool has_overload = dot != std::string::npos && dot > name.find("::");
  const auto op = c10::Dispatcher::singleton().findSchema(
      {has_overload ? name.substr(0, dot) : name, has_overload ? name.substr(dot + 1) : ""});
  if (!op) {
    refuse("there is no operator '" + name + "': write it as namespace::name.overload, for example aten::add.Tensor");
  }
  return *op;
}

CastPolicy default_policy_of(const std::string& op) {
  const auto& list = listed_ops();
  const auto it = std::find_if(list.begin(), list.end(), [&op](const ListedOp& listed) { return op == listed.name; });
  return it == list.end() ? CastPolicy::Fallthrough : it->policy;
}

bool has_tensor_argument(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
           argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

std::string known_policies() {
  std::string result;
  for (const char* name : kNames) {
    result += std::string("'") + name + "', ";
  }
  return result + "or 'default'";
}

CastPolicy parse_policy(const std::string& name, CastPolicy default_policy) {
  if (name == "default") {
    return default_policy;
  }
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end()) {
    refuse("there is no cast policy '" + name + "': it is one of " + known_policies());
  }
  return static_cast<CastPolicy>(it - kNames.begin());
}

// Return the policy of that name, if it fits the operator.
CastPolicy checked_policy(const c10::OperatorHandle& op, const std::string& name, const std::string& policy_name) {
  const CastPolicy default_policy = default_policy_of(name);
  const CastPolicy policy = parse_policy(policy_name, default_policy);
  const c10::FunctionSchema& schema = op.schema();
  if (policy == default_policy || policy == CastPolicy::Fallthrough) {
    return policy;
  }
  const std::string pair = name + " cannot have the cast policy '" + policy_name + "': ";
  if (!has_tensor_argument(schema)) {
    refuse(pair + "it takes no tensor, so autocast never sees it");
  }
  if (policy == CastPolicy::Banned) {
    return policy;
  }
  if (schema.is_mutable()) {
    refuse(pair + "it writes to its arguments, and would write to their casts instead");
  }
  if (policy == CastPolicy::Fp32AppendDtype) {
    refuse(pair + "only the operators that torch lists under it have a second overload for it. Use 'fp32'");
  }
  if (policy == CastPolicy::Fp32SetOptDtype &&
      std::none_of(schema.arguments().begin(), schema.arguments().end(), is_optional_dtype)) {
    refuse(pair + "it has no optional dtype argument. Use 'fp32'");
  }
  return policy;
}

void check_is_free(const c10::OperatorHandle& op, const std::string& name) {
  if (op.hasKernelForDispatchKey(kAutocast)) {
    refuse(name +
           " already has an autocast kernel that was registered with torch directly: remove that registration first");
  }
}

}  // namespace

const char* cast_policy_name(CastPolicy policy) {
  return kNames[static_cast<size_t>(policy)];
}

void run_cast_policy(const AutocastOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const CastPolicy policy = op.policy.load(std::memory_order_relaxed);
  if (policy == CastPolicy::Fallthrough) {
    // Autocast stays on: the operators that it calls may have their own policies.
    op.op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAutocast), stack);
    return;
  }
  TORCH_CHECK(policy != CastPolicy::Banned, op.name, " is banned under torch.autocast('", driver_name(),
              "'). Run it with autocast disabled, or give it another policy: torch_outboard.amp.set_policy('", op.name,
              "', 'fp32')");
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kAutocast);
  switch (policy) {
    case CastPolicy::LowerPrecisionFp:
      cast_arguments(op, at::autocast::get_autocast_dtype(kDeviceType), stack);
      break;
    case CastPolicy::Fp32:
      cast_arguments(op, at::kFloat, stack);
      break;
    case CastPolicy::Fp32SetOptDtype:
      set_optional_dtype(op, stack);
      break;
    case CastPolicy::Fp32CastBack:
      call_and_cast_back(op, stack);
      return;
    case CastPolicy::Promote:
      cast_arguments(op, widest(arguments_of(op, *stack)), stack);
      break;
    default:
      TORCH_INTERNAL_ASSERT(false, op.name, " has the policy ", cast_policy_name(policy), ", which has no boxed form");
  }
  op.op.callBoxed(stack);
}

void register_autocast() {
  std::lock_guard lock(table().mutex);
  if (table().is_registered) {
    return;
  }
  // Without it an operator without a policy would have no kernel under autocast.
  auto& all = *new torch::Library(torch::Library::IMPL, "_", kAutocast, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFallthrough());
  torch::Library& aten = table().library("aten");
  for (const ListedOp& listed : listed_ops()) {
    auto op = std::make_unique<AutocastOp>(find_op(listed.name), listed.name, listed.policy);
    aten.impl(listed.name, listed.make_kernel(*op));
    table().ops.emplace(listed.name, std::move(op));
  }
  table().is_registered = true;
}

bool has_autocast() {
  std::lock_guard lock(table().mutex);
  return table().is_registered;
}

void check_cast_policy(const std::string& name, const std::string& policy) {
  const c10::OperatorHandle op = find_op(name);
  checked_policy(op, name, policy);
  std::lock_guard lock(table().mutex);
  if (!table().ops.contains(name)) {
    check_is_free(op, name);
  }
}

void set_cast_policy(const std::string& name, const std::string& policy_name) {
  const c10::OperatorHandle handle = find_op(name);
  const CastPolicy policy = checked_policy(handle, name, policy_name);
  if (!has_autocast()) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          "the driver '" + driver_name() + "' has no autocast: set `autocast = \"default\"` in its description");
  }
  std::lock_guard lock(table().mutex);
  if (const auto it = table().ops.find(name); it != table().ops.end()) {
    it->second->policy.store(policy, std::memory_order_relaxed);
    return;
  }
  check_is_free(handle, name);
  if (policy == CastPolicy::Fallthrough) {
    return;  // it already does
  }
  auto op = std::make_unique<AutocastOp>(handle, name, CastPolicy::Fallthrough);
  op->policy.store(policy, std::memory_order_relaxed);
  table()
      .library(name.substr(0, name.find("::")))
      .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(*op)));
  table().ops.emplace(name, std::move(op));
}

std::vector<CastPolicyRow> cast_policies() {
  std::lock_guard lock(table().mutex);
  std::vector<CastPolicyRow> rows;
  for (const auto& [name, op] : table().ops) {
    rows.push_back({name, op->policy.load(std::memory_order_relaxed), op->default_policy});
  }
  return rows;
}

std::optional<at::ScalarType> autocast_dtype() {
  if (!at::autocast::is_autocast_enabled(kDeviceType)) {
    return std::nullopt;
  }
  return at::autocast::get_autocast_dtype(kDeviceType);
}

at::Tensor autocast_cast(at::ScalarType dtype, const at::Tensor& tensor) {
  return at::autocast::cached_cast(dtype, tensor, kDeviceType);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/operator.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "ops/operator/forms.h"
#include "ops/operator/meta_kernels.h"

namespace outboard {

namespace {

void (*completion)(Operator& op) = nullptr;

bool is_tensor_type(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType;
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::OptionalType ? type->castRaw<c10::OptionalType>()->getElementType() : type;
}

ArgKind kind_of(const c10::TypePtr& declared) {
  const c10::TypePtr type = without_optional(declared);
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgKind::Tensor;
    case c10::TypeKind::GeneratorType:
      return ArgKind::Generator;
    case c10::TypeKind::DeviceObjType:
      return ArgKind::Device;
    case c10::TypeKind::ListType: {
      const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (is_tensor_type(element)) {
        return ArgKind::TensorList;
      }
      return is_tensor_type(without_optional(element)) ? ArgKind::OptionalTensorList : ArgKind::Other;
    }
    default:
      return ArgKind::Other;
  }
}

// Return true if all returns of the operator are arguments that it writes in
// place: they keep shape and dtype.
bool writes_in_place_only(const c10::FunctionSchema& schema) {
  bool writes = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) {
      if (argument.kwarg_only()) {
        return false;  // out=, which may be resized
      }
      writes = true;
    }
  }
  return writes && std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& returned) {
           return returned.alias_info() && returned.alias_info()->isWrite();
         });
}

// Return how a constant enters the signature. A `Scalar` decides a dtype by its category; its value
// decides a shape for a few operators. A float decides neither in torch's operators. A custom
// operator may do anything, except with arguments that it only writes.
Decides decides(const Facts& facts, const c10::Argument& argument, bool is_torch_operator, bool is_in_place) {
  switch (without_optional(argument.real_type())->kind()) {
    case c10::TypeKind::NumberType:
      return (is_torch_operator ? facts.has_shape_of_scalars : !is_in_place) ? Decides::Value : Decides::Category;
    case c10::TypeKind::FloatType:
      return is_torch_operator || is_in_place ? Decides::Presence : Decides::Value;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      // An invalid dimension raises for some tensors, also in place;
      // bounds of random numbers do not.
      return (is_in_place && !is_torch_operator) || facts.has_bounds ? Decides::Presence : Decides::Value;
    default:
      return Decides::Value;
  }
}

// Return the names of a value's alias sets; a list has them at its elements.
std::unordered_set<c10::Symbol> alias_sets(const c10::AliasInfo& alias) {
  std::unordered_set<c10::Symbol> sets = alias.beforeSets();
  for (const c10::AliasInfo& contained : alias.containedTypes()) {
    sets.insert(contained.beforeSets().begin(), contained.beforeSets().end());
  }
  return sets;
}

// Return the argument that a return's annotation names, or -1.
int8_t aliased_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& alias) {
  const auto wanted = alias_sets(alias);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (const c10::AliasInfo* of_arg = schema.arguments()[i].alias_info()) {
      const auto sets = alias_sets(*of_arg);
      if (std::any_of(sets.begin(), sets.end(), [&](c10::Symbol set) { return wanted.count(set) > 0; })) {
        return static_cast<int8_t>(i);
      }
    }
  }
  return -1;
}

struct OperatorTable {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>> operators;
  std::vector<std::unique_ptr<Operator>> deregistered;
  std::unordered_set<c10::OperatorName> kept;
};
OperatorTable& table() {
  static auto* operators = new OperatorTable();  // kernels may run until the end of the process
  return *operators;
}

bool is_in_torch_namespace(const c10::OperatorName& name) {
  return name.name.rfind("aten::", 0) == 0;
}

// Retires an operator that is deregistered. Called under the dispatcher's lock, which is never
// requested with the table's held.
class DeregistrationListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    if (is_in_torch_namespace(op.operator_name())) {
      return;  // at exit
    }
    std::lock_guard lock(table().mutex);
    const auto it = table().operators.find(op.operator_name());
    if (it == table().operators.end()) {
      return;
    }
    it->second->deregistered_schema = toString(op.schema());
    it->second->is_deregistered.store(true, std::memory_order_relaxed);
    table().deregistered.push_back(std::move(it->second));
    table().operators.erase(it);
  }
};

// Keep the kernel registered for an operator by name if the operator is
// defined again with the same schema.
void inherit_native(Operator& op) {
  for (auto it = table().deregistered.rbegin(); it != table().deregistered.rend(); ++it) {
    if ((*it)->name == op.name) {
      if ((*it)->deregistered_schema == toString(op.handle.schema())) {
        op.native.store((*it)->native.load(), std::memory_order_release);
      }
      return;
    }
  }
}

// Keep an operator's entry in the dispatcher. Queued calls and plans hold it, and the dispatcher
// frees it with its last registration. Ours keeps it, at a key that no call of the device has.
void keep_entry(const c10::OperatorName& name) {
  if (is_in_torch_namespace(name)) {
    return;
  }
  {
    std::lock_guard lock(table().mutex);
    if (!table().kept.insert(name).second) {
      return;
    }
  }
  static_cast<void>(new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerImpl(
      name, c10::DispatchKey::QuantizedPrivateUse1, c10::KernelFunction::makeFallthrough(), std::nullopt, nullptr,
      __FILE__)));
}

struct WaitCounts {
  std::mutex mutex;
  std::map<std::string, uint64_t> counts;
};
WaitCounts& wait_counts() {
  static auto* counts = new WaitCounts();
  return *counts;
}

}  // namespace

Operator::Operator(const c10::OperatorHandle& operator_handle)
    : handle(operator_handle),
      name(toString(operator_handle.operator_name())),
      is_torch_operator(is_in_torch_namespace(operator_handle.operator_name())),
      facts(facts_of(operator_handle.operator_name())) {
  const c10::FunctionSchema& schema = handle.schema();
  const MetaKernel meta = meta_kernel_of(handle.operator_name());
  meta_kernel = meta.kernel;
  is_structured = meta.is_structured;
  const bool is_in_place = writes_in_place_only(schema);
  for (const c10::Argument& argument : schema.arguments()) {
    ArgInfo info;
    info.kind = kind_of(argument.type());
    info.decides = decides(facts, argument, is_torch_operator, is_in_place);
    info.is_written =
        (argument.alias_info() && argument.alias_info()->isWrite()) || is_undeclared_write(facts, argument.name());
    info.is_output = is_torch_operator && argument.kwarg_only() && info.is_written && info.kind == ArgKind::Tensor;
    info.may_be_on_cpu = info.kind == ArgKind::OptionalTensorList;
    has_generator_arg |= info.kind == ArgKind::Generator;
    args.push_back(info);
  }
  check_errors = schema.argumentIndexWithName("check_errors");
  is_random = has_generator_arg || handle.hasTag(at::Tag::nondeterministic_seeded);

  kind = OpKind::Writes;
  returns_sizes = true;
  for (const c10::Argument& returned : schema.returns()) {
    const ArgKind returned_kind = kind_of(returned.type());
    const c10::AliasInfo* alias = returned.alias_info();
    const int8_t source = alias ? aliased_argument(schema, *alias) : -1;
    const bool is_view = alias && !alias->isWrite();
    returned_arg.push_back(is_view ? -1 : source);
    viewed_arg.push_back(is_view ? source : -1);
    if (returned_kind != ArgKind::Tensor && returned_kind != ArgKind::TensorList) {
      kind = OpKind::Waits;
      returns_sizes &= returned.real_type()->kind() == c10::TypeKind::SymIntType;
    } else if (kind != OpKind::Waits && is_view) {
      kind = OpKind::Views;
    } else if (kind == OpKind::Writes && source < 0) {
      kind = OpKind::Makes;
    }
  }
  if (facts.has_misleading_meta || (handle.hasTag(at::Tag::dynamic_output_shape) && !facts.has_shape_of_masks)) {
    kind = OpKind::Waits;
    returns_sizes = false;
  }
  returns_sizes &= kind == OpKind::Waits;
  if (kind == OpKind::Makes) {
    out_variant = find_out_form(handle);
  }
  completion(*this);
}

Operator::~Operator() {
  delete recipes.load();
}

void complete_operators_with(void (*complete)(Operator& op)) {
  completion = complete;
}

const Operator* Operator::functional_form() const {
  std::call_once(functional_once_, [this] {
    const FormGroup forms = find_forms(handle);
    if (forms.functional && forms.functional->operator_name() != handle.operator_name()) {
      functional_ = &operator_for(*forms.functional);
    }
  });
  return functional_;
}

const c10::OperatorHandle& Operator::find_cpu_handle() const {
  std::call_once(cpu_handle_once_, [this] {
    const bool is_itself = handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
    cpu_handle_ = is_itself ? handle : operator_named(std::string(facts.cpu_operator)).handle;
  });
  return *cpu_handle_;
}

Operator& operator_named(const std::string& name, const char* overload) {
  return operator_for(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload));
}

bool has_native(const Operator& op) {
  return op.native.load(std::memory_order_acquire) != nullptr;
}

Operator& operator_for(const c10::OperatorHandle& handle) {
  static const auto* listener = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<DeregistrationListener>()));
  static_cast<void>(listener);
  {
    std::lock_guard lock(table().mutex);
    if (const auto it = table().operators.find(handle.operator_name()); it != table().operators.end()) {
      return *it->second;
    }
  }
  keep_entry(handle.operator_name());
  auto created = std::make_unique<Operator>(handle);
  std::lock_guard lock(table().mutex);
  std::unique_ptr<Operator>& op = table().operators[handle.operator_name()];
  if (!op) {
    op = std::move(created);
    inherit_native(*op);
  }
  return *op;
}

void for_each_operator(const std::function<void(Operator&)>& visit) {
  std::lock_guard lock(table().mutex);
  for (auto& [name, op] : table().operators) {
    visit(*op);
  }
}

void count_wait(const char* op) {
  std::lock_guard lock(wait_counts().mutex);
  ++wait_counts().counts[op];
}

const char* provider_name(Provider provider) {
  switch (provider) {
    case Provider::Native:
      return "native";
    case Provider::Generated:
      return "generated";
    case Provider::Host:
      return "host";
    default:
      return "fallback";
  }
}

std::vector<CoverageRow> coverage() {
  std::vector<CoverageRow> rows;
  const auto add = [&rows](const Operator& op, Provider provider, uint64_t calls) {
    if (calls > 0) {
      rows.push_back({op.name, provider, calls});
    }
  };
  for_each_operator([&](Operator& op) {
    add(op, Provider::Native, op.native_calls.load());
    add(op, Provider::Generated, op.planned_calls.load());
    add(op, Provider::Host, op.queued_calls.load() + op.waited_calls.load());
    add(op, Provider::Fallback, op.fallback_calls.load());
  });
  return rows;
}

void reset_coverage() {
  for_each_operator([](Operator& op) {
    op.native_calls = 0;
    op.planned_calls = 0;
    op.queued_calls = 0;
    op.waited_calls = 0;
    op.fallback_calls = 0;
  });
  std::lock_guard lock(wait_counts().mutex);
  wait_counts().counts.clear();
}

HostCounters host_counters() {
  HostCounters counters;
  for_each_operator([&](Operator& op) {
    counters.queued += op.queued_calls.load();
    counters.waited += op.waited_calls.load();
  });
  return counters;
}

std::vector<std::pair<std::string, uint64_t>> waited_operators() {
  std::vector<std::pair<std::string, uint64_t>> result;
  for_each_operator([&](Operator& op) {
    if (const uint64_t calls = op.waited_calls.load()) {
      result.emplace_back(op.name, calls);
    }
  });
  std::lock_guard lock(wait_counts().mutex);
  result.insert(result.end(), wait_counts().counts.begin(), wait_counts().counts.end());
  return result;
}

}  // namespace outboard

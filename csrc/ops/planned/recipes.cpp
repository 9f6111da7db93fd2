// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/recipes.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/lost_device.h"
#include "core/wait.h"
#include "kernels/program.h"
#include "ops/planned/constant_words.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

std::atomic<const PlanBuilder*> builder{nullptr};
std::atomic<uint64_t> plans{0};
std::atomic<uint32_t> variant{0};

constexpr size_t kHalf = 32;

bool is_by_value(uint64_t numbers, size_t index) {
  return index < kHalf && (numbers >> index & 1) != 0;
}

bool is_guarded(uint64_t numbers, size_t index) {
  return index < kHalf && (numbers >> (kHalf + index) & 1) != 0;
}

// Return true for exponents with their own formulas in torch, and for those of integers.
bool has_own_formula(const Call& call, const c10::IValue& exponent) {
  if (!call.op().name.starts_with("aten::pow")) {
    return false;
  }
  constexpr double kLargest = 3;
  const double value = exponent.toScalar().isComplex() ? 0 : exponent.toScalar().toDouble();
  return (std::abs(value) <= kLargest && std::floor(2 * value) == 2 * value) ||
         (!exponent.isDouble() && !c10::isFloatingType(call.arg(0).toTensor().scalar_type()));
}

bool is_default(const c10::IValue& value, const c10::Argument& declared) {
  const auto& default_value = declared.default_value();
  return default_value.has_value() && value.isInt() && default_value->isInt() &&
         value.toInt() == default_value->toInt();
}

// The bits of PlanBuilder::abilities, as builder.py sets them.
enum Ability : uint32_t {
  kAttention = 1,
  kMaskGradientsOfFloat = 2,
  kMaskGradientsOfHalf = 4,
  kMaskGradientsOfBFloat16 = 8,
  kRounds = 16  // float32, where torch's switches allow it
};

uint32_t abilities() {
  // Not a language static: the thread that initializes it may wait for Python, while a
  // waiting thread holds Python's lock.
  static std::atomic<int> known{-1};
  int answer = known.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(answer < 0)) {
    const PlanBuilder* active_builder = builder.load();
    answer = active_builder != nullptr ? static_cast<int>(active_builder->abilities()) : 0;
    known.store(answer, std::memory_order_relaxed);
  }
  return static_cast<uint32_t>(answer);
}

// Return torch's switches that affect generated kernels. The precision of float32 matters only to
// matrix units that round.
uint64_t switches() {
  uint64_t bits = is_deterministic() ? 1 : 0;
  if ((abilities() & kRounds) != 0) {
    const at::Context& context = at::globalContext();
    const auto rounds = [&context](at::Float32Op op) {
      return context.float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
    };
    bits |= (rounds(at::Float32Op::MATMUL) ? 2 : 0) | (rounds(at::Float32Op::CONV) ? 4 : 0);
  }
  return bits;
}

// Return the key of the recipes that may serve a call. It covers everything except sizes, strides
// and numbers by value.
std::vector<uint64_t> class_of(const Call& call, uint64_t numbers, bool is_aliased) {
  std::vector<uint64_t> words{
      static_cast<uint64_t>(call.device()) | uint64_t{variant.load(std::memory_order_relaxed)} << 32,
      is_aliased ? 1u : 0u, switches(), static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())};
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    words.push_back(i);
    if (call.op().args[i].kind == ArgKind::Other) {
      const bool is_left_out = is_by_value(numbers, i) || is_guarded(numbers, i);
      add_constant(words, call.arg(i), !is_left_out);
      if (is_left_out && call.arg(i).isList()) {
        words.push_back(call.arg(i).toListRef().size());
      }
      continue;
    }
    call.for_each_tensor(i, [&](size_t place, const at::Tensor& tensor) {
      const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
      words.push_back(place);
      words.push_back(static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(tensor.dim()) << 8 |
                      (impl.is_wrapped_number() ? uint64_t{1} << 32 : 0) | (tensor.is_cpu() ? uint64_t{1} << 33 : 0) |
                      (tensor.is_conj() ? uint64_t{1} << 34 : 0));
    });
  }
  return words;
}

// Return why no plan can serve the call's tensors; "" if one may.
std::string explain_unsupported_tensors(const Call& call) {
  std::string reason;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      // A plan conjugates what it reads.
      const bool is_conjugated = tensor.is_conj() && !tensor.is_neg() && !call.op().args[i].is_written;
      if (!is_conjugated && !has_plain_elements(tensor)) {
        reason = "an argument is not a dense strided tensor [layout]";
      } else if (tensor.is_cpu() && tensor.dim() > 0) {
        reason = "an argument on the CPU has dimensions [layout]";
      } else if (call.op().args[i].is_written && at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
        reason = "elements of an output share memory [layout]";
      }
    });
  }
  return reason;
}

// Return a plan and its kernels, whose programs are not built yet. Raise
// ValueError for a text that is not a plan.
std::shared_ptr<const Recipe> recipe_of(BuiltPlan& built, const Call& call) {
  std::vector<kernels::ArgumentKinds> passed;
  for (const auto& kernel : built.kernels) {
    passed.push_back(kernel->passed());
  }
  return std::make_shared<const Recipe>(kernels::Plan(built.text, passed), built, call.op());
}

std::shared_ptr<const PlannedCall> refused(const std::string& reason) {
  auto call = std::make_shared<PlannedCall>();
  call->refusal = reason;
  return call;
}

}  // namespace

bool is_aliased(const Call& call) {
  c10::SmallVector<std::pair<const c10::StorageImpl*, bool>, 8> storages;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      storages.emplace_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                            call.op().args[i].is_written);
    });
  }
  if (std::none_of(storages.begin(), storages.end(), [](const auto& storage) { return storage.second; })) {
    return false;
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (storages[i].first == storages[j].first && (storages[i].second || storages[j].second)) {
        return true;
      }
    }
  }
  return false;
}

std::string explain_unusable_plan(const Operator& op, const c10::Error& error) {
  static std::atomic<bool> has_warned{false};
  const std::string reason = std::string("its plan can't be used: ") + error.what_without_backtrace();
  if (!has_warned.exchange(true)) {
    TORCH_WARN(
        "the kernel that was generated for ", op.name, " is not used, so its calls may be slow: ", reason,
        ". This warning appears once; torch_outboard.kernels.refused_operators() returns every refused operator.");
  }
  return reason + " [program]";
}

std::string message_of(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr ? known->what_without_backtrace() : error.what();
}

bool may_be_plan_failure(const std::exception& error, c10::DeviceIndex device) {
  return !is_lost(device) && !is_interrupt(error) && dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr &&
         dynamic_cast<const kernels::ProgramHangs*>(&error) == nullptr;
}

void set_plan_builder(const PlanBuilder* new_builder) {
  builder.store(new_builder);
}

const PlanBuilder* plan_builder() {
  return builder.load();
}

void count_plan() {
  plans.fetch_add(1, std::memory_order_relaxed);
}

bool has_generated_attention() {
  return (abilities() & kAttention) != 0;
}

bool has_generated_mask_gradients(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return (abilities() & kMaskGradientsOfFloat) != 0;
    case c10::kHalf:
      return (abilities() & kMaskGradientsOfHalf) != 0;
    case c10::kBFloat16:
      return (abilities() & kMaskGradientsOfBFloat16) != 0;
    default:
      return false;
  }
}

void set_plan_variant(uint32_t number) {
  variant.store(number, std::memory_order_relaxed);
}

uint64_t built_plans() {
  return plans.load(std::memory_order_relaxed);
}

std::vector<std::pair<std::string, std::string>> refused_operators() {
  std::vector<std::pair<std::string, std::string>> rows;
  for_each_operator([&](Operator& op) {
    if (auto* known = static_cast<OperatorRecipes*>(op.recipes.load(std::memory_order_acquire))) {
      for (const std::string& reason : known->refusals()) {
        rows.emplace_back(op.name, reason);
      }
    }
  });
  std::sort(rows.begin(), rows.end());
  return rows;
}

OperatorRecipes& OperatorRecipes::of(Operator& op) {
  ProviderMemory* known = op.recipes.load(std::memory_order_acquire);
  if (C10_UNLIKELY(known == nullptr)) {
    auto created = std::make_unique<OperatorRecipes>();
    if (op.recipes.compare_exchange_strong(known, created.get(), std::memory_order_acq_rel)) {
      return *created.release();
    }
  }
  return static_cast<OperatorRecipes&>(*known);
}

uint64_t OperatorRecipes::numbers(const Call& call) {
  const uint64_t known = numbers_.of(call.op(), &PlanBuilder::numbers);
  if (C10_LIKELY(known == 0)) {
    return 0;
  }
  uint64_t result = 0;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (is_by_value(known, i)) {
      const bool is_read = value.isScalar() && !is_default(value, call.op().handle.schema().arguments()[i]) &&
                           !has_own_formula(call, value);
      result |= is_read ? uint64_t{1} << i : 0;
    } else if (is_guarded(known, i)) {
      const bool is_seen =
          value.isIntList() || (value.isInt() && !is_default(value, call.op().handle.schema().arguments()[i]));
      result |= is_seen ? uint64_t{1} << (kHalf + i) : 0;
    }
  }
  return result;
}

PlannedKey OperatorRecipes::key_of(const Call& call) {
  const uint64_t by_value = numbers(call);
  PlannedKey key{call.hash(), call.words(), is_aliased(call)};
  const size_t begin = key.words.size();
  key.words.push_back((key.is_aliased ? 1u : 0u) | switches() << 1 | static_cast<uint64_t>(call.device()) << 8 |
                      uint64_t{variant.load(std::memory_order_relaxed)} << 32);
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    if (call.op().args[i].kind == ArgKind::Other && call.op().args[i].decides != Decides::Value) {
      add_constant(key.words, call.arg(i), !is_by_value(by_value, i));
    }
  }
  for (size_t i = begin; i < key.words.size(); ++i) {
    key.hash = mixed(key.hash, key.words[i]);
  }
  return key;
}

std::shared_ptr<const PlannedCall> OperatorRecipes::make(const Call& call, const PlannedKey& key) {
  std::shared_ptr<const PlannedCall> planned;
  const FlatCall flat(call);
  if (std::string why = explain_unsupported_tensors(call); !why.empty()) {
    planned = refuse(why, nullptr);
  } else {
    planned = classes_.find_or_build(
        class_of(flat.call(), numbers(call), key.is_aliased), call.device(), call.op().name, refused,
        [&](const std::shared_ptr<const Recipe>& recipe, const std::shared_ptr<Class>& group) {
          return use(recipe, flat, group);
        },
        [&](const std::shared_ptr<Class>& group) -> std::shared_ptr<const PlannedCall> {
          if (group->is_loaded) {
            return build(flat, key, group);
          }
          load(flat.call(), key, *group);
          group->is_loaded = true;
          return nullptr;
        });
  }
  known_.insert(key.hash, key.words, planned);
  return planned;
}

std::shared_ptr<const PlannedCall> OperatorRecipes::use(const std::shared_ptr<const Recipe>& recipe,
                                                        const FlatCall& flat, const std::shared_ptr<Class>& group) {
  const Call& call = flat.call();
  std::shared_ptr<PlannedCall> planned;
  try {
    planned = instantiate(recipe, flat);
  } catch (const std::exception& error) {
    if (!recipe->kept.empty() && may_be_plan_failure(error, call.device())) {
      drop(*recipe, call, error);
      return nullptr;
    }
    const auto* known = dynamic_cast<const c10::Error*>(&error);
    if (known == nullptr || is_lost(call.device())) {
      throw;
    }
    return refuse(explain_unusable_plan(call.op(), *known), nullptr);
  }
  if (planned == nullptr) {
    return nullptr;
  }
  planned->group = group;
  recipe->failure.raise_if_recent();
  try {
    build_programs(recipe, call.device());
  } catch (const kernels::ProgramRefused& error) {
    if (!recipe->kept.empty() && may_be_plan_failure(error, call.device())) {
      drop(*recipe, call, error);
      return nullptr;
    }
    return refuse(explain_unusable_plan(call.op(), error), nullptr);  // a compiler may take the kernels of other sizes
  } catch (...) {
    recipe->failure.keep_current();
    throw;
  }
  return planned;
}

void OperatorRecipes::load(const Call& call, const PlannedKey& key, Class& group) {
  if (const PlanBuilder* active_builder = builder.load()) {
    for (BuiltPlan& kept : active_builder->load(call, numbers(call), key.is_aliased)) {
      if (!kept.refusal.empty()) {
        refuse(kept.refusal, &group);
      } else {
        try {
          TORCH_CHECK_VALUE(kept.unusable_reason.empty(), kept.unusable_reason);
          classes_.keep(recipe_of(kept, call), group);
        } catch (const c10::Error& error) {
          active_builder->drop(call, numbers(call), key.is_aliased, kept.text, error.what_without_backtrace());
        }
      }
    }
  }
}

void OperatorRecipes::drop(const Recipe& recipe, const Call& original, const std::exception& failure) {
  const FlatCall flat(original);
  const Call& call = flat.call();
  const bool was_dropped = recipe.is_dropped.exchange(true, std::memory_order_relaxed);
  const PlanBuilder* active_builder = builder.load();
  if (active_builder != nullptr && !was_dropped) {
    active_builder->drop(call, numbers(call), is_aliased(call), recipe.kept, message_of(failure));
  }
}

std::shared_ptr<const PlannedCall> OperatorRecipes::build(const FlatCall& flat, const PlannedKey& key,
                                                          const std::shared_ptr<Class>& group) {
  const Call& call = flat.call();
  const PlanBuilder* active_builder = builder.load();
  if (active_builder == nullptr) {
    return refuse("the driver has no kernel generator [no-generator]", nullptr);
  }
  group->failure.raise_if_recent();
  BuiltPlan built;
  try {
    const TrackedCall noted("the builder of plans", call.device(), nullptr, call.op().name.c_str());
    built = active_builder->build(call, numbers(call), key.is_aliased);
  } catch (...) {
    group->failure.keep_current();
    throw;
  }
  if (built.is_elsewhere()) {
    group->is_loaded = false;
    return nullptr;
  }
  if (!built.refusal.empty()) {
    return refuse(built.refusal, built.refuses_class ? group.get() : nullptr);
  }
  std::shared_ptr<const Recipe> recipe;
  try {
    recipe = recipe_of(built, call);
  } catch (const c10::Error& error) {
    return refuse(explain_unusable_plan(call.op(), error), nullptr);  // other sizes may have another plan
  }
  std::shared_ptr<const PlannedCall> result;
  try {
    result = use(recipe, flat, group);
  } catch (...) {
    classes_.keep(std::move(recipe), *group);  // the plan is right: the next try only needs its programs
    throw;
  }
  if (result == nullptr) {
    return refuse("the guards of its plan don't hold for the call that it was built for, or the plan's result"
                  " and the meta kernel's result have different strides [plan]",
                  nullptr);
  }
  if (result->recipe != nullptr) {
    classes_.keep(std::move(recipe), *group);
  }
  return result;
}

std::shared_ptr<const PlannedCall> OperatorRecipes::refuse(const std::string& reason, Class* group) {
  list(reason);
  if (group != nullptr) {
    classes_.refuse(reason, *group);
  }
  return refused(reason);
}

void OperatorRecipes::list(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (refusals_.size() < kMaxRefusals) {
    refusals_.insert(reason);
  }
}

std::set<std::string> OperatorRecipes::refusals() {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

}  // namespace outboard

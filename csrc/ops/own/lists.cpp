// SPDX-License-Identifier: BSD-3-Clause
#include "ops/own/lists.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/device.h"
#include "ops/boxed.h"
#include "ops/call/bad_arguments.h"
#include "ops/own/factories.h"
#include "ops/own/list_call.h"
#include "ops/planned/constant_words.h"
#include "ops/planned/recipes.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using kernels::ChunkSource;
using Kind = ChunkSource::Kind;

// Return the device of the first tensor in a list; -1 if it is not ours, or if there is none.
c10::DeviceIndex device_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList() && !value.toListRef().empty()) {
      const at::Tensor& first = value.toListRef()[0].toTensor();
      return first.defined() && is_device_tensor(*first.unsafeGetTensorImpl()) ? first.device().index() : -1;
    }
  }
  return -1;
}

uint64_t word_of(const at::Tensor& tensor, bool is_element_of_list) {
  if (!tensor.defined()) {
    return 0;
  }
  // Sizes of tensors in lists do not matter. A CPU number is passed by value.
  return 1 | static_cast<uint64_t>(tensor.scalar_type()) << 8 | (tensor.is_cpu() ? uint64_t{1} << 16 : 0) |
         (is_element_of_list ? 0 : static_cast<uint64_t>(tensor.dim()) << 24);
}

// Return the key of the kernels that may serve a call.
std::vector<uint64_t> class_of(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device, uint64_t numbers) {
  std::vector<uint64_t> words{static_cast<uint64_t>(device),
                              static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())};
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensorList()) {
      const auto list = value.toListRef();
      words.push_back(list.empty() ? 2 : word_of(list[0].toTensor(), true));
    } else if (value.isTensor()) {
      words.push_back(word_of(value.toTensor(), false));
    } else {
      const bool is_by_value = (numbers >> i & 1) != 0;
      add_constant(words, value, !is_by_value);
      if (is_by_value && value.isList() && !value.toListRef().empty()) {
        add_constant(words, value.toListRef()[0], false);
      }
    }
  }
  return words;
}

// Return that key with the sizes of the tensors beside the lists, which also decide whether the
// builder refuses a single call.
std::pair<uint64_t, SignatureWords> signature_of(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
                                                 uint64_t numbers) {
  const std::vector<uint64_t> of_class = class_of(arguments, device, numbers);
  SignatureWords words(of_class.begin(), of_class.end());
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      words.append(value.toTensor().sizes().begin(), value.toTensor().sizes().end());
    }
  }
  return {std::accumulate(words.begin(), words.end(), uint64_t{0}, mixed), words};
}

// Return false if the dtype of the lists may not hold a number. The operator
// for one tensor then refuses it.
bool numbers_fit(c10::ArrayRef<c10::IValue> arguments) {
  if (!arguments[0].isTensorList() || arguments[0].toListRef().empty()) {
    return true;  // a power of a number
  }
  const c10::ScalarType dtype = arguments[0].toListRef()[0].toTensor().scalar_type();
  return std::ranges::all_of(arguments, [dtype](const c10::IValue& value) {
    if (value.isScalar()) {
      return !may_overflow(value.toScalar(), dtype);
    }
    return !value.isList() || value.isTensorList() ||
           std::ranges::all_of(value.toListRef(), [dtype](const c10::IValue& element) {
             return !element.isScalar() || !may_overflow(element.toScalar(), dtype);
           });
  });
}

// Return the arguments for the builder: lists are cut to their first element.
torch::jit::Stack first_elements(c10::ArrayRef<c10::IValue> arguments) {
  torch::jit::Stack result;
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList() && value.toListRef().size() > 1) {
      result.emplace_back(c10::List<at::Tensor>({value.toListRef()[0].toTensor()}));
    } else if (value.isList() && value.toListRef().size() > 1) {
      c10::impl::GenericList list(value.toList().elementType());
      list.push_back(value.toListRef()[0]);
      result.emplace_back(std::move(list));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

// Run the operator for each tensor of its lists, if kernels are generated and none takes the lists
// as a whole. Plans are for lists of one tensor, so that no plan grows with a list. Return false,
// with nothing done, for other calls.
bool run_each(Operator& op, torch::jit::Stack* stack) {
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, op.args.size());
  const c10::DeviceIndex device = device_of(arguments);
  const size_t length = arguments[0].isTensorList() ? arguments[0].toTensorList().size() : 0;
  if (!allows_generated() || device < 0 || length < 2 || !may_generate(device)) {
    return false;
  }
  for (const c10::IValue& argument : arguments) {
    const size_t size = argument.isTensorList() ? argument.toTensorList().size() : 0;
    if (size != 0 && size != length) {
      return false;  // the operator itself raises
    }
  }
  for (size_t i = 0; i < length; ++i) {
    torch::jit::Stack single;
    for (const c10::IValue& argument : arguments) {
      if (!argument.isTensorList()) {
        single.push_back(argument);
        continue;
      }
      c10::List<at::Tensor> list;
      if (const c10::List<at::Tensor> all = argument.toTensorList(); !all.empty()) {
        list.push_back(all.get(i));
      }
      single.emplace_back(std::move(list));
    }
    run_chain(op, &single);
  }
  torch::jit::drop(*stack, op.args.size());
  return true;
}

class ListKernel final : public c10::OperatorKernel {
 public:
  ListKernel(Operator& op, bool is_composite) : known_(op, is_composite), is_composite_(is_composite) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Operator& op = known_.op();
    const bool is_native = op.native.load(std::memory_order_acquire) != nullptr && allows_native();
    if (C10_LIKELY(!is_native && allows_generated()) && known_.run(stack)) {
      return;
    }
    if (is_composite_ && !is_native) {
      // Torch's composite, which the CPU's table holds: an operator for each
      // tensor, through the dispatcher.
      handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } else if (is_native || !run_each(op, stack)) {
      run_chain(op, stack);
    }
  }

 private:
  ListOperator known_;
  const bool is_composite_;
};

}  // namespace

ListOperator::ListOperator(Operator& op, bool promotes) : op_(op), promotes_(promotes) {
  const std::string_view name = std::string_view(op.name).substr(std::min<size_t>(op.name.size(), 15));
  for (const std::string_view suffix : {"addcdiv", "addcmul", "clamp_max", "clamp_min", "lerp", "maximum", "minimum",
                                        "pow", "add.List", "add_.List", "sub.List", "sub_.List"}) {
    converts_ |= op.name.starts_with("aten::_foreach_") && name.starts_with(suffix);
  }
}

ListRecipeRef ListOperator::recipe_for(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device) {
  const auto without_kernels = [](const std::string&) { return std::make_shared<const ListRecipe>(); };
  return classes_.find_or_build(
      class_of(arguments, device, numbers_.of(op_, &PlanBuilder::numbers_of_lists)), device, op_.name, without_kernels,
      [&](const ListRecipeRef& recipe, const auto&) {
        return C10_LIKELY(!recipe->is_refused.load(std::memory_order_relaxed)) ? recipe
                                                                               : refused(recipe, arguments, device);
      },
      [&](const auto& group) { return build(arguments, device, *group); });
}

// Return the recipe for a call whose current recipe has a program that the driver refused after a
// launch was queued. Return null if the recipe came from disk, so that another is built.
ListRecipeRef ListOperator::refused(const ListRecipeRef& recipe, c10::ArrayRef<c10::IValue> arguments,
                                    c10::DeviceIndex device) {
  try {
    build_programs(recipe, device);
    return recipe;
  } catch (const kernels::ProgramRefused& error) {
    if (!recipe->kept.empty() && may_be_plan_failure(error, device)) {
      drop(*recipe, arguments, device, message_of(error));
      return nullptr;
    }
    OperatorRecipes::of(op_).list(explain_unusable_plan(op_, error));
    return std::make_shared<const ListRecipe>();
  }
}

ListRecipeRef ListOperator::build(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
                                  RecipeClass<ListRecipe>& group) {
  const auto [hash, words] = signature_of(arguments, device, numbers_.of(op_, &PlanBuilder::numbers_of_lists));
  if (auto refused = refused_.find(hash, words)) {
    return refused;
  }
  group.failure.raise_if_recent();
  BuiltPlan answer;
  try {
    if (ListRecipeRef recipe = ask_for_recipe(arguments, device, &answer)) {
      classes_.keep(recipe, group);
      return recipe;
    }
  } catch (...) {
    group.failure.keep_current();
    throw;
  }
  OperatorRecipes::of(op_).list(answer.refusal);
  auto refused = std::make_shared<const ListRecipe>();
  if (answer.refuses_class) {
    classes_.refuse(answer.refusal, group);
  } else {
    refused_.insert(hash, words, refused);
  }
  return refused;
}

// Return null with a refusal.
ListRecipeRef ListOperator::ask_for_recipe(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
                                           BuiltPlan* out_refusal) const {
  const PlanBuilder* active_builder = plan_builder();
  if (active_builder == nullptr) {
    out_refusal->refusal = "the driver has no kernel generator [no-generator]";
    return nullptr;
  }
  BuiltPlan& built = *out_refusal;
  for (bool is_dropped = true; is_dropped;) {
    const TrackedCall noted("the builder of plans", device, nullptr, op_.name.c_str());
    built = active_builder->build_chunks(op_, first_elements(arguments), device);
    if (!built.refusal.empty()) {
      return nullptr;
    }
    try {
      TORCH_CHECK_VALUE(built.unusable_reason.empty(), built.unusable_reason);
      return make(built, arguments, device);
    } catch (const c10::ValueError& error) {
      is_dropped =
          may_be_plan_failure(error, device) && active_builder->drop_chunks(op_, first_elements(arguments), device,
                                                                            built.text, error.what_without_backtrace());
      if (!is_dropped) {  // an invalid plan, or a program that is refused
        built.refusal = explain_unusable_plan(op_, error);
      }
    }
  }
  return nullptr;
}

void ListOperator::drop(const ListRecipe& recipe, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
                        const std::string& why) {
  const PlanBuilder* active_builder = plan_builder();
  if (!recipe.is_dropped.exchange(true, std::memory_order_relaxed) && active_builder != nullptr) {
    active_builder->drop_chunks(op_, first_elements(arguments), device, recipe.kept, why);
  }
}

ListRecipeRef ListOperator::make(BuiltPlan& built, c10::ArrayRef<c10::IValue> arguments,
                                 c10::DeviceIndex device) const {
  std::vector<kernels::ArgumentKinds> arguments_of_kernels;
  for (const auto& kernel : built.kernels) {
    arguments_of_kernels.push_back(kernel->arguments());
  }
  kernels::ChunkPlan plan(built.text, arguments_of_kernels);
  for (const auto* sources : {&plan.columns, &plan.arguments}) {
    for (const ChunkSource& source : *sources) {
      const bool is_list = source.kind == Kind::List || source.kind == Kind::Element;
      TORCH_CHECK_VALUE(
          source.kind == Kind::Fresh || source.kind == Kind::Chunk ||
              (source.argument < arguments.size() && (!is_list || (arguments[source.argument].isTensorList() &&
                                                                   !arguments[source.argument].toListRef().empty()))),
          "a plan of ", op_.name, " over chunks reads argument ", source.argument,
          ", which is not a list of that kind");
    }
  }
  auto recipe = std::make_shared<ListRecipe>();
  recipe->kernels = std::move(built.kernels);
  recipe->plan = std::move(plan);
  recipe->kept = built.is_from_disk ? built.text : std::string();
  build_programs<ListRecipe>(recipe, device);
  return recipe;
}

bool ListOperator::run(torch::jit::Stack* stack) {
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - op_.args.size(), op_.args.size());
  const c10::DeviceIndex device = device_of(arguments);
  if (device < 0 || !may_generate(device) || device_properties(device).follows_addresses == 0) {
    return false;
  }
  if (converts_ && !numbers_fit(arguments)) {
    return false;
  }
  ensure_open(device);
  std::vector<c10::List<at::Tensor>> results;
  for (bool has_run = false; !has_run;) {
    const ListRecipeRef recipe = recipe_for(arguments, device);
    if (recipe->kernels.empty()) {
      return false;
    }
    ListCall call(*recipe, op_.name, arguments, current_stream(device));
    try {
      if (!call.gather() || (promotes_ && call.is_mixed()) || !call.prepare()) {
        return false;
      }
      call.launch();
      has_run = true;
    } catch (const std::exception& error) {
      if (!was_refused_meanwhile(*recipe, error)) {
        if (recipe->kept.empty() || !may_be_plan_failure(error, device)) {
          throw;
        }
        drop(*recipe, arguments, device, message_of(error));
      }
      if (call.has_launched()) {
        throw;  // nothing is written twice
      }
    }
    results = call.results();
  }
  torch::jit::drop(*stack, op_.args.size());
  for (const c10::List<at::Tensor>& list : results) {
    stack->emplace_back(list);
  }
  op_.planned_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void register_lists() {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  constexpr std::string_view kOfTheCpu[] = {"aten::_fused_adagrad_", "aten::_fused_adam_", "aten::_fused_adamw_",
                                            "aten::_fused_sgd_", "aten::_amp_foreach_non_finite_check_and_unscale_"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool is_foreach = name.name.starts_with("aten::_foreach_") && !name.overload_name.ends_with("out");
    const bool is_of_the_cpu = std::ranges::find(kOfTheCpu, name.name) != std::end(kOfTheCpu);
    const auto handle = is_foreach || is_of_the_cpu ? c10::Dispatcher::singleton().findSchema(name) : std::nullopt;
    // Foreach operators have no CPU kernel: the CPU's table holds the composite.
    if (handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) == is_of_the_cpu &&
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) == is_foreach) {
      Operator& op = operator_for(*handle);
      library->impl(op.name.c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ListKernel>(op, is_foreach)));
    }
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Prepare a call from a recipe, and run it. Formulas are computed once per signature; steps run at
// each call.
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "core/blocking.h"
#include "core/device.h"
#include "ops/call/arguments.h"
#include "ops/call/random.h"
#include "ops/operator/forms.h"
#include "ops/planned/kernel_launch.h"
#include "ops/planned/recipes.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using kernels::PlanArgument;
using kernels::PlanReturn;
using kernels::PlanStep;
using kernels::PlanTensor;
using kernels::PlanValue;

using Tensors = c10::SmallVector<at::Tensor, 8>;

Tensors tensors_of(const Call& call) {
  Tensors tensors;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

int64_t value_of(const PlanValue& value, const Call& call, const Tensors& tensors) {
  if (value.source == PlanValue::Source::Number) {
    TORCH_CHECK_VALUE(value.argument < call.op().args.size() && call.arg(value.argument).isInt(), "argument ",
                      value.argument, " of ", call.op().name, " is not an integer");
    return call.arg(value.argument).toInt();
  }
  if (value.source == PlanValue::Source::Element) {
    TORCH_CHECK_VALUE(value.argument < call.op().args.size() && call.arg(value.argument).isIntList() &&
                          value.dimension < call.arg(value.argument).toListRef().size(),
                      "argument ", value.argument, " of ", call.op().name, " is not a list of more than ",
                      value.dimension, " integers");
    return call.arg(value.argument).toIntList().get(value.dimension);
  }
  TORCH_CHECK_VALUE(value.argument < tensors.size(), "the plan uses tensor t", value.argument,
                    ", which the call does not have");
  const at::Tensor& tensor = tensors[value.argument];
  TORCH_CHECK_VALUE(value.dimension < tensor.dim(), "t", value.argument, " has no dimension ", value.dimension);
  return value.source == PlanValue::Source::Size ? tensor.size(value.dimension) : tensor.stride(value.dimension);
}

// The shape of a buffer, as far as the plan determines it.
struct BufferShape {
  bool is_known = false;
  bool is_fresh = false;  // the plan's own memory, not a view
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::ArrayRef<int64_t> sizes;
  c10::ArrayRef<int64_t> strides;
  int64_t offset = 0;  // offset in its memory, in elements
  size_t bytes = 0;    // of its memory
};

// Return the offset of a view in the memory of its base, in elements. Raise ValueError if it
// reaches beyond that memory. An empty view may begin past the end, such as the part of a result
// that an empty tensor fills.
int64_t view_offset(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t own, int64_t base, size_t itemsize,
                    size_t bytes) {
  int64_t offset = 0;
  TORCH_CHECK_VALUE(!__builtin_add_overflow(own, base, &offset) && offset >= 0 &&
                        span_bytes(sizes, strides, itemsize, offset) <= bytes,
                    "a view of sizes ", sizes, " and strides ", strides, " from element ", own,
                    " reaches past its buffer of ", bytes, " bytes");
  return offset;
}

BufferShape shape_of_argument(const at::Tensor& tensor) {
  return {true,
          false,
          tensor.scalar_type(),
          tensor.sizes(),
          tensor.strides(),
          tensor.storage_offset(),
          tensor.storage().nbytes()};
}

BufferShape allocated(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return {true, true, dtype, sizes, strides, 0, span_bytes(sizes, strides, c10::elementSize(dtype))};
}

// Return a base's offset in its memory, in elements of a view, whose dtype may be smaller.
int64_t base_offset(int64_t offset, size_t base_itemsize, size_t itemsize) {
  TORCH_CHECK_VALUE(base_itemsize % itemsize == 0, "a view has elements of ", itemsize,
                    " bytes, which do not divide its buffer's elements of ", base_itemsize, " bytes");
  return offset * static_cast<int64_t>(base_itemsize / itemsize);
}

BufferShape viewed(const PlanStep& step, const BufferShape& base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   int64_t offset) {
  const c10::ScalarType dtype = step.dtype == c10::ScalarType::Undefined ? base.dtype : step.dtype;
  if (!base.is_known) {
    return {false, base.is_fresh, dtype, sizes, strides};  // checked when it is made
  }
  const size_t itemsize = c10::elementSize(dtype);
  const int64_t begin = base_offset(base.offset, c10::elementSize(base.dtype), itemsize);
  return {true,      base.is_fresh, dtype,
          sizes,     strides,       view_offset(sizes, strides, offset, begin, itemsize, base.bytes),
          base.bytes};
}

std::vector<BufferShape> buffer_shapes(const kernels::Plan& plan, c10::ArrayRef<int64_t> numbers,
                                       const Tensors& tensors) {
  std::vector<BufferShape> buffers;
  size_t next = 0;
  for (const PlanStep& step : plan.steps()) {
    const c10::ArrayRef<int64_t> own = numbers.slice(next, step.formulas.size());
    next += step.formulas.size();
    switch (step.kind) {
      case PlanStep::Kind::Number:
        buffers.push_back({true, false, step.dtype, {}, {}, 0, c10::elementSize(step.dtype)});
        break;
      case PlanStep::Kind::Seed:
        buffers.push_back({true, false, c10::kLong, {}, {}, 0, sizeof(int64_t)});
        break;
      case PlanStep::Kind::Allocate:
        TORCH_CHECK_VALUE(std::all_of(own.begin(), own.end(), [](int64_t number) { return number >= 0; }),
                          "an allocation has a negative size or stride");
        buffers.push_back(allocated(step.dtype, own.slice(0, step.rank), own.slice(step.rank, step.rank)));
        break;
      case PlanStep::Kind::View:
        TORCH_CHECK_VALUE(std::all_of(own.begin(), own.end(), [](int64_t number) { return number >= 0; }),
                          "a view has a negative size, stride or offset");
        buffers.push_back(viewed(
            step, step.target->is_buffer ? buffers[step.target->index] : shape_of_argument(tensors[step.target->index]),
            own.slice(0, step.rank), own.slice(step.rank, step.rank), own.back()));
        break;
      case PlanStep::Kind::Call:
        buffers.resize(buffers.size() + step.index, BufferShape{false, true, {}, {}, {}});
        break;
      case PlanStep::Kind::Repeat:
        TORCH_CHECK_VALUE(own[0] >= 0, "launches cannot be repeated ", own[0], " times");
        break;
      default:
        break;
    }
  }
  return buffers;
}

constexpr int64_t kUnitStride = 1;

// Check the layouts of a plan's returns against those of the operator's meta kernel. If they
// disagree, the plan does not run. Return false if only the strides differ: they follow the
// arguments' strides, and another plan may have the right ones.
bool check_returns(const FlatCall& flat, const kernels::Plan& plan, const std::vector<BufferShape>& buffers) {
  const Call& call = flat.original();
  const auto fresh = std::count(call.op().returned_arg.begin(), call.op().returned_arg.end(), -1);
  TORCH_CHECK_VALUE(static_cast<size_t>(fresh) == plan.returns().size(), "the plan returns ", plan.returns().size(),
                    " values, but the operator returns ", fresh);
  if (plan.returns().empty()) {
    return true;
  }
  const std::shared_ptr<const CallShape> shape = shape_of(call);
  const bool is_believed =
      shape->is_known() &&
      call.op().shape_classes.state_of(shape->shape_class, shape->is_verified) != ShapeClasses::State::Different;
  size_t next = 0;
  for (const PlanReturn& returned : plan.returns()) {
    next += returned.buffers.empty() && !returned.is_list ? 1 : 0;
    for (const PlanTensor& tensor : returned.buffers) {
      const BufferShape& buffer = buffers[tensor.index];
      TORCH_CHECK_VALUE(buffer.is_fresh, "the plan returns memory of an argument");
      const size_t place = next++;
      if (!is_believed || !buffer.is_known) {
        continue;
      }
      const OutputShape* const output = place < shape->outputs.size() ? &shape->outputs[place] : nullptr;
      const bool is_right = output != nullptr && output->is_defined && output->dtype == buffer.dtype &&
                            (flat.is_flat() ? buffer.sizes.equals(c10::multiply_integers(output->sizes))
                                            : buffer.sizes.equals(output->sizes));
      TORCH_CHECK_VALUE(is_right, "the plan returns ", buffer.dtype, " of ", buffer.sizes,
                        ", but the operator's meta kernel returned another shape");
      if (!same_strides(buffer.sizes, buffer.strides,
                        flat.is_flat() ? c10::IntArrayRef(kUnitStride) : output->strides)) {
        return false;
      }
    }
  }
  return true;
}

// Check the memory of a plan from disk: a plan built for the call would need
// the same, if the call needs it.
void check_memory(const std::vector<BufferShape>& buffers, c10::DeviceIndex device) {
  const uint64_t total = device_properties(device).total_memory;
  for (const BufferShape& buffer : buffers) {
    TORCH_CHECK_VALUE(total == 0 || buffer.bytes <= total, "the plan allocates ", buffer.bytes,
                      " bytes, more than the device's memory");
  }
}

kernels::LaunchSizes sizes_of(const Recipe& recipe, const PlanStep& step, const int64_t* numbers) {
  c10::SmallVector<uint64_t, 12> words;
  for (const PlanArgument& argument : step.arguments) {
    words.push_back(argument.kind == PlanArgument::Kind::Number ? static_cast<uint64_t>(*numbers++) : 0);
  }
  return recipe.kernels[step.index]->sizes(words);
}

// Convert a number of the call to a dtype, which can hold it or, for float32 and
// complex64, rounds it as kernels do.
at::Tensor number_of(const c10::IValue& value, c10::ScalarType dtype) {
  c10::Scalar number = value.isTensor() ? value.toTensor().item() : value.toScalar();
  if (dtype == c10::kFloat && number.isFloatingPoint()) {
    number = static_cast<float>(number.toDouble());
  } else if (dtype == c10::kComplexFloat) {
    number = static_cast<c10::complex<float>>(number.toComplexDouble());
  }
  return at::scalar_tensor(number, at::TensorOptions(dtype));
}

class Run {
 public:
  Run(const PlannedCall& planned, const Call& call, Tensors tensors)
      : planned_(planned),
        call_(call),
        stream_(current_stream(call.device())),
        tensors_(std::move(tensors)),
        number_(planned.numbers.data()) {}

  void run() {
    const std::vector<PlanStep>& steps = planned_.recipe->plan.steps();
    for (size_t i = 0; i < steps.size(); ++i) {
      step_ = &steps[i];
      if (C10_LIKELY(step_->kind != PlanStep::Kind::Repeat)) {
        run_step(steps[i]);
        continue;
      }
      repeat(take(1)[0], {&steps[i + 1], steps[i].index});
      i += steps[i].index;
    }
  }

  // Describe the failure of the step that has raised. A launch that raises was not queued,
  // unless each call waits for its work.
  RunFailure failure() const {
    const bool is_run = step_->kind == PlanStep::Kind::Launch || step_->kind == PlanStep::Kind::Call;
    RunFailure outcome;
    outcome.may_be_plan_failure = !is_run || !waits_for_calls();
    const PlanStep* const first = planned_.recipe->plan.steps().data();
    const PlanStep* const end = step_ + (step_->kind == PlanStep::Kind::Launch ? 0 : 1);
    outcome.has_written = reads_what_it_writes() && std::any_of(first, end, [](const PlanStep& step) {
                            return step.kind == PlanStep::Kind::Launch || step.kind == PlanStep::Kind::Call ||
                                   step.kind == PlanStep::Kind::Copy;
                          });
    return outcome;
  }

  // Replace the arguments on the stack by the results.
  void return_to(torch::jit::Stack* stack) {
    c10::SmallVector<c10::IValue, 4> results;
    auto next = planned_.recipe->plan.returns().begin();
    for (const int8_t written : call_.op().returned_arg) {
      results.push_back(written >= 0 ? call_.arg(static_cast<size_t>(written)) : returned(*next++));
    }
    if (planned_.shape != nullptr) {
      reshape(results);
    }
    torch::jit::drop(*stack, call_.op().args.size());
    for (c10::IValue& result : results) {
      stack->push_back(std::move(result));
    }
  }

 private:
  bool reads_what_it_writes() const {
    const auto& args = call_.op().args;
    return planned_.is_aliased || std::any_of(args.begin(), args.end(),
                                              [](const ArgInfo& info) { return info.is_written && !info.is_output; });
  }

  const at::Tensor& tensor(const PlanTensor& tensor) const {
    return tensor.is_buffer ? buffers_[tensor.index] : tensors_[tensor.index];
  }

  c10::IntArrayRef take(size_t count) {
    const int64_t* begin = std::exchange(number_, number_ + count);
    return {begin, count};
  }

  void run_step(const PlanStep& step) {
    switch (step.kind) {
      case PlanStep::Kind::Number:
        buffers_.push_back(number_of(call_.arg(step.index), step.dtype));
        break;
      case PlanStep::Kind::Seed:
        buffers_.push_back(seed_for(call_, stream_));
        break;
      case PlanStep::Kind::Allocate: {
        const c10::IntArrayRef sizes = take(step.rank);
        buffers_.push_back(make_device_tensor(stream_, step.dtype, sizes, take(step.rank)));
        break;
      }
      case PlanStep::Kind::View:
        buffers_.push_back(view(step));
        break;
      case PlanStep::Kind::Launch:
        launch(step);
        break;
      case PlanStep::Kind::Call:
        call_operator(step);
        break;
      case PlanStep::Kind::Copy: {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        tensor(*step.target).copy_(tensor(*step.source));
        break;
      }
      case PlanStep::Kind::Free:
        buffers_[step.target->index].reset();
        break;
      case PlanStep::Kind::Repeat:
        break;  // run() repeats
    }
  }

  at::Tensor view(const PlanStep& step) {
    const at::Tensor& base = tensor(*step.target);
    const c10::IntArrayRef sizes = take(step.rank);
    const c10::IntArrayRef strides = take(step.rank);
    // An argument's memory differs at each call.
    const caffe2::TypeMeta dtype =
        step.dtype == c10::ScalarType::Undefined ? base.dtype() : c10::scalarTypeToTypeMeta(step.dtype);
    const int64_t begin = base_offset(base.storage_offset(), base.itemsize(), dtype.itemsize());
    const int64_t offset = view_offset(sizes, strides, take(1)[0], begin, dtype.itemsize(), base.storage().nbytes());
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                               base.key_set(), dtype);
    view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return view;
  }

  KernelLaunch prepared(const PlanStep& step) {
    KernelLaunch launch(*planned_.recipe->kernels[step.index], stream_);
    for (const PlanArgument& argument : step.arguments) {
      if (argument.kind == PlanArgument::Kind::Tensor) {
        launch.add(tensor(argument.tensors[0]));
      } else {
        launch.add(argument.kind == PlanArgument::Kind::RepeatIndex ? 0 : static_cast<uint64_t>(take(1)[0]));
      }
    }
    return launch;
  }

  void launch(const PlanStep& step) { prepared(step).queue(planned_.sizes[launches_++]); }

  // Queue launches that differ from turn to turn in the number of the turn only.
  void repeat(int64_t turns, c10::ArrayRef<PlanStep> steps) {
    c10::SmallVector<KernelLaunch, 2> launches;
    for (const PlanStep& step : steps) {
      step_ = &step;
      launches.push_back(prepared(step));
    }
    for (int64_t turn = 0; turn < turns; ++turn) {
      for (size_t i = 0; i < steps.size(); ++i) {
        for (size_t place = 0; place < steps[i].arguments.size(); ++place) {
          if (steps[i].arguments[place].kind == PlanArgument::Kind::RepeatIndex) {
            launches[i].replace(place, static_cast<uint64_t>(turn));
          }
        }
        launches[i].queue(planned_.sizes[launches_ + i]);
      }
    }
    launches_ += steps.size();
  }

  void call_operator(const PlanStep& step) {
    const c10::OperatorHandle& op = planned_.recipe->operators[calls_++];
    torch::jit::Stack stack;
    for (size_t i = 0; i < step.arguments.size(); ++i) {
      stack.push_back(argument_of(step.arguments[i], op.schema().arguments()[i]));
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::DeviceGuard guard(c10::Device(kDeviceType, call_.device()));
    op.callBoxed(&stack);
    size_t count = 0;
    for (const c10::IValue& result : stack) {
      if (count < step.index && result.isTensor()) {
        buffers_.push_back(result.toTensor());
        ++count;
      }
    }
    TORCH_CHECK_VALUE(count == step.index, "a plan of ", call_.op().name, " expects ", step.op, " to return ",
                      step.index, " tensors, got ", count);
  }

  c10::Scalar number_as_scalar(const PlanArgument& argument) {
    switch (argument.kind) {
      case PlanArgument::Kind::Number:
        return take(1)[0];
      case PlanArgument::Kind::Bool:
        return argument.real != 0;
      default:
        return argument.real;
    }
  }

  c10::IValue argument_of(const PlanArgument& argument, const c10::Argument& declared) {
    const bool is_number = argument.kind == PlanArgument::Kind::Number || argument.kind == PlanArgument::Kind::Real ||
                           argument.kind == PlanArgument::Kind::Bool;
    if (is_number && declared.real_type()->kind() == c10::TypeKind::TensorType) {
      // A number in place of a tensor, as Python's bindings pass it: it does
      // not decide the result's dtype.
      at::Tensor wrapped = c10::scalar_to_tensor(number_as_scalar(argument));
      wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
      return wrapped;
    }
    switch (argument.kind) {
      case PlanArgument::Kind::Tensor:
        return tensor(argument.tensors[0]);
      case PlanArgument::Kind::Number: {
        const int64_t number = take(1)[0];
        return declared.real_type()->kind() == c10::TypeKind::FloatType ? c10::IValue(static_cast<double>(number))
                                                                        : c10::IValue(number);
      }
      case PlanArgument::Kind::Real:
        return argument.real;
      case PlanArgument::Kind::Bool:
        return argument.real != 0;
      case PlanArgument::Kind::None:
        return {};
      case PlanArgument::Kind::Numbers:
        return c10::IValue(take(argument.numbers));
      default: {
        c10::List<at::Tensor> list;
        for (const PlanTensor& part : argument.tensors) {
          list.push_back(tensor(part));
        }
        return list;
      }
    }
  }

  // Give the results of a flat call their own shapes.
  void reshape(const c10::SmallVector<c10::IValue, 4>& results) {
    auto shape = planned_.shape->outputs.begin();
    for (size_t i = 0; i < results.size(); ++i) {
      if (call_.op().returned_arg[i] < 0) {
        const at::Tensor& result = results[i].toTensor();
        TORCH_CHECK_VALUE(result.is_contiguous() && result.numel() == c10::multiply_integers(shape->sizes),
                          "the plan of the flattened ", call_.op().name, " returns ", result.sizes());
        result.unsafeGetTensorImpl()->set_sizes_and_strides(shape->sizes, shape->strides);
        ++shape;
      }
    }
  }

  c10::IValue returned(const PlanReturn& returned) {
    if (returned.is_number) {
      return take(1)[0];
    }
    if (!returned.is_list) {
      return returned.buffers.empty() ? at::Tensor() : tensor(returned.buffers[0]);
    }
    c10::List<at::Tensor> list;
    for (const PlanTensor& buffer : returned.buffers) {
      list.push_back(tensor(buffer));
    }
    return list;
  }

  const PlannedCall& planned_;
  const Call& call_;
  Stream& stream_;
  Tensors tensors_;
  Tensors buffers_;
  const int64_t* number_;
  const PlanStep* step_ = nullptr;
  size_t launches_ = 0;
  size_t calls_ = 0;
};

void check_tensors(const kernels::Plan& plan, const Call& call, const Tensors& tensors) {
  const auto check = [&](const PlanTensor& tensor) {
    TORCH_CHECK_VALUE(tensor.is_buffer || tensor.index < tensors.size(), "the plan uses tensor t", tensor.index,
                      ", which the call does not have");
  };
  for (const PlanStep& step : plan.steps()) {
    if (step.kind == PlanStep::Kind::Number && call.arg(step.index).isTensor()) {
      const at::Tensor& number = call.arg(step.index).toTensor();
      TORCH_CHECK_VALUE(number.defined() && number.is_cpu() && number.dim() == 0, "argument ", step.index,
                        " is not a 0-dimensional CPU tensor");
    }
    for (const std::optional<PlanTensor>& tensor : {step.target, step.source}) {
      if (tensor) {
        check(*tensor);
      }
    }
    for (const PlanArgument& argument : step.arguments) {
      std::for_each(argument.tensors.begin(), argument.tensors.end(), check);
    }
  }
}

}  // namespace

Recipe::Recipe(kernels::Plan new_plan, BuiltPlan& built, const Operator& op)
    : plan(std::move(new_plan)), kernels(std::move(built.kernels)) {
  kept = built.is_from_disk ? built.text : std::string();
  for (const PlanStep& step : plan.steps()) {
    if (step.kind == PlanStep::Kind::Number) {
      TORCH_CHECK_VALUE(step.index < op.args.size() &&
                            (op.args[step.index].kind == ArgKind::Other || op.args[step.index].kind == ArgKind::Tensor),
                        "argument ", step.index, " is not a number");
    } else if (step.kind == PlanStep::Kind::Seed) {
      TORCH_CHECK_VALUE(op.is_random, op.name, " draws no random numbers");
    } else if (step.kind == PlanStep::Kind::Call) {
      const auto [name, overload] = split_operator_name(step.op);
      operators.push_back(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
      TORCH_CHECK_VALUE(operators.back().schema().arguments().size() == step.arguments.size(), step.op, " takes ",
                        operators.back().schema().arguments().size(), " arguments");
    }
  }
}

std::shared_ptr<PlannedCall> instantiate(const std::shared_ptr<const Recipe>& shared, const FlatCall& flat) {
  const Recipe& recipe = *shared;
  const Call& call = flat.call();
  const Tensors tensors = tensors_of(call);
  c10::SmallVector<int64_t, 16> values;
  for (const PlanValue& value : recipe.plan.values()) {
    values.push_back(value_of(value, call, tensors));
  }
  if (!recipe.plan.holds(values)) {
    return nullptr;
  }
  check_tensors(recipe.plan, call, tensors);
  auto planned = std::make_shared<PlannedCall>();
  planned->recipe = shared;
  planned->is_aliased = is_aliased(call);
  planned->numbers = recipe.plan.numbers(values);
  const std::vector<BufferShape> buffers = buffer_shapes(recipe.plan, planned->numbers, tensors);
  if (!check_returns(flat, recipe.plan, buffers)) {
    return nullptr;
  }
  planned->uses_flat_views =
      flat.is_flat() && std::any_of(recipe.plan.steps().begin(), recipe.plan.steps().end(), [](const PlanStep& step) {
        return step.kind == PlanStep::Kind::Copy || step.kind == PlanStep::Kind::Call;
      });
  if (flat.is_flat() && !recipe.plan.returns().empty()) {
    planned->shape = shape_of(flat.original());
  }
  if (!recipe.kept.empty()) {
    check_memory(buffers, call.device());
  }
  const int64_t* next = planned->numbers.data();
  for (const PlanStep& step : recipe.plan.steps()) {
    if (step.kind == PlanStep::Kind::Launch) {
      planned->sizes.push_back(sizes_of(recipe, step, next));
    }
    next += step.formulas.size();
  }
  return planned;
}

std::vector<std::optional<std::vector<int64_t>>> strides_of_results(const Call& call) {
  std::vector<std::optional<std::vector<int64_t>>> strides;
  for (const OutputShape& output : shape_of(call)->outputs) {
    strides.emplace_back();
    if (output.is_defined) {
      strides.back().emplace(output.strides.begin(), output.strides.end());
    }
  }
  return strides;
}

bool run_recipe(const PlannedCall& planned, const Call& call, torch::jit::Stack* stack, RunFailure* out_failure) {
  Tensors tensors = tensors_of(call);
  for (const at::Tensor& tensor : tensors) {
    if (C10_UNLIKELY(tensor._is_zerotensor())) {
      return false;
    }
  }
  for (at::Tensor& tensor : tensors) {
    if (C10_UNLIKELY(planned.uses_flat_views && tensor.dim() > 0)) {
      tensor = flat_view(tensor, 0, tensor.numel());
    }
  }
  Run run(planned, call, std::move(tensors));
  try {
    run.run();
  } catch (const std::exception&) {
    *out_failure = run.failure();
    throw;
  }
  run.return_to(stack);
  return true;
}

}  // namespace outboard

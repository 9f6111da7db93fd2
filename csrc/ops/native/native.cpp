// SPDX-License-Identifier: BSD-3-Clause
#include "ops/native/native.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "core/activity.h"
#include "core/device.h"
#include "core/error.h"
#include "ops/call/results.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using torch::jit::Stack;

bool fits_strided_kernels(const at::Tensor& tensor) {
  static const c10::DispatchKeySet others({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                                           c10::DispatchKey::Quantized, c10::DispatchKey::NestedTensor});
  return !tensor.key_set().has_any(others);
}

bool has_only_strided(const Call& call) {
  bool result = !call.has_sparse();
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) { result &= fits_strided_kernels(tensor); });
  }
  return result;
}

Stack arguments_of(const Call& call, size_t count) {
  const auto begin = call.stack().begin() + static_cast<std::ptrdiff_t>(call.first());
  return Stack(begin, begin + static_cast<std::ptrdiff_t>(count));
}

// Copy between device tensors outside the user's calls, without autograd.
void copy_to(const at::Tensor& target, const at::Tensor& source) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  target.copy_(source);
}

// Run the route's kernel with these arguments, which its results replace.
bool run_kernel(const NativeRoute& route, Stack& arguments) {
  const Call call(*route.op, arguments);
  return (*route.kernel)(call, &arguments);
}

bool are_outputs_defined(const CallShape& shape) {
  return shape.is_known() && std::all_of(shape.outputs.begin(), shape.outputs.end(),
                                         [](const OutputShape& output) { return output.is_defined; });
}

bool matches_shape(const OutputShape& shape, const at::Tensor& tensor) {
  return tensor.scalar_type() == shape.dtype && tensor.sizes() == c10::IntArrayRef(shape.sizes);
}

// Replace the arguments of a functional call by its results, with the kernel of any form.
bool make_results(const NativeRoute& route, Stack& arguments) {
  if (route.kernel_form == Form::Functional) {
    return run_kernel(route, arguments);
  }
  const Call call(*route.functional, arguments);
  const std::shared_ptr<const CallShape> shape = shape_of(call);
  if (!are_outputs_defined(*shape)) {
    return false;
  }
  std::vector<at::Tensor> outputs;
  Stack stack = arguments;
  if (route.kernel_form == Form::Out) {
    outputs = make_outputs(call, *shape);
    stack.insert(stack.end(), outputs.begin(), outputs.end());
  } else {
    const at::Tensor& self = call.arg(0).toTensor();
    if (self.device().type() != kDeviceType || !matches_shape(shape->outputs[0], self)) {
      return false;
    }
    outputs = make_outputs(call, *shape);
    copy_to(outputs[0], self);
    stack[0] = outputs[0];
  }
  if (!run_kernel(route, stack)) {
    return false;
  }
  arguments.assign(outputs.begin(), outputs.end());
  return true;
}

bool serve_functional(const NativeRoute& route, const Call& call, Stack* stack) {
  Stack results = arguments_of(call, call.op().args.size());
  if (!make_results(route, results)) {
    return false;
  }
  torch::jit::drop(*stack, call.op().args.size());
  stack->insert(stack->end(), results.begin(), results.end());
  return true;
}

bool serve_out(const NativeRoute& route, const Call& call, Stack* stack) {
  // Ask for the call's shape, which raises if torch refuses the call.
  const size_t inputs = route.functional->args.size();
  Stack results = arguments_of(call, inputs);
  if (!shape_of(call)->is_known() || !make_results(route, results)) {
    return false;
  }
  Stack outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& output = call.arg(inputs + i).toTensor();
    const at::Tensor& result = results[i].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), output.scalar_type()), "result type ", result.scalar_type(),
                " can't be cast to the desired output type ", output.scalar_type());
    resize_output(output, result.sizes(), result.strides());
    copy_to(output, result);
    outputs.emplace_back(output);
  }
  torch::jit::drop(*stack, call.op().args.size());
  stack->insert(stack->end(), outputs.begin(), outputs.end());
  return true;
}

// Return true if an out= kernel may write to self while it reads the arguments. As in torch, it
// must accept self as `out`. When it writes, other arguments may still be unread, unless the
// operator is element-wise.
bool may_write_to_self(const NativeRoute& route, const Call& call, const OutputShape& shape) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (!matches_shape(shape, self) || at::has_internal_overlap(self) != at::MemOverlap::No) {
    return false;
  }
  const bool is_pointwise = route.functional->handle.hasTag(at::Tag::pointwise);
  bool result = true;
  for (size_t i = 1; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      const bool is_same =
          tensor.is_same(self) || (tensor.has_storage() && tensor.is_alias_of(self) &&
                                   tensor.storage_offset() == self.storage_offset() && tensor.sizes() == self.sizes() &&
                                   tensor.strides() == self.strides() && tensor.scalar_type() == self.scalar_type());
      result &= !tensor.is_alias_of(self) || (is_pointwise && is_same);
    });
  }
  return result;
}

bool serve_in_place(const NativeRoute& route, const Call& call, Stack* stack) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.device().type() != kDeviceType || !shape_of(call)->is_known() ||
      at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    return false;
  }
  const size_t count = call.op().args.size();
  Stack arguments = arguments_of(call, count);
  const std::shared_ptr<const CallShape> shape = shape_of(Call(*route.functional, arguments));
  if (!are_outputs_defined(*shape) || c10::IntArrayRef(shape->outputs[0].sizes) != self.sizes()) {
    return false;
  }
  if (route.kernel_form == Form::Out && may_write_to_self(route, call, shape->outputs[0])) {
    arguments.emplace_back(self);
    if (!run_kernel(route, arguments)) {
      return false;
    }
  } else {
    if (!make_results(route, arguments)) {
      return false;
    }
    copy_to(self, arguments[0].toTensor());
  }
  torch::jit::drop(*stack, count);
  stack->emplace_back(self);
  return true;
}

bool serve(const NativeRoute& route, const Call& call, Stack* stack) {
  if (route.called_form == route.kernel_form) {
    if (route.called_form == Form::Out) {
      resize_written(call, *shape_of(call));  // if the shape is known before the call runs, no kernel needs to resize
    }
    return (*route.kernel)(call, stack);
  }
  ensure_open(call.device());
  switch (route.called_form) {
    case Form::Functional:
      return serve_functional(route, call, stack);
    case Form::Out:
      return serve_out(route, call, stack);
    default:
      return serve_in_place(route, call, stack);
  }
}

// ---- Registration ----

// The kernels by operator, to recompute the routes of a group; guarded by `mutex`.
struct Registry {
  std::mutex mutex;
  std::map<Operator*, const NativeKernel*> kernels;
};
Registry& registry() {
  static auto* kernels = new Registry();  // kernels may run until the end of the process
  return *kernels;
}

// Earlier kernels and routes may be running on other threads, so they are kept.
void store_route(Operator& called, const NativeRoute& route) {
  called.native.store(new NativeRoute(route), std::memory_order_release);
}

void find_routes(const std::array<Operator*, 3>& group) {
  constexpr std::array kPrecedence = {Form::Out, Form::Functional, Form::InPlace};
  const auto kernel_of = [&](Form form) -> const NativeKernel* {
    const auto entry = registry().kernels.find(group[static_cast<size_t>(form)]);
    return entry == registry().kernels.end() ? nullptr : entry->second;
  };
  Operator* functional = group[static_cast<size_t>(Form::Functional)];
  for (const Form called : kPrecedence) {
    Operator* op = group[static_cast<size_t>(called)];
    if (op == nullptr || kernel_of(called) != nullptr) {
      continue;  // its own kernel's route stays
    }
    for (const Form form : kPrecedence) {
      if (const NativeKernel* kernel = kernel_of(form)) {
        store_route(*op, {kernel, group[static_cast<size_t>(form)], functional, called, form});
        break;
      }
    }
  }
}

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const auto [base, overload] = split_operator_name(name);
  return c10::Dispatcher::singleton().findSchema({base, overload});
}

}  // namespace

bool run_native(const NativeRoute& route, const Call& call, Stack* stack) {
  if (C10_UNLIKELY(!has_only_strided(call))) {
    return false;
  }
  const c10::DeviceGuard guard(c10::Device(kDeviceType, call.device()));
  ActivityScope activity(current_stream(call.device()),
                         {ActivityKind::Kernel, "native kernel", call.op().name.c_str()});
  if (!serve(route, call, stack)) {
    return false;
  }
  activity.finish();
  call.op().native_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::vector<at::Tensor> make_outputs(const Call& call, const CallShape& shape) {
  Stream& stream = current_stream(call.device());
  std::vector<at::Tensor> outputs;
  outputs.reserve(shape.outputs.size());
  for (const OutputShape& output : shape.outputs) {
    outputs.push_back(output.is_defined
                          ? make_device_tensor(stream, output.dtype, output.sizes, output.strides, output.nbytes)
                          : at::Tensor());
  }
  return outputs;
}

std::string describe_unknown_operator(const std::string& name) {
  if (find_operator(name)) {
    return "";
  }
  const std::string base = split_operator_name(name).first;
  const std::vector<std::string> overloads = overloads_of(base);
  std::string message = "there is no operator '" + name + "': ";
  if (overloads.empty()) {
    return message + "write it as namespace::name.overload, for example aten::add.Tensor";
  }
  message += "the overloads of " + base + " are ";
  for (size_t i = 0; i < overloads.size(); ++i) {
    message += (i == 0 ? "" : ", ") + overloads[i];
  }
  return message;
}

Operator& route_native_kernel(const std::string& name, NativeKernel kernel) {
  const std::optional<c10::OperatorHandle> handle = find_operator(name);
  if (!handle) {
    raise(ErrorKind::InvalidArgument, OB_NOT_FOUND, describe_unknown_operator(name));
  }
  const FormGroup group = find_forms(*handle);
  const auto op_of = [](const std::optional<c10::OperatorHandle>& form) {
    return form ? &operator_for(*form) : nullptr;
  };
  Operator& op = operator_for(*handle);
  const std::array<Operator*, 3> ops = {op_of(group.functional), op_of(group.out), op_of(group.in_place)};
  // An operator without other forms counts as functional if it writes nothing.
  const Form form = op.kind != OpKind::Writes ? Form::Functional : ops[2] == &op ? Form::InPlace : Form::Out;
  {
    const std::lock_guard lock(registry().mutex);
    const NativeKernel* kept = registry().kernels[&op] = new NativeKernel(std::move(kernel));
    store_route(op, {kept, &op, nullptr, form, form});
    find_routes(ops);
  }
  return op;
}

}  // namespace outboard

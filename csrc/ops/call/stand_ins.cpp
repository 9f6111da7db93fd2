// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/stand_ins.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "core/late_warnings.h"
#include "ops/call/arguments.h"
#include "ops/call/call.h"
#include "ops/call/call_context.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

constexpr size_t kMaxStandInBytes = 64 << 20;  // bytes, of one call

at::Tensor filled(c10::IntArrayRef sizes, c10::ScalarType dtype, Elements elements) {
  at::Tensor cpu = at::detail::empty_cpu(sizes, dtype);
  if (cpu.numel() == 0) {
    return cpu;
  }
  if (elements == Elements::Ones) {
    cpu.fill_(1);
    return cpu;
  }
  std::memset(cpu.mutable_data_ptr(), 0, cpu.nbytes());
  if (elements == Elements::Identities && sizes.size() >= 2) {
    cpu.diagonal(0, -2, -1).fill_(1);
  }
  return cpu;
}

at::Tensor make_stand_in(const at::Tensor& tensor, StandIn stand_in, Elements elements) {
  if (tensor.device().is_cpu()) {
    return tensor;
  }
  c10::SmallVector<int64_t, 5> sizes(tensor.sizes().begin(), tensor.sizes().end());
  if (stand_in == StandIn::Element) {
    std::transform(sizes.begin(), sizes.end(), sizes.begin(), [](int64_t size) { return std::min<int64_t>(size, 1); });
  }
  at::Tensor cpu = filled(sizes, tensor.scalar_type(), elements);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    cpu.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return cpu;
}

}  // namespace

bool is_elementwise(const Operator& op) {
  return op.handle.hasTag(at::Tag::pointwise) || op.handle.operator_name().name.starts_with("aten::_foreach_");
}

size_t bytes_of_arguments(const Call& call) {
  size_t bytes = 0;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      bytes += static_cast<size_t>(tensor.numel()) * tensor.element_size();
    });
  }
  return bytes;
}

namespace {

torch::jit::Stack make_stand_ins(const Call& call, StandIn stand_in, const CallShape* shape) {
  const Operator& op = call.op();
  const Elements elements = harmless_elements(op.facts).value_or(Elements::Zeros);
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.args.size(); ++i) {
    const ArgInfo& info = op.args[i];
    if (info.kind == ArgKind::Generator) {
      stack.emplace_back(at::make_generator<at::CPUGeneratorImpl>());  // torch's own must not advance
    } else if (info.kind == ArgKind::Device) {
      stack.push_back(map_device(call.arg(i), c10::DeviceType::CPU));
    } else {
      stack.push_back(map_tensors(info, call.arg(i),
                                  [&](const at::Tensor& tensor) { return make_stand_in(tensor, stand_in, elements); }));
    }
  }
  if (shape != nullptr && stand_in == StandIn::Whole) {
    for (const auto& [index, output] : shape->resized) {
      stack[index] = filled(output.sizes, call.arg(index).toTensor().scalar_type(), Elements::Zeros);
    }
  }
  return stack;
}

}  // namespace

torch::jit::Stack run_on_stand_ins(const Call& call, StandIn stand_in, const CallShape* shape) {
  const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
  const at::DisableRecordFunctionGuard unprofiled;
  torch::jit::Stack stack;
  torch::jit::Stack arguments;
  run_before_call(
      [&] {
        stack = make_stand_ins(call, stand_in, shape);
        arguments = stack;  // a kernel's results may be references to its arguments, which must outlive the call
        call.op().cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      },
      /*refuses_call=*/true);
  return stack;
}

void check_on_stand_ins(const Call& call, StandIn stand_in) {
  if (call.has_sparse()) {
    return;
  }
  if (stand_in == StandIn::Whole && bytes_of_arguments(call) > kMaxStandInBytes) {
    call.require_cpu_kernel();
    return;
  }
  run_on_stand_ins(call, stand_in);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/fallback.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <functional>

#include "core/capture.h"
#include "core/error.h"
#include "core/stream.h"
#include "ops/arguments.h"
#include "ops/copy.h"
#include "ops/random.h"
#include "ops/results.h"
#include "ops/run_state.h"
#include "ops/sparse.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

std::atomic<FallbackMode> fallback_mode{FallbackMode::Warn};

void report(OpPlan& plan) {
  const std::string text = "operator " + plan.name + " has no kernel for '" + driver_name() +
                           "' and the host cannot reach the device's memory";
  switch (fallback_mode.load(std::memory_order_relaxed)) {
    case FallbackMode::Error:
      raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
            text + ". OUTBOARD_FALLBACK=error forbids copying its arguments to the CPU: register a kernel with"
                   " torch_outboard.register_kernel, or set OUTBOARD_FALLBACK=warn.");
    case FallbackMode::Warn:
      if (!plan.fallback_warned.exchange(true)) {
        TORCH_WARN(text, ": its arguments are copied to the CPU and its results back, which is slow."
                         " torch_outboard.coverage() counts such calls; OUTBOARD_FALLBACK=silent stops this warning.");
      }
      break;
    case FallbackMode::Silent:
      break;
  }
}

c10::IValue copied(const Call& call, const ArgInfo& info, const c10::IValue& value) {
  const std::function<at::Tensor(const at::Tensor&)> copy = [&copy](const at::Tensor& tensor) {
    if (!is_ours(*tensor.unsafeGetTensorImpl())) {
      return tensor;
    }
    return is_sparse_coo(tensor) ? convert_sparse(tensor, copy) : to_cpu(tensor);
  };
  switch (info.kind) {
    case ArgKind::Generator:
      return cpu_generator_for(call);
    case ArgKind::Device:
      return map_device(value, c10::DeviceType::CPU);
    default:
      return map_tensors(info, value, copy);
  }
}

}  // namespace

void set_fallback_mode(FallbackMode mode) {
  fallback_mode.store(mode);
}

void run_on_copies(const Call& call, torch::jit::Stack* stack) {
  OpPlan& plan = call.plan();
  if (Capture* capture = capture_of(current_stream(call.device())); C10_UNLIKELY(capture != nullptr)) {
    capture->refuse(plan.name + ", which runs on a copy of its arguments on the CPU,");
  }
  report(plan);
  torch::jit::Stack arguments;
  for (size_t i = 0; i < plan.args.size(); ++i) {
    arguments.push_back(copied(call, plan.args[i], call.arg(i)));
  }
  torch::jit::Stack results = arguments;
  {
    const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
    if (call.has_sparse()) {
      plan.op.callBoxed(&results);
    } else {
      plan.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &results);
    }
  }
  plan.fallback_calls.fetch_add(1, std::memory_order_relaxed);
  adopt_results(call, arguments, results, stack);
}

}  // namespace outboard

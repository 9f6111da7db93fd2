// SPDX-License-Identifier: BSD-3-Clause
#include "ops/boxed.h"

#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/driver.h"
#include "ops/call/argument_checks.h"
#include "ops/call/call.h"
#include "ops/call/observe.h"
#include "ops/call/views.h"
#include "ops/host/fallback.h"
#include "ops/host/host_call.h"
#include "ops/native/native.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"

namespace outboard {

namespace {

class ChainKernel final : public c10::OperatorKernel {
 public:
  explicit ChainKernel(Operator& op) : op_(op) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run_chain(C10_LIKELY(!op_.is_deregistered.load(std::memory_order_relaxed)) ? op_ : operator_for(handle), stack);
  }

 private:
  Operator& op_;
};

// Return the library of a namespace. Libraries must outlive every call: torch removes
// registrations when they are destroyed.
torch::Library& library_for(const std::string& space) {
  static std::mutex mutex;
  static auto* libraries = new std::map<std::string, std::unique_ptr<torch::Library>>();
  std::lock_guard lock(mutex);
  std::unique_ptr<torch::Library>& library = (*libraries)[space];
  if (!library) {
    library = std::make_unique<torch::Library>(torch::Library::IMPL, space, c10::DispatchKey::PrivateUse1, __FILE__,
                                               __LINE__);
  }
  return *library;
}

// Raise for an operator that no provider below can run, because torch has kernels for its own
// devices only.
void refuse_without_cpu_kernel(const Operator& op, const Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.cpu_handle().hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) || call.has_sparse(), op.name,
      " has no kernel for '", driver_name(),
      "', and torch has no CPU kernel to fall back to. Register one with"
      " torch_outboard.register_kernel, or use other operators.");
}

void run_by_cpu_kernel(const Call& call, torch::jit::Stack* stack) {
  if (C10_LIKELY(driver().host_address != nullptr) && run_on_host(call, stack)) {
    return;
  }
  run_on_copies(call, stack);
}

// Replace the first argument by a copy if its elements share memory.
bool copy_expanded(const Operator& op, torch::jit::Stack* stack) {
  c10::IValue& first = torch::jit::peek(*stack, 0, op.args.size());
  const at::Tensor& self = first.toTensor();
  if (self.is_non_overlapping_and_dense() || at::has_internal_overlap(self) == at::MemOverlap::No) {
    return false;
  }
  first = self.clone(at::MemoryFormat::Contiguous);
  return true;
}

void run_providers(Operator& op, const Call& call, torch::jit::Stack* stack) {
  if (const NativeRoute* native = op.native.load(std::memory_order_acquire); C10_UNLIKELY(native != nullptr)) {
    if (allows_native() && run_native(*native, call, stack)) {
      return;
    }
  }
  if (C10_UNLIKELY(op.kind == OpKind::Views) && run_as_view(call, stack)) {
    return;
  }
  if (C10_UNLIKELY(allows_generated()) && run_generated(call, stack)) {
    return;
  }
  refuse_without_cpu_kernel(op, call);
  if (C10_UNLIKELY(op.facts.misreads_expanded) && copy_expanded(op, stack)) {
    return run_by_cpu_kernel(Call(op, *stack), stack);
  }
  run_by_cpu_kernel(call, stack);
}

}  // namespace

void run_chain(Operator& op, torch::jit::Stack* stack) {
  const Call call(op, *stack);
  check_arguments(call);
  Observer* active = observer();
  if (C10_UNLIKELY(active != nullptr)) {
    observe_arguments(*active, call);
  }
  run_providers(op, call, stack);
  if (C10_UNLIKELY(active != nullptr)) {
    observe_results(*active, op, *stack);
  }
}

void chain_fallback(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  run_chain(operator_for(handle), stack);
}

void install_chain(Operator& op) {
  if (op.handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    return;
  }
  // The chain kernel holds its operator, so that a call needs no look-up.
  library_for(op.name.substr(0, op.name.find("::")))
      .impl(op.name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ChainKernel>(op)));
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/host/fallback.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "core/capture.h"
#include "core/error.h"
#include "core/stream.h"
#include "ops/call/acceptance.h"
#include "ops/call/arguments.h"
#include "ops/call/call_context.h"
#include "ops/call/random.h"
#include "ops/call/results.h"
#include "ops/host/copy.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"
#include "ops/tensors/shell.h"
#include "ops/tensors/sparse.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

std::atomic<FallbackMode> fallback_mode{FallbackMode::Warn};
std::atomic<bool> has_warned{false};

void report(const Operator& op) {
  const std::string text =
      "operator " + op.name + " has no kernel for '" + driver_name() + "' and the host cannot " +
      (allows_host() ? "reach the device's memory" : "run it, because OUTBOARD_PROVIDERS excludes 'host'") +
      explain_last_refusal(op);
  switch (fallback_mode.load(std::memory_order_relaxed)) {
    case FallbackMode::Error:
      raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
            text + ". OUTBOARD_FALLBACK=error forbids copying its arguments to the CPU: register a kernel with"
                   " torch_outboard.register_kernel, or set OUTBOARD_FALLBACK=warn.");
    case FallbackMode::Warn:
      // Warn once for all operators: a new driver has hundreds of them, and coverage counts each.
      if (!has_warned.exchange(true)) {
        TORCH_WARN(
            text,
            ". It runs on the CPU instead, as will every other operator without a kernel: its arguments are copied"
            " to the CPU and its results back, which is slow. This warning appears once; print"
            " torch_outboard.coverage() to see how often each operator falls back."
            " OUTBOARD_FALLBACK=error raises an error instead, OUTBOARD_FALLBACK=silent hides this warning.");
      }
      break;
    case FallbackMode::Silent:
      break;
  }
}

// Makes copies of the arguments on the CPU. Tensors that share a storage with a written tensor get
// copies that share one. The CPU kernels then see an overlap, and refuse what CUDA's refuse. Such a
// storage is copied whole. So is the storage of a written expanded tensor, and of a tensor that a
// result is a view of, where offsets must keep their meaning.
class CopyMaker {
 public:
  explicit CopyMaker(const Call& call) : call_(call) {
    for (size_t i = 0; i < call.op().args.size(); ++i) {
      call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
        if (is_device_tensor(*tensor.unsafeGetTensorImpl()) && !is_sparse_coo(tensor)) {
          Use& use = use_of(tensor);
          ++use.tensors;
          use.is_written |= call.op().args[i].is_written;
          use.is_viewed |= is_viewed(i);
        }
      });
    }
  }

  c10::IValue make(const ArgInfo& info, const c10::IValue& value) {
    switch (info.kind) {
      case ArgKind::Generator:
        return cpu_generator_for(call_);
      case ArgKind::Device:
        return map_device(value, c10::DeviceType::CPU);
      default:
        return map_tensors(info, value, [this](const at::Tensor& tensor) {
          return seen_.find_or_make(tensor, [&] { return copy(tensor); });
        });
    }
  }

 private:
  // How the call's tensors use a storage.
  struct Use {
    const c10::StorageImpl* storage;
    size_t tensors = 0;
    bool is_written = false;
    bool is_viewed = false;
    c10::Storage copy = {};
  };

  bool is_viewed(size_t argument) const {
    const auto& viewed = call_.op().viewed_arg;
    return std::find(viewed.begin(), viewed.end(), static_cast<int8_t>(argument)) != viewed.end();
  }

  Use& use_of(const at::Tensor& tensor) {
    const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    for (Use& use : uses_) {
      if (use.storage == storage) {
        return use;
      }
    }
    return uses_.emplace_back(Use{storage});
  }

  at::Tensor copy(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!is_device_tensor(impl)) {
      return tensor;
    }
    if (is_sparse_coo(tensor)) {
      return convert_sparse(tensor, [this](const at::Tensor& part) { return copy(part); });
    }
    Use& use = use_of(tensor);
    const bool overlaps = use.tensors > 1 || at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
    if (!use.is_viewed && !(use.is_written && overlaps)) {
      return to_cpu(tensor);
    }
    if (!use.copy) {
      use.copy = to_cpu(bytes_of(impl.unsafe_storage())).storage();
    }
    return make_shell(use.copy, impl);
  }

  static at::Tensor bytes_of(const c10::Storage& storage) {
    at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::Make<uint8_t>());
    bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
    return bytes;
  }

  const Call& call_;
  c10::SmallVector<Use, 8> uses_;
  SeenTensors seen_;
};

}  // namespace

bool forbids_copies() {
  return fallback_mode.load(std::memory_order_relaxed) == FallbackMode::Error;
}

void report_fallback(Operator& op) {
  if (forbids_copies()) {
    report(op);
  }
  op.fallback_calls.fetch_add(1, std::memory_order_relaxed);
}

void set_fallback_mode(FallbackMode mode) {
  fallback_mode.store(mode);
}

void run_on_copies(const Call& call, torch::jit::Stack* stack) {
  Operator& op = call.op();
  if (Capture* capture = capture_of(current_stream(call.device())); C10_UNLIKELY(capture != nullptr)) {
    capture->refuse(op.name + ", which runs on a copy of its arguments on the CPU,");
  }
  if (forbids_copies()) {
    try_refused_call(call, /*is_refused=*/false);  // wrong arguments are the user's error, not a missing kernel
  }
  report(op);
  CopyMaker maker(call);
  torch::jit::Stack arguments;
  for (size_t i = 0; i < op.args.size(); ++i) {
    arguments.push_back(maker.make(op.args[i], call.arg(i)));
  }
  const ArgumentPairs pairs(call, arguments);
  torch::jit::Stack results = arguments;
  {
    const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
    if (call.has_sparse()) {
      op.handle.callBoxed(&results);
    } else {
      op.cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &results);
    }
  }
  op.fallback_calls.fetch_add(1, std::memory_order_relaxed);
  adopt_results(call, pairs, results, stack);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/fallback.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "core/capture.h"
#include "core/error.h"
#include "core/stream.h"
#include "ops/arguments.h"
#include "ops/copy.h"
#include "ops/random.h"
#include "ops/results.h"
#include "ops/run_state.h"
#include "ops/shell.h"
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

// Copies of the arguments on the CPU. Tensors that share a storage with one that the operator writes get copies that share
// one, so that the CPU kernels see an overlap and refuse what CUDA's refuse; the storage is then copied whole.
class CopyMaker {
 public:
  explicit CopyMaker(const Call& call) : call_(call) {
    c10::SmallVector<const c10::StorageImpl*, 8> seen;
    for_each_dense([&](const at::Tensor& tensor, bool) {
      const c10::StorageImpl* storage = storage_of(tensor);
      if (std::find(seen.begin(), seen.end(), storage) == seen.end()) {
        seen.push_back(storage);
      } else {
        shared_.push_back({storage, false, {}});
      }
    });
    for_each_dense([&](const at::Tensor& tensor, bool is_written) {
      if (Shared* shared = is_written ? find(storage_of(tensor)) : nullptr) {
        shared->is_written = true;
      }
    });
  }

  c10::IValue make(const ArgInfo& info, const c10::IValue& value) {
    switch (info.kind) {
      case ArgKind::Generator:
        return cpu_generator_for(call_);
      case ArgKind::Device:
        return map_device(value, c10::DeviceType::CPU);
      default:
        return map_tensors(info, value, [this](const at::Tensor& tensor) { return copy(tensor); });
    }
  }

 private:
  struct Shared {
    const c10::StorageImpl* storage;
    bool is_written;
    c10::Storage copy;
  };

  static const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }

  template <class Visit>
  void for_each_dense(Visit&& visit) {
    for (size_t i = 0; i < call_.plan().args.size(); ++i) {
      call_.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
        if (is_ours(*tensor.unsafeGetTensorImpl()) && !is_sparse_coo(tensor)) {
          visit(tensor, call_.plan().args[i].is_written);
        }
      });
    }
  }

  Shared* find(const c10::StorageImpl* storage) {
    const auto found =
        std::find_if(shared_.begin(), shared_.end(), [&](const Shared& shared) { return shared.storage == storage; });
    return found == shared_.end() ? nullptr : &*found;
  }

  at::Tensor copy(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!is_ours(impl)) {
      return tensor;
    }
    if (is_sparse_coo(tensor)) {
      return convert_sparse(tensor, [this](const at::Tensor& part) { return copy(part); });
    }
    Shared* shared = find(storage_of(tensor));
    if (!shared || !shared->is_written) {
      return to_cpu(tensor);
    }
    if (!shared->copy) {
      shared->copy = to_cpu(bytes_of(impl.unsafe_storage())).storage();
    }
    return make_shell(shared->copy, impl);
  }

  static at::Tensor bytes_of(const c10::Storage& storage) {
    at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::Make<uint8_t>());
    bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
    return bytes;
  }

  const Call& call_;
  c10::SmallVector<Shared, 4> shared_;
};

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
  CopyMaker maker(call);
  torch::jit::Stack arguments;
  for (size_t i = 0; i < plan.args.size(); ++i) {
    arguments.push_back(maker.make(plan.args[i], call.arg(i)));
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

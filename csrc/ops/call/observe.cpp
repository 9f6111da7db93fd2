// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/observe.h"

#include "core/capture.h"
#include "core/stream.h"
#include "ops/tensors/sparse.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using Accesses = c10::SmallVector<ObservedAccess, 8>;

void add(Accesses& accesses, const at::Tensor& tensor, c10::DeviceIndex device, bool is_write) {
  if (!tensor.defined() || !is_device_tensor(*tensor.unsafeGetTensorImpl()) || tensor.device().index() != device) {
    return;
  }
  if (is_sparse_coo(tensor)) {
    add(accesses, tensor._indices(), device, is_write);
    add(accesses, tensor._values(), device, is_write);
    return;
  }
  if (tensor.layout() == c10::kStrided && tensor.numel() > 0) {
    accesses.push_back(access_to(tensor, is_write));
  }
}

void report(Observer& observer, const char* op, c10::DeviceIndex device, const Accesses& accesses) {
  const Stream& stream = current_stream(device);
  if (accesses.empty()) {
    return;
  }
  if (capture_of(stream) == nullptr) {
    observer.access(op, stream, accesses.data(), accesses.size());
  } else {
    observer.capture(op, stream, accesses.data(), accesses.size());
  }
}

}  // namespace

void observe_arguments(Observer& observer, const Call& call) {
  Accesses accesses;
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    const ArgInfo& info = call.op().args[i];
    call.for_each_tensor(
        i, [&](size_t, const at::Tensor& tensor) { add(accesses, tensor, call.device(), info.is_written); });
  }
  report(observer, call.op().name.c_str(), call.device(), accesses);
}

void observe_results(Observer& observer, const Operator& op, const torch::jit::Stack& stack) {
  if (op.kind == OpKind::Views) {
    return;
  }
  Accesses accesses;
  c10::DeviceIndex device = -1;
  const auto visit = [&](const at::Tensor& tensor) {
    if (tensor.defined() && is_device_tensor(*tensor.unsafeGetTensorImpl())) {
      device = device < 0 ? tensor.device().index() : device;
      add(accesses, tensor, device, /*is_write=*/true);
    }
  };
  const size_t count = op.returned_arg.size();
  for (size_t i = 0; i < count; ++i) {
    if (op.returned_arg[i] >= 0) {
      continue;
    }
    const c10::IValue& value = stack[stack.size() - count + i];
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        visit(tensor);
      }
    }
  }
  if (device >= 0) {
    report(observer, op.name.c_str(), device, accesses);
  }
}

void observe_tensors(Observer& observer, const char* op, c10::DeviceIndex device, const at::Tensor& written,
                     const at::Tensor& read) {
  Accesses accesses;
  add(accesses, written, device, /*is_write=*/true);
  add(accesses, read, device, /*is_write=*/false);
  report(observer, op, device, accesses);
}

}  // namespace outboard

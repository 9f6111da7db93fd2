// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/transfer.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/capture.h"
#include "core/observer.h"
#include "core/pending.h"
#include "core/queue.h"
#include "core/sync_debug.h"
#include "memory/host_allocator.h"
#include "ops/operator/operator.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Pageable host memory up to this size goes through a pinned block, so that the
// caller does not wait for the stream.
constexpr size_t kStagedBytes = 64 << 10;

}  // namespace

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool is_linear(const at::Tensor& a, const at::Tensor& b) {
  if (!same_bits(a, b)) {
    return false;
  }
  if (a.is_contiguous() && b.is_contiguous()) {
    return true;
  }
  return a.strides() == b.strides() && is_dense(*a.unsafeGetTensorImpl());
}

at::Tensor cpu_like(const at::Tensor& like, c10::ScalarType dtype) {
  at::Tensor result;
  if (is_dense(*like.unsafeGetTensorImpl())) {
    result = at::detail::empty_strided_cpu(like.sizes(), like.strides(), dtype);
  } else {
    result = at::detail::empty_cpu(like.sizes(), dtype);
  }
  return result;
}

at::Tensor dense_like(const at::Tensor& like, c10::DeviceIndex device, c10::ScalarType dtype) {
  Stream& stream = current_stream(device);
  if (is_dense(*like.unsafeGetTensorImpl())) {
    return make_device_tensor(stream, dtype, like.sizes(), like.strides());
  }
  c10::SmallVector<int64_t, 5> strides(static_cast<size_t>(like.dim()));
  int64_t stride = 1;
  for (int64_t i = like.dim() - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= std::max<int64_t>(like.size(i), 1);
  }
  return make_device_tensor(stream, dtype, like.sizes(), strides);
}

void copy_bits(const at::Tensor& from, const at::Tensor& to) {
  to._set_conj(from.is_conj());
  to._set_neg(from.is_neg());
}

at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& cpu) {
  if (is_linear(cpu, like)) {
    return cpu;
  }
  at::Tensor result = cpu_like(like, like.scalar_type());
  copy_bits(like, result);
  result.copy_(cpu);
  return result;
}

void refuse_waiting_copy(const Stream& stream) {
  refuse_in_capture(stream, "a copy between host and device that the caller waits for (not pinned, or without"
                            " non_blocking=True)");
}

void keep_pinned(const at::Tensor& tensor, Stream& stream) {
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    capture->keep(std::make_shared<c10::Storage>(tensor.storage()));
    return;
  }
  record_host_block(tensor.const_data_ptr(), tensor.storage().data_ptr(), stream);
}

void observe_host(const at::Tensor& pinned, const Stream& stream, bool is_write) {
  if (Observer* active = observer(); C10_UNLIKELY(active != nullptr) && capture_of(stream) == nullptr) {
    active->host_copy("aten::copy_", stream, reinterpret_cast<uint64_t>(pinned.const_data_ptr()), pinned.nbytes(),
                      is_write);
  }
}

void wait_for_copy(Stream& stream, const at::Tensor& host, const char* op) {
  count_wait(op);
  try {
    synchronize_stream(stream);
  } catch (...) {
    keep_while_queued(host.storage(), stream);
    throw;
  }
}

void copy_bytes(Stream& stream, void* dst, c10::Device dst_device, const void* src, c10::Device src_device,
                size_t bytes) {
  ob_copy copy{};
  copy.struct_size = sizeof(copy);
  copy.dst = reinterpret_cast<uint64_t>(dst);
  copy.src = reinterpret_cast<uint64_t>(src);
  copy.bytes = bytes;
  copy.dst_device = dst_device.is_cpu() ? OB_HOST : dst_device.index();
  copy.src_device = src_device.is_cpu() ? OB_HOST : src_device.index();
  queue_copy(stream, copy);
}

void linear_to_device(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  Stream& stream = current_stream(dst.device().index());
  const size_t bytes = src.nbytes();
  const void* data = src.const_data_ptr();
  if (is_pinned(data)) {
    if (!non_blocking) {
      note_sync("a copy from the host without non_blocking=True");
    }
    keep_pinned(src, stream);
    if (non_blocking) {
      observe_host(src, stream, /*is_write=*/false);
    }
    copy_bytes(stream, dst.data_ptr(), dst.device(), data, src.device(), bytes);
    if (!non_blocking) {
      wait_for_copy(stream, src);
    }
    return;
  }
  if (bytes <= kStagedBytes && driver().host_alloc) {
    const c10::DataPtr block = host_allocator().allocate(bytes);
    std::memcpy(block.get(), data, bytes);
    record_host_block(block.get(), block, stream);
    copy_bytes(stream, dst.data_ptr(), dst.device(), block.get(), c10::Device(c10::kCPU), bytes);
    return;
  }
  note_sync("a copy from memory of the host that is not pinned");
  flush_pending(stream);  // a signal may end this wait, but not the wait after the copy
  copy_bytes(stream, dst.data_ptr(), dst.device(), data, src.device(), bytes);
  wait_for_copy(stream, src);
}

void host_to_dense(const at::Tensor& cpu, const at::Tensor& dst) {
  refuse_waiting_copy(current_stream(dst.device().index()));
  linear_to_device(laid_out_as(dst, cpu), dst, /*non_blocking=*/false);
}

at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex device) {
  const at::Tensor result = dense_like(cpu, device, cpu.scalar_type());
  copy_bits(cpu, result);
  if (cpu.numel() == 0) {
    return result;
  }
  void* address = nullptr;
  if (is_linear(cpu, result) && storage_host_address(result.storage(), &address)) {
    // Wait again: another thread may have queued work that uses the block's
    // memory, and freed it, meanwhile.
    synchronize_stream(current_stream(device));
    std::memcpy(address, cpu.const_data_ptr(), cpu.nbytes());
  } else {
    host_to_dense(cpu, result);
  }
  return result;
}

}  // namespace outboard

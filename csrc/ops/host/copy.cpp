// SPDX-License-Identifier: BSD-3-Clause
#include "ops/host/copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>
#include <c10/core/TensorImpl.h>

#include "core/capture.h"
#include "core/device.h"
#include "core/event.h"
#include "core/queue.h"
#include "core/sync_debug.h"
#include "memory/caching_allocator.h"
#include "memory/host_allocator.h"
#include "ops/call/observe.h"
#include "ops/call/transfer.h"
#include "ops/host/fallback.h"
#include "ops/host/host_call.h"
#include "ops/operator/operator.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Raise torch's error for a copy that torch refuses. Errors that only a look at each element could
// reveal are not checked.
void check_copy(const at::Tensor& src, const at::Tensor& dst) {
  at::assert_no_internal_overlap(dst);
  if (src.is_alias_of(dst)) {
    at::assert_no_partial_overlap(dst, src);
  }
  if (src.sizes() != dst.sizes()) {
    const at::DimVector shape = at::infer_size_dimvector(dst.sizes(), src.sizes());
    TORCH_CHECK(dst.sizes().equals(shape), "output with shape ", dst.sizes(), " doesn't match the broadcast shape ",
                c10::IntArrayRef(shape));
  }
}

// Return true if the byte spans, from the first to the last element, of both overlap.
bool do_spans_overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* first = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* second = static_cast<const std::byte*>(b.const_data_ptr());
  return a.is_alias_of(b) && first < second + span_bytes(b.sizes(), b.strides(), b.element_size()) &&
         second < first + span_bytes(a.sizes(), a.strides(), a.element_size());
}

// Run aten::copy_ by its CPU kernel in the stream. Return false if
// the host cannot reach the memory.
bool copy_on_host(const at::Tensor& src, const at::Tensor& dst) {
  static Operator& op = operator_named("aten::copy_");
  torch::jit::Stack stack{dst, src, true};
  return run_on_host(Call(op, stack), &stack);
}

// Do the same with a kernel that is generated for the device. Return false if there is none.
bool copy_by_plan(const at::Tensor& src, const at::Tensor& dst) {
  if (!allows_generated()) {
    return false;
  }
  static Operator& op = operator_named("aten::copy_");
  torch::jit::Stack stack{dst, src, true};
  return run_generated(Call(op, stack), &stack);
}

bool copy_strided_by_driver(const at::Tensor& src, const at::Tensor& dst, Stream& stream) {
  if (!driver().copy_nd_async || !same_bits(src, dst) || src.dim() == 0) {
    return false;
  }
  ob_copy_nd copy{};
  copy.struct_size = sizeof(copy);
  copy.dst = reinterpret_cast<uint64_t>(dst.data_ptr());
  copy.src = reinterpret_cast<uint64_t>(src.const_data_ptr());
  copy.dst_device = dst.device().index();
  copy.src_device = src.device().index();
  copy.element_size = static_cast<uint32_t>(src.element_size());
  copy.ndim = static_cast<uint32_t>(src.dim());
  copy.sizes = src.sizes().data();
  copy.dst_strides = dst.strides().data();
  copy.src_strides = src.strides().data();
  return queue_copy_nd(stream, copy);
}

// Return the elements of a strided device tensor as a strided CPU tensor: one linear
// copy of the whole span. Waits.
at::Tensor span_to_cpu(const at::Tensor& tensor, Stream& stream) {
  refuse_waiting_copy(stream);
  note_sync("a copy to the host");
  const size_t nbytes = span_bytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  at::Tensor flat = at::detail::empty_cpu({static_cast<int64_t>(nbytes / tensor.element_size())}, tensor.scalar_type());
  copy_bytes(stream, flat.data_ptr(), c10::Device(c10::kCPU), tensor.const_data_ptr(), tensor.device(), nbytes);
  wait_for_copy(stream, flat);
  at::Tensor result = at::as_strided(flat, tensor.sizes(), tensor.strides(), 0);
  copy_bits(tensor, result);
  return result;
}

bool try_within_device(const at::Tensor& src, const at::Tensor& dst);
void copy_within_device(const at::Tensor& src, const at::Tensor& dst);

at::Tensor expanded(const at::Tensor& tensor, const at::Tensor& dst) {
  return tensor.sizes() == dst.sizes() ? tensor : tensor.expand(dst.sizes());
}

// Return an empty dense tensor on a device that can hold the elements of `like`, even if it is
// lazily conjugated.
at::Tensor staging_like(const at::Tensor& like, c10::DeviceIndex device, c10::ScalarType dtype) {
  const at::Tensor staging = dense_like(like, device, dtype);
  copy_bits(like, staging);
  return staging;
}

void host_to_device(const at::Tensor& source, const at::Tensor& dst, bool non_blocking) {
  const c10::DeviceIndex device = dst.device().index();
  Stream& stream = current_stream(device);
  const bool is_async = non_blocking && is_pinned(source.const_data_ptr());
  const at::Tensor wide = expanded(source, dst);
  const bool converts = !is_linear(wide, dst);
  if (is_async && converts && is_dense(*source.unsafeGetTensorImpl())) {
    // Queued work may yet write the pinned memory, so the device converts, as CUDA does.
    const at::Tensor staging = staging_like(source, device, source.scalar_type());
    linear_to_device(source, staging, non_blocking);
    if (try_within_device(expanded(staging, dst), dst)) {
      return;
    }
    refuse_waiting_copy(stream);
    note_sync("a copy from the host that the device cannot convert");
    synchronize_stream(stream);
  } else if (!is_async || converts) {
    refuse_waiting_copy(stream);
  }
  const at::Tensor src = laid_out_as(dst, wide);
  if (!is_linear(src, dst)) {  // dst has gaps
    const at::Tensor staging = staging_like(dst, device, dst.scalar_type());
    host_to_device(src, staging, false);
    copy_from(staging, dst, true);
    return;
  }
  linear_to_device(src, dst, non_blocking);
}

void device_to_host(const at::Tensor& source, const at::Tensor& dst, bool non_blocking) {
  Stream& stream = current_stream(source.device().index());
  const bool waits = !non_blocking || !is_pinned(dst.const_data_ptr());
  if (waits) {
    refuse_waiting_copy(stream);
  }
  if (!is_linear(source, dst)) {
    if (!waits && is_dense(*dst.unsafeGetTensorImpl())) {  // as CUDA does
      const at::Tensor staging = staging_like(dst, source.device().index(), dst.scalar_type());
      if (try_within_device(source, staging)) {
        device_to_host(staging, dst, non_blocking);
        return;
      }
    }
    refuse_waiting_copy(stream);
    if (is_dense(*source.unsafeGetTensorImpl())) {
      const at::Tensor staging = at::detail::empty_strided_cpu(source.sizes(), source.strides(), source.scalar_type());
      copy_bits(source, staging);
      device_to_host(source, staging, false);
      dst.copy_(staging);
      return;
    }
    // A dense copy on the device moves only what is needed; if none can be made, move the span.
    const at::Tensor dense = staging_like(source, source.device().index(), source.scalar_type());
    if (copy_on_host(source, dense) || copy_strided_by_driver(source, dense, stream)) {
      device_to_host(dense, dst, non_blocking);
    } else {
      dst.copy_(span_to_cpu(source, stream));
    }
    return;
  }
  if (waits) {
    note_sync("a copy to the host");
  } else {
    keep_pinned(dst, stream);
    observe_host(dst, stream, /*is_write=*/true);
  }
  copy_bytes(stream, dst.data_ptr(), dst.device(), source.const_data_ptr(), source.device(), source.nbytes());
  if (waits) {
    wait_for_copy(stream, dst);
  }
}

// Return the elements as they lie in memory: without lazy conjugation and negation.
at::Tensor plain(const at::Tensor& tensor) {
  const at::Tensor unconjugated = tensor.is_conj() ? at::_conj(tensor) : tensor;
  return unconjugated.is_neg() ? at::_neg_view(unconjugated) : unconjugated;
}

// Copy from or to lazily conjugated or negated numbers, with the kernels generated for
// conj_physical and neg: plans read memory as it is. Return false if there is none.
bool copy_lazy(const at::Tensor& src, const at::Tensor& dst) {
  const auto is_lazy = [](const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); };
  if (!(is_lazy(src) || is_lazy(dst)) || src.scalar_type() == c10::kBool || dst.scalar_type() == c10::kBool ||
      !may_generate(src.device().index())) {
    return false;
  }
  const at::Tensor from = plain(src);
  at::Tensor to = plain(dst);
  // Conjugation leaves real parts as they are. Zeros become imaginary parts that it negates.
  const bool conjugates = src.is_conj() != dst.is_conj() && dst.is_complex();
  const bool negates = src.is_neg() != dst.is_neg();
  if (conjugates && src.is_complex()) {
    at::conj_physical_out(to, negates ? at::neg(from) : from);
  } else if (conjugates) {
    copy_within_device(negates ? at::neg(from) : from, to);
    at::conj_physical_(to);
  } else if (negates) {
    copy_within_device(at::neg(src.is_neg() ? from : from.to(dst.scalar_type())), to);
  } else {
    copy_within_device(from, to);
  }
  return true;
}

bool try_within_device(const at::Tensor& src, const at::Tensor& dst) {
  Stream& stream = current_stream(src.device().index());
  if (is_linear(src, dst)) {
    if (src.const_data_ptr() != dst.const_data_ptr()) {
      copy_bytes(stream, dst.data_ptr(), dst.device(), src.const_data_ptr(), src.device(), src.nbytes());
    }
    return true;
  }
  if (copy_on_host(src, dst) || copy_lazy(src, dst) || (!same_bits(src, dst) && copy_by_plan(src, dst))) {
    return true;
  }
  if (do_spans_overlap(src, dst)) {  // for example x[:, 1:] = x[:, :-1]: drivers copy only between disjoint memory
    const at::Tensor contiguous_copy = staging_like(src, src.device().index(), src.scalar_type());
    copy_within_device(src, contiguous_copy);
    copy_within_device(contiguous_copy, dst);
    return true;
  }
  return copy_strided_by_driver(src, dst, stream) || copy_by_plan(src, dst);
}

void copy_within_device(const at::Tensor& src, const at::Tensor& dst) {
  if (try_within_device(src, dst)) {
    return;
  }
  // The device cannot do it: copy through the host, and preserve the memory between the elements of
  // a dst with gaps.
  Stream& stream = current_stream(src.device().index());
  refuse_waiting_copy(stream);
  report_fallback(operator_named("aten::copy_"));
  if (is_dense(*dst.unsafeGetTensorImpl())) {
    host_to_device(span_to_cpu(src, stream), dst, false);
    return;
  }
  const size_t nbytes = span_bytes(dst.sizes(), dst.strides(), dst.element_size());
  const at::Tensor dst_span = span_to_cpu(dst, stream);
  dst_span.copy_(span_to_cpu(src, stream));
  copy_bytes(stream, dst.data_ptr(), dst.device(), dst_span.const_data_ptr(), c10::Device(c10::kCPU), nbytes);
  wait_for_copy(stream, dst_span);
}

// Copy as CUDA does: on the source's stream, after the work queued on the destination's stream,
// which then waits for the copy.
void between_devices(const at::Tensor& source, const at::Tensor& dst) {
  const c10::DeviceIndex src_device = source.device().index();
  const c10::DeviceIndex dst_device = dst.device().index();
  at::Tensor src = source;
  if (!is_linear(src, dst)) {
    src = staging_like(dst, src_device, dst.scalar_type());
    copy_within_device(source, src);
    if (!is_linear(src, dst)) {
      const at::Tensor staging = staging_like(dst, dst_device, dst.scalar_type());
      between_devices(src, staging);
      copy_within_device(staging, dst);
      return;
    }
  }
  Stream& from = current_stream(src_device);
  Stream& to = current_stream(dst_device);
  can_access_peer(src_device, dst_device);  // lets the driver enable it before the first copy
  Event dst_is_ready;
  dst_is_ready.record(to);
  dst_is_ready.block(from);
  copy_bytes(from, dst.data_ptr(), dst.device(), src.const_data_ptr(), src.device(), src.nbytes());
  Event is_copied;
  is_copied.record(from);
  is_copied.block(to);
}

}  // namespace

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& dst, bool non_blocking) {
  check_copy(source, dst);
  if (dst.numel() == 0 && source.numel() <= 1) {
    return dst;
  }
  const at::Tensor src = expanded(source, dst);
  if (src.numel() == 0) {
    return dst;
  }
  const bool from_device = is_device_tensor(*src.unsafeGetTensorImpl());
  const bool to_our_device = is_device_tensor(*dst.unsafeGetTensorImpl());
  TORCH_CHECK((from_device || src.device().is_cpu()) && (to_our_device || dst.device().is_cpu()), "a copy from ",
              src.device(), " to ", dst.device(), " is not supported: copy to the CPU first");
  if (Observer* active = observer(); C10_UNLIKELY(active != nullptr)) {
    // A copy between devices reads and writes on the source's stream, and the
    // destination's stream waits for it.
    const c10::DeviceIndex device = (from_device ? src : dst).device().index();
    observe_tensors(*active, "aten::copy_", device, dst, src);
    if (from_device && to_our_device && dst.device() != src.device()) {
      observe_tensors(*active, "aten::copy_", dst.device().index(), dst, {});
    }
  }
  if (from_device && to_our_device) {
    if (src.device() == dst.device()) {
      copy_within_device(src, dst);
    } else {
      between_devices(src, dst);
    }
  } else if (to_our_device) {
    host_to_device(source, dst, non_blocking);
  } else {
    device_to_host(src, dst, non_blocking);
  }
  return dst;
}

at::Tensor to_cpu(const at::Tensor& tensor) {
  const at::Tensor result = cpu_like(tensor, tensor.scalar_type());
  copy_bits(tensor, result);
  if (tensor.numel() > 0) {
    device_to_host(tensor, result, false);
  }
  return result;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Copies and fills.
#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace opencl {
namespace {

using support::guarded;
using support::StridedShape;

constexpr uint64_t kStagingBytes = 16 << 20;
constexpr uint32_t kWidestPattern = 16;  // the API allows 128, which NVIDIA's runtime is 14 times slower with

// One work-item an element; the shape is as make_strided_shape leaves it.
constexpr const char* kStridedSource = R"(
typedef struct { ulong count; uint ndim; uint pad; ulong sizes[8]; ulong dst[8]; ulong src[8]; } Shape;
#define STRIDED(name, T)                                                                  \
  kernel void name(global T* restrict dst, global const T* restrict src, const Shape s) { \
    size_t rest = get_global_id(0);                                                       \
    if (rest >= s.count) return;                                                          \
    size_t to = 0, from = 0;                                                              \
    if (s.count <= 0xFFFFFFFFu) {                                                         \
      uint r = (uint)rest;                                                                \
      for (uint d = 0; d + 1 < s.ndim; ++d) {                                             \
        const uint size = (uint)s.sizes[d], next = r / size, i = r - next * size;         \
        to += i * s.dst[d];                                                               \
        from += i * s.src[d];                                                             \
        r = next;                                                                         \
      }                                                                                   \
      rest = r;                                                                           \
    } else {                                                                              \
      for (uint d = 0; d + 1 < s.ndim; ++d) {                                             \
        const size_t next = rest / s.sizes[d], i = rest - next * s.sizes[d];              \
        to += i * s.dst[d];                                                               \
        from += i * s.src[d];                                                             \
        rest = next;                                                                      \
      }                                                                                   \
    }                                                                                     \
    if (s.ndim > 0) {                                                                     \
      to += rest * s.dst[s.ndim - 1];                                                     \
      from += rest * s.src[s.ndim - 1];                                                   \
    }                                                                                     \
    dst[to] = src[from];                                                                  \
  }
STRIDED(copy1, uchar)
STRIDED(copy2, ushort)
STRIDED(copy4, uint)
STRIDED(copy8, ulong)
STRIDED(copy16, ulong2)
)";

// The kernel's `Shape`.
struct KernelShape {
  uint64_t count;
  uint32_t ndim;
  uint32_t pad;
  uint64_t sizes[8], dst[8], src[8];
};

ob_status check_side(Driver& driver, int32_t index, uint64_t address, uint64_t bytes, Device** out_device) {
  *out_device = nullptr;
  if (index == OB_HOST) return OB_OK;
  if (const ob_status status = driver.find_open(index, out_device); status != OB_OK) return status;
  return (*out_device)->memory.check(index, address, bytes);
}

// Between devices whose memory is in different contexts and closed to the host: waits, and goes through host memory.
ob_status copy_staged(Driver& driver, Stream& stream, Device& to, Device& from, const ob_copy& copy) {
  cl_int code = driver.api.Finish(stream.queue);
  if (code != CL_SUCCESS) return cl_fail(code, "clFinish", where(driver, stream.device), During::kWait);
  const std::unique_ptr<char[]> staging(new char[std::min(copy.bytes, kStagingBytes)]);
  for (uint64_t done = 0; done < copy.bytes; done += kStagingBytes) {
    const uint64_t bytes = std::min(copy.bytes - done, kStagingBytes);
    {
      const std::lock_guard lock(from.queue_mutex);
      code = driver.api.EnqueueSVMMemcpy(from.queue, 1, staging.get(), reinterpret_cast<void*>(copy.src + done), bytes,
                                         0, nullptr, nullptr);
    }
    if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueSVMMemcpy", where(driver, from.index));
    const std::lock_guard lock(to.queue_mutex);
    code = driver.api.EnqueueSVMMemcpy(to.queue, 1, reinterpret_cast<void*>(copy.dst + done), staging.get(), bytes, 0,
                                       nullptr, nullptr);
    if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueSVMMemcpy", where(driver, to.index));
  }
  return OB_OK;
}

ob_status copy_async(void* self, int32_t index, uint64_t handle, const ob_copy* copy) {
  return guarded("copy_async", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Stream* stream = nullptr;
    Device* to = nullptr;
    Device* from = nullptr;
    if (const ob_status status = driver.find_stream(index, handle, &stream); status != OB_OK) return status;
    if (copy->dst_device != index && copy->src_device != index) {
      return fail(OB_INVALID_ARGUMENT, "device %d: a copy from %d to %d", index, copy->src_device, copy->dst_device);
    }
    if (const ob_status status = check_side(driver, copy->dst_device, copy->dst, copy->bytes, &to); status != OB_OK) {
      return status;
    }
    if (const ob_status status = check_side(driver, copy->src_device, copy->src, copy->bytes, &from); status != OB_OK) {
      return status;
    }
    if (to != nullptr && from != nullptr && to != from && !(to->is_fine_grain && from->is_fine_grain)) {
      return copy_staged(driver, *stream, *to, *from, *copy);
    }
    const cl_int code =
        driver.api.EnqueueSVMMemcpy(stream->queue, 0, reinterpret_cast<void*>(copy->dst),
                                    reinterpret_cast<const void*>(copy->src), copy->bytes, 0, nullptr, nullptr);
    if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueSVMMemcpy", where(driver, index));
    note_queued(*stream);
    return OB_OK;
  });
}

ob_status fill_async(void* self, int32_t index, uint64_t handle, uint64_t dst, const void* pattern,
                     uint32_t pattern_size, uint64_t count) {
  return guarded("fill_async", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* device = nullptr;
    Stream* stream = nullptr;
    if (const ob_status status = driver.find_stream(index, handle, &stream); status != OB_OK) return status;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    const bool is_size =
        pattern_size == 1 || pattern_size == 2 || pattern_size == 4 || pattern_size == 8 || pattern_size == 16;
    if (!is_size || dst % pattern_size != 0 || count > UINT64_MAX / pattern_size) {
      return fail(OB_INVALID_ARGUMENT, "device %d: a fill of %" PRIu64 " times %u bytes at 0x%" PRIx64, index, count,
                  pattern_size, dst);
    }
    if (count == 0) return OB_OK;
    const uint64_t bytes = count * pattern_size;
    if (const ob_status status = device->memory.check(index, dst, bytes); status != OB_OK) return status;
    // Runtimes may store a pattern at a time, twice as fast for 16 bytes as for 4: the wide ones first, then the rest.
    unsigned char wide[kWidestPattern];
    for (uint32_t at = 0; at < kWidestPattern; at += pattern_size) std::memcpy(wide + at, pattern, pattern_size);
    const uint64_t widely = dst % kWidestPattern == 0 ? bytes / kWidestPattern * kWidestPattern : 0;
    cl_int code = CL_SUCCESS;
    if (widely > 0) {
      code = driver.api.EnqueueSVMMemFill(stream->queue, reinterpret_cast<void*>(dst), wide, kWidestPattern, widely, 0,
                                          nullptr, nullptr);
    }
    if (code == CL_SUCCESS && widely < bytes) {
      code = driver.api.EnqueueSVMMemFill(stream->queue, reinterpret_cast<void*>(dst + widely), wide, pattern_size,
                                          bytes - widely, 0, nullptr, nullptr);
    }
    if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueSVMMemFill", where(driver, index));
    note_queued(*stream);
    return OB_OK;
  });
}

// The kernel for elements of 2 to the power `log_size` bytes; built at a device's first strided copy.
ob_status strided_kernel(Driver& driver, Device& device, uint32_t log_size, uint64_t* out_kernel) {
  const std::lock_guard lock(device.strided_mutex);
  if (device.strided_program == 0) {
    const ob_status status = program_build(driver, device, kStridedSource, "", &device.strided_program);
    if (status != OB_OK) return status;
  }
  if (device.strided_kernels[log_size] == 0) {
    const std::string name = "copy" + std::to_string(1u << log_size);
    const ob_status status =
        kernel_get(driver, device.index, device.strided_program, name.c_str(), &device.strided_kernels[log_size]);
    if (status != OB_OK) return status;
  }
  *out_kernel = device.strided_kernels[log_size];
  return OB_OK;
}

ob_kernel_arg pointer_arg(uint64_t address) {
  return {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, address, nullptr};
}

ob_status copy_nd_async(void* self, int32_t index, uint64_t handle, const ob_copy_nd* copy) {
  return guarded("copy_nd_async", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* device = nullptr;
    Stream* stream = nullptr;
    if (const ob_status status = driver.find_stream(index, handle, &stream); status != OB_OK) return status;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (!support::is_well_formed(*copy)) return fail(OB_INVALID_ARGUMENT, "device %d: an ill-formed copy_nd", index);
    if (copy->dst_device != index || copy->src_device != index) {
      return fail(OB_UNIMPLEMENTED, "copy_nd_async copies within one device");
    }
    StridedShape shape;
    if (!support::make_strided_shape(*copy, &shape)) {
      return fail(OB_UNIMPLEMENTED, "copy_nd_async has at most %u dimensions that don't merge",
                  support::kMaxStridedDims);
    }
    if (shape.count == 0) return OB_OK;
    ob_status status = device->memory.check(index, copy->dst, support::span_bytes(*copy, copy->dst_strides));
    if (status == OB_OK) {
      status = device->memory.check(index, copy->src, support::span_bytes(*copy, copy->src_strides));
    }
    uint64_t kernel = 0;
    uint32_t log_size = 0;
    const uint32_t element_size = support::widen(&shape, copy->element_size, copy->dst, copy->src);
    while (1u << log_size < element_size) ++log_size;
    if (status == OB_OK) status = strided_kernel(driver, *device, log_size, &kernel);
    if (status != OB_OK) return status;
    KernelShape given = {};
    given.count = shape.count;
    given.ndim = shape.ndim;
    for (uint32_t i = 0; i < shape.ndim; ++i) {
      given.sizes[i] = static_cast<uint64_t>(shape.sizes[i]);
      given.dst[i] = static_cast<uint64_t>(shape.dst_strides[i]);
      given.src[i] = static_cast<uint64_t>(shape.src_strides[i]);
    }
    const ob_kernel_arg args[] = {
        pointer_arg(copy->dst), pointer_arg(copy->src), {sizeof(ob_kernel_arg), OB_ARG_VALUE, sizeof given, 0, &given}};
    const uint32_t group = static_cast<uint32_t>(std::min<size_t>(256, device->max_group));
    ob_launch launched = {};
    launched.struct_size = sizeof launched;
    launched.kernel = kernel;
    const uint64_t groups = (shape.count + group - 1) / group;
    if (groups > UINT32_MAX) return fail(OB_UNIMPLEMENTED, "copy_nd_async has no kernel for so many elements");
    launched.grid[0] = static_cast<uint32_t>(groups);
    launched.grid[1] = launched.grid[2] = launched.block[1] = launched.block[2] = 1;
    launched.block[0] = group;
    launched.arg_count = std::size(args);
    launched.arg_stride = sizeof args[0];
    launched.args = args;
    return launch(driver, *device, *stream, launched);
  });
}

}  // namespace

void fill_copy_entries(ob_driver* table) {
  table->copy_async = copy_async;
  table->fill_async = fill_async;
  table->copy_nd_async = copy_nd_async;
}

}  // namespace opencl

// SPDX-License-Identifier: BSD-3-Clause
// Copies and fills.
#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "driver.h"
#include "strided_source.h"
#include "torch_outboard/support/strided_kernel.h"

namespace opencl {
namespace {

using support::StridedShape;
using support::with_stream;

constexpr uint64_t kStagingBytes = 16 << 20;
constexpr uint32_t kMaxPatternBytes = 16;  // the API allows 128, which is 14 times slower with NVIDIA's runtime

ob_status check_side(Driver& driver, int32_t index, uint64_t address, uint64_t bytes, Device** out_device) {
  *out_device = nullptr;
  if (index == OB_HOST) return OB_OK;
  if (const ob_status status = driver.find_open(index, out_device); status != OB_OK) return status;
  return (*out_device)->memory.check(index, address, bytes);
}

// Copy between devices whose memory is in different contexts and not reachable from the host.
// Waits, and goes through host memory.
ob_status copy_staged(Driver& driver, Stream& stream, Device& to, Device& from, const ob_copy& copy) {
  cl_int code = driver.api.Finish(stream.queue);
  if (code != CL_SUCCESS) return cl_fail(code, "clFinish", where(driver, stream.device), FailedStep::kWait);
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
  return with_stream<Driver>(self, index, handle, "copy_async", [&](Driver& driver, Stream* stream) -> ob_status {
    Device* to = nullptr;
    Device* from = nullptr;
    if (const ob_status status = support::check_copy(index, *copy); status != OB_OK) return status;
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
  return with_stream<Driver>(self, index, handle, "fill_async", [&](Driver& driver, Stream* stream) -> ob_status {
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (const ob_status status = support::check_fill(index, dst, pattern_size, count); status != OB_OK) return status;
    if (count == 0) return OB_OK;
    const uint64_t bytes = count * pattern_size;
    if (const ob_status status = device->memory.check(index, dst, bytes); status != OB_OK) return status;
    // Runtimes may store one pattern at a time, twice as fast for 16 bytes as for 4: fill with wide
    // patterns first, then the rest.
    unsigned char wide[kMaxPatternBytes];
    for (uint32_t at = 0; at < kMaxPatternBytes; at += pattern_size) std::memcpy(wide + at, pattern, pattern_size);
    const uint64_t widely = dst % kMaxPatternBytes == 0 ? bytes / kMaxPatternBytes * kMaxPatternBytes : 0;
    cl_int code = CL_SUCCESS;
    if (widely > 0) {
      code = driver.api.EnqueueSVMMemFill(stream->queue, reinterpret_cast<void*>(dst), wide, kMaxPatternBytes, widely,
                                          0, nullptr, nullptr);
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

// Find one of the driver's own kernels. Their program is built at the device's first use.
ob_status own_kernel(Driver& driver, Device& device, const std::string& name, uint64_t* out_kernel) {
  const std::lock_guard lock(device.own_mutex);
  if (const auto known = device.own_kernels.find(name); known != device.own_kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  if (device.own_program == 0) {
    const ob_status status = program_build(driver, device, kStridedSource, "", false, &device.own_program);
    if (status != OB_OK) return status;
  }
  const ob_status status = kernel_get(driver, device.index, device.own_program, name.c_str(), out_kernel);
  if (status == OB_OK) device.own_kernels[name] = *out_kernel;
  return status;
}

ob_status copy_nd_async(void* self, int32_t index, uint64_t handle, const ob_copy_nd* copy) {
  return with_stream<Driver>(self, index, handle, "copy_nd_async", [&](Driver& driver, Stream* stream) -> ob_status {
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    StridedShape shape;
    if (const ob_status status = support::check_strided(index, *copy, &shape); status != OB_OK) return status;
    if (shape.count == 0) return OB_OK;
    ob_status status = device->memory.check(index, copy->dst, support::span_bytes(*copy, copy->dst_strides));
    if (status == OB_OK) {
      status = device->memory.check(index, copy->src, support::span_bytes(*copy, copy->src_strides));
    }
    if (status != OB_OK) return status;
    const uint32_t element_size = support::widen(&shape, copy->element_size, copy->dst, copy->src);
    const auto run = [&](const support::StridedLaunch& strided) -> ob_status {
      const std::string name = strided.kernel + std::to_string(element_size);
      uint64_t kernel = 0;
      if (const ob_status status = own_kernel(driver, *device, name, &kernel); status != OB_OK) return status;
      ob_kernel_arg args[3];
      return launch(driver, *device, *stream, support::launch_of(strided, kernel, args));
    };
    const uint32_t threads = static_cast<uint32_t>(std::min<size_t>(256, device->max_group));
    return support::for_each_launch(shape, element_size, copy->dst, copy->src, threads, run);
  });
}

}  // namespace

void fill_copy_entries(ob_driver* table) {
  table->copy_async = copy_async;
  table->fill_async = fill_async;
  table->copy_nd_async = copy_nd_async;
}

}  // namespace opencl

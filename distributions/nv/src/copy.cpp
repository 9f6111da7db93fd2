// SPDX-License-Identifier: BSD-3-Clause
// Copies and fills.
#include <algorithm>
#include <cstring>

#include "driver.h"
#include "own_kernels.h"
#include "torch_outboard/support/strided_kernel.h"

namespace nv {
namespace {

using support::StridedShape;

ob_status check_side(Driver& driver, int32_t index, uint64_t address, uint64_t bytes, Device** out_device) {
  *out_device = nullptr;
  if (index == OB_HOST) return OB_OK;
  if (const ob_status status = driver.find_open(index, out_device); status != OB_OK) return status;
  return (*out_device)->memory.check(index, address, bytes);
}

ob_status copy_async(void* self, int32_t index, uint64_t stream, const ob_copy* copy) {
  return on_device(self, index, "copy_async", [&](Driver& driver, Device& device) -> ob_status {
    Device* to = nullptr;
    Device* from = nullptr;
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    if (const ob_status status = support::check_copy(index, *copy); status != OB_OK) return status;
    if (const ob_status status = check_side(driver, copy->dst_device, copy->dst, copy->bytes, &to); status != OB_OK) {
      return status;
    }
    if (const ob_status status = check_side(driver, copy->src_device, copy->src, copy->bytes, &from); status != OB_OK) {
      return status;
    }
    if (to != nullptr && from != nullptr && to != from) {
      const CUresult code =
          driver.api.MemcpyPeerAsync(copy->dst, to->context, copy->src, from->context, copy->bytes, to_stream(stream));
      return check(driver, device, code, "cuMemcpyPeerAsync");
    }
    // CUDA knows from the address on which side host memory is.
    const CUresult code = driver.api.MemcpyAsync(copy->dst, copy->src, copy->bytes, to_stream(stream));
    return check(driver, device, code, "cuMemcpyAsync");
  });
}

// Return the length of the shortest pattern that repeats to this one.
uint32_t period(const void* pattern, uint32_t size) {
  const auto* bytes = static_cast<const char*>(pattern);
  while (size > 1 && std::memcmp(bytes, bytes + size / 2, size / 2) == 0) size /= 2;
  return size;
}

template <class T>
T load(const void* pattern) {
  T value;
  std::memcpy(&value, pattern, sizeof value);
  return value;
}

ob_status fill_async(void* self, int32_t index, uint64_t handle, uint64_t dst, const void* pattern,
                     uint32_t pattern_size, uint64_t count) {
  return on_device(self, index, "fill_async", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, handle); status != OB_OK) return status;
    if (const ob_status status = support::check_fill(index, dst, pattern_size, count); status != OB_OK) return status;
    if (count == 0) return OB_OK;
    const uint64_t bytes = count * pattern_size;
    if (const ob_status status = device.memory.check(index, dst, bytes); status != OB_OK) return status;
    const CUstream stream = to_stream(handle);
    const uint32_t size = period(pattern, pattern_size);
    const uint64_t times = bytes / size;
    switch (size) {
      case 1:
        return check(driver, device, driver.api.MemsetD8Async(dst, load<uint8_t>(pattern), times, stream),
                     "cuMemsetD8");
      case 2:
        return check(driver, device, driver.api.MemsetD16Async(dst, load<uint16_t>(pattern), times, stream),
                     "cuMemsetD16");
      case 4:
        return check(driver, device, driver.api.MemsetD32Async(dst, load<uint32_t>(pattern), times, stream),
                     "cuMemsetD32");
      default:
        break;
    }
    // A few words, such as a seed, need no compiler.
    if (const uint64_t words = bytes / 4; words <= 8) {
      ob_status status = OB_OK;
      for (uint64_t i = 0; i < words && status == OB_OK; ++i) {
        const auto word = load<uint32_t>(static_cast<const char*>(pattern) + i % (size / 4) * 4);
        status = check(driver, device, driver.api.MemsetD32Async(dst + i * 4, word, 1, stream), "cuMemsetD32");
      }
      return status;
    }
    const std::vector args = {pointer_arg(dst), value_arg(pattern, size), value_arg(&times, sizeof times)};
    const auto blocks = static_cast<uint32_t>(std::min<uint64_t>((times + kThreads - 1) / kThreads, 1 << 16));
    return run_own(driver, device, stream, "fill", std::to_string(size), blocks, kThreads, 1, args);
  });
}

ob_status copy_nd_async(void* self, int32_t index, uint64_t stream, const ob_copy_nd* copy) {
  return on_device(self, index, "copy_nd_async", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    return copy_nd(driver, device, to_stream(stream), *copy);
  });
}

}  // namespace

ob_status copy_nd(Driver& driver, Device& device, CUstream stream, const ob_copy_nd& copy) {
  StridedShape shape;
  ob_status status = support::check_strided(device.index, copy, &shape);
  if (status != OB_OK || shape.count == 0) return status;
  status = device.memory.check(device.index, copy.dst, support::span_bytes(copy, copy.dst_strides));
  if (status == OB_OK) {
    status = device.memory.check(device.index, copy.src, support::span_bytes(copy, copy.src_strides));
  }
  if (status != OB_OK) return status;
  const uint32_t element_size = support::widen(&shape, copy.element_size, copy.dst, copy.src);
  const auto run = [&](const support::StridedLaunch& strided) {
    const std::vector args = {pointer_arg(strided.dst), pointer_arg(strided.src),
                              value_arg(strided.argument, strided.argument_size)};
    return run_own(driver, device, stream, strided.kernel, std::to_string(element_size), strided.blocks,
                   strided.columns, strided.rows, args);
  };
  return support::for_each_launch(shape, element_size, copy.dst, copy.src, kThreads, run);
}

void fill_copy_entries(ob_driver* table) {
  table->copy_async = copy_async;
  table->fill_async = fill_async;
  table->copy_nd_async = copy_nd_async;
}

}  // namespace nv

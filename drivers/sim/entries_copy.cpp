// SPDX-License-Identifier: BSD-3-Clause
// The entries that queue copies and fills. Addresses are checked and translated when the work is
// queued, so that the faulty call itself fails.
#include <cstring>
#include <memory>

#include "entries.h"
#include "work.h"

namespace sim {
namespace {

// Return the host's address of one side of a copy.
ob_status translate(Driver& driver, int32_t index, uint64_t address, uint64_t bytes, void** out_host) {
  if (index != OB_HOST) {
    Device* device = nullptr;
    const ob_status status = driver.find_device(index, &device);
    return status == OB_OK ? device->memory.translate(address, bytes, out_host) : status;
  }
  if (address == 0) return fail(OB_INVALID_ARGUMENT, "the host pointer of a copy is null");
  *out_host = reinterpret_cast<void*>(address);
  return OB_OK;
}

uint64_t correlation(Driver& driver) {
  return driver.activity.kinds() != 0 ? Activity::correlation() : 0;
}

ob_status check_sides(int32_t index, int32_t dst_device, int32_t src_device) {
  if (dst_device == index || src_device == index) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "device %d: the stream of a copy from device %d to device %d belongs to neither",
              index, src_device, dst_device);
}

ob_status copy_async(void* self, int32_t index, uint64_t handle, const ob_copy* copy) {
  return enter<Entry::copy_async>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    if (copy->struct_size < sizeof(ob_copy))
      return fail(OB_INVALID_ARGUMENT, "copy_async: the struct_size of ob_copy is too small");
    if (copy->bytes == 0) return fail(OB_INVALID_ARGUMENT, "device %d: copy_async of 0 bytes", index);
    void* dst = nullptr;
    void* src = nullptr;
    ob_status status = check_sides(index, copy->dst_device, copy->src_device);
    if (status == OB_OK) status = translate(call.driver, copy->dst_device, copy->dst, copy->bytes, &dst);
    if (status == OB_OK) status = translate(call.driver, copy->src_device, copy->src, copy->bytes, &src);
    if (status != OB_OK) return status;
    Task task = {};
    task.work = Work::kCopy;
    task.injected = call.injected;
    task.correlation = correlation(call.driver);
    task.copy = {dst, src, copy->bytes, copy->dst_device, copy->src_device};
    return call.driver.queue(stream, handle, task);
  });
}

ob_status fill_async(void* self, int32_t index, uint64_t handle, uint64_t dst, const void* pattern,
                     uint32_t pattern_size, uint64_t count) {
  return enter<Entry::fill_async>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    if (pattern_size == 0 || pattern_size > 16 || (pattern_size & (pattern_size - 1)) != 0) {
      return fail(OB_INVALID_ARGUMENT, "device %d: fill_async with a pattern of %u bytes; it takes 1, 2, 4, 8 or 16",
                  index, pattern_size);
    }
    if (count == 0) return OB_OK;
    if (count > UINT64_MAX / pattern_size) {
      return fail(OB_OUT_OF_RANGE, "device %d: fill_async of %" PRIu64 " patterns exceeds 64 bits", index, count);
    }
    void* host = nullptr;
    const ob_status status = translate(call.driver, index, dst, count * pattern_size, &host);
    if (status != OB_OK) return status;
    Task task = {};
    task.work = Work::kFill;
    task.injected = call.injected;
    task.correlation = correlation(call.driver);
    task.pattern_size = static_cast<uint8_t>(pattern_size);
    task.fill.dst = host;
    task.fill.count = count;
    std::memcpy(task.fill.pattern, pattern, pattern_size);
    return call.driver.queue(stream, handle, task);
  });
}

// Return the span of one side of a strided copy in bytes, and how far before the side's
// address it begins. The span reaches from the first byte to the end of the last. Return
// false if the numbers overflow.
bool extent(const ob_copy_nd& copy, const int64_t* strides, uint64_t* out_before, uint64_t* out_bytes) {
  int64_t low = 0;
  int64_t high = 0;
  for (uint32_t i = 0; i < copy.ndim; ++i) {
    int64_t reach = 0;
    if (copy.sizes[i] < 0 || __builtin_mul_overflow(copy.sizes[i] - 1, strides[i], &reach)) return false;
    if (__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) return false;
  }
  int64_t elements = 0;
  if (__builtin_sub_overflow(high, low, &elements) || __builtin_add_overflow(elements, 1, &elements)) return false;
  const uint64_t size = copy.element_size;
  *out_before = static_cast<uint64_t>(-low) * size;
  return !__builtin_mul_overflow(static_cast<uint64_t>(elements), size, out_bytes);
}

ob_status translate_side(Driver& driver, const ob_copy_nd& copy, int32_t index, uint64_t address,
                         const int64_t* strides, void** out_host) {
  uint64_t before = 0;
  uint64_t bytes = 0;
  if (!extent(copy, strides, &before, &bytes)) {
    return fail(OB_OUT_OF_RANGE, "device %d: copy_nd_async with sizes or strides that exceed 64 bits", index);
  }
  const ob_status status = translate(driver, index, address - before, bytes, out_host);
  *out_host = static_cast<char*>(*out_host) + before;
  return status;
}

ob_status copy_nd_async(void* self, int32_t index, uint64_t handle, const ob_copy_nd* copy) {
  return enter<Entry::copy_nd_async>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    if (copy->struct_size < sizeof(ob_copy_nd))
      return fail(OB_INVALID_ARGUMENT, "copy_nd_async: the struct_size of ob_copy_nd is too small");
    const uint32_t size = copy->element_size;
    if (size == 0 || size > 16 || (size & (size - 1)) != 0 || copy->ndim > StridedCopy::kMaxDims) {
      return fail(OB_INVALID_ARGUMENT,
                  "device %d: copy_nd_async of %u-byte elements in %u dimensions; it takes 1, 2, 4, "
                  "8 or 16 bytes and up to 64 dimensions",
                  index, size, copy->ndim);
    }
    if (copy->dst_device == OB_HOST || copy->src_device == OB_HOST) {
      return fail(OB_INVALID_ARGUMENT, "device %d: copy_nd_async with host memory; it copies between devices", index);
    }
    ob_status status = check_sides(index, copy->dst_device, copy->src_device);
    if (status != OB_OK) return status;
    for (uint32_t i = 0; i < copy->ndim; ++i) {
      if (copy->sizes[i] == 0) return OB_OK;
    }
    void* dst = nullptr;
    void* src = nullptr;
    status = translate_side(call.driver, *copy, copy->dst_device, copy->dst, copy->dst_strides, &dst);
    if (status == OB_OK) {
      status = translate_side(call.driver, *copy, copy->src_device, copy->src, copy->src_strides, &src);
    }
    if (status != OB_OK) return status;
    auto plan = std::make_unique<StridedCopy>();
    plan_strided_copy(*copy, plan.get());  // its products do not overflow, because both sides lie in memory
    plan->dst = static_cast<char*>(dst);
    plan->src = static_cast<const char*>(src);
    plan->dst_device = copy->dst_device;
    plan->src_device = copy->src_device;
    Task task = {};
    task.work = Work::kStridedCopy;
    task.injected = call.injected;
    task.correlation = correlation(call.driver);
    task.strided = plan.get();
    status = call.driver.queue(stream, handle, task);
    if (status == OB_OK) plan.release();  // the task owns it now, or it is freed with the task
    return status;
  });
}

}  // namespace

void fill_copy_entries(ob_driver* table) {
  table->copy_async = copy_async;
  table->fill_async = fill_async;
  table->copy_nd_async = copy_nd_async;
}

}  // namespace sim

// SPDX-License-Identifier: BSD-3-Clause
// Copies and fills. Copies of whole rows need no kernel, and therefore no compiler.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "driver.h"
#include "strided_source.h"
#include "torch_outboard/support/strided_kernel.h"

namespace vulkan {
namespace {

using support::guarded;
using support::StridedShape;
using support::with_stream;

constexpr uint64_t kStagingBytes = 4 << 20;
constexpr uint64_t kPatternBytes = 16 << 10;   // of a pattern that is written before it is doubled
constexpr uint64_t kMaxRowsWithoutKernel = 16;  // are copied without a kernel
constexpr uint64_t kMaxRowCopies = 64 << 10;  // are copied at all without one
constexpr uint32_t kRowsPerCommand = 1024;

// One side of a copy: a place in a buffer of the stream's device, or host memory.
struct Side {
  VkBuffer buffer = nullptr;  // null: ordinary host memory, or another device's
  uint64_t offset = 0;
  Device* device = nullptr;  // null: the host
  const Buffer* memory = nullptr;
};

ob_status find_side(Driver& driver, int32_t stream_device, int32_t index, uint64_t address, uint64_t bytes,
                    Side* out_side) {
  *out_side = {};
  if (index == OB_HOST) {
    const auto* block = reinterpret_cast<const HostBlock*>(driver.host_memory.owner_of(address, bytes));
    if (block == nullptr || block->device != stream_device) return OB_OK;
    out_side->buffer = block->buffer.buffer;
    out_side->offset = address - reinterpret_cast<uint64_t>(block->buffer.host);
    return OB_OK;
  }
  if (const ob_status status = driver.find_open(index, &out_side->device); status != OB_OK) return status;
  const Device& device = *out_side->device;
  out_side->memory = reinterpret_cast<const Buffer*>(device.memory.owner_of(address, bytes));
  if (out_side->memory == nullptr) {
    const ob_status status = device.memory.check(index, address, bytes);
    return status != OB_OK
               ? status
               : fail(OB_INVALID_ARGUMENT, "device %d: the %" PRIu64 " bytes at 0x%" PRIx64 " span two allocations",
                      index, bytes, address);
  }
  out_side->offset = address - out_side->memory->address;
  if (index == stream_device) out_side->buffer = out_side->memory->buffer;
  return OB_OK;
}

ob_status queue_copy(Stream& stream, VkBuffer dst, uint64_t dst_offset, VkBuffer src, uint64_t src_offset,
                     uint64_t bytes) {
  Batch* batch = nullptr;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  const VkBufferCopy region = {src_offset, dst_offset, bytes};
  stream.device->api.CmdCopyBuffer(batch->commands, src, dst, 1, &region);
  end_command(stream, *batch);
  return OB_OK;
}

// Queue a copy of a few bytes from memory that the caller may change at once.
ob_status queue_small(Stream& stream, VkBuffer dst, uint64_t dst_offset, const void* src, uint64_t bytes) {
  Batch* batch = nullptr;
  Chunk* chunk = nullptr;
  uint64_t offset = 0;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  if (const ob_status status = reserve(stream, *batch, bytes, &chunk, &offset); status != OB_OK) return status;
  std::memcpy(chunk->buffer.host + offset, src, bytes);
  return queue_copy(stream, dst, dst_offset, chunk->buffer.buffer, offset, bytes);
}

// Copy between a buffer and ordinary host memory, through two pieces of pinned memory by turns.
// Waits for all that it reads, and for all but the last two pieces of what it writes.
ob_status copy_staged(Stream& stream, const Side& side, uint64_t host, uint64_t bytes, bool is_to_host, Work work) {
  const std::lock_guard lock(stream.staging_mutex);
  Device& device = *stream.device;
  uint64_t reached[2] = {};  // when a piece of staging memory is free again
  const auto finish = [&](uint64_t at) -> ob_status {
    const int turn = static_cast<int>(at / kStagingBytes % 2);
    if (const ob_status status = wait_for({stream.timeline, reached[turn]}); status != OB_OK) return status;
    if (const ob_status status = take_failure(stream); status != OB_OK) return status;
    std::memcpy(reinterpret_cast<char*>(host + at), stream.staging[turn]->buffer.host,
                std::min(bytes - at, kStagingBytes));
    return OB_OK;
  };
  for (uint64_t at = 0; at < bytes; at += kStagingBytes) {
    const int turn = static_cast<int>(at / kStagingBytes % 2);
    const uint64_t size = std::min(bytes - at, kStagingBytes);
    std::unique_ptr<Chunk>& chunk = stream.staging[turn];
    if (chunk == nullptr) {
      auto made = std::make_unique<Chunk>();
      const ob_status status = make_buffer(device, kStagingBytes, device.host_type, true, &made->buffer);
      if (status != OB_OK) return status;
      chunk = std::move(made);
    }
    if (!is_to_host) {
      // The last copy may have used this piece too.
      if (const ob_status status = wait_for({stream.timeline, chunk->used}); status != OB_OK) return status;
      std::memcpy(chunk->buffer.host, reinterpret_cast<const char*>(host + at), size);
    }
    {
      const std::lock_guard held(stream.mutex);
      work.bytes = size;
      ob_status status = OB_OK;
      {
        const DeviceTiming timed(stream, work);
        status = is_to_host ? queue_copy(stream, chunk->buffer.buffer, 0, side.buffer, side.offset + at, size)
                            : queue_copy(stream, side.buffer, side.offset + at, chunk->buffer.buffer, 0, size);
      }
      if (status != OB_OK) return status;
      chunk->used = reached[turn] = close(stream);
    }
    submit_ready_batches(device);
    if (is_to_host && at >= kStagingBytes) {
      if (const ob_status status = finish(at - kStagingBytes); status != OB_OK) return status;
    }
  }
  return is_to_host ? finish((bytes - 1) / kStagingBytes * kStagingBytes) : OB_OK;
}

// Copy to or from host memory that the device cannot reach, once earlier work is done, because that
// work may write the memory.
ob_status copy_host(Stream& stream, const Side& side, uint64_t host, uint64_t bytes, bool is_to_host,
                    const Work& work) {
  if (const ob_status status = drain(stream); status != OB_OK) return status;
  if (side.memory->host == nullptr) return copy_staged(stream, side, host, bytes, is_to_host, work);
  const HostTiming timed(stream, work);
  char* mapped = side.memory->host + side.offset;
  if (is_to_host) {
    std::memcpy(reinterpret_cast<void*>(host), mapped, bytes);
  } else {
    std::memcpy(mapped, reinterpret_cast<const void*>(host), bytes);
  }
  return OB_OK;
}

// Copy between two devices, through the host. Waits.
ob_status copy_across(Driver& driver, Stream& stream, Side to, Side from, uint64_t bytes, const Work& work) {
  if (const ob_status status = drain(stream); status != OB_OK) return status;
  const HostTiming timed(stream, work);
  Stream* ends[2] = {};
  for (int i = 0; i < 2; ++i) {
    const Device& device = i == 0 ? *from.device : *to.device;
    if (const ob_status status = driver.find_stream(device.index, device.own_stream, &ends[i]); status != OB_OK) {
      return status;
    }
  }
  from.buffer = from.memory->buffer;
  to.buffer = to.memory->buffer;
  const std::unique_ptr<char[]> staging(new char[std::min(bytes, kStagingBytes)]);
  const auto host = reinterpret_cast<uint64_t>(staging.get());
  for (uint64_t done = 0; done < bytes; done += kStagingBytes) {
    const uint64_t size = std::min(bytes - done, kStagingBytes);
    if (const ob_status status = copy_host(*ends[0], from, host, size, true, {}); status != OB_OK) return status;
    if (const ob_status status = copy_host(*ends[1], to, host, size, false, {}); status != OB_OK) return status;
    from.offset += size;
    to.offset += size;
  }
  return drain(*ends[1]);
}

ob_status copy_async(void* self, int32_t index, uint64_t handle, const ob_copy* copy) {
  return guarded("copy_async", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Stream* stream = nullptr;
    Side to;
    Side from;
    if (const ob_status status = driver.find_stream(index, handle, &stream); status != OB_OK) return status;
    if (copy->dst_device != index && copy->src_device != index) {
      return fail(OB_INVALID_ARGUMENT, "device %d cannot copy from device %d to device %d", index, copy->src_device,
                  copy->dst_device);
    }
    ob_status status = find_side(driver, index, copy->dst_device, copy->dst, copy->bytes, &to);
    if (status == OB_OK) status = find_side(driver, index, copy->src_device, copy->src, copy->bytes, &from);
    if (status != OB_OK) return status;
    const Work work = {OB_ACTIVITY_COPY, copy->bytes, copy->src_device, copy->dst_device};
    if (to.device != nullptr && from.device != nullptr && to.device != from.device) {
      return copy_across(driver, *stream, to, from, copy->bytes, work);
    }
    if (to.buffer == nullptr) return copy_host(*stream, from, copy->dst, copy->bytes, true, work);
    if (from.buffer == nullptr) return copy_host(*stream, to, copy->src, copy->bytes, false, work);
    {
      const StreamLock lock(*stream);
      const DeviceTiming timed(*stream, work);
      status = queue_copy(*stream, to.buffer, to.offset, from.buffer, from.offset, copy->bytes);
    }
    if (status == OB_OK) notify(*stream);
    return status;
  });
}

// Write a pattern of 16 bytes repeatedly: one piece from the host, then copies of the written part,
// which doubles each time.
ob_status queue_pattern(Stream& stream, const Side& side, const unsigned char* pattern, uint64_t bytes) {
  unsigned char piece[kPatternBytes];
  const uint64_t first = std::min(bytes, kPatternBytes);
  for (uint64_t at = 0; at < first; at += 16) std::memcpy(piece + at, pattern, std::min<uint64_t>(first - at, 16));
  ob_status status = queue_small(stream, side.buffer, side.offset, piece, first);
  for (uint64_t done = first; status == OB_OK && done < bytes; done *= 2) {
    status =
        queue_copy(stream, side.buffer, side.offset + done, side.buffer, side.offset, std::min(done, bytes - done));
  }
  return status;
}

ob_status queue_fill(Stream& stream, const Side& side, const unsigned char* pattern, uint64_t bytes) {
  const bool is_word = std::memcmp(pattern, pattern + 4, 12) == 0;
  const uint64_t even = is_word && side.offset % 4 == 0 ? bytes / 4 * 4 : 0;
  if (even <= kPatternBytes) return queue_pattern(stream, side, pattern, bytes);
  Batch* batch = nullptr;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  uint32_t word = 0;
  std::memcpy(&word, pattern, sizeof word);
  stream.device->api.CmdFillBuffer(batch->commands, side.buffer, side.offset, even, word);
  end_command(stream, *batch);
  return even == bytes ? OB_OK : queue_small(stream, side.buffer, side.offset + even, pattern, bytes - even);
}

ob_status fill_async(void* self, int32_t index, uint64_t handle, uint64_t dst, const void* pattern,
                     uint32_t pattern_size, uint64_t count) {
  return with_stream<Driver>(self, index, handle, "fill_async", [&](Driver& driver, Stream* stream) -> ob_status {
    const bool is_size =
        pattern_size == 1 || pattern_size == 2 || pattern_size == 4 || pattern_size == 8 || pattern_size == 16;
    if (!is_size || dst % pattern_size != 0 || count > UINT64_MAX / pattern_size) {
      return fail(OB_INVALID_ARGUMENT, "device %d: invalid fill of %" PRIu64 " times %u bytes at 0x%" PRIx64, index,
                  count, pattern_size, dst);
    }
    if (count == 0) return OB_OK;
    Side side;
    const uint64_t bytes = count * pattern_size;
    if (const ob_status status = find_side(driver, index, index, dst, bytes, &side); status != OB_OK) return status;
    unsigned char wide[16];
    for (uint32_t at = 0; at < sizeof wide; at += pattern_size) std::memcpy(wide + at, pattern, pattern_size);
    ob_status status = OB_OK;
    {
      const StreamLock lock(*stream);
      const DeviceTiming timed(*stream, {OB_ACTIVITY_FILL, bytes});
      status = queue_fill(*stream, side, wide, bytes);
    }
    if (status == OB_OK) notify(*stream);
    return status;
  });
}

// Copy row by row. Return OB_UNIMPLEMENTED if the rows are too many for that.
ob_status queue_rows(Stream& stream, const StridedShape& shape, uint64_t element_size, const Side& to,
                     const Side& from) {
  const bool has_rows = shape.ndim > 0 && shape.dst_strides[0] == 1 && shape.src_strides[0] == 1;
  const uint32_t first = has_rows ? 1 : 0;
  const uint64_t bytes = element_size * static_cast<uint64_t>(has_rows ? shape.sizes[0] : 1);
  const uint64_t rows = shape.count * element_size / bytes;
  if (rows > kMaxRowCopies) {
    return fail(OB_UNIMPLEMENTED, "copy_nd_async of %" PRIu64 " rows needs a kernel, which needs Slang", rows);
  }
  std::vector<VkBufferCopy> regions(rows);
  int64_t at[support::kMaxStridedDims] = {};
  for (VkBufferCopy& region : regions) {
    region = {from.offset, to.offset, bytes};
    for (uint32_t d = first; d < shape.ndim; ++d) {
      region.srcOffset += static_cast<uint64_t>(at[d] * shape.src_strides[d]) * element_size;
      region.dstOffset += static_cast<uint64_t>(at[d] * shape.dst_strides[d]) * element_size;
    }
    for (uint32_t d = first; d < shape.ndim && ++at[d] == shape.sizes[d]; ++d) at[d] = 0;
  }
  Batch* batch = nullptr;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  for (size_t i = 0; i < regions.size(); i += kRowsPerCommand) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(kRowsPerCommand, regions.size() - i));
    stream.device->api.CmdCopyBuffer(batch->commands, from.buffer, to.buffer, count, &regions[i]);
  }
  end_command(stream, *batch);
  return OB_OK;
}

// Find one of the driver's own kernels. Their program is built at the device's first use. Without a
// compiler there are no such kernels.
ob_status own_kernel(Driver& driver, Device& device, const std::string& name, uint64_t* out_kernel) {
  const std::lock_guard lock(device.own_mutex);
  if (const auto known = device.own_kernels.find(name); known != device.own_kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  if (device.has_own_failed) return fail(OB_UNIMPLEMENTED, "the kernel for strided copies could not be built");
  if (device.own_program == 0) {
    const char* options = device.found.has_int16() ? "" : "-DOB_NO_INT16";
    const ob_status status =
        program_build(driver, device, kStridedSource, options, Language::kSlang, &device.own_program);
    device.has_own_failed = status != OB_OK;
    if (status != OB_OK) return status;
  }
  const ob_status status = kernel_get(driver, device.index, device.own_program, name.c_str(), out_kernel);
  if (status == OB_OK) device.own_kernels[name] = *out_kernel;
  return status;
}

ob_status launch_copy(Driver& driver, Stream& stream, uint32_t element_size, const support::StridedLaunch& given,
                      const Work& work) {
  const std::string name = given.kernel + std::to_string(element_size);
  uint64_t kernel = 0;
  if (const ob_status status = own_kernel(driver, *stream.device, name, &kernel); status != OB_OK) return status;
  ob_kernel_arg args[3];
  ob_launch launched = support::launch_of(given, kernel, args);
  launched.block[0] = given.columns * given.rows;
  launched.block[1] = 1;
  return launch(driver, *stream.device, stream, launched, work);
}

ob_status copy_nd_async(void* self, int32_t index, uint64_t handle, const ob_copy_nd* copy) {
  return with_stream<Driver>(self, index, handle, "copy_nd_async", [&](Driver& driver, Stream* stream) -> ob_status {
    StridedShape shape;
    if (const ob_status status = support::check_strided(index, *copy, &shape); status != OB_OK) return status;
    if (shape.count == 0) return OB_OK;
    Side to;
    Side from;
    ob_status status = find_side(driver, index, index, copy->dst, support::span_bytes(*copy, copy->dst_strides), &to);
    if (status == OB_OK) {
      status = find_side(driver, index, index, copy->src, support::span_bytes(*copy, copy->src_strides), &from);
    }
    if (status != OB_OK) return status;
    const bool has_rows = shape.ndim > 0 && shape.dst_strides[0] == 1 && shape.src_strides[0] == 1;
    const Work work = {OB_ACTIVITY_COPY, shape.count * copy->element_size, index, index};
    const uint64_t rows = has_rows ? shape.count / static_cast<uint64_t>(shape.sizes[0]) : shape.count;
    if (rows > kMaxRowsWithoutKernel) {
      StridedShape wide = shape;
      uint32_t element_size = support::widen(&wide, copy->element_size, copy->dst, copy->src);
      uint32_t parts = 1;
      if (element_size == 2 && !stream->device->found.has_int16()) {  // bytes that are two apart, twice
        for (uint32_t d = 0; d < wide.ndim; ++d) {
          wide.dst_strides[d] *= 2;
          wide.src_strides[d] *= 2;
        }
        element_size = 1;
        parts = 2;
      }
      Work part = work;
      const auto run = [&](const support::StridedLaunch& given) {
        const ob_status launched = launch_copy(driver, *stream, element_size, given, part);
        part.bytes = 0;  // of the whole copy, so the first launch has them all
        return launched;
      };
      const uint32_t threads = std::min(256u, stream->device->found.properties.limits.maxComputeWorkGroupInvocations);
      for (uint32_t i = 0; i < parts && status == OB_OK; ++i) {
        status = support::for_each_launch(wide, element_size, copy->dst + i, copy->src + i, threads, run);
      }
      if (status == OB_OK || !stream->device->has_own_failed) return status;
    }
    {
      const StreamLock lock(*stream);
      const DeviceTiming timed(*stream, work);
      status = queue_rows(*stream, shape, copy->element_size, to, from);
    }
    if (status == OB_OK) notify(*stream);
    return status;
  });
}

}  // namespace

void fill_copy_entries(ob_driver* table) {
  table->copy_async = copy_async;
  table->fill_async = fill_async;
  table->copy_nd_async = copy_nd_async;
}

}  // namespace vulkan

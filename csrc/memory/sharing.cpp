// SPDX-License-Identifier: BSD-3-Clause
#include "memory/sharing.h"

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/lost_device.h"
#include "memory/caching_allocator.h"
#include "memory/device_heap.h"

namespace outboard {

namespace {

void require_sharing() {
  if (!driver().ipc_export) {
    raise_not_supported("ipc_export", "memory shared between processes");
  }
}

}  // namespace

c10::DeviceIndex device_of_address(uint64_t address) noexcept {
  for (int i = 0; i < device_count(); ++i) {
    if (memory::heap_of(static_cast<c10::DeviceIndex>(i)).owns(address)) {
      return static_cast<c10::DeviceIndex>(i);
    }
  }
  return -1;
}

SharedMemory share_memory(const c10::DataPtr& ptr) {
  require_sharing();
  const memory::Block* block = memory::block_of(ptr);
  if (!block) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          "a process can share only memory that it allocated, and this memory is foreign (from_blob, or"
          " received from another process): clone the tensor first");
  }
  // Live memory keeps its segment, whose description does not change.
  const memory::Segment& segment = *block->segment;
  if (segment.is_expandable) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          "memory of an expandable segment can't be shared with another process: drivers export whole allocations. Run"
          " without PYTORCH_ALLOC_CONF=expandable_segments:True");
  }
  if (segment.source) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          "memory of a pluggable allocator can't be shared with another process: the driver did not allocate it. Clone"
          " the tensor into memory of the driver first");
  }
  const c10::DeviceIndex device = ptr.device().index();
  ensure_usable(device);
  SharedMemory result;
  result.segment_bytes = segment.size;
  result.offset = block->address - segment.address;
  result.handle.resize(64);
  for (bool may_grow = true;; may_grow = false) {
    size_t size = result.handle.size();
    const ob_status status = driver().ipc_export(driver().self, device, segment.address, result.handle.data(), &size);
    if (status == OB_OUT_OF_RANGE && may_grow && size > result.handle.size()) {
      result.handle.resize(size);
      continue;
    }
    if (is_unimplemented(status)) {
      raise_not_supported("ipc_export", "memory shared between processes");
    }
    check(status, "ipc_export", device);
    result.handle.resize(size);
    return result;
  }
}

uint64_t open_shared_memory(c10::DeviceIndex device, const std::string& handle) {
  require_sharing();
  check_device_index(device);
  ensure_open(device);
  uint64_t address = 0;
  const TrackedCall noted("ipc_open", device);
  const ob_status status = driver().ipc_open(driver().self, device, handle.data(), handle.size(), &address);
  if (status == OB_NOT_FOUND) {
    raise(ErrorKind::InvalidArgument, status,
          "memory shared by another process is gone: keep that process and its tensor alive until this process has"
          " received it. The driver reported: " +
              last_driver_error());
  }
  check(status, "ipc_open", device);
  if (address == 0) {
    raise(ErrorKind::Driver, OB_INTERNAL, "driver '" + driver_name() + "': ipc_open returned OK with a null address");
  }
  return address;
}

void close_shared_memory(c10::DeviceIndex device, uint64_t address) {
  require_sharing();
  check_device_index(device);
  if (!is_lost(device)) {
    OB_CALL(ipc_close, device, address);
  }
}

}  // namespace outboard

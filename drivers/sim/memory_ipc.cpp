// SPDX-License-Identifier: BSD-3-Clause
// Sharing allocations with other processes, with the option `ipc`.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.h"
#include "memory.h"

namespace sim {
namespace {

// The memory file is opened as /proc/PID/fd/N, which any process of the same user may open. Inode
// and device show whether it is still the same file.
struct Handle {
  uint64_t magic;
  uint64_t inode;
  uint64_t filesystem;
  uint64_t offset;
  uint64_t bytes;
  int32_t process;
  int32_t file;
};

constexpr uint64_t kMagic = 0x31'6370'696d'6973'62;

}  // namespace

ob_status DeviceMemory::export_handle(uint64_t address, void* out_handle, size_t* inout_size) {
  if (*inout_size < sizeof(Handle)) {
    *inout_size = sizeof(Handle);
    return fail(OB_OUT_OF_RANGE, "device %d: a handle has %zu bytes", device_, sizeof(Handle));
  }
  std::lock_guard lock(mutex_);
  const auto entry = regions_.find(address);
  if (entry == regions_.end() || entry->second.kind != Kind::kAllocation) {
    return fail(OB_INVALID_ARGUMENT, "device %d: ipc_export of 0x%" PRIx64 ", which mem_alloc did not return", device_,
                address);
  }
  struct stat status = {};
  if (fstat(file_, &status) != 0) return fail(OB_INTERNAL, "device %d: fstat: %s", device_, std::strerror(errno));
  const auto offset = static_cast<uint64_t>(host(address) - static_cast<char*>(host_mapping_));
  const Handle handle = {kMagic, status.st_ino, status.st_dev, offset, entry->second.bytes, getpid(), file_};
  std::memcpy(out_handle, &handle, sizeof handle);
  *inout_size = sizeof handle;
  return OB_OK;
}

ob_status DeviceMemory::open_handle(const void* handle_bytes, size_t size, uint64_t* out_address) {
  Handle handle = {};
  if (size == sizeof handle) std::memcpy(&handle, handle_bytes, sizeof handle);
  if (handle.magic != kMagic) {
    return fail(OB_INVALID_ARGUMENT, "device %d: ipc_open of %zu bytes that are not a handle", device_, size);
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0 || status.st_ino != handle.inode || status.st_dev != handle.filesystem ||
      handle.bytes == 0 || handle.offset > static_cast<uint64_t>(status.st_size) ||
      handle.bytes > static_cast<uint64_t>(status.st_size) - handle.offset) {
    if (file >= 0) ::close(file);
    return fail(OB_NOT_FOUND,
                "device %d: ipc_open: process %d has exited, has closed its device, or belongs to another "
                "user",
                device_, handle.process);
  }
  std::lock_guard lock(mutex_);
  const uint64_t address = handle.bytes <= span_ ? addresses_.take(handle.bytes, kMapGranularity) : 0;
  void* mapped = MAP_FAILED;
  if (address != 0) {
    mapped = mmap(host(address), handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                  static_cast<off_t>(handle.offset));
  }
  const int reason = errno;
  ::close(file);
  if (mapped == MAP_FAILED) {
    if (address != 0) addresses_.give(address, handle.bytes);
    return fail(OB_OUT_OF_MEMORY, "device %d: ipc_open of %s: %s", device_, size_text(handle.bytes).c_str(),
                address == 0 ? "no address range is left" : std::strerror(reason));
  }
  regions_.emplace(address, Region{Kind::kForeign, handle.bytes, handle.bytes, {}});
  *out_address = address;
  return OB_OK;
}

ob_status DeviceMemory::close_handle(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto entry = regions_.find(address);
  if (entry == regions_.end() || entry->second.kind != Kind::kForeign) {
    return fail(OB_INVALID_ARGUMENT,
                "device %d: ipc_close of 0x%" PRIx64 ", which ipc_open did not return, or which was already closed",
                device_, address);
  }
  // Map the device's own file again, inaccessible.
  const auto offset = host(address) - static_cast<char*>(host_mapping_);
  if (mmap(host(address), entry->second.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, offset) ==
      MAP_FAILED) {
    return fail(OB_INTERNAL, "device %d: ipc_close: mmap: %s", device_, std::strerror(errno));
  }
  addresses_.give(address, entry->second.span);
  regions_.erase(entry);
  return OB_OK;
}

}  // namespace sim

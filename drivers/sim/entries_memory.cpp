// SPDX-License-Identifier: BSD-3-Clause
// The entries about device memory.
#include "entries.h"

namespace sim {
namespace {

ob_status mem_alloc(void* self, int32_t index, uint64_t bytes, uint64_t* out_address) {
  return enter_device<Entry::mem_alloc>(
      self, index, [&](const Call&, Device& device) { return device.memory.allocate(bytes, out_address); });
}

ob_status mem_free(void* self, int32_t index, uint64_t address) {
  return enter_device<Entry::mem_free>(self, index,
                                       [&](const Call&, Device& device) { return device.memory.free(address); });
}

ob_status mem_info(void* self, int32_t index, uint64_t* out_free, uint64_t* out_total) {
  return enter_device<Entry::mem_info>(
      self, index, [&](const Call&, Device& device) { return device.memory.info(out_free, out_total); });
}

ob_status host_address(void* self, int32_t index, uint64_t address, uint64_t bytes, uint64_t* out_address) {
  return enter_device<Entry::host_address>(self, index, [&](const Call&, Device& device) {
    void* host = nullptr;
    const ob_status status = device.memory.translate(address, bytes, &host);
    *out_address = reinterpret_cast<uint64_t>(host);
    return status;
  });
}

ob_status mem_reserve(void* self, int32_t index, uint64_t bytes, uint64_t* out_address) {
  return enter_device<Entry::mem_reserve>(
      self, index, [&](const Call&, Device& device) { return device.memory.reserve(bytes, out_address); });
}

ob_status mem_release(void* self, int32_t index, uint64_t address, uint64_t bytes) {
  return enter_device<Entry::mem_release>(
      self, index, [&](const Call&, Device& device) { return device.memory.release(address, bytes); });
}

ob_status mem_map(void* self, int32_t index, uint64_t address, uint64_t bytes) {
  return enter_device<Entry::mem_map>(self, index,
                                      [&](const Call&, Device& device) { return device.memory.map(address, bytes); });
}

ob_status mem_unmap(void* self, int32_t index, uint64_t address, uint64_t bytes) {
  return enter_device<Entry::mem_unmap>(
      self, index, [&](const Call&, Device& device) { return device.memory.unmap(address, bytes); });
}

ob_status ipc_export(void* self, int32_t index, uint64_t address, void* out_handle, size_t* inout_size) {
  return enter_device<Entry::ipc_export>(self, index, [&](const Call&, Device& device) {
    return device.memory.export_handle(address, out_handle, inout_size);
  });
}

ob_status ipc_open(void* self, int32_t index, const void* handle, size_t size, uint64_t* out_address) {
  return enter_device<Entry::ipc_open>(
      self, index, [&](const Call&, Device& device) { return device.memory.open_handle(handle, size, out_address); });
}

ob_status ipc_close(void* self, int32_t index, uint64_t address) {
  return enter_device<Entry::ipc_close>(
      self, index, [&](const Call&, Device& device) { return device.memory.close_handle(address); });
}

}  // namespace

void fill_memory_entries(ob_driver* table, bool has_ipc) {
  table->mem_alloc = mem_alloc;
  table->mem_free = mem_free;
  table->mem_info = mem_info;
  table->host_address = host_address;
  table->mem_reserve = mem_reserve;
  table->mem_release = mem_release;
  table->mem_map = mem_map;
  table->mem_unmap = mem_unmap;
  if (!has_ipc) return;
  table->ipc_export = ipc_export;
  table->ipc_open = ipc_open;
  table->ipc_close = ipc_close;
}

}  // namespace sim

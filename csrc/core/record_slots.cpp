// SPDX-License-Identifier: BSD-3-Clause
#include "core/record_slots.h"

#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "core/blocking.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"

namespace outboard {

namespace {

constexpr size_t kRecords = 1024;  // in a block: more than a device has pooled streams
constexpr size_t kBlockBytes = kRecords * sizeof(KernelRecord);

// Never freed: queued kernels write there.
struct Block {
  RecordSlot first;
  size_t used = 0;
};

struct Slots {
  std::mutex mutex;
  std::deque<Block> blocks;
  std::vector<RecordSlot> free;  // that were returned
};

Slots& slots_of(c10::DeviceIndex device) {
  static auto* const all = new Slots[kMaxDevices];
  return all[device];
}

// Return null if the driver pins no memory.
void* new_pinned_memory() {
  void* memory = nullptr;
  if (driver().host_alloc) {
    const TrackedCall noted("host_alloc", OB_HOST);
    const ob_status status = driver().host_alloc(driver().self, kBlockBytes, &memory);
    if (is_unimplemented(status)) {
      return nullptr;
    }
    check(status, "host_alloc", OB_HOST);
  }
  return memory;
}

Block new_block(c10::DeviceIndex device) {
  RecordSlot first;
  void* memory = nullptr;
  if (device_properties(device).addresses_host_memory != 0) {
    memory = new_pinned_memory();
    first.address = reinterpret_cast<uint64_t>(memory);
  }
  if (memory == nullptr) {
    OB_CALL(mem_alloc, device, kBlockBytes, &first.address);
    uint64_t host = 0;
    if (driver().host_address) {
      OB_CALL(host_address, device, first.address, kBlockBytes, &host);
    }
    memory = reinterpret_cast<void*>(host);
  }
  if (memory == nullptr) {
    first.is_copied = true;
    memory = new_pinned_memory();
  }
  if (memory == nullptr) {
    memory = ::operator new(kBlockBytes, std::align_val_t{alignof(KernelRecord)});
  }
  first.host = static_cast<KernelRecord*>(memory);
  std::memset(static_cast<void*>(first.host), 0, kBlockBytes);
  return {first, 0};
}

bool take_slot(Slots& slots, RecordSlot* out_slot) {
  if (!slots.free.empty()) {
    *out_slot = slots.free.back();
    slots.free.pop_back();
    return true;
  }
  if (slots.blocks.empty() || slots.blocks.back().used == kRecords) {
    return false;
  }
  Block& block = slots.blocks.back();
  *out_slot = block.first;
  out_slot->address += block.used * sizeof(KernelRecord);
  out_slot->host += block.used;
  ++block.used;
  return true;
}

}  // namespace

// If two threads find no slot, both may add a block; one block then stays unused.
RecordSlot take_record_slot(c10::DeviceIndex device) {
  Slots& slots = slots_of(device);
  RecordSlot slot;
  {
    const std::lock_guard lock(slots.mutex);
    if (take_slot(slots, &slot)) {
      return slot;
    }
  }
  const Block fresh = new_block(device);  // calls the driver
  const std::lock_guard lock(slots.mutex);
  slots.blocks.push_back(fresh);
  static_cast<void>(take_slot(slots, &slot));
  return slot;
}

void give_record_slot(c10::DeviceIndex device, const RecordSlot& slot) noexcept {
  Slots& slots = slots_of(device);
  const std::lock_guard lock(slots.mutex);
  try {
    slots.free.push_back(slot);
  } catch (const std::bad_alloc&) {  // the slot stays unused
  }
}

}  // namespace outboard

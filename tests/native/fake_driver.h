// SPDX-License-Identifier: BSD-3-Clause
// A driver in the test's own process, for the parts of the core that need no real device. Its
// memory is malloc's; its streams do nothing by themselves: a test queues work that touches a
// range, and says when it is done. It fails on the n-th call when told to, remembers what is live,
// and aborts when the core breaks a rule of driver.h.
#pragma once

#include <sys/mman.h>
#include <torch_outboard/driver.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace fake {

constexpr int kDevices = 4;

[[noreturn]] inline void broken(const char* rule) {
  std::fprintf(stderr, "the core broke a rule of driver.h: %s\n", rule);
  std::abort();
}

struct Work {
  uint64_t ticket;
  uint64_t address;
  uint64_t bytes;
};

// A queue whose entries are numbered: all up to `done` are done.
struct StreamState {
  int32_t device = 0;
  uint64_t queued = 0;
  uint64_t done = 0;
  std::vector<Work> work;
};

struct EventState {
  uint64_t stream = ~uint64_t{0};
  uint64_t ticket = 0;
};

struct Driver {
  std::mutex mutex;
  std::array<std::map<uint64_t, uint64_t>, kDevices> memory;  // address to bytes
  std::array<uint64_t, kDevices> used{};
  std::array<uint64_t, kDevices> capacity;
  std::array<std::map<uint64_t, uint64_t>, kDevices> ranges;  // reserved: address to bytes
  std::array<std::map<uint64_t, uint64_t>, kDevices> mapped;  // address to bytes
  std::array<bool, kDevices> has_reserved{};                  // ever
  std::map<void*, uint64_t> host_memory;
  std::vector<StreamState> streams;
  std::map<uint64_t, EventState> events;
  uint64_t next_event = 1;

  uint64_t calls = 0;      // since the last set_fault
  uint64_t fault_at = 0;   // the number of the call that fails; 0: none
  ob_status fault = OB_OK;
  const char* faulty_entry = "";
  uint64_t refused = 0;    // mem_allocs that found no room
  bool has_host_address = true;
  std::function<uint64_t(uint64_t)> change_address;  // what mem_alloc gives instead of its address
  std::function<void(int32_t)> on_entry;             // called first by each entry that names a device
  std::function<void()> on_mem_free;
  std::function<void()> on_refusal;

  Driver() { capacity.fill(uint64_t{4} << 30); }

  void set_fault(uint64_t at, ob_status status) {
    const std::lock_guard lock(mutex);
    calls = 0;
    fault_at = at;
    fault = status;
    faulty_entry = "";
  }

  // The entry that failed since set_fault, "" if none did.
  std::string last_fault() {
    const std::lock_guard lock(mutex);
    return faulty_entry;
  }

  bool was_fault_reached() {
    const std::lock_guard lock(mutex);
    return calls >= fault_at;
  }

  ob_status enter(int32_t device, const char* entry) {
    if (on_entry) {
      on_entry(device);
    }
    const std::lock_guard lock(mutex);
    if (++calls != fault_at) {
      return OB_OK;
    }
    faulty_entry = entry;
    return fault;
  }

  uint64_t queue_work(uint64_t stream, uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex);
    StreamState& state = streams[stream];
    state.work.push_back({++state.queued, address, bytes});
    return state.queued;
  }

  void finish(uint64_t stream, uint64_t ticket) {
    const std::lock_guard lock(mutex);
    finish_locked(stream, ticket);
  }

  void finish_locked(uint64_t stream, uint64_t ticket) {
    StreamState& state = streams[stream];
    state.done = std::max(state.done, std::min(ticket, state.queued));
    std::erase_if(state.work, [&](const Work& work) { return work.ticket <= state.done; });
  }

  uint64_t finish_all(uint64_t stream) {
    const std::lock_guard lock(mutex);
    finish_locked(stream, streams[stream].queued);
    return streams[stream].queued;
  }

  // Whether unfinished work of a stream other than `except` touches the range.
  bool is_in_use(int32_t device, uint64_t address, uint64_t bytes, uint64_t except = ~uint64_t{0}) {
    const std::lock_guard lock(mutex);
    return is_in_use_locked(device, address, bytes, except);
  }

  bool is_in_use_locked(int32_t device, uint64_t address, uint64_t bytes, uint64_t except) {
    for (uint64_t i = 0; i < streams.size(); ++i) {
      if (i == except || streams[i].device != device) {
        continue;
      }
      for (const Work& work : streams[i].work) {
        if (work.address < address + bytes && address < work.address + work.bytes) {
          return true;
        }
      }
    }
    return false;
  }

  uint64_t live_bytes(int device) {
    const std::lock_guard lock(mutex);
    return used[static_cast<size_t>(device)];
  }

  uint64_t live_ranges(int device) {
    const std::lock_guard lock(mutex);
    return ranges[static_cast<size_t>(device)].size();
  }
};

inline Driver& driver() {
  static auto* const made = new Driver();
  return *made;
}

inline ob_status mem_alloc(void*, int32_t device, uint64_t bytes, uint64_t* out) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const auto i = static_cast<size_t>(device);
  {
    const std::lock_guard lock(d.mutex);
    if (bytes == 0) {
      broken("mem_alloc of 0 bytes");
    }
    if (bytes <= d.capacity[i] - d.used[i]) {
      const auto address = reinterpret_cast<uint64_t>(std::aligned_alloc(4096, bytes));
      *out = d.change_address ? d.change_address(address) : address;
      if (*out == 0) {
        std::free(reinterpret_cast<void*>(address));
        return OB_OK;
      }
      d.memory[i][*out] = bytes;
      d.used[i] += bytes;
      return OB_OK;
    }
    ++d.refused;
  }
  if (d.on_refusal) {
    d.on_refusal();
  }
  return OB_OUT_OF_MEMORY;
}

inline ob_status mem_free(void*, int32_t device, uint64_t address) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  if (d.on_mem_free) {
    d.on_mem_free();
  }
  const auto i = static_cast<size_t>(device);
  const std::lock_guard lock(d.mutex);
  const auto it = d.memory[i].find(address);
  if (it == d.memory[i].end()) {
    broken("mem_free of what mem_alloc did not give");
  }
  if (d.is_in_use_locked(device, address, it->second, ~uint64_t{0})) {
    broken("mem_free while queued work uses the memory");
  }
  d.used[i] -= it->second;
  d.memory[i].erase(it);
  std::free(reinterpret_cast<void*>(address & ~uint64_t{4095}));
  return OB_OK;
}

constexpr uint64_t kGranularity = uint64_t{2} << 20;

inline ob_status mem_reserve(void*, int32_t device, uint64_t bytes, uint64_t* out) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  if (bytes == 0 || bytes % kGranularity != 0) {
    broken("mem_reserve of no whole number of pages");
  }
  // A page more than asked for, to align what is given.
  void* base = mmap(nullptr, bytes + kGranularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return OB_OUT_OF_MEMORY;
  }
  const uint64_t start = reinterpret_cast<uint64_t>(base);
  *out = (start + kGranularity - 1) / kGranularity * kGranularity;
  if (*out != start) {
    munmap(base, *out - start);
  }
  if (const uint64_t rest = start + kGranularity - *out) {
    munmap(reinterpret_cast<void*>(*out + bytes), rest);
  }
  const std::lock_guard lock(d.mutex);
  d.ranges[static_cast<size_t>(device)][*out] = bytes;
  d.has_reserved[static_cast<size_t>(device)] = true;
  return OB_OK;
}

inline ob_status mem_release(void*, int32_t device, uint64_t address, uint64_t bytes) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const auto i = static_cast<size_t>(device);
  const std::lock_guard lock(d.mutex);
  const auto it = d.ranges[i].find(address);
  if (it == d.ranges[i].end() || it->second != bytes) {
    broken("mem_release of what mem_reserve did not give");
  }
  const auto mapped = d.mapped[i].lower_bound(address);
  if (mapped != d.mapped[i].end() && mapped->first < address + bytes) {
    broken("mem_release of a range with memory in it");
  }
  munmap(reinterpret_cast<void*>(address), bytes);
  d.ranges[i].erase(it);
  return OB_OK;
}

inline ob_status mem_map(void*, int32_t device, uint64_t address, uint64_t bytes) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const auto i = static_cast<size_t>(device);
  const std::lock_guard lock(d.mutex);
  auto range = d.ranges[i].upper_bound(address);
  if (range == d.ranges[i].begin() || address % kGranularity != 0 || bytes % kGranularity != 0 || bytes == 0 ||
      address + bytes > std::prev(range)->first + std::prev(range)->second) {
    broken("mem_map outside of a reserved range, or of no whole pages");
  }
  if (bytes > d.capacity[i] - d.used[i]) {
    ++d.refused;
    return OB_OUT_OF_MEMORY;
  }
  for (uint64_t page = address; page < address + bytes; page += kGranularity) {
    if (!d.mapped[i].emplace(page, kGranularity).second) {
      broken("mem_map of what is mapped");
    }
  }
  mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
  d.used[i] += bytes;
  return OB_OK;
}

inline ob_status mem_unmap(void*, int32_t device, uint64_t address, uint64_t bytes) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const auto i = static_cast<size_t>(device);
  const std::lock_guard lock(d.mutex);
  if (d.is_in_use_locked(device, address, bytes, ~uint64_t{0})) {
    broken("mem_unmap while queued work uses the memory");
  }
  for (uint64_t page = address; page < address + bytes; page += kGranularity) {
    if (d.mapped[i].erase(page) != 1) {
      broken("mem_unmap of what is not mapped");
    }
  }
  // Whoever touches it now faults.
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
  d.used[i] -= bytes;
  return OB_OK;
}

inline ob_status copy_async(void*, int32_t device, uint64_t, const ob_copy* copy) {
  if (const ob_status status = driver().enter(device, __func__); status != OB_OK) {
    return status;
  }
  std::memcpy(reinterpret_cast<void*>(copy->dst), reinterpret_cast<const void*>(copy->src), copy->bytes);
  return OB_OK;
}

inline ob_status stream_create(void*, int32_t device, int32_t, uint64_t* out) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  *out = d.streams.size();
  d.streams.push_back({device, 0, 0, {}});
  return OB_OK;
}

inline ob_status stream_destroy(void*, int32_t device, uint64_t) {
  return driver().enter(device, __func__);
}

inline ob_status stream_synchronize(void*, int32_t device, uint64_t stream) {
  if (const ob_status status = driver().enter(device, __func__); status != OB_OK) {
    return status;
  }
  driver().finish_all(stream);
  return OB_OK;
}

inline ob_status event_create(void*, int32_t device, uint32_t, uint64_t* out) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  *out = d.next_event++;
  d.events[*out] = {};
  return OB_OK;
}

inline ob_status event_destroy(void*, int32_t device, uint64_t event) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  d.events.erase(event);
  return OB_OK;
}

inline ob_status event_record(void*, int32_t device, uint64_t stream, uint64_t event) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  d.events.at(event) = {stream, d.streams[stream].queued};
  return OB_OK;
}

inline ob_status event_query(void*, int32_t device, uint64_t event) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  const EventState& state = d.events.at(event);
  return state.stream == ~uint64_t{0} || d.streams[state.stream].done >= state.ticket ? OB_OK : OB_NOT_READY;
}

inline ob_status event_synchronize(void*, int32_t device, uint64_t event) {
  Driver& d = driver();
  if (const ob_status status = d.enter(device, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  const EventState& state = d.events.at(event);
  d.finish_locked(state.stream, state.ticket);
  return OB_OK;
}

inline ob_status stream_wait_event(void*, int32_t device, uint64_t, int32_t, uint64_t) {
  return driver().enter(device, __func__);
}

inline ob_status device_properties(void*, int32_t device, ob_device_properties* out) {
  std::strcpy(out->name, "fake");
  out->total_memory = driver().capacity[static_cast<size_t>(device)];
  out->mem_granularity = kGranularity;
  return OB_OK;
}

inline ob_status host_alloc(void*, uint64_t bytes, void** out) {
  Driver& d = driver();
  if (const ob_status status = d.enter(OB_HOST, __func__); status != OB_OK) {
    return status;
  }
  *out = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  const std::lock_guard lock(d.mutex);
  d.host_memory[*out] = bytes;
  return OB_OK;
}

inline ob_status host_free(void*, void* pointer) {
  Driver& d = driver();
  if (const ob_status status = d.enter(OB_HOST, __func__); status != OB_OK) {
    return status;
  }
  const std::lock_guard lock(d.mutex);
  if (d.host_memory.erase(pointer) != 1) {
    broken("host_free of what host_alloc did not give");
  }
  std::free(pointer);
  return OB_OK;
}

// Host addresses are the device's plus 2^40: a translation, which no test may touch.
constexpr uint64_t kHostDelta = uint64_t{1} << 40;

inline ob_status host_address(void*, int32_t device, uint64_t address, uint64_t, uint64_t* out) {
  if (const ob_status status = driver().enter(device, __func__); status != OB_OK) {
    return status;
  }
  *out = driver().has_host_address ? address + kHostDelta : 0;
  return OB_OK;
}

inline ob_driver table() {
  ob_driver t{};
  t.struct_size = sizeof(t);
  t.abi_major = OB_ABI_MAJOR;
  t.abi_minor = OB_ABI_MINOR;
  t.device_count = [](void*) -> int32_t { return kDevices; };
  t.device_properties = device_properties;
  t.mem_alloc = mem_alloc;
  t.mem_free = mem_free;
  t.mem_reserve = mem_reserve;
  t.mem_release = mem_release;
  t.mem_map = mem_map;
  t.mem_unmap = mem_unmap;
  t.copy_async = copy_async;
  t.stream_create = stream_create;
  t.stream_destroy = stream_destroy;
  t.stream_synchronize = stream_synchronize;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = event_record;
  t.event_query = event_query;
  t.event_synchronize = event_synchronize;
  t.stream_wait_event = stream_wait_event;
  t.host_alloc = host_alloc;
  t.host_free = host_free;
  t.host_address = host_address;
  return t;
}

}  // namespace fake

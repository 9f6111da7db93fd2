// SPDX-License-Identifier: BSD-3-Clause
// What the programs that test the allocators in this process share: checks that
// abort, and what holds at any time.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>

#include "core/device.h"
#include "core/driver.h"
#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "memory/host_allocator.h"
#include "memory/management.h"
#include "tests/native/fake_driver.h"

namespace checks {

using c10::DataPtr;
using outboard::allocate;
using outboard::Stream;

constexpr size_t KiB = 1024;
constexpr size_t MiB = 1024 * KiB;

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);       \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

template <typename Error, typename F>
std::string check_raises(F f, const std::string& part) {
  try {
    f();
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.find(part) == std::string::npos) {
      std::fprintf(stderr, "expected '%s' in: %s\n", part.c_str(), what.c_str());
      std::abort();
    }
    return what;
  }
  std::fprintf(stderr, "nothing was raised; expected: %s\n", part.c_str());
  std::abort();
}

inline uint64_t address_of(const DataPtr& ptr) {
  return reinterpret_cast<uint64_t>(ptr.get());
}

inline c10::DeviceAllocator& allocator() {
  return outboard::device_allocator();
}

inline auto stats_of(int device) {
  return allocator().getDeviceStats(static_cast<c10::DeviceIndex>(device));
}

inline Stream& stream_of(int device, int index) {
  auto& stream = index == 0 ? outboard::default_stream(static_cast<c10::DeviceIndex>(device))
                            : outboard::get_stream(static_cast<c10::DeviceIndex>(device), index);
  outboard::stream_handle(stream);
  return stream;
}

// Everything is freed: the device has no memory of ours.
inline void check_empty(int device) {
  for (int i = 0; i < 8; ++i) {
    fake::driver().finish_all(stream_of(device, i).handle);
  }
  outboard::process_deferred(static_cast<c10::DeviceIndex>(device));
  allocator().emptyCache();
  const auto stats = stats_of(device);
  CHECK(fake::driver().live_bytes(device) == 0 && fake::driver().live_ranges(device) == 0);
  for (const auto* array :
       {&stats.allocation, &stats.active, &stats.segment, &stats.inactive_split, &stats.allocated_bytes,
        &stats.active_bytes, &stats.reserved_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (const auto& stat : *array) {
      CHECK(stat.current == 0);
    }
  }
  CHECK(stats.oversize_allocations.current == 0 && stats.oversize_segments.current == 0);
}

// What holds at any time: segments are covered by their blocks, no two free
// neighbours, statistics are the sums.
inline void check_consistent(int device) {
  const auto segments = outboard::memory_snapshot(static_cast<c10::DeviceIndex>(device));
  const auto stats = stats_of(device);
  struct Sums {
    int64_t segment = 0, reserved = 0, allocation = 0, allocated = 0, active = 0, active_bytes = 0, requested = 0,
            inactive_split = 0, inactive_split_bytes = 0;
  } sums[3];
  for (const auto& segment : segments) {
    for (const int type : {0, segment.is_large ? 2 : 1}) {
      Sums& s = sums[type];
      ++s.segment;
      s.reserved += static_cast<int64_t>(segment.total_size);
      size_t covered = 0;
      bool is_last_free = false;
      for (const auto& block : segment.blocks) {
        const auto size = static_cast<int64_t>(block.size);
        CHECK(block.size > 0 && block.size % 512 == 0);
        covered += block.size;
        CHECK(block.active || !is_last_free);
        is_last_free = !block.active;
        if (block.active) {
          ++s.active;
          s.active_bytes += size;
          s.requested += static_cast<int64_t>(block.requested_size);
        } else if (segment.blocks.size() > 1 || segment.is_expandable) {
          ++s.inactive_split;
          s.inactive_split_bytes += size;
        }
        if (block.allocated) {
          ++s.allocation;
          s.allocated += size;
        }
      }
      CHECK(covered == segment.total_size);
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    if (fake::driver().live_ranges(device) == 0) {  // it shows as one for each mapped range
      CHECK(stats.segment[i].current == sums[i].segment);
    }
    CHECK(stats.reserved_bytes[i].current == sums[i].reserved);
    CHECK(stats.allocation[i].current == sums[i].allocation);
    CHECK(stats.allocated_bytes[i].current == sums[i].allocated);
    CHECK(stats.active[i].current == sums[i].active);
    CHECK(stats.active_bytes[i].current == sums[i].active_bytes);
    CHECK(stats.requested_bytes[i].current == sums[i].requested);
    CHECK(stats.inactive_split[i].current == sums[i].inactive_split);
    CHECK(stats.inactive_split_bytes[i].current == sums[i].inactive_split_bytes);
    for (const auto* array :
         {&stats.segment, &stats.reserved_bytes, &stats.allocation, &stats.allocated_bytes, &stats.active,
          &stats.active_bytes, &stats.requested_bytes, &stats.inactive_split, &stats.inactive_split_bytes}) {
      CHECK((*array)[i].allocated - (*array)[i].freed == (*array)[i].current);
      CHECK((*array)[i].peak >= (*array)[i].current);
    }
  }
  // What was mapped in pieces is unmapped in others.
  if (!fake::driver().has_reserved[static_cast<size_t>(device)]) {
    CHECK(stats.num_device_alloc - stats.num_device_free == stats.segment[0].current);
  }
  CHECK(fake::driver().live_bytes(device) == static_cast<uint64_t>(stats.reserved_bytes[0].current));
}

inline void set_config(const std::string& text) {
  c10::CachingAllocator::setAllocatorSettings(text);
}

// Call it first: the driver of this process is the one that counts.
inline void install_fake() {
  outboard::install_driver("fake", fake::table());
  outboard::set_after_wait(outboard::process_deferred);  // as register_with_torch does
  // Every entry that names a device asks for what takes that device's lock: with
  // the lock held it would hang here.
  fake::driver().on_entry = [](int32_t device) {
    if (device >= 0) {
      static_cast<void>(allocator().getDeviceStats(static_cast<c10::DeviceIndex>(device)));
    } else {
      static_cast<void>(outboard::host_allocator().get_stats());
    }
  };
}

template <typename F>
void run(const char* name, F&& f) {
  std::printf("%s\n", name);
  std::fflush(stdout);
  f();
}

}  // namespace checks

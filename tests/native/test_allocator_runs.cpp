// SPDX-License-Identifier: BSD-3-Clause
// The allocators against a driver in this process: every driver call failing in turn, a random run
// against a model, threads. The optional argument is the number of steps of the random run.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/device.h"
#include "memory/caching_allocator.h"
#include "memory/host_allocator.h"
#include "memory/management.h"
#include "tests/native/allocator_checks.h"
#include "tests/native/fake_driver.h"

namespace {

using namespace checks;

// The k-th driver call fails, k = 1, 2, 3, …, until the workload runs through.
void test_faults(bool is_expandable) {
  fake::Driver& d = fake::driver();
  constexpr int device = 1;
  d.capacity[device] = 100 * MiB;
  set_config(is_expandable ? "expandable_segments:True" : "expandable_segments:False");
  for (const ob_status status : {OB_INTERNAL, OB_OUT_OF_MEMORY}) {
    int raised = 0;
    std::set<std::string> failed;
    for (uint64_t k = 1;; ++k) {
      d.set_fault(k, status);
      bool is_through = false;
      try {
        std::vector<DataPtr> live;
        for (const size_t size : {100ul, 5000ul, 3 * MiB, 30 * MiB, 700 * KiB}) {
          live.push_back(allocate(stream_of(device, 0), size));
          live.push_back(allocate(stream_of(device, 1), size / 2));
          outboard::record_stream(live.back(), stream_of(device, 2));
          outboard::record_stream(live.back(), stream_of(device, 3));
          d.queue_work(stream_of(device, 2).handle, address_of(live.back()), size / 2);
        }
        live.erase(live.begin(), live.begin() + 6);
        allocator().emptyCache();                                  // from the middle of expandable segments
        live.push_back(allocate(stream_of(device, 0), 25 * MiB));  // only with parked memory and the other's cache
        outboard::process_deferred(device);
        live.clear();
        allocator().emptyCache();
        outboard::process_deferred(device);
        is_through = !d.was_fault_reached();
      } catch (const c10::Error&) {
        ++raised;
      }
      failed.insert(d.last_fault());
      d.set_fault(0, OB_OK);
      check_consistent(device);
      try {
        outboard::process_deferred(device);
      } catch (const c10::Error&) {
        ++raised;
      }
      check_empty(device);  // the driver has no memory and no address range left
      if (is_through) {
        std::printf("  status %d: each of %llu driver calls failed once, %d failures were raised\n", status,
                    static_cast<unsigned long long>(k - 1), raised);
        CHECK(k > 20 && (raised > 0));
        for (const char* entry : is_expandable ? std::vector{"mem_reserve", "mem_map", "mem_unmap", "mem_release"}
                                               : std::vector{"mem_alloc", "mem_free", "event_record"}) {
          CHECK(failed.contains(entry));
        }
        break;
      }
    }
  }
  set_config("expandable_segments:False");
  d.capacity[device] = uint64_t{4} << 30;
}

// Random steps on one device against a model. It knows each live block's range, and which streams'
// work touches it.
void test_model(uint64_t seed, size_t steps) {
  fake::Driver& d = fake::driver();
  constexpr int device = 3;
  constexpr int streams = 6;
  d.capacity[device] = 96 * MiB;
  struct Live {
    DataPtr ptr;
    size_t bytes;
  };
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<Live> live;
  std::map<uint64_t, uint64_t> ranges;
  size_t ooms = 0;
  size_t requested = 0;
  for (size_t step = 0; step < steps; ++step) {
    const size_t what = below(100);
    Stream& stream = stream_of(device, static_cast<int>(below(streams)));
    if (what < 48) {
      const size_t scale = below(10);
      const size_t bytes = 1 + below(scale < 6 ? 4 * KiB : scale < 9 ? MiB : 12 * MiB);
      try {
        DataPtr ptr = allocate(stream, bytes);
        const uint64_t address = address_of(ptr);
        CHECK(address % 512 == 0);
        // No overlap with another live block, and no work of another stream left in it.
        const auto after = ranges.lower_bound(address);
        CHECK(after == ranges.end() || address + bytes <= after->first);
        CHECK(after == ranges.begin() || std::prev(after)->second <= address);
        CHECK(!d.is_in_use(device, address, bytes, stream.handle));
        ranges[address] = address + bytes;
        if (below(2)) {
          d.queue_work(stream.handle, address, bytes);
        }
        requested += bytes;
        live.push_back({std::move(ptr), bytes});
      } catch (const c10::OutOfMemoryError&) {
        ++ooms;
      }
    } else if (what < 88 && !live.empty()) {
      const size_t i = below(live.size());
      ranges.erase(address_of(live[i].ptr));
      requested -= live[i].bytes;
      std::swap(live[i], live.back());
      live.pop_back();
    } else if (what < 93 && !live.empty()) {
      const Live& chosen = live[below(live.size())];
      outboard::record_stream(chosen.ptr, stream);
      d.queue_work(stream.handle, address_of(chosen.ptr), chosen.bytes);
    } else if (what < 97) {
      d.finish(stream.handle, below(d.streams[stream.handle].queued + 1));
    } else if (what < 99) {
      outboard::process_deferred(device);
    } else {
      allocator().emptyCache();
    }
    const auto stats = stats_of(device);
    CHECK(stats.allocation[0].current == static_cast<int64_t>(live.size()));
    CHECK(stats.requested_bytes[0].current >= static_cast<int64_t>(requested));
    if (step % 16 == 0) {
      check_consistent(device);
    }
  }
  std::printf("  seed %llu: %zu steps, %zu live at the end, %zu out of memory, %lld segments taken\n",
              static_cast<unsigned long long>(seed), steps, live.size(), ooms,
              static_cast<long long>(stats_of(device).num_device_alloc));
  live.clear();
  check_empty(device);
  d.capacity[device] = uint64_t{4} << 30;
}

void test_threads(size_t steps) {
  constexpr int thread_count = 8;
  std::mutex mutex;
  std::vector<DataPtr> shared(64);
  std::vector<std::thread> threads;
  for (auto& capacity : fake::driver().capacity) {
    capacity = 128 * MiB;
  }
  std::atomic<size_t> ooms{0};
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (size_t i = 0; i < steps; ++i) {
        const int device = static_cast<int>(random() % fake::kDevices);
        Stream& stream = stream_of(device, static_cast<int>(random() % 8));
        const size_t slot = random() % shared.size();
        DataPtr ptr;
        try {
          if (random() % 4 != 0) {
            ptr = allocate(stream, 1 + random() % (random() % 8 == 0 ? 12 * MiB : 64 * KiB));
          }
          if (ptr && random() % 4 == 0) {
            Stream& other = stream_of(device, static_cast<int>(random() % 8));
            outboard::record_stream(ptr, other);
            fake::driver().queue_work(other.handle, address_of(ptr), 1);
          }
          if (random() % 64 == 0) {
            outboard::process_deferred(static_cast<c10::DeviceIndex>(device));
            fake::driver().finish_all(stream.handle);
          }
          if (random() % 512 == 0) {
            allocator().emptyCache();
          }
        } catch (const c10::OutOfMemoryError&) {
          ++ooms;
        }
        {
          const std::lock_guard lock(mutex);
          std::swap(shared[slot], ptr);
        }
        // Freed here, mostly by another thread than allocated it.
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int device = 0; device < fake::kDevices; ++device) {
    outboard::process_deferred(static_cast<c10::DeviceIndex>(device));
    check_consistent(device);
  }
  shared.clear();
  for (int device = 0; device < fake::kDevices; ++device) {
    check_empty(device);
    fake::driver().capacity[static_cast<size_t>(device)] = uint64_t{4} << 30;
  }
  std::printf("  %d threads, %zu steps each, %zu out of memory\n", thread_count, steps, ooms.load());
}

void test_pinned_threads(size_t steps) {
  at::HostAllocator& host = outboard::host_allocator();
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (size_t i = 0; i < steps; ++i) {
        DataPtr ptr = host.allocate(1 + random() % 10000);
        Stream& stream = stream_of(static_cast<int>(random() % 2), static_cast<int>(random() % 3));
        CHECK(outboard::record_host_block(ptr.get(), ptr, stream));
        ptr.clear();
        if (random() % 100 == 0) {
          host.empty_cache();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int device = 0; device < 2; ++device) {
    outboard::process_deferred(static_cast<c10::DeviceIndex>(device));
  }
  host.empty_cache();
  CHECK(fake::driver().host_memory.empty());
}

}  // namespace

int main(int argc, char** argv) {
  const size_t steps = argc > 1 ? std::stoul(argv[1]) : 20'000;
  install_fake();
  run("faults", [] { test_faults(false); });
  run("faults with expandable segments", [] { test_faults(true); });
  run("model", [&] {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      test_model(seed, steps);
    }
  });
  run("threads", [&] { test_threads(steps / 10); });
  run("pinned threads", [&] { test_pinned_threads(steps / 20); });
  std::printf("passed\n");
  return 0;
}

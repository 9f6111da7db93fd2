// SPDX-License-Identifier: BSD-3-Clause
// A cached allocate and free of the device allocator, in C++: victims drawn at random among the
// live blocks, sizes random from 1 byte to 1 MiB (small pool) or 4 MiB (both pools). Prints the
// median of nine rounds. Then threads at the same time, on one device each and all on one.
#include <c10/util/Exception.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <ctime>
#include <random>
#include <thread>
#include <vector>

#include "core/driver.h"
#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "tests/native/fake_driver.h"

namespace {

// Processor time of this thread, so that a busy machine counts as little as can be.
double thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double round_ns(outboard::Stream& stream, std::vector<c10::DataPtr>& live, const std::vector<size_t>& sizes,
                const std::vector<uint32_t>& victims) {
  const double start = thread_ns();
  for (size_t i = 0; i < victims.size(); ++i) {
    c10::DataPtr& victim = live[victims[i]];
    victim.clear();
    victim = outboard::allocate(stream, sizes[i]);
  }
  return (thread_ns() - start) / static_cast<double>(victims.size());
}

void measure(size_t live_count, size_t max_size, size_t rounds) {
  outboard::Stream& stream = outboard::default_stream(0);
  std::mt19937_64 random(7);
  std::uniform_int_distribution<size_t> size(1, max_size);
  std::uniform_int_distribution<uint32_t> index(0, static_cast<uint32_t>(live_count - 1));
  std::vector<c10::DataPtr> live;
  for (size_t i = 0; i < live_count; ++i) {
    live.push_back(outboard::allocate(stream, size(random)));
  }
  std::vector<size_t> sizes(200'000);
  std::vector<uint32_t> victims(sizes.size());
  std::generate(sizes.begin(), sizes.end(), [&] { return size(random); });
  std::generate(victims.begin(), victims.end(), [&] { return index(random); });
  round_ns(stream, live, sizes, victims);  // fills the cache
  std::vector<double> taken;
  const auto before = outboard::device_allocator().getDeviceStats(0).num_device_alloc;
  for (size_t i = 0; i < rounds; ++i) {
    taken.push_back(round_ns(stream, live, sizes, victims));
  }
  const auto stats = outboard::device_allocator().getDeviceStats(0);
  std::sort(taken.begin(), taken.end());
  std::printf("%8zu live blocks, up to %4zu KiB: %6.1f ns (least %.1f), segments taken %lld, reserved/allocated %.3f\n",
              live_count, max_size >> 10, taken[taken.size() / 2], taken[0],
              static_cast<long long>(stats.num_device_alloc - before),
              static_cast<double>(stats.reserved_bytes[0].peak) / static_cast<double>(stats.allocated_bytes[0].peak));
  live.clear();
  outboard::device_allocator().emptyCache();
  outboard::device_allocator().resetPeakStats(0);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median over rounds and threads, each of which starts a round when all are there. Processor
// time excludes waits for another thread's lock, but includes the work of taking it and the cache
// lines that move between cores.
double threads_ns(size_t count, bool is_shared, const std::vector<size_t>& sizes) {
  std::barrier start(static_cast<std::ptrdiff_t>(count));
  std::vector<std::vector<double>> taken(count);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      outboard::Stream& stream = outboard::default_stream(static_cast<c10::DeviceIndex>(is_shared ? 0 : t));
      std::mt19937_64 random(t);
      std::vector<c10::DataPtr> live(1'000);
      std::vector<uint32_t> victims(sizes.size());
      std::generate(victims.begin(), victims.end(), [&] { return static_cast<uint32_t>(random() % live.size()); });
      round_ns(stream, live, sizes, victims);  // fills the cache
      for (int round = 0; round < 9; ++round) {
        start.arrive_and_wait();
        taken[t].push_back(round_ns(stream, live, sizes, victims));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<double> all;
  for (const std::vector<double>& each : taken) {
    all.insert(all.end(), each.begin(), each.end());
  }
  return median(std::move(all));
}

void measure_threads() {
  std::mt19937_64 random(7);
  std::vector<size_t> sizes(200'000);
  std::generate(sizes.begin(), sizes.end(), [&] { return 1 + random() % (size_t{1} << 20); });
  const size_t count = std::min<size_t>(fake::kDevices, std::max(2U, std::thread::hardware_concurrency()));
  std::vector<double> alone, apart, together;
  for (int round = 0; round < 3; ++round) {  // in turn
    alone.push_back(threads_ns(1, false, sizes));
    apart.push_back(threads_ns(count, false, sizes));
    together.push_back(threads_ns(count, true, sizes));
  }
  std::printf(
      "%zu threads, %u cores: a device each %.1f ns, %.2f of one thread alone (%.1f ns); all on one device %.1f ns\n",
      count, std::thread::hardware_concurrency(), median(apart), median(apart) / median(alone), median(alone),
      median(together));
}

}  // namespace

int main() {
  fake::driver().capacity.fill(uint64_t{1} << 40);
  outboard::install_driver("fake", fake::table());
  measure(64, 4 << 20, 9);
  measure(1'000, 4 << 20, 9);
  measure(1'000, 1 << 20, 9);
  measure(100'000, 1 << 20, 9);
  measure(100'000, 16 << 10, 9);
  measure_threads();
  return 0;
}

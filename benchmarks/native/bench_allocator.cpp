// SPDX-License-Identifier: BSD-3-Clause
// A cached allocate and free of the device allocator, in C++: victims drawn at random among the live blocks, sizes
// random from 1 byte to 1 MiB (small pool) or 4 MiB (both pools). Prints the median of nine rounds.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
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

}  // namespace

int main() {
  fake::driver().capacity.fill(uint64_t{1} << 40);
  outboard::install_driver("fake", fake::table());
  measure(64, 4 << 20, 9);
  measure(1'000, 4 << 20, 9);
  measure(1'000, 1 << 20, 9);
  measure(100'000, 1 << 20, 9);
  measure(100'000, 16 << 10, 9);
  return 0;
}

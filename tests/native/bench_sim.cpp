// SPDX-License-Identifier: BSD-3-Clause
// The cost of queueing: the time of the call, from the call to the run, and there and back. Medians
// of rounds, in nanoseconds.
#include <time.h>

#include <algorithm>
#include <functional>

#include "check.h"

namespace {

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double rounds(int count, const std::function<double()>& round) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(round());
  return median(values);
}

void nothing(void*) {}

void wait_for(const std::atomic<int64_t>& value) {
  while (value.load(std::memory_order_acquire) == 0) pause();
}

struct Bench {
  const Library& driver;
  uint64_t stream;
  bool can_overlap;  // work runs on another thread

  double enqueue() const {
    constexpr int kCalls = 1000;
    return rounds(31, [&] {
      const int64_t start = now();
      for (int i = 0; i < kCalls; ++i) driver->host_callback(driver.self(), 0, stream, nothing, nullptr);
      const int64_t end = now();
      driver.sync(stream);
      return static_cast<double>(end - start) / kCalls;
    });
  }

  // One call at a time while the worker is awake and its queue is empty.
  double enqueue_single() const {
    return rounds(2001, [&] {
      std::atomic<int64_t> ran{0};
      const int64_t start = now();
      driver->host_callback(
          driver.self(), 0, stream, [](void* user) { static_cast<std::atomic<int64_t>*>(user)->store(1); }, &ran);
      const int64_t end = now();
      wait_for(ran);
      return static_cast<double>(end - start);
    });
  }

  double hop() const {
    return rounds(2001, [&] {
      std::atomic<int64_t> ran{0};
      const int64_t start = now();
      driver->host_callback(
          driver.self(), 0, stream, [](void* user) { static_cast<std::atomic<int64_t>*>(user)->store(now()); }, &ran);
      wait_for(ran);
      return static_cast<double>(ran.load() - start);
    });
  }

  double round_trip() const {
    return rounds(2001, [&] {
      const int64_t start = now();
      driver->host_callback(driver.self(), 0, stream, nothing, nullptr);
      driver.sync(stream);
      return static_cast<double>(now() - start);
    });
  }

  // The worker sleeps when the call is made.
  double hop_asleep(double* out_call) const {
    std::vector<double> calls;
    const double hops = rounds(101, [&] {
      const timespec rest = {0, 2'000'000};
      nanosleep(&rest, nullptr);
      std::atomic<int64_t> ran{0};
      const int64_t start = now();
      driver->host_callback(
          driver.self(), 0, stream, [](void* user) { static_cast<std::atomic<int64_t>*>(user)->store(now()); }, &ran);
      const int64_t end = now();
      wait_for(ran);
      calls.push_back(static_cast<double>(end - start));
      return static_cast<double>(ran.load() - start);
    });
    *out_call = median(calls);
    return hops;
  }

  double record_and_wait(uint64_t other, uint64_t event) const {
    constexpr int kCalls = 1000;
    return rounds(31, [&] {
      const int64_t start = now();
      for (int i = 0; i < kCalls; ++i) {
        driver.record(stream, event);
        driver.wait(other, event);
      }
      const int64_t end = now();
      driver.sync(other);
      return static_cast<double>(end - start) / kCalls;
    });
  }

  // A chain over two streams: each call waits for the one before on the other stream.
  double cross_stream(uint64_t other, uint64_t event) const {
    constexpr int kCalls = 1000;
    return rounds(11, [&] {
      const int64_t start = now();
      for (int i = 0; i < kCalls; ++i) {
        const uint64_t from = i % 2 == 0 ? stream : other;
        const uint64_t to = i % 2 == 0 ? other : stream;
        driver->host_callback(driver.self(), 0, from, nothing, nullptr);
        driver.record(from, event);
        driver.wait(to, event);
      }
      driver.sync(stream);
      driver.sync(other);
      return static_cast<double>(now() - start) / kCalls;
    });
  }

  double copy(uint64_t bytes, int calls) const {
    const uint64_t a = driver.alloc(bytes);
    const uint64_t b = driver.alloc(bytes);
    driver.copy(stream, a, 0, b, 0, bytes);
    driver.sync(stream);
    const double time = rounds(15, [&] {
      const int64_t start = now();
      for (int i = 0; i < calls; ++i) driver.copy(stream, a, 0, b, 0, bytes);
      driver.sync(stream);
      return static_cast<double>(now() - start) / calls;
    });
    driver->mem_free(driver.self(), 0, a);
    driver->mem_free(driver.self(), 0, b);
    return time;
  }

  double transpose(int64_t side) const {
    const uint64_t bytes = static_cast<uint64_t>(side * side * 4);
    const uint64_t a = driver.alloc(bytes);
    const uint64_t b = driver.alloc(bytes);
    const int64_t sizes[] = {side, side};
    const int64_t rows[] = {side, 1};
    const int64_t columns[] = {1, side};
    const ob_copy_nd copy = {sizeof(ob_copy_nd), a, b, 0, 0, 4, 2, sizes, rows, columns};
    const double time = rounds(9, [&] {
      const int64_t start = now();
      driver->copy_nd_async(driver.self(), 0, stream, &copy);
      driver.sync(stream);
      return static_cast<double>(now() - start);
    });
    driver->mem_free(driver.self(), 0, a);
    driver->mem_free(driver.self(), 0, b);
    return static_cast<double>(bytes) / time;
  }
};

void measure(const char* path, const char* schedule) {
  const Library driver(path, {{"schedule", schedule}});
  if (driver.status != OB_OK) {
    std::printf("%s\n", driver.error.c_str());
    std::exit(1);
  }
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t other = driver.stream();
  const uint64_t event = driver.event();
  const uint64_t timed = driver.event(OB_EVENT_TIMING);
  const Bench bench = {driver, stream, std::strcmp(schedule, "normal") == 0};
  std::printf("schedule %s\n", schedule);
  std::printf("  host_callback, 1000 in a row     %9.0f ns a call\n", bench.enqueue());
  if (std::strncmp(schedule, "lazy", 4) != 0) {
    std::printf("  host_callback, empty queue       %9.0f ns\n", bench.enqueue_single());
    std::printf("  from the call to the run         %9.0f ns\n", bench.hop());
  }
  std::printf("  host_callback + synchronize      %9.0f ns\n", bench.round_trip());
  if (bench.can_overlap) {
    double call = 0;
    const double hop = bench.hop_asleep(&call);
    std::printf("  host_callback, sleeping worker   %9.0f ns, to the run %.0f ns\n", call, hop);
  }
  std::printf("  record + wait                    %9.0f ns\n", bench.record_and_wait(other, event));
  std::printf("  timed record + wait              %9.0f ns\n", bench.record_and_wait(other, timed));
  std::printf("  call, record, wait, over 2 streams %7.0f ns a link\n", bench.cross_stream(other, event));
  std::printf("  copy of 4 KiB                    %9.0f ns\n", bench.copy(4096, 200));
  std::printf("  copy of 64 MiB                   %9.1f GB/s\n", (64u << 20) / bench.copy(64u << 20, 1));
  std::printf("  transpose of 2048 x 2048 float32 %9.1f GB/s\n", bench.transpose(2048));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
    return 1;
  }
  for (const char* schedule : {"normal", "inline", "lazy:1"}) measure(argv[1], schedule);
  return failed_checks.load() == 0 ? 0 : 1;
}

// SPDX-License-Identifier: BSD-3-Clause
// What the tests of drivers of real runtimes share.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "check.h"

// Runs each test in a process of its own, since a runtime is started
// once and a lost device stays lost.
inline int run_tests_apart(int argc, char** argv) {
  if (argc != 2) return run_tests(argc, argv);
  const std::vector<Test>& tests = all_tests();
  int failed = 0;
  for (const Test& test : tests) {
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", argv[0], argv[1], test.name, static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status == 0) continue;
    ++failed;
    if (WIFSIGNALED(status)) std::printf("FAIL %s: signal %d\n", test.name, WTERMSIG(status));
  }
  std::printf("%zu of %zu test processes passed\n", tests.size() - static_cast<size_t>(failed), tests.size());
  return failed != 0 ? 1 : 0;
}

// For what a machine cannot show.
inline void skip(const char* test, const char* why) {
  std::printf("skip %s: %s\n", test, why);
}

// Runs `work` in a forked child and gives its exit status, -1 if a signal ended it.
inline int in_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline ob_kernel_arg pointer_arg(uint64_t address) {
  return {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, address, nullptr};
}

template <class T>
ob_kernel_arg value_arg(const T& value) {
  return {sizeof(ob_kernel_arg), OB_ARG_VALUE, sizeof value, 0, &value};
}

inline ob_kernel_arg local_arg(uint32_t bytes) {
  return {sizeof(ob_kernel_arg), OB_ARG_LOCAL, bytes, 0, nullptr};
}

inline ob_launch launch_of(uint64_t kernel, uint32_t grid, uint32_t block, const std::vector<ob_kernel_arg>& args) {
  ob_launch given = {};
  given.struct_size = sizeof given;
  given.kernel = kernel;
  given.grid[0] = grid;
  given.block[0] = block;
  given.grid[1] = given.grid[2] = given.block[1] = given.block[2] = 1;
  given.arg_count = args.size();
  given.arg_stride = sizeof(ob_kernel_arg);
  given.args = args.data();
  return given;
}

inline ob_status build(const Library& driver, const char* language, const std::string& code, uint64_t* out_program,
                       const char* options = "") {
  const ob_program_source source = {sizeof source, language, code.c_str(), code.size(), options};
  return driver->program_build(driver.self(), 0, &source, out_program);
}

// What program_binary hands out.
inline std::string binary_of(const Library& driver, uint64_t program, ob_status expected = OB_OK) {
  std::string bytes;
  const auto take = [](void* context, const void* given, size_t size) {
    static_cast<std::string*>(context)->append(static_cast<const char*>(given), size);
  };
  CHECK_STATUS(driver->program_binary(driver.self(), 0, program, &bytes, take), expected);
  return bytes;
}

// A device buffer's bytes.
inline std::vector<unsigned char> read(const Library& driver, uint64_t stream, uint64_t address, size_t bytes) {
  std::vector<unsigned char> host(bytes);
  CHECK_OK(driver.copy(stream, address_of(host.data()), OB_HOST, address, 0, bytes));
  CHECK_OK(driver.sync(stream));
  return host;
}

inline void check_fills(const Library& driver) {
  const uint64_t stream = driver.stream();
  constexpr size_t kBytes = 1 << 16;
  const uint64_t memory = driver.alloc(kBytes);
  for (const uint32_t size : {1u, 2u, 4u, 8u, 16u}) {
    for (const bool is_uniform : {false, true}) {
      unsigned char pattern[16];
      for (uint32_t i = 0; i < 16; ++i) pattern[i] = is_uniform ? 7 : static_cast<unsigned char>(i + 1);
      const unsigned char zero = 0;
      CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &zero, 1, kBytes));
      const uint64_t count = kBytes / size - 3;
      const ob_status status = driver->fill_async(driver.self(), 0, stream, memory + size, pattern, size, count);
      if (status == OB_UNIMPLEMENTED) continue;
      CHECK_OK(status);
      const auto got = read(driver, stream, memory, kBytes);
      for (size_t i = 0; i < kBytes; ++i) {
        const bool is_inside = i >= size && i < size + count * size;
        if (!CHECK(got[i] == (is_inside ? pattern[i % size] : 0))) return;
      }
    }
  }
  const char pattern = 1;
  CHECK_STATUS(driver->fill_async(driver.self(), 0, stream, memory, &pattern, 1, kBytes + 1), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->fill_async(driver.self(), 0, stream, memory + 1, "ab", 2, 4), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->fill_async(driver.self(), 0, stream, memory, "abc", 3, 4), OB_INVALID_ARGUMENT);
}

// A random view of a buffer: sizes, and strides of a permuted, stepped, maybe broadcast array.
struct View {
  std::vector<int64_t> strides;
  int64_t span = 1;
};

inline View random_view(std::mt19937& random, const std::vector<int64_t>& sizes, bool may_broadcast) {
  View view;
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  view.strides.resize(sizes.size());
  int64_t stride = 1;
  for (const size_t d : order) {
    if (may_broadcast && random() % 8 == 0) continue;  // stride 0
    stride *= random() % 4 == 0 ? 2 : 1;
    view.strides[d] = stride;
    stride *= sizes[d];
  }
  for (size_t d = 0; d < sizes.size(); ++d) view.span += (sizes[d] - 1) * view.strides[d];
  return view;
}

// Copies with numbers whose products don't fit into 64 bits: 5 elements of 4 bytes, 2^62
// apart, span 4 bytes modulo 2^64.
inline void check_absurd_copies(const Library& driver, uint64_t stream, uint64_t dst, uint64_t src) {
  constexpr int64_t kQuarter = int64_t{1} << 62;
  const int64_t one[] = {1, 1};
  const int64_t far[] = {kQuarter, 1};
  const int64_t rows[] = {5, 1};
  const int64_t square[] = {int64_t{1} << 32, int64_t{1} << 32};  // of which the count is 0
  for (const int64_t* sizes : {rows, square}) {
    for (const auto& [to, from] : {std::pair{far, one}, std::pair{one, far}}) {
      const ob_copy_nd copy = {sizeof copy, dst, src, 0, 0, 4, 2, sizes, to, from};
      const ob_status status = driver->copy_nd_async(driver.self(), 0, stream, &copy);
      CHECK(status == OB_INVALID_ARGUMENT || status == OB_UNIMPLEMENTED);
    }
  }
}

// Copies random views and compares the whole destination, what lies between its elements included.
inline void check_strided_copies(const Library& driver, int rounds) {
  std::mt19937 random(7);
  const uint64_t stream = driver.stream();
  const uint64_t src = driver.alloc(64 << 20);
  const uint64_t dst = driver.alloc(64 << 20);
  check_absurd_copies(driver, stream, dst, src);
  for (int round = 0; round < rounds; ++round) {
    const uint32_t size = 1u << random() % 5;
    std::vector<int64_t> sizes(1 + random() % 5);
    int64_t count = 1;
    for (int64_t& each : sizes) {
      each = 1 + static_cast<int64_t>(random() % (count < 500 ? 90 : count < 5000 ? 12 : 3));
      count *= each;
    }
    const View to = random_view(random, sizes, false);
    const View from = random_view(random, sizes, true);
    if (static_cast<uint64_t>(std::max(to.span, from.span)) * size > 60 << 20) continue;
    std::vector<unsigned char> source(static_cast<size_t>(from.span) * size);
    std::vector<unsigned char> expected(static_cast<size_t>(to.span) * size, 0xEE);
    for (unsigned char& byte : source) byte = static_cast<unsigned char>(random());
    std::vector<int64_t> index(sizes.size());
    for (int64_t n = 0; n < count; ++n) {
      int64_t rest = n, a = 0, b = 0;
      for (size_t d = sizes.size(); d-- > 0;) {
        const int64_t i = rest % sizes[d];
        rest /= sizes[d];
        a += i * to.strides[d];
        b += i * from.strides[d];
      }
      std::memcpy(&expected[static_cast<size_t>(a) * size], &source[static_cast<size_t>(b) * size], size);
    }
    const uint64_t shift = random() % 3 * size;  // odd addresses too
    const unsigned char filler = 0xEE;
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, dst + shift, &filler, 1, expected.size()));
    CHECK_OK(driver.copy(stream, src + shift, 0, address_of(source.data()), OB_HOST, source.size()));
    CHECK_OK(driver.sync(stream));
    const ob_copy_nd copy = {
        sizeof copy,  dst + shift,       src + shift,        0, 0, size, static_cast<uint32_t>(sizes.size()),
        sizes.data(), to.strides.data(), from.strides.data()};
    const ob_status status = driver->copy_nd_async(driver.self(), 0, stream, &copy);
    if (status == OB_UNIMPLEMENTED) {
      std::fprintf(stderr, "copy_nd_async: %s\n", driver.last_error().c_str());
      return;
    }
    CHECK_OK(status);
    if (!CHECK(read(driver, stream, dst + shift, expected.size()) == expected)) return;
  }
}

// A stream that is asked again and again gets done.
inline void check_queries_end(const Library& driver) {
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(32 << 20);
  const char zero = 0;
  for (int i = 0; i < 20; ++i) CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &zero, 1, 32 << 20));
  ob_status status = OB_NOT_READY;
  while (status == OB_NOT_READY) status = driver->stream_query(driver.self(), 0, stream);
  CHECK_OK(status);
  CHECK_OK(driver->stream_query(driver.self(), 0, stream));
}

// Times of events grow, and lie within the host's clock around them.
inline void check_event_times(const Library& driver) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  };
  constexpr int64_t kSlack = 2'000'000;
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(64 << 20);
  const uint64_t start = driver.event(OB_EVENT_TIMING);
  const uint64_t end = driver.event(OB_EVENT_TIMING);
  const char zero = 0;
  const int64_t before = now();
  CHECK_OK(driver.record(stream, start));
  for (int i = 0; i < 10; ++i) CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &zero, 1, 64 << 20));
  CHECK_OK(driver.record(stream, end));
  CHECK_OK(driver->event_synchronize(driver.self(), 0, end));
  const int64_t after = now();
  double milliseconds = 0;
  int64_t first = 0, last = 0;
  CHECK_OK(driver->event_elapsed(driver.self(), 0, start, end, &milliseconds));
  CHECK_OK(driver->event_timestamp(driver.self(), 0, start, &first));
  CHECK_OK(driver->event_timestamp(driver.self(), 0, end, &last));
  CHECK(milliseconds > 0 && milliseconds < 60'000);
  CHECK(first <= last && first > before - kSlack && last < after + kSlack);
  CHECK(std::abs(static_cast<double>(last - first) * 1e-6 - milliseconds) < 0.5);
}

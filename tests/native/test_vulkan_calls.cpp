// SPDX-License-Identifier: BSD-3-Clause
// The Vulkan driver's calls of the host, and its graphs.
#include <thread>

#include "gate.h"
#include "vulkan_surroundings.h"

namespace {

// Calls of the host lie between a stream's commands, on its own thread: other streams go on.
TEST(calls_lie_between_commands) {
  for (const char* access : {"0", "1"}) {
    const Library driver(path, {{"host_access", access}});
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t second = driver.stream();
    const uint64_t other = driver.stream();
    const uint64_t mark = driver.event();
    const uint64_t memory = driver.alloc(1 << 20);
    void* pinned = nullptr;
    CHECK_OK(driver->host_alloc(driver.self(), 4096, &pinned));
    auto* const byte = static_cast<volatile unsigned char*>(pinned);
    Gate gate;
    int seen = 0;
    auto look = [&] {
      seen = *byte;
      *byte = 5;
    };
    for (unsigned char round = 1; round < 30; ++round) {
      CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &round, 1, 1 << 20));
      CHECK_OK(driver.copy(stream, address_of(pinned), OB_HOST, memory + 4096, 0, 1));
      CHECK_OK(driver.call(stream, &look));
      CHECK_OK(driver.copy(stream, memory, 0, address_of(pinned), OB_HOST, 1));
      CHECK_OK(driver.record(stream, mark));
      CHECK_OK(driver.wait(second, mark));
      CHECK_OK(driver.copy(second, memory + 8192, 0, memory, 0, 1));
      if (round % 2 == 0) CHECK_OK(driver.sync(stream));
      CHECK(read(driver, second, memory + 8192, 1)[0] == 5);
      CHECK(seen == round);
    }
    CHECK_OK(driver.call(stream, &gate));
    CHECK_OK(driver.call(stream, &look));
    CHECK_OK(driver.record(stream, mark));
    CHECK_OK(driver.wait(second, mark));
    CHECK_OK(driver.call(second, &look));
    *byte = 77;
    for (int i = 0; i < 20; ++i) CHECK_OK(driver.call(other, &look));
    CHECK_OK(driver.copy(other, memory, 0, memory + 4096, 0, 64));
    CHECK_OK(driver.sync(other));
    CHECK(seen == 5);
    *byte = 78;
    CHECK_STATUS(driver->stream_query(driver.self(), 0, stream), OB_NOT_READY);
    CHECK_STATUS(driver->stream_query(driver.self(), 0, second), OB_NOT_READY);
    CHECK_STATUS(driver->event_query(driver.self(), 0, mark), OB_NOT_READY);
    std::thread opener([&] { gate.open(); });
    CHECK_OK(driver->event_synchronize(driver.self(), 0, mark));
    CHECK_OK(driver.sync(second));
    CHECK_OK(driver->event_query(driver.self(), 0, mark));
    opener.join();
    CHECK_OK(driver->host_free(driver.self(), pinned));
  }
}

// Also on a stream with a failure, on a lost device, and on abandoned streams of a closed one.
TEST(each_call_is_made_once) {
  for (const char* fault : {"refuse_commands", "lost", "lost_in_wait"}) {
    if (!has_faults("each_call_is_made_once", "")) return;
    const Library driver(path, {{"library", fake()}});
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t memory = driver.alloc(1 << 20);
    std::atomic<int> calls{0};
    auto count = [&] { calls.fetch_add(1); };
    CHECK_OK(driver.sync(stream));
    setenv("FAKE_VULKAN", fault, 1);
    for (int i = 0; i < 10; ++i) {
      CHECK_OK(driver.call(stream, &count));
      CHECK_OK(driver.copy(stream, memory, 0, memory + 4096, 0, 64));
      CHECK_OK(driver.call(stream, &count));
    }
    CHECK(driver.sync(stream) != OB_OK);
    int looks = 0;
    while (calls < 20 && ++looks < 5000) usleep(200);
    CHECK(calls == 20);
    unsetenv("FAKE_VULKAN");
  }
  const Library driver(path);
  std::atomic<int> calls{0};
  auto count = [&] { calls.fetch_add(1); };
  for (int round = 1; round < 4; ++round) {
    driver.open();
    for (int i = 0; i < 8; ++i) {
      const uint64_t stream = driver.stream();
      const uint64_t event = driver.event(OB_EVENT_TIMING);
      CHECK_OK(driver.call(stream, &count));
      CHECK_OK(driver.record(stream, event));
      CHECK_OK(driver.call(stream, &count));
      CHECK_OK(driver->event_destroy(driver.self(), 0, event));
      CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
    }
    CHECK_OK(driver->device_close(driver.self(), 0));
    CHECK(calls == 16 * round);
  }
}

struct Captured {
  explicit Captured(const Library& given) : driver(given) {}
  void begin(uint64_t stream) const { CHECK_OK(driver->graph_capture_begin(driver.self(), 0, stream)); }
  // Return an executable, of which the graph is destroyed.
  uint64_t end(uint64_t stream) const {
    uint64_t graph = 0, executable = 0;
    CHECK_OK(driver->graph_capture_end(driver.self(), 0, stream, &graph));
    CHECK_OK(driver->graph_instantiate(driver.self(), 0, graph, &executable));
    CHECK_OK(driver->graph_destroy(driver.self(), 0, graph));
    CHECK_STATUS(driver->graph_destroy(driver.self(), 0, graph), OB_INVALID_ARGUMENT);
    return executable;
  }
  ob_status launch(uint64_t stream, uint64_t executable) const {
    return driver->graph_launch(driver.self(), 0, stream, executable);
  }
  const Library& driver;
};

// Fills, copies and calls run in their order at each launch, on any stream, while others are under
// way.
TEST(graphs_are_launched) {
  for (const char* access : {"0", "1"}) {
    const Library driver(path, {{"host_access", access}});
    driver.open();
    const Captured capture(driver);
    const uint64_t stream = driver.stream();
    const uint64_t side = driver.stream();
    const uint64_t joined = driver.event(), done = driver.event();
    const uint64_t memory = driver.alloc(1 << 20);
    void* pinned = nullptr;
    CHECK_OK(driver->host_alloc(driver.self(), 4096, &pinned));
    auto* const bytes = static_cast<volatile unsigned char*>(pinned);
    const unsigned char three = 3, pattern[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    std::vector<int> seen;
    auto look = [&] { seen.push_back(bytes[0] * 100 + bytes[1]); };
    bytes[0] = 50;
    bytes[1] = 0;
    capture.begin(stream);
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &three, 1, 1 << 20));
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory + 64, pattern, 16, 3));
    CHECK_OK(driver.record(stream, joined));
    CHECK_OK(driver.wait(side, joined));
    CHECK_OK(driver.copy(side, memory + 1, 0, address_of(pinned), OB_HOST, 1));
    CHECK_OK(driver.copy(side, address_of(pinned) + 1, OB_HOST, memory + 66, 0, 1));
    CHECK_OK(driver.call(side, &look));
    CHECK_OK(driver.record(side, done));
    CHECK_OK(driver.wait(stream, done));
    CHECK_OK(driver.copy(stream, memory + 4096, 0, memory, 0, 100));
    CHECK_OK(driver.call(stream, &look));
    const uint64_t executable = capture.end(stream);
    CHECK_OK(driver.sync(stream));
    CHECK_OK(driver.sync(side));
    CHECK(seen.empty() && bytes[1] == 0);
    for (unsigned char round = 1; round < 6; ++round) {
      bytes[0] = round;
      CHECK_OK(capture.launch(round % 2 == 0 ? stream : side, executable));
      CHECK_OK(driver.sync(round % 2 == 0 ? stream : side));
      const auto got = read(driver, side, memory + 4096, 100);
      CHECK(got[0] == 3 && got[1] == round && got[64] == 1 && got[79] == 16 && got[99] == 4);
      CHECK(seen.size() == 2u * round && seen.back() == round * 100 + 3);
    }
    for (int i = 0; i < 50; ++i) CHECK_OK(capture.launch(stream, executable));
    CHECK_OK(driver->graph_executable_destroy(driver.self(), 0, executable));  // launches are under way
    CHECK_STATUS(capture.launch(stream, executable), OB_INVALID_ARGUMENT);
    CHECK_STATUS(driver->graph_executable_destroy(driver.self(), 0, executable), OB_INVALID_ARGUMENT);
    CHECK_OK(driver.sync(stream));
    CHECK(seen.size() == 110);
    capture.begin(stream);  // without work
    CHECK_OK(capture.launch(side, capture.end(stream)));
    CHECK_OK(driver.sync(side));
    CHECK_OK(driver->host_free(driver.self(), pinned));
  }
}

TEST(launches_of_kernels_are_captured) {
  const char* compiler = slang("launches_of_kernels_are_captured");
  if (compiler == nullptr) return;
  const Library driver(path, {{"slang", compiler}});
  driver.open();
  const Captured capture(driver);
  uint64_t program = 0, kernel = 0;
  if (!CHECK_OK(build(driver, "slang", kProgram, &program))) return;
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &kernel));
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(4096);
  const float two = 2, one = 1;
  const std::vector<ob_kernel_arg> args = {pointer_arg(memory), value_arg(two), local_arg(256)};
  const ob_launch given = launch_of(kernel, 16, 64, args);
  capture.begin(stream);
  CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &one, 4, 1024));
  for (int i = 0; i < 10; ++i) CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  const uint64_t executable = capture.end(stream);
  for (int round = 0; round < 3; ++round) {
    CHECK_OK(capture.launch(stream, executable));
    CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));  // the pipeline is bound anew
    const auto got = read(driver, stream, memory, 4096);
    for (size_t i = 0; i < 1024; ++i) {
      if (!CHECK(reinterpret_cast<const float*>(got.data())[i] == 2048)) return;
    }
  }
}

TEST(captures_are_refused) {
  if (!has_faults("captures_are_refused", "twice")) return;
  const Library driver(path, {{"library", fake()}, {"host_access", "0"}});
  driver.open();
  const Captured capture(driver);
  const uint64_t stream = driver.stream(), other = driver.stream(), side = driver.stream();
  const uint64_t before = driver.event(), inside = driver.event(OB_EVENT_TIMING), host = driver.event(OB_EVENT_HOST);
  const uint64_t memory = driver.alloc(1 << 20);
  std::vector<char> ordinary(4096);
  uint64_t graph = 0;
  CHECK_STATUS(driver->graph_capture_end(driver.self(), 0, stream, &graph), OB_FAILED_PRECONDITION);
  CHECK_OK(driver.record(stream, before));
  capture.begin(stream);
  for (const ob_status status : {
           driver->graph_capture_begin(driver.self(), 0, stream),
           driver.sync(stream),
           driver->stream_query(driver.self(), 0, stream),
           driver->stream_destroy(driver.self(), 0, stream),
           driver.wait(stream, before),
           driver->graph_capture_end(driver.self(), 0, other, &graph),
           driver.copy(stream, memory, 0, address_of(ordinary.data()), OB_HOST, 4096),
       }) {
    CHECK_STATUS(status, OB_FAILED_PRECONDITION);
  }
  CHECK(driver.error_has("not pinned"));
  CHECK_STATUS(driver.wait(stream, host), OB_UNIMPLEMENTED);
  CHECK_OK(driver.record(stream, inside));
  double milliseconds = 0;
  CHECK_STATUS(driver->event_query(driver.self(), 0, inside), OB_FAILED_PRECONDITION);
  CHECK_STATUS(driver->event_synchronize(driver.self(), 0, inside), OB_FAILED_PRECONDITION);
  CHECK_STATUS(driver->event_elapsed(driver.self(), 0, inside, inside, &milliseconds), OB_FAILED_PRECONDITION);
  CHECK(driver.error_has("captured in a graph"));
  CHECK_OK(driver.wait(side, inside));
  CHECK_OK(driver.wait(side, inside));
  CHECK_STATUS(driver.sync(side), OB_FAILED_PRECONDITION);
  CHECK_STATUS(driver->graph_capture_end(driver.self(), 0, side, &graph), OB_FAILED_PRECONDITION);
  // Other streams go on; another capture does not mix with this one.
  CHECK(read(driver, other, memory, 16).size() == 16);
  capture.begin(other);
  CHECK_STATUS(driver.wait(other, inside), OB_FAILED_PRECONDITION);
  const uint64_t empty = capture.end(other);
  const uint64_t executable = capture.end(stream);
  CHECK_STATUS(driver.wait(stream, inside), OB_FAILED_PRECONDITION);
  CHECK_OK(driver.record(stream, inside));
  CHECK_OK(driver.wait(other, inside));
  capture.begin(stream);
  CHECK_STATUS(capture.launch(stream, empty), OB_UNIMPLEMENTED);
  const uint64_t last = capture.end(stream);
  for (const uint64_t graph : {empty, executable, last}) CHECK_OK(capture.launch(side, graph));
  CHECK_STATUS(capture.launch(side, 12345), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->graph_instantiate(driver.self(), 0, empty, &graph), OB_INVALID_ARGUMENT);
  CHECK_OK(driver.sync(side));
  // With two devices the core captures.
  driver.open(1);
  CHECK_STATUS(driver->graph_capture_begin(driver.self(), 0, stream), OB_UNIMPLEMENTED);
  CHECK_STATUS(driver->graph_launch(driver.self(), 1, driver.stream(1), executable), OB_INVALID_ARGUMENT);
}

// Threads queue commands, calls and launches of one graph, each on its own stream, and wait for the
// work of their neighbours.
TEST(calls_and_graphs_of_many_threads) {
  constexpr size_t kThreads = 4;
  constexpr int kRounds = 100;
  const Library driver(path);
  driver.open();
  const Captured capture(driver);
  const uint64_t memory = driver.alloc(1 << 20);
  std::atomic<int> calls{0};
  auto count = [&] { calls.fetch_add(1); };
  std::vector<uint64_t> streams, events;
  for (size_t i = 0; i < kThreads; ++i) {
    streams.push_back(driver.stream());
    events.push_back(driver.event());
  }
  capture.begin(streams[0]);
  CHECK_OK(driver.call(streams[0], &count));
  CHECK_OK(driver.copy(streams[0], memory, 0, memory + 4096, 0, 64));
  CHECK_OK(driver.call(streams[0], &count));
  const uint64_t executable = capture.end(streams[0]);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t stream = streams[t];
      int seen = 0;
      auto own = [&] { ++seen; };
      for (int i = 0; i < kRounds; ++i) {
        CHECK_OK(driver.call(stream, &own));
        CHECK_OK(driver.copy(stream, memory + 8192 * (t + 1), 0, memory + 4096, 0, 64));
        CHECK_OK(capture.launch(stream, executable));
        CHECK_OK(driver.record(stream, events[t]));
        CHECK_OK(driver.wait(stream, events[(t + 1) % kThreads]));
        CHECK_OK(driver.call(stream, &own));
        if (i % 10 == 0) CHECK(driver->stream_query(driver.self(), 0, stream) != OB_INTERNAL);
        if (i % 25 == 0) CHECK_OK(driver.sync(stream));
      }
      CHECK_OK(driver.sync(stream));
      CHECK(seen == 2 * kRounds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(calls == 2 * kRounds * static_cast<int>(kThreads));
}

TEST(calls_are_recorded) {
  const Library driver(path);
  driver.open();
  const uint64_t stream = driver.stream();
  auto work = [] { usleep(2000); };
  CHECK_OK(driver->activity_enable(driver.self(), OB_ACTIVITY_HOST));
  CHECK_OK(driver->activity_correlate(driver.self(), 5));
  const int64_t start = now();
  for (int i = 0; i < 3; ++i) CHECK_OK(driver.call(stream, &work));
  CHECK_OK(driver.sync(stream));
  std::vector<ob_activity> records(16);
  for (ob_activity& record : records) record.struct_size = sizeof record;
  size_t count = 0;
  CHECK_OK(driver->activity_read(driver.self(), 16, sizeof(ob_activity), records.data(), &count));
  CHECK(count == 3);
  int64_t last = start;
  for (size_t i = 0; i < count; ++i) {
    const ob_activity& record = records[i];
    CHECK(record.kind == OB_ACTIVITY_HOST && record.correlation == 5 && record.stream == stream && record.device == 0);
    CHECK(record.start >= last && record.end - record.start >= 1'500'000);
    last = record.end;
  }
  CHECK_OK(driver->activity_enable(driver.self(), 0));
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests_apart(argc, argv);
}

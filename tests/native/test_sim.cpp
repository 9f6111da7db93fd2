// SPDX-License-Identifier: BSD-3-Clause
// The simulated device: queues, events, schedules, failures of queued work. Memory:
// test_sim_memory.cpp. The lazy schedule: test_sim_lazy.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "check.h"
#include "gate.h"

namespace {

constexpr const char* kSchedules[] = {"normal", "inline", "lazy:7"};

TEST(streams_are_in_order) {
  for (const char* schedule : kSchedules) {
    const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
    driver.open();
    const uint64_t stream = driver.stream();
    std::vector<int> order;
    int number = 0;
    auto next = [&] { order.push_back(number++); };
    for (int i = 0; i < 5000; ++i) CHECK_OK(driver.call(stream, &next));
    CHECK_OK(driver.sync(stream));
    CHECK(order.size() == 5000);
    CHECK(std::is_sorted(order.begin(), order.end()));
    CHECK_OK(driver->stream_query(driver.self(), 0, stream));
  }
}

TEST(work_runs_beside_the_host) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t event = driver.event();
  Gate gate;
  CHECK_OK(driver.call(stream, &gate));
  CHECK_OK(driver.record(stream, event));
  CHECK_STATUS(driver->stream_query(driver.self(), 0, stream), OB_NOT_READY);
  CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_NOT_READY);
  gate.open();
  CHECK_OK(driver->event_synchronize(driver.self(), 0, event));
  CHECK_OK(driver->event_query(driver.self(), 0, event));
}

// With one worker, a waiting stream must not occupy it.
TEST(waits_block_no_worker) {
  const Library driver(path, {{"memory", "64MiB"}, {"workers", "1"}});
  driver.open(0);
  driver.open(1);
  const uint64_t producer = driver.stream(0);
  std::vector<uint64_t> consumers;
  const uint64_t event = driver.event(0, 0);
  Gate gate;
  std::atomic<int> done{0};
  auto count = [&] { done.fetch_add(1); };
  CHECK_OK(driver.call(producer, &gate));
  CHECK_OK(driver.record(producer, event));
  for (int i = 0; i < 20; ++i) {
    const int32_t device = i % 2;
    consumers.push_back(driver.stream(device));
    CHECK_OK(driver.wait(consumers.back(), event, device, 0));
    CHECK_OK(driver.call(consumers.back(), &count, device));
  }
  CHECK(done == 0);
  gate.open();
  CHECK_OK(driver->device_synchronize(driver.self(), 0));
  CHECK_OK(driver->device_synchronize(driver.self(), 1));
  CHECK(done == 20);
}

TEST(two_workers_run_two_streams) {
  const Library driver(path, {{"memory", "64MiB"}, {"workers", "2"}});
  driver.open();
  const uint64_t first = driver.stream();
  const uint64_t second = driver.stream();
  // Each releases the other. If they ran one at a time, neither would end.
  Gate one, two;
  auto left = [&] {
    one.open();
    two.wait();
  };
  auto right = [&] {
    two.open();
    one.wait();
  };
  CHECK_OK(driver.call(first, &left));
  CHECK_OK(driver.call(second, &right));
  CHECK_OK(driver.sync(first));
  CHECK_OK(driver.sync(second));
}

// A wait is bound to the record before it, whatever happens to the event after.
TEST(waits_bind_to_the_latest_record) {
  const Library driver(path, {{"memory", "64MiB"}, {"workers", "2"}});
  driver.open();
  const uint64_t slow = driver.stream();
  const uint64_t slower = driver.stream();
  const uint64_t waiting = driver.stream();
  uint64_t event = driver.event();
  Gate first, second;
  std::atomic<bool> is_after{false};
  auto mark = [&] { is_after = true; };
  CHECK_OK(driver.call(slow, &first));
  CHECK_OK(driver.record(slow, event));
  CHECK_OK(driver.wait(waiting, event));  // for `first`
  CHECK_OK(driver.call(waiting, &mark));
  CHECK_OK(driver.call(slower, &second));
  CHECK_OK(driver.record(slower, event));  // again, on another stream
  first.open();
  CHECK_OK(driver.sync(waiting));  // does not need `second`
  CHECK(is_after);
  CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_NOT_READY);
  CHECK_OK(driver.wait(waiting, event));  // for `second`
  is_after = false;
  CHECK_OK(driver.call(waiting, &mark));
  CHECK_OK(driver->event_destroy(driver.self(), 0, event));
  event = driver.event();  // likely the same slot
  CHECK_OK(driver->event_query(driver.self(), 0, event));
  CHECK(!is_after);
  second.open();
  CHECK_OK(driver.sync(waiting));
  CHECK(is_after);
}

TEST(destroyed_streams_complete) {
  for (const char* schedule : kSchedules) {
    const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
    driver.open();
    std::atomic<int> done{0};
    auto count = [&] { done.fetch_add(1); };
    const uint64_t event = driver.event();
    uint64_t last = 0;
    for (int i = 0; i < 100; ++i) {
      const uint64_t stream = driver.stream();
      CHECK(stream != last);
      if (last != 0) CHECK_STATUS(driver.call(last, &count), OB_INVALID_ARGUMENT);
      last = stream;
      for (int j = 0; j < 10; ++j) CHECK_OK(driver.call(stream, &count));
      CHECK_OK(driver.record(stream, event));
      CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
    }
    CHECK_OK(driver->event_synchronize(driver.self(), 0, event));
    CHECK_OK(driver->device_synchronize(driver.self(), 0));
    CHECK(done == 1000);
    CHECK_OK(driver->event_destroy(driver.self(), 0, event));
    CHECK_OK(driver->device_close(driver.self(), 0));
  }
}

TEST(destroy_with_work_under_way) {
  for (const char* schedule : kSchedules) {
    std::atomic<int> done{0};
    auto count = [&] { done.fetch_add(1); };
    {
      const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
      driver.open();
      driver.alloc(4096);
      const uint64_t stream = driver.stream();
      for (int i = 0; i < 1000; ++i) CHECK_OK(driver.call(stream, &count));
    }
    CHECK(done == 1000);
  }
}

TEST(device_close_says_what_is_left) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open();
  CHECK_STATUS(driver->device_open(driver.self(), 0), OB_FAILED_PRECONDITION);
  const uint64_t stream = driver.stream();
  const uint64_t event = driver.event();
  const uint64_t memory = driver.alloc(4096);
  CHECK_STATUS(driver->device_close(driver.self(), 0), OB_FAILED_PRECONDITION);
  CHECK(driver.error_has("1 streams, 1 events and 1 pieces of memory"));
  CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
  CHECK_OK(driver->event_destroy(driver.self(), 0, event));
  CHECK_OK(driver->mem_free(driver.self(), 0, memory));
  CHECK_OK(driver->device_close(driver.self(), 0));
  uint64_t out = 0;
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, 512, &out), OB_FAILED_PRECONDITION);
  driver.open();  // again
  CHECK_OK(driver->mem_free(driver.self(), 0, driver.alloc(512)));
}

TEST(events_have_times) {
  for (const char* schedule : kSchedules) {
    const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}, {"latency", "2000000"}});
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t start = driver.event(OB_EVENT_TIMING);
    const uint64_t end = driver.event(OB_EVENT_TIMING | OB_EVENT_BLOCKING);
    const uint64_t plain = driver.event();
    double elapsed = 0;
    int64_t time = 0;
    auto nothing = [] {};
    CHECK_STATUS(driver->event_elapsed(driver.self(), 0, start, end, &elapsed), OB_FAILED_PRECONDITION);
    CHECK_OK(driver.record(stream, start));
    CHECK_OK(driver.call(stream, &nothing));
    CHECK_OK(driver.record(stream, end));
    CHECK_OK(driver->event_synchronize(driver.self(), 0, end));
    CHECK_OK(driver->event_elapsed(driver.self(), 0, start, end, &elapsed));
    CHECK(elapsed >= 2.0 && elapsed < 2000.0);
    CHECK_OK(driver->event_elapsed(driver.self(), 0, end, start, &elapsed));
    CHECK(elapsed <= -2.0);
    CHECK_OK(driver->event_timestamp(driver.self(), 0, end, &time));
    CHECK(time > 0);
    CHECK_OK(driver.record(stream, plain));
    CHECK_STATUS(driver->event_elapsed(driver.self(), 0, start, plain, &elapsed), OB_INVALID_ARGUMENT);
    CHECK(driver.error_has("OB_EVENT_TIMING"));
    uint64_t out = 0;
    CHECK_STATUS(driver->event_create(driver.self(), 0, OB_EVENT_INTERPROCESS, &out), OB_UNIMPLEMENTED);
    CHECK_STATUS(driver->event_create(driver.self(), 0, 1u << 20, &out), OB_INVALID_ARGUMENT);
  }
}

TEST(failures_come_once) {
  for (const char* schedule : kSchedules) {
    const Library driver(path, {{"schedule", schedule},
                                {"memory", "64MiB"},
                                {"fault", "queued:copy_async:2:DATA_LOSS,queued:host_callback:1:13,mem_alloc:3:8,"
                                          "stream_create:4+:UNAVAILABLE"}});
    if (!CHECK_OK(driver.status)) continue;
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t other = driver.stream();
    const uint64_t a = driver.alloc(4096);
    const uint64_t b = driver.alloc(4096);
    uint64_t out = 0;
    CHECK_STATUS(driver->mem_alloc(driver.self(), 0, 4096, &out), OB_OUT_OF_MEMORY);
    CHECK(driver.error_has("injected fault: call 3 of mem_alloc returns OUT_OF_MEMORY"));
    CHECK_OK(driver->mem_free(driver.self(), 0, driver.alloc(4096)));
    for (int i = 0; i < 3; ++i) CHECK_OK(driver.copy(stream, a, 0, b, 0, 4096));
    CHECK_OK(driver.sync(other));
    CHECK_STATUS(driver.sync(stream), OB_DATA_LOSS);
    CHECK(driver.error_has("queued copy_async fails with DATA_LOSS"));
    CHECK_OK(driver.sync(stream));
    // A function is called whatever happens.
    bool is_called = false;
    auto mark = [&] { is_called = true; };
    CHECK_OK(driver.call(other, &mark));
    // The failure outlives its stream.
    CHECK_OK(driver->stream_destroy(driver.self(), 0, other));
    CHECK_STATUS(driver->device_synchronize(driver.self(), 0), OB_INTERNAL);
    CHECK(is_called);
    CHECK_OK(driver->device_synchronize(driver.self(), 0));
    driver.stream();
    for (int i = 0; i < 3; ++i) CHECK_STATUS(driver->stream_create(driver.self(), 0, 0, &out), OB_UNAVAILABLE);
  }
}

TEST(options_are_checked) {
  struct Bad {
    const char* key;
    const char* value;
  };
  const Bad bad[] = {{"devices", "65"},
                     {"devices", "-1"},
                     {"devices", ""},
                     {"memory", "4GB"},
                     {"memory", "0"},
                     {"memory", "999TiB"},
                     {"schedule", "lazy"},
                     {"schedule", "lazy:x"},
                     {"schedule", "eager"},
                     {"workers", "0"},
                     {"latency", "-5"},
                     {"fault", "mem_alloc"},
                     {"fault", "nope:1:8"},
                     {"fault", "copy_async:0:8"},
                     {"fault", "copy_async:1:OK"},
                     {"fault", "copy_async:1:NONE"},
                     {"fault", "queued:mem_alloc:1:8"},
                     {"fault", "copy_async:x:8"},
                     {"single_mapping", "maybe"},
                     {"speed", "1"}};
  for (const Bad& option : bad) {
    const Library driver(path, {{option.key, option.value}});
    CHECK(driver.status == OB_INVALID_ARGUMENT);
    if (!CHECK(driver.error.find(option.key) != std::string::npos)) std::fprintf(stderr, "%s\n", driver.error.c_str());
  }
  const Library driver(path, {{"devices", "0"}});
  CHECK_OK(driver.status);
  CHECK(driver->device_count(driver.self()) == 0);
  CHECK_STATUS(driver->device_open(driver.self(), 0), OB_INVALID_ARGUMENT);

  CHECK(setenv("OUTBOARD_SIM_DEVICES", "5", 1) == 0);
  CHECK(Library(path)->device_count(Library(path).self()) == 5);
  CHECK(setenv("OUTBOARD_SIM_DEVICES", "many", 1) == 0);
  CHECK(Library(path).error.find("OUTBOARD_SIM_DEVICES") != std::string::npos);
  CHECK(unsetenv("OUTBOARD_SIM_DEVICES") == 0);
  CHECK(setenv("OUTBOARD_SIM_FAULT", "device_count:1:UNAVAILABLE", 1) == 0);
  const Library faulty(path);
  CHECK(faulty->device_count(faulty.self()) == -OB_UNAVAILABLE);
  CHECK(faulty->device_count(faulty.self()) == 2);
  CHECK(setenv("OUTBOARD_SIM_FAULT", "what", 1) == 0);
  CHECK(Library(path).error.find("OUTBOARD_SIM_FAULT") != std::string::npos);
  CHECK(unsetenv("OUTBOARD_SIM_FAULT") == 0);
}

TEST(bandwidth_is_modelled) {
  const Library driver(path, {{"memory", "64MiB"}, {"bandwidth", "1GiB"}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t start = driver.event(OB_EVENT_TIMING);
  const uint64_t end = driver.event(OB_EVENT_TIMING);
  const uint64_t a = driver.alloc(8 << 20);
  const uint64_t b = driver.alloc(8 << 20);
  double elapsed = 0;
  CHECK_OK(driver.record(stream, start));
  CHECK_OK(driver.copy(stream, a, 0, b, 0, 8 << 20));
  CHECK_OK(driver.record(stream, end));
  CHECK_OK(driver.sync(stream));
  CHECK_OK(driver->event_elapsed(driver.self(), 0, start, end, &elapsed));
  CHECK(elapsed >= 7.8);
}

TEST(activity_is_recorded) {
  for (const char* schedule : kSchedules) {
    const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t memory = driver.alloc(4096);
    char host[64] = {};
    auto nothing = [] {};
    CHECK_OK(driver.call(stream, &nothing));
    CHECK_OK(driver.sync(stream));
    CHECK_STATUS(driver->activity_enable(driver.self(), 1u << 10), OB_INVALID_ARGUMENT);
    CHECK_OK(driver->activity_enable(driver.self(), OB_ACTIVITY_COPY | OB_ACTIVITY_HOST));
    CHECK_OK(driver->activity_correlate(driver.self(), 17));
    CHECK_OK(driver.copy(stream, memory, 0, address_of(host), OB_HOST, 64));
    CHECK_OK(driver->activity_correlate(driver.self(), 18));
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, host, 1, 64));  // not requested
    CHECK_OK(driver.call(stream, &nothing));
    CHECK_OK(driver.sync(stream));
    CHECK_OK(driver->activity_enable(driver.self(), 0));
    CHECK_OK(driver.call(stream, &nothing));
    CHECK_OK(driver.sync(stream));
    ob_activity records[4] = {};
    for (ob_activity& record : records) record.struct_size = sizeof record;
    size_t count = 0;
    CHECK_OK(driver->activity_read(driver.self(), 1, sizeof(ob_activity), records, &count));
    CHECK(count == 1);
    CHECK_OK(driver->activity_read(driver.self(), 3, sizeof(ob_activity), records + 1, &count));
    CHECK(count == 1);
    CHECK(records[0].kind == OB_ACTIVITY_COPY && records[0].correlation == 17 && records[0].bytes == 64);
    CHECK(records[0].src_device == OB_HOST && records[0].dst_device == 0 && records[0].stream == stream);
    CHECK(records[1].kind == OB_ACTIVITY_HOST && records[1].correlation == 18);
    CHECK(records[0].start <= records[0].end && records[0].end <= records[1].start);
    CHECK_OK(driver->activity_correlate(driver.self(), 0));
  }
}

// Eight threads use all eight streams of two devices: records, waits, copies, calls, destroyed
// events.
TEST(threads_and_streams) {
  for (const char* schedule : {"normal", "inline", "lazy:3"}) {
    for (const char* workers : {"1", "3"}) {
      const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}, {"workers", workers}});
      driver.open(0);
      driver.open(1);
      constexpr int kThreads = 8;
      constexpr int kStreams = 8;
      constexpr int kRounds = 300;
      std::vector<uint64_t> streams, memory;
      for (int i = 0; i < kStreams; ++i) {
        streams.push_back(driver.stream(i % 2, -(i % 3 == 0)));
        memory.push_back(driver.alloc(4096, i % 2));
      }
      std::atomic<uint64_t> calls{0};
      // Not atomic: only the order of the stream protects it.
      std::vector<std::unique_ptr<uint64_t>> counters;
      for (int i = 0; i < kStreams; ++i) counters.push_back(std::make_unique<uint64_t>(0));
      struct Count {
        std::atomic<uint64_t>* calls;
        uint64_t* counter;
        void operator()() const {
          calls->fetch_add(1);
          ++*counter;
        }
      };
      std::vector<Count> work;
      for (int i = 0; i < kStreams; ++i) work.push_back({&calls, counters[static_cast<size_t>(i)].get()});
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          uint64_t random = static_cast<uint64_t>(t) * 977 + 1;
          uint64_t event[2] = {driver.event(0, 0), driver.event(OB_EVENT_TIMING, 1)};
          for (int round = 0; round < kRounds; ++round) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const size_t from = (random >> 33) % kStreams;
            const size_t to = (random >> 43) % kStreams;
            const int32_t from_device = static_cast<int32_t>(from % 2);
            const int32_t to_device = static_cast<int32_t>(to % 2);
            CHECK_OK(driver.call(streams[from], &work[from], from_device));
            CHECK_OK(driver.record(streams[from], event[from_device], from_device));
            CHECK_OK(driver.wait(streams[to], event[from_device], to_device, from_device));
            if (from != to) {
              CHECK_OK(driver.copy(streams[to], memory[to], to_device, memory[to] + 2048, to_device, 512, to_device));
            }
            if (round % 50 == 17) {
              CHECK_OK(driver->event_destroy(driver.self(), from_device, event[from_device]));
              event[from_device] = driver.event(OB_EVENT_TIMING, from_device);
            }
            if (round % 37 == 5) CHECK_OK(driver->event_synchronize(driver.self(), from_device, event[from_device]));
            if (round % 41 == 7) CHECK_OK(driver.sync(streams[to], to_device));
            if (round % 61 == 9) {
              const uint64_t stream = driver.stream(to_device);
              CHECK_OK(driver.wait(stream, event[from_device], to_device, from_device));
              CHECK_OK(driver->stream_destroy(driver.self(), to_device, stream));
              CHECK_OK(driver->mem_free(driver.self(), to_device, driver.alloc(100'000, to_device)));
            }
            driver->event_query(driver.self(), from_device, event[from_device]);
          }
          for (int32_t device = 0; device < 2; ++device) {
            CHECK_OK(driver->event_destroy(driver.self(), device, event[device]));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK_OK(driver->device_synchronize(driver.self(), 0));
      CHECK_OK(driver->device_synchronize(driver.self(), 1));
      CHECK(calls == kThreads * kRounds);
      uint64_t sum = 0;
      for (const auto& counter : counters) sum += *counter;
      CHECK(sum == kThreads * kRounds);
      for (int i = 0; i < kStreams; ++i) {
        CHECK_OK(driver->stream_destroy(driver.self(), i % 2, streams[static_cast<size_t>(i)]));
        CHECK_OK(driver->mem_free(driver.self(), i % 2, memory[static_cast<size_t>(i)]));
      }
      CHECK_OK(driver->device_close(driver.self(), 0));
      CHECK_OK(driver->device_close(driver.self(), 1));
    }
  }
}

// Handles that are used while another thread destroys them: errors, never a crash.
TEST(handles_die_under_use) {
  for (const char* schedule : kSchedules) {
    const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
    driver.open();
    std::atomic<uint64_t> stream{driver.stream()};
    std::atomic<uint64_t> event{driver.event()};
    std::atomic<bool> is_over{false};
    std::atomic<uint64_t> accepted{0}, ran{0};
    auto count = [&] { ran.fetch_add(1); };
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        while (!is_over.load()) {
          const auto is_legal = [](ob_status s) { return s == OB_OK || s == OB_NOT_READY || s == OB_INVALID_ARGUMENT; };
          const ob_status status = driver.call(stream, &count);
          if (status == OB_OK) accepted.fetch_add(1);
          CHECK(is_legal(status));
          CHECK(is_legal(driver.record(stream, event)));
          CHECK(is_legal(driver.wait(stream, event)));
          CHECK(is_legal(driver->event_query(driver.self(), 0, event)));
          CHECK(is_legal(driver.sync(stream)));
        }
      });
    }
    for (int i = 0; i < 300; ++i) {
      const uint64_t old_stream = stream.exchange(driver.stream());
      const uint64_t old_event = event.exchange(driver.event());
      CHECK_OK(driver->stream_destroy(driver.self(), 0, old_stream));
      CHECK_OK(driver->event_destroy(driver.self(), 0, old_event));
    }
    is_over = true;
    for (std::thread& thread : threads) thread.join();
    CHECK_OK(driver->device_synchronize(driver.self(), 0));
    CHECK(accepted == ran);
  }
}

// This program runs itself again, and the new process exits with work that never ends.
constexpr const char* kExitWithWork = "--exit-with-work";
char* program = nullptr;

int exit_with_work(const char* path) {
  // Never destroyed, because they still have work when the process ends. Static, so that they do
  // not count as leaks.
  static const auto* driver = new Library(path, {{"memory", "64MiB"}, {"workers", "2"}});
  static auto* never = new Gate;
  static auto* begun = new Gate;
  static auto* work = new auto([] {
    begun->open();
    never->wait();
  });
  driver->open();
  driver->call(driver->stream(), work);
  driver->call(driver->stream(), work);
  begun->wait();
  return failed_checks.load();
}

TEST(processes_exit_with_work_under_way) {
  const pid_t child = fork();
  if (child == 0) {
    execlp(program, program, path, kExitWithWork, static_cast<char*>(nullptr));
    _exit(126);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A thread waits for another thread's task under way, as if it had been queued.
TEST(inline_waits_for_other_threads) {
  const Library driver(path, {{"memory", "64MiB"}, {"schedule", "inline"}});
  driver.open();
  const uint64_t producer = driver.stream();
  const uint64_t consumer = driver.stream();
  const uint64_t event = driver.event();
  Gate begun, end;
  int value = 0;
  int seen = 0;
  auto produce = [&] {
    begun.open();
    end.wait();
    value = 1;
  };
  auto consume = [&] { seen = value; };
  std::thread other([&] { CHECK_OK(driver.call(producer, &produce)); });
  begun.wait();
  CHECK_STATUS(driver->stream_query(driver.self(), 0, producer), OB_NOT_READY);
  CHECK_OK(driver.record(producer, event));
  CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_NOT_READY);
  std::thread opener([&] { end.open(); });
  CHECK_OK(driver.wait(consumer, event));
  CHECK_OK(driver.call(consumer, &consume));
  CHECK(seen == 1);
  other.join();
  opener.join();
}

}  // namespace

int main(int argc, char** argv) {
  program = argv[0];
  if (argc == 3 && std::strcmp(argv[2], kExitWithWork) == 0) return exit_with_work(argv[1]);
  return run_tests(argc, argv);
}

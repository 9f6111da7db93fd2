// SPDX-License-Identifier: BSD-3-Clause
// Events that the host completes, for every driver that has them.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "gate.h"

namespace {

ob_status signal(const Library& driver, uint64_t event, int32_t device = 0) {
  return driver->event_signal(driver.self(), device, event);
}

ob_status query(const Library& driver, uint64_t event) {
  return driver->event_query(driver.self(), 0, event);
}

TEST(a_stream_waits_for_the_host) {
  const Library driver(path);
  driver.open();
  const uint64_t waiting = driver.stream();
  const uint64_t other = driver.stream();
  const uint64_t event = driver.event(OB_EVENT_HOST);
  std::atomic<int> done{0};
  std::atomic<int> others{0};
  auto count = [&] { done.fetch_add(1); };
  auto count_other = [&] { others.fetch_add(1); };
  CHECK_OK(driver.wait(waiting, event));
  for (int i = 0; i < 100; ++i) CHECK_OK(driver.call(waiting, &count));
  CHECK_OK(driver.call(other, &count_other));
  CHECK_OK(driver.sync(other));  // a blocked stream does not hold up others
  CHECK(others == 1 && done == 0);
  CHECK_STATUS(query(driver, event), OB_NOT_READY);
  CHECK_STATUS(driver->stream_query(driver.self(), 0, waiting), OB_NOT_READY);
  std::thread host([&] { CHECK_OK(signal(driver, event)); });
  CHECK_OK(driver.sync(waiting));  // sleeps until then
  CHECK(done == 100);
  CHECK_OK(query(driver, event));
  host.join();
  CHECK_OK(driver.wait(other, event));  // passes
  CHECK_OK(driver.sync(other));
  CHECK_OK(driver->event_destroy(driver.self(), 0, event));
}

// Events behind an event of the host, and streams that wait for those.
TEST(records_lie_behind_the_wait) {
  const Library driver(path);
  driver.open();
  const uint64_t first = driver.stream();
  const uint64_t second = driver.stream();
  const uint64_t host = driver.event(OB_EVENT_HOST);
  const uint64_t mark = driver.event();
  std::atomic<int> done{0};
  auto count = [&] { done.fetch_add(1); };
  CHECK_OK(driver.wait(first, host));
  CHECK_OK(driver.call(first, &count));
  CHECK_OK(driver.record(first, mark));
  CHECK_OK(driver.wait(second, mark));
  CHECK_OK(driver.call(second, &count));
  CHECK_STATUS(query(driver, mark), OB_NOT_READY);
  std::thread waiter([&] {
    CHECK_OK(driver->event_synchronize != nullptr ? driver->event_synchronize(driver.self(), 0, mark)
                                                  : driver.sync(first));
    CHECK(done >= 1);
  });
  CHECK(done == 0);
  CHECK_OK(signal(driver, host));
  waiter.join();
  CHECK_OK(driver.sync(second));
  CHECK(done == 2);
}

TEST(the_host_waits_for_the_host) {
  const Library driver(path);
  driver.open();
  const uint64_t event = driver.event(OB_EVENT_HOST);
  std::atomic<bool> is_signalled{false};
  std::thread host([&] {
    is_signalled = true;
    CHECK_OK(signal(driver, event));
  });
  CHECK_OK(driver->event_synchronize(driver.self(), 0, event));
  CHECK(is_signalled);
  host.join();
}

TEST(bad_input_is_refused) {
  const Library driver(path);
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t recorded = driver.event();
  const uint64_t event = driver.event(OB_EVENT_HOST);
  CHECK_OK(driver.record(stream, recorded));
  CHECK_STATUS(signal(driver, recorded), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver.record(stream, event), OB_INVALID_ARGUMENT);
  CHECK_STATUS(query(driver, event), OB_NOT_READY);
  CHECK_OK(signal(driver, event));
  CHECK_STATUS(signal(driver, event), OB_FAILED_PRECONDITION);
  CHECK(driver.error_has("already signalled"));
  CHECK_OK(query(driver, event));
  CHECK_OK(driver->event_destroy(driver.self(), 0, event));
  CHECK_STATUS(signal(driver, event), OB_INVALID_ARGUMENT);
  CHECK_STATUS(signal(driver, event, -1), OB_INVALID_ARGUMENT);
  CHECK_STATUS(signal(driver, 0), OB_INVALID_ARGUMENT);
  CHECK_OK(driver.sync(stream));
}

TEST(destroying_releases) {
  const Library driver(path);
  driver.open();
  const uint64_t stream = driver.stream();
  for (int round = 0; round < 50; ++round) {  // the slots are used again
    const uint64_t event = driver.event(OB_EVENT_HOST);
    CHECK_OK(driver.wait(stream, event));
    CHECK_STATUS(driver->stream_query(driver.self(), 0, stream), OB_NOT_READY);
    CHECK_OK(driver->event_destroy(driver.self(), 0, event));
    CHECK_OK(driver.sync(stream));
  }
}

// Many streams wait for many events, which threads signal in random order.
TEST(threads_signal) {
  const Library driver(path);
  driver.open();
  constexpr int kStreams = 4;
  constexpr int kRounds = 200;
  std::vector<uint64_t> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(driver.stream());
  std::vector<uint64_t> events;
  std::atomic<int> done{0};
  std::atomic<int> signalled{0};
  auto count = [&] {
    const int before = done;
    CHECK(signalled * kStreams > before);  // a stream's n-th call lies behind n events
    done.fetch_add(1);
  };
  for (int round = 0; round < kRounds; ++round) {
    events.push_back(driver.event(OB_EVENT_HOST));
    for (const uint64_t stream : streams) {
      CHECK_OK(driver.wait(stream, events.back()));
      CHECK_OK(driver.call(stream, &count));
    }
  }
  std::vector<std::thread> threads;
  for (int part = 0; part < 2; ++part) {
    threads.emplace_back([&, part] {
      for (int i = part; i < kRounds; i += 2) {
        signalled.fetch_add(1);
        CHECK_OK(signal(driver, events[static_cast<size_t>(i)]));
      }
    });
  }
  for (const uint64_t stream : streams) CHECK_OK(driver.sync(stream));
  CHECK(done == kRounds * kStreams);
  for (std::thread& thread : threads) thread.join();
  for (const uint64_t event : events) CHECK_OK(driver->event_destroy(driver.self(), 0, event));
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv);
}

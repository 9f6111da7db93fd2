// SPDX-License-Identifier: BSD-3-Clause
// The simulated device's lazy schedule: work runs when it must, in the order of a seed.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "check.h"

namespace {

// The order in which the calls of four streams run under `schedule`, as letters.
std::string order_under(const char* path, const char* schedule) {
  const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
  driver.open();
  std::string order;
  const uint64_t event = driver.event();
  struct Append {
    std::string* order;
    char letter;
    void operator()() const { *order += letter; }
  };
  std::vector<Append> work;
  for (const char letter : {'a', 'b', 'c', 'd'}) work.push_back({&order, letter});
  std::vector<uint64_t> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(driver.stream());
  for (int round = 0; round < 8; ++round) {
    for (size_t i = 0; i < 4; ++i) CHECK_OK(driver.call(streams[i], &work[i]));
    if (round == 3) {
      CHECK_OK(driver.record(streams[0], event));
      CHECK_OK(driver.wait(streams[1], event));
    }
  }
  CHECK(order.empty());
  CHECK_OK(driver.sync(streams[1]));
  CHECK(std::count(order.begin(), order.end(), 'b') == 8);
  // b's fifth comes after a's fourth.
  size_t a = 0, b = 0;
  for (int i = 0; i < 4; ++i) a = order.find('a', a) + 1;
  for (int i = 0; i < 5; ++i) b = order.find('b', b) + 1;
  CHECK(a < b);
  CHECK_OK(driver->device_synchronize(driver.self(), 0));
  CHECK(order.size() == 32);
  return order;
}

void lazy_order_is_the_seeds(const char* path) {
  std::vector<std::string> orders;
  for (const char* schedule : {"lazy:0", "lazy:1", "lazy:2", "lazy:3", "lazy:18446744073709551615"}) {
    const std::string order = order_under(path, schedule);
    CHECK(order == order_under(path, schedule));
    CHECK(std::find(orders.begin(), orders.end(), order) == orders.end());
    orders.push_back(order);
  }
}

// A consumer that forgot to wait reads too early in some seeds, one that waits in none.
void lazy_shows_a_missing_wait(const char* path) {
  for (const bool waits : {false, true}) {
    int early = 0;
    for (int seed = 0; seed < 100; ++seed) {
      const std::string schedule = "lazy:" + std::to_string(seed);
      const Library driver(path, {{"schedule", schedule.c_str()}, {"memory", "64MiB"}});
      driver.open();
      const uint64_t producer = driver.stream();
      const uint64_t consumer = driver.stream();
      const uint64_t event = driver.event();
      int value = 0;
      int seen = 0;
      auto produce = [&] { value = 1; };
      auto consume = [&] { seen = value; };
      CHECK_OK(driver.call(producer, &produce));
      CHECK_OK(driver.record(producer, event));
      if (waits) CHECK_OK(driver.wait(consumer, event));
      CHECK_OK(driver.call(consumer, &consume));
      CHECK_OK(driver.sync(consumer));
      if (seen == 0) ++early;
      CHECK_OK(driver.sync(producer));
    }
    CHECK(waits ? early == 0 : early >= 30 && early <= 70);
  }
}

void lazy_polling_ends(const char* path) {
  const Library driver(path, {{"schedule", "lazy:5"}, {"memory", "64MiB"}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t event = driver.event();
  std::atomic<int> done{0};
  auto count = [&] { done.fetch_add(1); };
  for (int i = 0; i < 10; ++i) {
    CHECK_OK(driver.call(stream, &count));
    CHECK_OK(driver.record(stream, event));
    // A host that goes on queueing makes nothing run by a look now and then.
    CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_NOT_READY);
  }
  CHECK(done == 0);
  int polls = 0;
  while (driver->event_query(driver.self(), 0, event) == OB_NOT_READY && polls < 1000) ++polls;
  CHECK(done == 10);
  CHECK_OK(driver->stream_query(driver.self(), 0, stream));
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv,
                   {{"lazy_order_is_the_seeds", lazy_order_is_the_seeds},
                    {"lazy_shows_a_missing_wait", lazy_shows_a_missing_wait},
                    {"lazy_polling_ends", lazy_polling_ends}});
}

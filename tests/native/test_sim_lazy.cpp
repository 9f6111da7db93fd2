// SPDX-License-Identifier: BSD-3-Clause
// The simulated device's lazy and pct schedules: work runs when it must, in the order of a seed.
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
  for (const char* schedule : {"lazy:0", "lazy:1", "lazy:2", "lazy:3", "lazy:18446744073709551615", "pct:0", "pct:1",
                               "pct:2", "pct:18446744073709551615"}) {
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

// Return whether a reader that does not wait for its writer, with calls queued before it on either
// stream, reads too early. `waits` is the repaired twin.
bool reads_early(const char* path, uint64_t seed, int calls_before, bool waits) {
  const std::string schedule = "pct:" + std::to_string(seed);
  const Library driver(path, {{"schedule", schedule.c_str()}, {"memory", "64MiB"}});
  driver.open();
  const uint64_t writer = driver.stream(), reader = driver.stream(), event = driver.event();
  int value = 0, seen = 0;
  auto nothing = [] {};
  auto write = [&] { value = 1; };
  auto read = [&] { seen = value; };
  for (int i = 0; i < calls_before; ++i) {
    CHECK_OK(driver.call(reader, &nothing));
    CHECK_OK(driver.call(writer, &nothing));
  }
  CHECK_OK(driver.call(writer, &write));
  CHECK_OK(driver.record(writer, event));
  if (waits) CHECK_OK(driver.wait(reader, event));
  CHECK_OK(driver.call(reader, &read));
  CHECK_OK(driver->device_synchronize(driver.self(), 0));
  return seen == 0;
}

// Of twenty seeds one shows a missing wait, however much work is queued before the reader.
void pct_shows_a_missing_wait_at_every_distance(const char* path) {
  for (const int calls_before : {0, 2, 8, 16, 64, 512}) {
    for (uint64_t first = 0; first < 200; first += 20) {
      int early = 0;
      for (uint64_t seed = first; seed < first + 20; ++seed) {
        early += reads_early(path, seed, calls_before, false) ? 1 : 0;
        CHECK(!reads_early(path, seed, calls_before, true));
      }
      CHECK(early > 0);
    }
  }
}

// A value that is wrong between two of a stream's calls shows with a probability of at least
// 1 / (n k), of k calls of n streams: the bound of a race of depth 2.
void pct_keeps_its_bound(const char* path) {
  for (const int calls_before : {2, 8, 32}) {
    const int bound = 2 * (2 * calls_before + 3), seeds = 40 * bound;
    int seen = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const std::string schedule = "pct:" + std::to_string(seed);
      const Library driver(path, {{"schedule", schedule.c_str()}, {"depth", "2"}, {"memory", "64MiB"}});
      driver.open();
      const uint64_t a = driver.stream(), b = driver.stream();
      bool is_between = false;
      auto nothing = [] {};
      auto enter = [&] { is_between = true; };
      auto leave = [&] { is_between = false; };
      auto look = [&] { seen += is_between ? 1 : 0; };
      for (int i = 0; i < calls_before; ++i) {
        CHECK_OK(driver.call(a, &nothing));
        CHECK_OK(driver.call(b, &nothing));
      }
      CHECK_OK(driver.call(a, &enter));
      CHECK_OK(driver.call(a, &leave));
      CHECK_OK(driver.call(b, &look));
      CHECK_OK(driver->device_synchronize(driver.self(), 0));
    }
    CHECK(seen >= seeds / bound);
  }
}

void polling_ends(const char* path, const char* schedule) {
  const Library driver(path, {{"schedule", schedule}, {"memory", "64MiB"}});
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

void lazy_polling_ends(const char* path) {
  for (const char* schedule : {"lazy:5", "pct:4", "pct:5"}) polling_ends(path, schedule);
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv,
                   {{"lazy_order_is_the_seeds", lazy_order_is_the_seeds},
                    {"lazy_shows_a_missing_wait", lazy_shows_a_missing_wait},
                    {"pct_shows_a_missing_wait_at_every_distance", pct_shows_a_missing_wait_at_every_distance},
                    {"pct_keeps_its_bound", pct_keeps_its_bound},
                    {"lazy_polling_ends", lazy_polling_ends}});
}

// SPDX-License-Identifier: BSD-3-Clause
// The simulated device's lazy and pct schedules: work runs only when it must, in an order that a
// seed decides.
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
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

TEST(lazy_order_is_the_seeds) {
  std::vector<std::string> orders;
  for (const char* schedule : {"lazy:0", "lazy:1", "lazy:2", "lazy:3", "lazy:18446744073709551615", "pct:0", "pct:1",
                               "pct:2", "pct:18446744073709551615"}) {
    const std::string order = order_under(path, schedule);
    CHECK(order == order_under(path, schedule));
    CHECK(std::find(orders.begin(), orders.end(), order) == orders.end());
    orders.push_back(order);
  }
}

// A consumer without a wait reads too early for some seeds, and one with a wait for none.
TEST(lazy_shows_a_missing_wait) {
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

// One of twenty seeds shows a missing wait, however much work is queued before the reader.
TEST(pct_shows_a_missing_wait_at_every_distance) {
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

// Return whether calls of two streams, which are queued in another order, run as "0123…", `depth` +
// 1 of them, with `before` calls queued before them on either stream: a race of depth `depth`.
bool runs_in_order(const char* path, uint64_t seed, int depth, int before, uint64_t steps) {
  const std::string schedule = "pct:" + std::to_string(seed), falls = std::to_string(depth);
  const std::string expected = std::to_string(steps);
  const Library driver(
      path,
      {{"schedule", schedule.c_str()}, {"depth", falls.c_str()}, {"steps", expected.c_str()}, {"memory", "1MiB"}});
  driver.open();
  const uint64_t streams[] = {driver.stream(), driver.stream()};
  int next = 0;
  struct Step {
    int* next;
    int number;
    void operator()() const { *next = *next == number ? number + 1 : -1; }
  };
  std::vector<Step> order;
  for (int i = 0; i <= depth; ++i) order.push_back({&next, i});
  auto nothing = [] {};
  for (const uint64_t stream : streams) {
    for (int i = 0; i < before; ++i) CHECK_OK(driver.call(stream, &nothing));
  }
  for (size_t i = 0; i < order.size(); ++i) CHECK_OK(driver.call(streams[i % 2], &order[i]));
  CHECK_OK(driver->device_synchronize(driver.self(), 0));
  return next == depth + 1;
}

// Of the runs of a race of depth d, at least one in n (c + d - 1)^(d-1) shows it; `c`, of n
// streams' calls, are run while another stream could run.
TEST(pct_keeps_its_bound) {
  for (const auto& [depth, before] : {std::pair{1, 8}, {2, 2}, {2, 8}, {2, 24}, {3, 0}, {3, 6}, {4, 1}}) {
    const int choices = 2 * before + depth;
    int bound = 2;
    for (int i = 1; i < depth; ++i) bound *= choices + depth - 1;
    const uint64_t runs = 30 * static_cast<uint64_t>(bound);
    uint64_t seen = 0;
    for (uint64_t i = 0; i < runs; ++i) {  // an even seed's falls lie among the given steps
      seen += runs_in_order(path, 2 * i, depth, before, static_cast<uint64_t>(choices)) ? 1 : 0;
    }
    CHECK(seen >= runs / static_cast<uint64_t>(bound));
  }
}

// An odd seed's falls lie in an epoch of 4, 8, … or 4096 choices: the bound of those epochs that
// the race fits in, each with a chance of one in eleven.
TEST(pct_keeps_its_bound_in_epochs) {
  constexpr int kBefore = 3, kDepth = 2, kRuns = 20000;
  double least = 0;
  for (int length = 8; length <= 4096; length *= 2) least += 1.0 / 11 / (2.0 * (length + kDepth - 1));
  int seen = 0;
  for (uint64_t i = 0; i < kRuns; ++i) seen += runs_in_order(path, 2 * i + 1, kDepth, kBefore, 0) ? 1 : 0;
  CHECK(seen >= kRuns * least);
}

// A run with fewer changes of ranks begins like the whole run. A limit above the number of changes
// does not alter the run.
TEST(pct_changes_are_a_prefix) {
  const auto order = [path](const std::string& changes) {
    const Library driver(path, {{"schedule", "pct:7"}, {"depth", "5"}, {"changes", changes.c_str()}});
    driver.open();
    std::string letters;
    struct Append {
      std::string* letters;
      char letter;
      void operator()() const { *letters += letter; }
    };
    Append work[] = {{&letters, 'a'}, {&letters, 'b'}, {&letters, 'c'}};
    for (Append& append : work) {
      const uint64_t stream = driver.stream();
      for (int i = 0; i < 1000; ++i) CHECK_OK(driver.call(stream, &append));
    }
    CHECK_OK(driver->device_synchronize(driver.self(), 0));
    return letters;
  };
  const auto switches = [](const std::string& letters) {
    int count = 0;
    for (size_t i = 1; i < letters.size(); ++i) count += letters[i] != letters[i - 1] ? 1 : 0;
    return count;
  };
  const std::string whole = order("1000000000000");
  CHECK(switches(order("0")) == 2);  // three streams, one behind another
  size_t common = 0;
  int changes = 0;
  for (std::string part; part != whole && changes < 10000; changes = 2 * changes + 1) {
    part = order(std::to_string(changes));
    const auto apart = std::mismatch(part.begin(), part.end(), whole.begin()).first - part.begin();
    CHECK(static_cast<size_t>(apart) >= common);
    common = static_cast<size_t>(apart);
  }
  CHECK(common == whole.size() && changes > 1);
}

TEST(errors_name_the_order) {
  const auto error = [path](const char* schedule, const char* depth) {
    const Library driver(path, {{"schedule", schedule}, {"depth", depth}, {"memory", "1MiB"}, {"steps", "9"}});
    driver.open();
    uint64_t address = 0;
    CHECK_STATUS(driver->mem_alloc(driver.self(), 0, uint64_t{1} << 40, &address), OB_OUT_OF_MEMORY);
    char text[1024];
    driver->last_error(driver.self(), text, sizeof text);
    return std::string(text);
  };
  const auto ends = [](const std::string& text, const std::string& with) {
    return text.size() > with.size() && text.compare(text.size() - with.size(), with.size(), with) == 0;
  };
  CHECK(ends(error("pct:7", "4"), " (schedule=pct:7, depth=4, steps=9)"));
  CHECK(ends(error("lazy:18446744073709551615", "3"), " (schedule=lazy:18446744073709551615)"));
  CHECK(error("normal", "3").find("schedule") == std::string::npos);
  CHECK(error("inline", "3").find("schedule") == std::string::npos);
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
    // A host that keeps queueing does not make work run by an occasional query.
    CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_NOT_READY);
  }
  CHECK(done == 0);
  int polls = 0;
  while (driver->event_query(driver.self(), 0, event) == OB_NOT_READY && polls < 1000) ++polls;
  CHECK(done == 10);
  CHECK_OK(driver->stream_query(driver.self(), 0, stream));
}

TEST(lazy_polling_ends) {
  for (const char* schedule : {"lazy:5", "pct:4", "pct:5"}) polling_ends(path, schedule);
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv);
}

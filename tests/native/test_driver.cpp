// SPDX-License-Identifier: BSD-3-Clause
// Tests for every driver library: run it with the library's path. It uses the required entries, and
// the optional ones that exist.
#include "check.h"

namespace {

bool is_there(ob_status status) {
  return status != OB_UNIMPLEMENTED;
}

TEST(table_is_whole) {
  const Library driver(path);
  if (!CHECK_OK(driver.status)) return;
  CHECK(driver.table.struct_size == sizeof(ob_driver));
  CHECK(driver.table.abi_major == OB_ABI_MAJOR);
  CHECK(driver->device_count != nullptr && driver->device_properties != nullptr);
  CHECK(driver->mem_alloc != nullptr && driver->mem_free != nullptr && driver->copy_async != nullptr);
  CHECK(driver->stream_create != nullptr && driver->stream_destroy != nullptr);
  CHECK(driver->stream_synchronize != nullptr && driver->stream_wait_event != nullptr);
  CHECK(driver->event_create != nullptr && driver->event_destroy != nullptr);
  CHECK(driver->event_record != nullptr && driver->event_query != nullptr);
  CHECK(driver->device_count(driver.self()) > 0);
}

TEST(short_table_is_respected) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const auto symbol = reinterpret_cast<ob_driver_table_fn>(dlsym(library, OB_DRIVER_TABLE_SYMBOL));
  const ob_options options = {sizeof(ob_options), 0, nullptr, nullptr};
  ob_driver table = {};
  const size_t known = offsetof(ob_driver, host_callback);
  table.struct_size = known;
  char error[64] = "";
  if (!CHECK_OK(symbol(&options, &table, error, sizeof error))) return;
  CHECK(table.struct_size == known);
  CHECK(table.mem_unmap != nullptr || table.stream_wait_event != nullptr);
  const char* bytes = reinterpret_cast<const char*>(&table);
  for (size_t i = known; i < sizeof table; ++i) {
    if (!CHECK(bytes[i] == 0)) break;
  }
  if (table.destroy != nullptr) table.destroy(table.self);
}

// Properties for a core with the full struct and for one with a shorter struct: its fields are
// filled, and nothing is written behind them.
TEST(short_properties_are_respected) {
  constexpr size_t kKnown[] = {offsetof(ob_device_properties, machine), sizeof(ob_device_properties)};
  const Library driver(path);
  for (const size_t known : kKnown) {
    ob_device_properties properties = {};
    char* bytes = reinterpret_cast<char*>(&properties);
    std::memset(bytes + known, 0x5a, sizeof properties - known);
    properties.struct_size = known;
    if (!CHECK_OK(driver->device_properties(driver.self(), 0, &properties))) return;
    CHECK(properties.struct_size <= known && std::strlen(properties.name) < sizeof properties.name);
    for (size_t i = known; i < sizeof properties; ++i) {
      if (!CHECK(bytes[i] == 0x5a)) break;
    }
    if (known == sizeof properties)
      CHECK(properties.machine >= OB_MACHINE_UNKNOWN && properties.machine <= OB_MACHINE_GPU);
  }
}

TEST(unknown_options_are_refused) {
  const Library driver(path, {{"no_such_option", "1"}});
  CHECK(driver.status == OB_INVALID_ARGUMENT);
  CHECK(driver.error.find("no_such_option") != std::string::npos);
}

struct Opened {
  explicit Opened(const char* path) : driver(path) {
    if (driver->device_open != nullptr) {
      const ob_status status = driver->device_open(driver.self(), 0);
      CHECK(status == OB_OK || status == OB_UNIMPLEMENTED);
    }
  }
  Library driver;
};

TEST(copies_arrive) {
  const Opened opened(path);
  const Library& driver = opened.driver;
  const uint64_t stream = driver.stream();
  std::vector<int> before(100'000), after(100'000);
  for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<int>(i);
  const uint64_t bytes = before.size() * sizeof(int);
  const uint64_t a = driver.alloc(bytes);
  const uint64_t b = driver.alloc(bytes);
  CHECK(a != b);
  CHECK_OK(driver.copy(stream, a, 0, address_of(before.data()), OB_HOST, bytes));
  CHECK_OK(driver.copy(stream, b, 0, a, 0, bytes));
  // Interior addresses are legal.
  CHECK_OK(driver.copy(stream, a + 4, 0, b, 0, bytes - 4));
  CHECK_OK(driver.copy(stream, address_of(after.data()), OB_HOST, a, 0, bytes));
  CHECK_OK(driver.sync(stream));
  CHECK(after[0] == 0);
  for (size_t i = 1; i < after.size(); ++i) {
    if (!CHECK(after[i] == before[i - 1])) break;
  }
  CHECK_OK(driver->mem_free(driver.self(), 0, a));
  CHECK_OK(driver->mem_free(driver.self(), 0, b));
  CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
}

TEST(events_order_streams) {
  const Opened opened(path);
  const Library& driver = opened.driver;
  const uint64_t first = driver.stream();
  const uint64_t second = driver.stream();
  const uint64_t event = driver.event();
  CHECK_OK(driver->event_query(driver.self(), 0, event));  // never recorded
  CHECK_OK(driver.wait(second, event));
  std::vector<char> ones(1 << 20, 1), got(1 << 20, 0);
  const uint64_t a = driver.alloc(ones.size());
  const uint64_t b = driver.alloc(ones.size());
  CHECK_OK(driver.copy(first, a, 0, address_of(ones.data()), OB_HOST, ones.size()));
  CHECK_OK(driver.record(first, event));
  CHECK_OK(driver.wait(second, event));
  CHECK_OK(driver->event_destroy(driver.self(), 0, event));  // the wait stays
  CHECK_OK(driver.copy(second, b, 0, a, 0, ones.size()));
  CHECK_OK(driver.copy(second, address_of(got.data()), OB_HOST, b, 0, ones.size()));
  CHECK_OK(driver.sync(second));
  CHECK(got == ones);
  CHECK_OK(driver->mem_free(driver.self(), 0, a));
  CHECK_OK(driver->mem_free(driver.self(), 0, b));
  CHECK_OK(driver->stream_destroy(driver.self(), 0, first));
  CHECK_OK(driver->stream_destroy(driver.self(), 0, second));
}

TEST(mistakes_are_errors) {
  const Opened opened(path);
  const Library& driver = opened.driver;
  const int32_t count = driver->device_count(driver.self());
  uint64_t out = 0;
  ob_device_properties properties = {};
  properties.struct_size = sizeof properties;
  for (const int32_t device : {-2, -1, count, count + 1000}) {
    CHECK_STATUS(driver->mem_alloc(driver.self(), device, 512, &out), OB_INVALID_ARGUMENT);
    CHECK_STATUS(driver->device_properties(driver.self(), device, &properties), OB_INVALID_ARGUMENT);
    CHECK_STATUS(driver->stream_create(driver.self(), device, 0, &out), OB_INVALID_ARGUMENT);
    CHECK_STATUS(driver->event_create(driver.self(), device, 0, &out), OB_INVALID_ARGUMENT);
    CHECK_STATUS(driver.sync(0, device), OB_INVALID_ARGUMENT);
  }
  CHECK(driver->last_error == nullptr || !driver.last_error().empty());
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, UINT64_MAX, &out), OB_OUT_OF_MEMORY);
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, uint64_t{1} << 62, &out), OB_OUT_OF_MEMORY);

  const uint64_t memory = driver.alloc(4096);
  const uint64_t stream = driver.stream();
  const uint64_t event = driver.event();
  char host[64] = {};
  CHECK_STATUS(driver->mem_free(driver.self(), 0, memory + 512), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->mem_free(driver.self(), 0, address_of(host)), OB_INVALID_ARGUMENT);
  CHECK(driver.copy(stream, memory + 4096, 0, address_of(host), OB_HOST, 64) != OB_OK);
  CHECK(driver.copy(stream, memory + 4090, 0, address_of(host), OB_HOST, 64) != OB_OK);
  CHECK_OK(driver->mem_free(driver.self(), 0, memory));
  CHECK_STATUS(driver->mem_free(driver.self(), 0, memory), OB_INVALID_ARGUMENT);
  CHECK(driver.copy(stream, memory, 0, address_of(host), OB_HOST, 64) != OB_OK);

  CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
  CHECK_STATUS(driver->stream_destroy(driver.self(), 0, stream), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver.sync(stream), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver.record(stream, event), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->event_destroy(driver.self(), 0, event));
  CHECK_STATUS(driver->event_destroy(driver.self(), 0, event), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_INVALID_ARGUMENT);
  for (const uint64_t nonsense : {uint64_t{1} << 63, UINT64_MAX, uint64_t{0xDEADBEEF}}) {
    CHECK_STATUS(driver.sync(nonsense), OB_INVALID_ARGUMENT);
    CHECK_STATUS(driver->event_query(driver.self(), 0, nonsense), OB_INVALID_ARGUMENT);
  }
}

TEST(host_work_is_called_once) {
  const Opened opened(path);
  const Library& driver = opened.driver;
  if (driver->host_callback == nullptr) return;
  const uint64_t stream = driver.stream();
  std::vector<int> order;
  int number = 0;
  auto next = [&] { order.push_back(number++); };
  ob_status status = driver.call(stream, &next);
  if (!is_there(status)) {
    CHECK(driver.error_has("host_callback"));
    CHECK(order.empty());
    return;
  }
  for (int i = 0; i < 999; ++i) CHECK_OK(driver.call(stream, &next));
  CHECK_OK(driver.sync(stream));
  CHECK(order.size() == 1000);
  for (size_t i = 0; i < order.size(); ++i) {
    if (!CHECK(order[i] == static_cast<int>(i))) break;
  }
}

// Work that the core queues for operators is ordered by the same events as copies.
TEST(host_work_waits_for_events) {
  const Opened opened(path);
  const Library& driver = opened.driver;
  if (driver->host_callback == nullptr) return;
  const uint64_t streams[3] = {driver.stream(), driver.stream(), driver.stream()};
  const uint64_t events[2] = {driver.event(), driver.event()};
  int done = 0;
  std::vector<int> seen;
  auto work = [&] { ++done; };
  auto look = [&] { seen.push_back(done); };
  if (!is_there(driver.call(streams[0], &look))) return;
  for (int i = 0; i < 500; ++i) CHECK_OK(driver.call(streams[0], &work));
  CHECK_OK(driver.record(streams[0], events[0]));
  CHECK_OK(driver.wait(streams[1], events[0]));
  CHECK_OK(driver.record(streams[1], events[1]));
  CHECK_OK(driver.wait(streams[2], events[1]));
  CHECK_OK(driver.call(streams[2], &look));
  CHECK_OK(driver.sync(streams[2]));
  CHECK((seen == std::vector<int>{0, 500}));
  for (const uint64_t event : events) CHECK_OK(driver->event_destroy(driver.self(), 0, event));
  for (const uint64_t stream : streams) CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv);
}

// SPDX-License-Identifier: BSD-3-Clause The Vulkan driver: faults of its surroundings, programs and
// their binaries, launches, copies. Needs a Vulkan loader and a device. OB_FAKE names the built
// fake_vulkan.cpp, OB_SLANG the compiler's library; without one of them, the tests that need it
// report that.
#include <cstddef>
#include <numeric>
#include <thread>

#include "vulkan_surroundings.h"

namespace {

TEST(no_loader) {
  const Library driver(path, {{"library", "/nowhere/libvulkan.so.1"}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("Vulkan cannot be loaded") && driver.error_has("Install"));
  CHECK_STATUS(driver->device_open(driver.self(), 0), OB_UNAVAILABLE);
}

TEST(no_driver) {
  for (const char* variable : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"}) setenv(variable, "/nowhere.json", 1);
  const Library driver(path);
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("no working driver") && driver.error_has("VK_DRIVER_FILES"));
}

TEST(no_device) {
  if (!has_faults("no_device", "none")) return;
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("find no device"));
}

TEST(no_such_device) {
  for (const char* wanted : {"no such device", "99"}) {
    const Library by_option(path, {{"device", wanted}});
    CHECK(by_option->device_count(by_option.self()) == -OB_UNAVAILABLE);
    CHECK(by_option.error_has(wanted) && by_option.error_has("The devices are: 0 "));
  }
  setenv("OUTBOARD_VULKAN_DEVICE", "nor this", 1);
  const Library by_environment(path);
  CHECK(by_environment->device_count(by_environment.self()) == -OB_UNAVAILABLE);
  CHECK(by_environment.error_has("nor this"));
}

TEST(devices_are_chosen) {
  if (!has_faults("devices_are_chosen", "twice")) return;
  const Library both(path, {{"library", fake()}});
  CHECK(both->device_count(both.self()) == 2);
  for (const char* wanted : {"0", "1"}) {
    setenv("OUTBOARD_VULKAN_DEVICE", wanted, 1);
    const Library library(path, {{"library", fake()}});
    CHECK(library->device_count(library.self()) == 1);
    CHECK_OK(library->device_open(library.self(), 0));
    CHECK_STATUS(library->device_open(library.self(), 1), OB_INVALID_ARGUMENT);
  }
}

TEST(bad_options_are_refused) {
  CHECK(Library(path, {{"host_access", "maybe"}}).error.find("host_access must be 0 or 1") != std::string::npos);
  CHECK(Library(path, {{"platform", "x"}}).error.find("unknown option 'platform'") != std::string::npos);
}

TEST(old_devices_are_left_out) {
  if (!has_faults("old_devices_are_left_out", "old")) return;
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("is left out") && driver.error_has("it has Vulkan 1.2.0, but 1.3 is needed"));
}

TEST(one_of_two_is_left_out) {
  if (!has_faults("one_of_two_is_left_out", "twice,one_old")) return;
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == 1);
  driver.open();
}

TEST(a_missing_feature_is_named) {
  if (!has_faults("a_missing_feature_is_named", "no_int64")) return;
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("it lacks shaderInt64"));
}

ob_device_properties properties_of(const Library& driver) {
  ob_device_properties properties = {};
  properties.struct_size = sizeof properties;
  CHECK_OK(driver->device_properties(driver.self(), 0, &properties));
  return properties;
}

TEST(a_small_device_says_so) {
  if (!has_faults("a_small_device_says_so", "small,no_float64,no_int16,gpu,no_clocks")) return;
  const Library driver(path, {{"library", fake()}});
  const ob_device_properties properties = properties_of(driver);
  CHECK(properties.max_threads_per_block == 128 && properties.shared_memory_per_block == 16 << 10);
  CHECK(properties.max_allocation == 1 << 30);
  CHECK(properties.machine == OB_MACHINE_GPU);
  const auto has = [&](int dtype) { return (properties.dtypes >> dtype & 1) != 0; };
  CHECK(has(OB_FLOAT32) && has(OB_INT64) && has(OB_BOOL) && has(OB_COMPLEX64));
  CHECK(!has(OB_FLOAT64) && !has(OB_COMPLEX128) && has(OB_FLOAT16) && has(OB_BFLOAT16) && !has(OB_INT16));
  driver.open();
  uint64_t memory = 0;
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, (1 << 30) + 1, &memory), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("maxMemoryAllocationSize") && driver.error_has("1073741824"));
  const uint64_t event = driver.event(OB_EVENT_TIMING);
  int64_t time = 0;
  const int64_t before = now();
  CHECK_OK(driver.record(driver.stream(), event));
  CHECK_OK(driver->event_synchronize(driver.self(), 0, event));
  const int64_t after = now();
  // The host compares the clocks by waiting.
  CHECK_OK(driver->event_timestamp(driver.self(), 0, event, &time));
  CHECK(time >= before && time <= after + 50'000'000);
  double milliseconds = -1;
  CHECK_OK(driver->event_elapsed(driver.self(), 0, event, event, &milliseconds));
  CHECK(milliseconds == 0);
}

// Operators of an integrated GPU shall run on it, although the host could reach its memory.
TEST(the_host_uses_memory_of_cpus_alone) {
  if (!has_faults("the_host_uses_memory_of_cpus_alone", "integrated,no_int64_atomics")) return;
  for (const char* access : {"", "0", "1"}) {
    const OptionList none = {{"library", fake()}};
    const OptionList given = {{"library", fake()}, {"host_access", access}};
    const Library driver(path, *access == 0 ? none : given);
    const ob_device_properties properties = properties_of(driver);
    CHECK(properties.is_integrated == 1 && (properties.dtypes >> OB_FLOAT64 & 1) == 0);
    driver.open();
    const uint64_t memory = driver.alloc(1 << 20);
    uint64_t host = 1;
    CHECK_OK(driver->host_address(driver.self(), 0, memory, 16, &host));
    CHECK((host != 0) == (*access == '1'));
    // Records of kernels are small. The host reads them.
    const uint64_t record = driver.alloc(1 << 16);
    CHECK_OK(driver->host_address(driver.self(), 0, record, 1 << 16, &host));
    CHECK(host != 0);
    const unsigned char seven = 7;
    const uint64_t stream = driver.stream();
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, record, &seven, 1, 1 << 16));
    CHECK_OK(driver.sync(stream));
    CHECK(*reinterpret_cast<unsigned char*>(host) == 7 && reinterpret_cast<unsigned char*>(host)[65535] == 7);
    check_fills(driver);
  }
}

// As on a discrete GPU: device memory that the host does not see, and host memory without a cache.
TEST(memory_of_two_kinds) {
  if (!has_faults("memory_of_two_kinds", "two_memories,gpu,subgroups_of_64,no_storage16,no_timestamps")) return;
  const Library driver(path, {{"library", fake()}});
  const ob_device_properties properties = properties_of(driver);
  CHECK(properties.warp_size == 64 && properties.is_integrated == 0);
  CHECK((properties.dtypes >> OB_INT16 & 1) == 0 && (properties.dtypes >> OB_FLOAT64 & 1) == 1);
  driver.open();
  const uint64_t memory = driver.alloc(1 << 20);
  uint64_t host = 1;
  CHECK_OK(driver->host_address(driver.self(), 0, memory, 16, &host));
  CHECK(host == 0);
  check_fills(driver);
  uint64_t event = 0;
  CHECK_STATUS(driver->event_create(driver.self(), 0, OB_EVENT_TIMING, &event), OB_UNIMPLEMENTED);
  CHECK_STATUS(driver->activity_enable(driver.self(), OB_ACTIVITY_COPY), OB_UNIMPLEMENTED);
  CHECK(driver.error_has("no timestamps"));
}

TEST(matrix_units_are_listed) {
  const std::pair<const char*, const char*> known[] = {
      {"matrices", "float16 16x16x16, bfloat16 16x16x16, float16 16x8x8"},
      {"matrices,no_bfloats", "float16 16x16x16, float16 16x8x8"},
      {"matrices,no_subgroup_size", ""},
  };
  for (const auto& [faults, units] : known) {
    if (!has_faults("matrix_units_are_listed", faults)) return;
    const Library driver(path, {{"library", fake()}});
    CHECK(properties_of(driver).matrix_units == std::string(units));
  }
}

constexpr const char* kShuffles = R"(
[vk::constant_id(0)] const int ob_block = 64;
struct Arguments { int64_t ob_first_group; int* x; };
[[vk::push_constant]] Arguments given;
[shader("compute")] [numthreads(ob_block, 1, 1)]
void turn(uint3 group : SV_GroupID, uint3 item : SV_GroupThreadID) {
  const int64_t i = (given.ob_first_group + group.x) * ob_block + item.x;
  given.x[i] = WaveReadLaneAt(given.x[i], WaveGetLaneCount() - 1 - WaveGetLaneIndex());
}
[shader("compute")] [numthreads(ob_block, 1, 1)]
void alone(uint3 group : SV_GroupID, uint3 item : SV_GroupThreadID) {
  given.x[(given.ob_first_group + group.x) * ob_block + item.x] = 5;
}
)";

// Kernels whose items read each other's values have full subgroups of the device's size; others of
// the same program have groups of any size.
TEST(items_read_values_of_their_subgroup) {
  const char* compiler = slang("items_read_values_of_their_subgroup");
  for (const char* faults : {"", "no_shuffles", "no_subgroup_size"}) {
    if (compiler == nullptr || !has_faults("items_read_values_of_their_subgroup", faults)) return;
    const Library driver(path, {{"library", fake()}, {"slang", compiler}});
    const auto lanes = static_cast<size_t>(properties_of(driver).warp_size);
    driver.open();
    uint64_t program = 0, kernel = 0, other = 0;
    if (!CHECK_OK(build(driver, "slang", kShuffles, &program))) return;
    CHECK_OK(driver->kernel_get(driver.self(), 0, program, "turn", &kernel));
    CHECK_OK(driver->kernel_get(driver.self(), 0, program, "alone", &other));
    const uint64_t stream = driver.stream();
    const uint64_t memory = driver.alloc(4096);
    std::vector<int> values(256);
    std::iota(values.begin(), values.end(), 0);
    CHECK_OK(driver.copy(stream, memory, 0, address_of(values.data()), OB_HOST, 1024));
    const std::vector<ob_kernel_arg> args = {pointer_arg(memory)};
    const ob_launch given = launch_of(kernel, 4, 64, args);
    if (*faults != 0) {
      CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
      CHECK(driver.error_has("'turn' may use subgroup shuffles"));
      continue;
    }
    CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
    const auto got = read(driver, stream, memory, 1024);
    for (size_t i = 0; i < 256; ++i) {
      const size_t wanted = i - i % lanes + lanes - 1 - i % lanes;
      if (!CHECK(reinterpret_cast<const int*>(got.data())[i] == static_cast<int>(wanted))) return;
    }
    const ob_launch odd = launch_of(other, 1, 5, args);
    CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &odd));
    CHECK(reinterpret_cast<const int*>(read(driver, stream, memory, 1024).data())[4] == 5);
  }
}

TEST(a_crash_while_counting_is_reported) {
  if (!has_faults("a_crash_while_counting_is_reported", "crash")) return;
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("signal"));
}

TEST(a_device_is_lost) {
  for (const char* fault : {"lost", "lost_in_wait"}) {
    if (!has_faults("a_device_is_lost", "")) return;
    const Library driver(path, {{"library", fake()}});
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t event = driver.event();
    const uint64_t memory = driver.alloc(1 << 20);
    CHECK_OK(driver.sync(stream));
    setenv("FAKE_VULKAN", fault, 1);
    CHECK_OK(driver.copy(stream, memory, 0, memory + 4096, 0, 64));
    CHECK_OK(driver.record(stream, event));
    CHECK_STATUS(driver.sync(stream), OB_DEVICE_LOST);
    CHECK(driver.error_has("VK_ERROR_DEVICE_LOST"));
    // No wait lasts forever.
    CHECK_OK(driver.copy(stream, memory, 0, memory + 4096, 0, 64));
    CHECK_STATUS(driver.sync(stream), OB_DEVICE_LOST);
    CHECK_STATUS(driver->event_synchronize(driver.self(), 0, event), OB_DEVICE_LOST);
    CHECK_STATUS(driver->event_query(driver.self(), 0, event), OB_DEVICE_LOST);
    CHECK_STATUS(driver->stream_query(driver.self(), 0, stream), OB_DEVICE_LOST);
  }
}

TEST(a_refused_submission_is_reported_once) {
  if (!has_faults("a_refused_submission_is_reported_once", "")) return;
  const Library driver(path, {{"library", fake()}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t other = driver.stream();
  const uint64_t event = driver.event();
  const uint64_t memory = driver.alloc(1 << 20);
  const char three = 3;
  CHECK_OK(driver.sync(stream));
  setenv("FAKE_VULKAN", "refuse_commands", 1);
  CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &three, 1, 64));
  CHECK_OK(driver.record(stream, event));
  CHECK_OK(driver->event_synchronize(driver.self(), 0, event));
  unsetenv("FAKE_VULKAN");
  // Work behind the failure runs, in this stream and in those that wait for it.
  CHECK_OK(driver.wait(other, event));
  CHECK_OK(driver->fill_async(driver.self(), 0, other, memory, &three, 1, 64));
  CHECK_OK(driver.sync(other));
  CHECK(read(driver, other, memory, 64) == std::vector<unsigned char>(64, 3));
  CHECK_STATUS(driver.sync(stream), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("vkQueueSubmit2"));
  CHECK_OK(driver.sync(stream));
}

TEST(memory_runs_out) {
  if (!has_faults("memory_runs_out", "")) return;
  const Library driver(path, {{"library", fake()}});
  driver.open();
  uint64_t address = 0;
  const ob_device_properties properties = properties_of(driver);
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, properties.max_allocation + 1, &address), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("exceeds the limit max"));
  uint64_t free_before = 0, free_after = 0, total = 0;
  CHECK_OK(driver->mem_info(driver.self(), 0, &free_before, &total));
  CHECK(free_before <= total && total == properties.total_memory);
  setenv("FAKE_VULKAN", "full", 1);
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, 1 << 20, &address), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("vkAllocateMemory") && driver.error_has("1048576 bytes"));
  void* host = nullptr;
  CHECK_STATUS(driver->host_alloc(driver.self(), 1 << 20, &host), OB_OUT_OF_MEMORY);
  unsetenv("FAKE_VULKAN");
  CHECK_OK(driver->mem_info(driver.self(), 0, &free_after, &total));
  CHECK(free_after == free_before);
  CHECK_OK(driver->mem_free(driver.self(), 0, driver.alloc(1 << 20)));
}

TEST(copies_without_host_access) {
  const Library driver(path, {{"host_access", "0"}});
  driver.open();
  CHECK(properties_of(driver).addresses_host_memory == 0);
  constexpr uint64_t kBytes = (20 << 20) + 12345;
  const uint64_t memory = driver.alloc(kBytes);
  CHECK(driver.host<char>(memory, kBytes) == nullptr);
  std::vector<char> out(kBytes), back(kBytes);
  for (size_t i = 0; i < kBytes; ++i) out[i] = static_cast<char>(i * 7 + i / 251);
  const uint64_t stream = driver.stream();
  CHECK_OK(driver.copy(stream, memory, 0, address_of(out.data()), OB_HOST, kBytes));
  CHECK_OK(driver.copy(stream, address_of(back.data()), OB_HOST, memory, 0, kBytes));
  CHECK_OK(driver.sync(stream));
  CHECK(back == out);
}

TEST(copies_and_waits_cross_devices) {
  if (!has_faults("copies_and_waits_cross_devices", "twice")) return;
  for (const char* access : {"0", "1"}) {
    const Library driver(path, {{"library", fake()}, {"host_access", access}});
    CHECK(driver->device_count(driver.self()) == 2);
    driver.open();
    driver.open(1);
    constexpr uint64_t kBytes = 9 << 20;
    const uint64_t here = driver.alloc(kBytes);
    const uint64_t there = driver.alloc(kBytes, 1);
    const uint64_t first = driver.stream(0);
    const uint64_t second = driver.stream(1, 0);
    const uint64_t done = driver.event();
    const uint64_t back = driver.event(0, 1);
    void* host = nullptr;
    CHECK_OK(driver->host_alloc(driver.self(), kBytes, &host));
    CHECK(address_of(host) % 64 == 0);
    for (unsigned char round = 1; round < 6; ++round) {
      std::memset(host, 0, kBytes);
      for (int i = 0; i < 10; ++i) CHECK_OK(driver->fill_async(driver.self(), 0, first, here, &round, 1, kBytes));
      CHECK_OK(driver.copy(first, address_of(host), OB_HOST, here, 0, kBytes));
      CHECK_OK(driver.record(first, done));
      // The host block belongs to the first device, so this copy reads it directly, but only after
      // the wait.
      CHECK_OK(driver.wait(second, done, 1, 0));
      CHECK_OK(driver.copy(second, there, 1, address_of(host), OB_HOST, kBytes, 1));
      CHECK_OK(driver.record(second, back, 1));
      CHECK_OK(driver.wait(first, back, 0, 1));
      const unsigned char zero = 0;
      CHECK_OK(driver->fill_async(driver.self(), 0, first, here, &zero, 1, kBytes));
      CHECK_OK(driver.copy(first, here, 0, there, 1, kBytes));
      CHECK_OK(driver.sync(first));
      if (!CHECK(read(driver, first, here, kBytes) == std::vector<unsigned char>(kBytes, round))) break;
    }
    CHECK_OK(driver->host_free(driver.self(), host));
    CHECK_STATUS(driver->host_free(driver.self(), host), OB_INVALID_ARGUMENT);
    unsetenv("OUTBOARD_VULKAN_DEVICE");
  }
}

// Records tell what ran when, whether or not the clocks can be compared directly.
TEST(work_is_recorded) {
  for (const char* faults : {"gpu", "gpu,no_clocks"}) {
    if (!has_faults("work_is_recorded", faults)) return;
    const Library driver(path, {{"library", fake()}, {"host_access", "0"}});
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t memory = driver.alloc(1 << 22);
    std::vector<unsigned char> host(5 << 20);
    const unsigned char value = 3;
    const auto fill = [&] {
      CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &value, 1, 1 << 22));
      CHECK_OK(driver.sync(stream));
    };
    std::vector<ob_activity> records(16);
    size_t count = 0;
    const auto read = [&](size_t capacity) {
      for (ob_activity& record : records) record.struct_size = sizeof record;
      CHECK_OK(driver->activity_read(driver.self(), capacity, sizeof(ob_activity), records.data(), &count));
    };
    fill();
    read(16);
    CHECK(count == 0);
    CHECK_STATUS(driver->activity_enable(driver.self(), 1u << 20), OB_INVALID_ARGUMENT);
    CHECK_OK(driver->activity_enable(driver.self(), OB_ACTIVITY_FILL | OB_ACTIVITY_COPY));
    const int64_t start = now();
    CHECK_OK(driver->activity_correlate(driver.self(), 7));
    fill();
    CHECK_OK(driver->activity_correlate(driver.self(), 8));
    CHECK_OK(driver.copy(stream, memory + (1 << 21), 0, memory, 0, 1 << 21));
    CHECK_OK(driver->activity_correlate(driver.self(), 9));
    CHECK_OK(driver.copy(stream, address_of(host.data()), OB_HOST, memory, 0, 1 << 22));
    CHECK_OK(driver.sync(stream));
    const int64_t end = now();
    read(2);
    CHECK(count == 2);
    CHECK(records[0].kind == OB_ACTIVITY_FILL && records[0].correlation == 7 && records[0].bytes == 1 << 22);
    CHECK(records[1].kind == OB_ACTIVITY_COPY && records[1].correlation == 8 && records[1].bytes == 1 << 21);
    CHECK(records[1].src_device == 0 && records[1].dst_device == 0 && records[1].stream == stream);
    std::vector<ob_activity> all(records.begin(), records.begin() + 2);
    read(16);
    CHECK(count == 1 && records[0].correlation == 9 && records[0].dst_device == OB_HOST);
    all.push_back(records[0]);
    int64_t last = start;
    for (const ob_activity& record : all) {
      CHECK(record.start >= last - 1'000'000 && record.end >= record.start && record.end <= end + 50'000'000);
      last = record.end;
    }
    read(16);
    CHECK(count == 0);
    // What is still there when a profile begins anew belongs to nobody.
    fill();
    CHECK_OK(driver->activity_enable(driver.self(), 0));
    fill();
    CHECK_OK(driver->activity_enable(driver.self(), OB_ACTIVITY_KERNEL));
    fill();
    read(16);
    CHECK(count == 0);
    CHECK_OK(driver->mem_free(driver.self(), 0, memory));
    CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
    CHECK_OK(driver->device_close(driver.self(), 0));
  }
}

// A chain of waits through all streams, which share the device's queues.
TEST(waits_go_round) {
  const Library driver(path);
  driver.open();
  std::vector<uint64_t> streams(40);
  for (uint64_t& stream : streams) stream = driver.stream();
  constexpr uint64_t kBytes = 1 << 20;
  const uint64_t memory = driver.alloc(kBytes * (streams.size() + 1));
  const unsigned char value = 9;
  for (int round = 0; round < 3; ++round) {
    CHECK_OK(driver->fill_async(driver.self(), 0, streams[0], memory, &value, 1, kBytes));
    for (size_t i = 0; i < streams.size(); ++i) {
      const uint64_t event = driver.event();
      CHECK_OK(driver.copy(streams[i], memory + kBytes * (i + 1), 0, memory + kBytes * i, 0, kBytes));
      CHECK_OK(driver.record(streams[i], event));
      CHECK_OK(driver.wait(streams[(i + 1) % streams.size()], event));
      CHECK_OK(driver->event_destroy(driver.self(), 0, event));
    }
  }
  CHECK(read(driver, streams[0], memory + kBytes * streams.size(), kBytes) == std::vector<unsigned char>(kBytes, 9));
  for (const uint64_t stream : streams) CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
  CHECK_STATUS(driver.sync(streams[0]), OB_INVALID_ARGUMENT);
  const uint64_t again = driver.stream();
  CHECK_OK(driver.sync(again));
}

// Abandoned streams, and their semaphores, are used again.
TEST(streams_are_used_again) {
  if (!has_faults("streams_are_used_again", "few_semaphores")) return;
  const Library driver(path, {{"library", fake()}});
  driver.open();
  const uint64_t memory = driver.alloc(1 << 16);
  std::vector<uint64_t> handles;
  for (unsigned char round = 1; round < 40; ++round) {
    const uint64_t stream = driver.stream();
    CHECK(std::find(handles.begin(), handles.end(), stream) == handles.end());
    handles.push_back(stream);
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &round, 1, 1 << 16));
    CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
    CHECK_STATUS(driver.sync(stream), OB_INVALID_ARGUMENT);
    const uint64_t other = driver.stream();
    int looks = 0;  // queued work completes
    while (read(driver, other, memory, 1)[0] != round && ++looks < 5000) usleep(200);
    CHECK(looks < 5000);
    CHECK_OK(driver->stream_destroy(driver.self(), 0, other));
  }
}

// Streams keep the work behind a host event, while all other streams continue in the same queue.
TEST(streams_wait_for_the_host) {
  if (!has_faults("streams_wait_for_the_host", "twice")) return;
  const Library driver(path, {{"library", fake()}});
  driver.open();
  driver.open(1);
  const uint64_t first = driver.stream();
  const uint64_t second = driver.stream();
  const uint64_t far = driver.stream(1);
  const uint64_t other = driver.stream();
  const uint64_t mark = driver.event();
  const uint64_t memory = driver.alloc(1 << 20);
  const unsigned char one = 1, two = 2;
  const auto byte = [&] { return *driver.host<volatile unsigned char>(memory, 1); };
  for (int round = 0; round < 20; ++round) {
    const uint64_t host = driver.event(OB_EVENT_HOST);
    CHECK_OK(driver->fill_async(driver.self(), 0, other, memory, &one, 1, 1 << 20));
    CHECK_OK(driver.sync(other));
    CHECK_OK(driver.wait(first, host));
    CHECK_OK(driver->fill_async(driver.self(), 0, first, memory, &two, 1, 1 << 20));
    CHECK_OK(driver.record(first, mark));
    CHECK_OK(driver.wait(second, mark));
    CHECK_OK(driver.copy(second, memory + 1024, 0, memory, 0, 512));
    CHECK_OK(driver.wait(far, host, 1, 0));
    CHECK_STATUS(driver->stream_query(driver.self(), 0, first), OB_NOT_READY);
    CHECK_STATUS(driver->stream_query(driver.self(), 0, second), OB_NOT_READY);
    CHECK_STATUS(driver->stream_query(driver.self(), 1, far), OB_NOT_READY);
    CHECK_STATUS(driver->event_query(driver.self(), 0, mark), OB_NOT_READY);
    CHECK_OK(driver.copy(other, memory + 4096, 0, memory, 0, 512));
    CHECK_OK(driver.sync(other));
    CHECK(byte() == 1);
    std::thread signaller([&] { CHECK_OK(driver->event_signal(driver.self(), 0, host)); });
    CHECK_OK(driver.sync(round % 2 == 0 ? second : first));
    CHECK(byte() == 2);
    CHECK_OK(driver.sync(second));
    CHECK_OK(driver.sync(far, 1));
    signaller.join();
    CHECK_OK(driver->event_destroy(driver.self(), 0, host));
  }
}

TEST(a_device_is_closed) {
  const Library driver(path);
  for (int round = 0; round < 2; ++round) {
    driver.open();
    const uint64_t stream = driver.stream();
    const uint64_t event = driver.event(OB_EVENT_TIMING);
    const uint64_t memory = driver.alloc(1 << 20);
    const char one = 1;
    CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &one, 1, 1 << 20));
    CHECK_OK(driver.record(stream, event));
    CHECK_OK(driver.sync(stream));
    CHECK_OK(driver->event_destroy(driver.self(), 0, event));
    CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
    CHECK_OK(driver->mem_free(driver.self(), 0, memory));
    CHECK_OK(driver->device_close(driver.self(), 0));
    uint64_t none = 0;
    CHECK_STATUS(driver->stream_create(driver.self(), 0, 0, &none), OB_INVALID_ARGUMENT);
  }
}

TEST(no_compiler) {
  const Library driver(path, {{"slang", "/nowhere/libslang-compiler.so"}});
  driver.open();
  uint64_t program = 0;
  CHECK_STATUS(build(driver, "slang", kProgram, &program), OB_UNAVAILABLE);
  CHECK(driver.error_has("pip install slangtorch") && driver.error_has("/nowhere"));
}

TEST(kernels_run) {
  const char* compiler = slang("kernels_run");
  // of which a dispatch has three
  if (compiler == nullptr || !has_faults("kernels_run", "few_groups")) return;
  const Library driver(path, {{"library", fake()}, {"slang", compiler}});
  driver.open();
  uint64_t program = 0, kernel = 0, again = 0;
  if (!CHECK_OK(build(driver, "slang", kProgram, &program))) return;
  CHECK_STATUS(driver->kernel_get(driver.self(), 0, program, "nothing", &kernel), OB_NOT_FOUND);
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &kernel));
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &again));
  CHECK(kernel != 0 && kernel == again);
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(4096);
  std::vector<float> host(1024, 2.0f);
  CHECK_OK(driver.copy(stream, memory, 0, address_of(host.data()), OB_HOST, 4096));
  const float factor = 3;
  const std::vector<ob_kernel_arg> args = {pointer_arg(memory + 1024), value_arg(factor), local_arg(256)};
  ob_launch given = launch_of(kernel, 8, 64, args);
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  CHECK_OK(driver.copy(stream, address_of(host.data()), OB_HOST, memory, 0, 4096));
  CHECK_OK(driver.sync(stream));
  for (size_t i = 0; i < host.size(); ++i) {
    if (!CHECK(host[i] == (i >= 256 && i < 768 ? 6.0f : 2.0f))) break;
  }
  // A launch that a device cannot run is refused before anything is queued.
  const auto refuse = [&](ob_status status, const char* part) {
    CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), status);
    CHECK(driver.error_has("scale") && driver.error_has(part));
    given = launch_of(kernel, 8, 64, args);
  };
  given.block[0] = 1 << 20;
  refuse(OB_INVALID_ARGUMENT, "a block may have");
  given.block[0] = 0;
  refuse(OB_INVALID_ARGUMENT, "is 0");
  given.block[1] = 2;
  refuse(OB_INVALID_ARGUMENT, "a block must have 1 items in dimension 1, not 2");
  given.grid[1] = 1 << 30;
  refuse(OB_INVALID_ARGUMENT, "groups in dimension 1");
  given.arg_count = 1;
  refuse(OB_INVALID_ARGUMENT, "takes 2 arguments besides local memory, not 1");
  given.shared_memory = 64;
  refuse(OB_INVALID_ARGUMENT, "OB_ARG_LOCAL");
  given.is_cooperative = 1;
  refuse(OB_UNIMPLEMENTED, "cooperative");
  const double wide = 3;
  const std::vector<ob_kernel_arg> wrong = {pointer_arg(memory), pointer_arg(memory), value_arg(wide)};
  given.args = wrong.data();
  refuse(OB_INVALID_ARGUMENT, "takes 2 arguments");
  const std::vector<ob_kernel_arg> much = {pointer_arg(memory), value_arg(factor), local_arg(1 << 30)};
  given.args = much.data();
  refuse(OB_INVALID_ARGUMENT, "bytes of local memory");
  given.kernel = 12345;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->program_destroy(driver.self(), 0, program));
  given.kernel = kernel;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->program_destroy(driver.self(), 0, program), OB_INVALID_ARGUMENT);
}

// Fields whose offsets, as sums of the arguments' sizes, differ from the kernel's, and arguments
// that are too large to be pushed.
TEST(arguments_lie_where_the_kernel_reads_them) {
  const char* compiler = slang("arguments_lie_where_the_kernel_reads_them");
  if (compiler == nullptr) return;
  const Library driver(path, {{"slang", compiler}});
  driver.open();
  const auto text = [](const std::string& fields, const std::string& pushed) {
    return "[vk::constant_id(0)] const int ob_block = 64;\nstruct Pair { float a, b; };\n"
           "struct Arguments { int64_t ob_first_group; " +
           fields +
           " };\nstruct Pushed { Arguments* at; };\n"
           "[[vk::push_constant]] " +
           pushed +
           " pushed;\n[shader(\"compute\")] [numthreads(ob_block, 1, 1)]\n"
           "void f() { if (pushed" +
           (pushed == "Pushed" ? std::string(".at") : "") + ".ob_first_group < 0) return; }\n";
  };
  const uint64_t stream = driver.stream();
  const uint64_t pair = 0;
  const float number = 1;
  uint64_t program = 0;
  ob_launch given = {};
  const auto launch = [&](const std::string& code, const std::vector<ob_kernel_arg>& args) {
    uint64_t kernel = 0;
    CHECK_OK(build(driver, "slang", code, &program));
    const ob_status status = driver->kernel_get(driver.self(), 0, program, "f", &kernel);
    if (status != OB_OK) return status;
    given = launch_of(kernel, 1, 64, args);
    return driver->kernel_launch(driver.self(), 0, stream, &given);
  };
  CHECK_OK(launch(text("float a; float* p; int8_t c; int16_t d;", "Arguments"),
                  {value_arg(number), pointer_arg(0), value_arg('c'), value_arg(int16_t{1})}));
  CHECK_OK(launch(text("float a; float* p;", "Pushed"), {value_arg(number), pointer_arg(0)}));
  CHECK_STATUS(launch(text("float a; Pair b;", "Arguments"), {value_arg(number), value_arg(pair)}),
               OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("lies at byte 16") && driver.error_has("at byte 12"));
  std::string many;
  for (int i = 0; i < 20; ++i) many += "float* x" + std::to_string(i) + "; ";
  const std::vector<ob_kernel_arg> pointers(20, pointer_arg(0));
  CHECK_OK(launch(text(many, "Pushed"), pointers));
  CHECK_STATUS(launch(text(many, "Arguments"), pointers), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("exceed 128 bytes"));
  CHECK_OK(driver.sync(stream));
}

TEST(one_kernel_from_many_threads) {
  const char* compiler = slang("one_kernel_from_many_threads");
  if (compiler == nullptr) return;
  const Library driver(path, {{"slang", compiler}});
  driver.open();
  const char* text = R"(
[vk::constant_id(0)] const int ob_block = 64;
struct Arguments { int64_t ob_first_group; int* x; int value; };
[[vk::push_constant]] Arguments given;
[shader("compute")] [numthreads(ob_block, 1, 1)]
void put(uint3 item : SV_GroupThreadID) { given.x[item.x] = given.value; }
)";
  uint64_t program = 0, kernel = 0;
  if (!CHECK_OK(build(driver, "slang", text, &program))) return;
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "put", &kernel));
  const uint64_t memory = driver.alloc(8 * 256);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t stream = driver.stream();
      for (int i = 0; i < 200; ++i) {
        const int value = 1000 * t + i;
        const std::vector<ob_kernel_arg> args = {pointer_arg(memory + 256u * static_cast<unsigned>(t)),
                                                 value_arg(value)};
        const ob_launch given = launch_of(kernel, 1, 64, args);
        CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
        if (i % 50 == 0) CHECK(driver->stream_query(driver.self(), 0, stream) != OB_INTERNAL);
      }
      CHECK_OK(driver.sync(stream));
      CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto bytes = read(driver, driver.stream(), memory, 8 * 256);
  const int* values = reinterpret_cast<const int*>(bytes.data());
  for (int i = 0; i < 8 * 64; ++i) {
    if (!CHECK(values[i] == 1000 * (i / 64) + 199)) break;
  }
}

TEST(a_failed_build_shows_log_and_source) {
  const char* compiler = slang("a_failed_build_shows_log_and_source");
  if (compiler == nullptr) return;
  const Library driver(path, {{"slang", compiler}});
  driver.open();
  uint64_t program = 0;
  CHECK_STATUS(build(driver, "slang", "void f(int* x) {\n  x[0] = undeclared_name;\n}\n", &program),
               OB_PROGRAM_REFUSED);
  CHECK(driver.error_has("does not build") && driver.error_has("undeclared_name"));
  CHECK_STATUS(build(driver, "slang", kProgram, &program, "-no-such-option"), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("no-such-option"));
  CHECK_STATUS(build(driver, "ptx", "anything", &program), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("slang"));
  CHECK_STATUS(build(driver, "spirv", "no words at all", &program), OB_PROGRAM_REFUSED);
  CHECK(driver.error_has("this is not SPIR-V"));
  const uint32_t cut[] = {0x07230203, 0x00010500, 0, 10, 0, 5u << 16 | 15};
  const std::string words(reinterpret_cast<const char*>(cut), sizeof cut);
  CHECK_STATUS(build(driver, "spirv", words, &program), OB_PROGRAM_REFUSED);
  CHECK(driver.error_has("within an instruction"));
}

TEST(binaries_need_no_compiler) {
  const char* compiler = slang("binaries_need_no_compiler");
  if (compiler == nullptr || !has_faults("binaries_need_no_compiler", "")) return;
  std::string bytes;
  uint64_t program = 0, kernel = 0;
  {
    const Library driver(path, {{"library", fake()}, {"slang", compiler}});
    driver.open();
    if (!CHECK_OK(build(driver, "slang", kProgram, &program, "-g0"))) return;
    bytes = binary_of(driver, program);
    CHECK(!bytes.empty());
    CHECK_STATUS(driver->program_binary(driver.self(), 0, 12345, nullptr, nullptr), OB_INVALID_ARGUMENT);
  }
  const Library driver(path, {{"library", fake()}, {"slang", "/nowhere"}});
  driver.open();
  if (!CHECK_OK(build(driver, OB_LANGUAGE_BINARY, bytes, &program, "-g0"))) return;
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &kernel));
  binary_of(driver, program, OB_UNIMPLEMENTED);
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(4096);
  const float one = 1, factor = 3;
  CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &one, 4, 1024));
  const std::vector<ob_kernel_arg> args = {pointer_arg(memory), value_arg(factor), local_arg(256)};
  ob_launch given = launch_of(kernel, 16, 64, args);
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  float result = 0;
  CHECK_OK(driver.copy(stream, address_of(&result), OB_HOST, memory + 4000, 0, 4));
  CHECK_OK(driver.sync(stream));
  CHECK(result == 3);
  CHECK_STATUS(build(driver, OB_LANGUAGE_BINARY, bytes, &program, "-other"), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("with other options"));
  CHECK_STATUS(build(driver, OB_LANGUAGE_BINARY, "x" + bytes, &program, "-g0"), OB_INVALID_ARGUMENT);
  // A refusal by the device's own compiler is an error of the launch only.
  given.block[0] = 32;
  setenv("FAKE_VULKAN", "no_pipelines", 1);
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INTERNAL);
  CHECK(driver.error_has("vkCreateComputePipelines") && driver.error_has("scale"));
  unsetenv("FAKE_VULKAN");
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  CHECK_OK(driver.sync(stream));
}

TEST(strided_copies_are_right) {
  const char* compiler = std::getenv("OB_SLANG");
  const Library driver(path, {{"slang", compiler == nullptr ? "/nowhere" : compiler}});
  driver.open();
  check_strided_copies(driver, 150);
}

TEST(strided_copies_without_a_compiler) {
  const Library driver(path, {{"slang", "/nowhere"}});
  driver.open();
  check_strided_copies(driver, 40);
}

TEST(fills_are_right) {
  for (const char* access : {"0", "1"}) {
    const Library driver(path, {{"host_access", access}});
    driver.open();
    check_fills(driver);
  }
}

TEST(queries_end) {
  const Library driver(path);
  driver.open();
  check_queries_end(driver);
}

TEST(event_times_are_right) {
  const Library driver(path);
  driver.open();
  check_event_times(driver);
  // More records of one event than a query pool has queries.
  const uint64_t stream = driver.stream();
  const uint64_t event = driver.event(OB_EVENT_TIMING);
  for (int i = 0; i < 3000; ++i) CHECK_OK(driver.record(stream, event));
  CHECK_OK(driver.sync(stream));
  double milliseconds = -1;
  CHECK_OK(driver->event_elapsed(driver.self(), 0, event, event, &milliseconds));
  CHECK(milliseconds == 0);
}

TEST(a_forked_child_is_reported) {
  const Library driver(path);
  driver.open();
  CHECK(in_child([&] {
          ob_device_properties properties = {};
          properties.struct_size = sizeof properties;
          const bool is_reported = driver->device_properties(driver.self(), 0, &properties) == OB_FAILED_PRECONDITION;
          return is_reported && driver.error_has("spawn") ? 0 : 1;
        }) == 0);
}

TEST(counting_survives_a_fork) {
  const Library driver(path);
  const int32_t count = driver->device_count(driver.self());
  CHECK(count > 0);
  CHECK(in_child([&] {
          const Library ours(path);
          if (ours->device_count(ours.self()) != count) return 1;
          return ours->device_open(ours.self(), 0) == OB_OK ? 0 : 2;
        }) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests_apart(argc, argv);
}

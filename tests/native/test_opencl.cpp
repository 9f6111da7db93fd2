// SPDX-License-Identifier: BSD-3-Clause
// The OpenCL driver: faults of its surroundings, programs and their binaries, launches, strided
// copies. Needs an OpenCL loader and a device. OB_FAKE names the built fake_opencl.cpp. Without it,
// the tests that need it report that.
#include <cstddef>
#include <ctime>
#include <numeric>
#include <thread>

#include "apart.h"
#include "gate.h"

namespace {

const char* fake() {
  return std::getenv("OB_FAKE");
}

TEST(no_loader) {
  const Library driver(path, {{"library", "/nowhere/libOpenCL.so.1"}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("OpenCL cannot be loaded") && driver.error_has("Install"));
  CHECK_STATUS(driver->device_open(driver.self(), 0), OB_UNAVAILABLE);
}

TEST(no_platform) {
  setenv("OCL_ICD_VENDORS", "/nowhere", 1);
  const Library driver(path);
  const int32_t count = driver->device_count(driver.self());
  if (count > 0) return skip("no_platform", "this loader looks elsewhere, too");
  CHECK(count == -OB_UNAVAILABLE);
  CHECK(driver.error_has("finds no platform") && driver.error_has("OCL_ICD_VENDORS"));
}

TEST(no_such_platform) {
  const Library by_option(path, {{"platform", "no such platform"}});
  CHECK(by_option->device_count(by_option.self()) == -OB_UNAVAILABLE);
  CHECK(by_option.error_has("no such platform") && by_option.error_has("The platforms are"));
  setenv("OUTBOARD_OPENCL_PLATFORM", "nor this", 1);
  const Library by_environment(path);
  CHECK(by_environment->device_count(by_environment.self()) == -OB_UNAVAILABLE);
  CHECK(by_environment.error_has("nor this"));
}

TEST(visible_devices_are_chosen) {
  setenv("OPENCL_VISIBLE_DEVICES", "0", 1);
  const Library library(path);
  CHECK(library->device_count(library.self()) == 1);
  for (const char* none : {"", "99", "-1", "x,0"}) {
    setenv("OPENCL_VISIBLE_DEVICES", none, 1);
    const Library hidden(path);
    CHECK(hidden->device_count(hidden.self()) == -OB_UNAVAILABLE);
    CHECK(hidden.error_has("OPENCL_VISIBLE_DEVICES"));
  }
}

TEST(bad_options_are_refused) {
  CHECK(Library(path, {{"device_type", "toaster"}}).error.find("toaster") != std::string::npos);
  CHECK(Library(path, {{"cache", "maybe"}}).error.find("maybe") != std::string::npos);
}

TEST(devices_without_svm_are_left_out) {
  if (fake() == nullptr) return skip("devices_without_svm_are_left_out", "OB_FAKE is not set");
  setenv("FAKE_OPENCL", "no_svm", 1);
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("is left out") && driver.error_has("no shared virtual memory"));
}

TEST(a_crash_while_counting_is_reported) {
  if (fake() == nullptr) return skip("a_crash_while_counting_is_reported", "OB_FAKE is not set");
  setenv("FAKE_OPENCL", "crash", 1);
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("signal"));
}

TEST(a_device_vanishes) {
  if (fake() == nullptr) return skip("a_device_vanishes", "OB_FAKE is not set");
  const Library driver(path, {{"library", fake()}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(1 << 20);
  setenv("FAKE_OPENCL", "vanish", 1);
  CHECK_STATUS(driver.copy(stream, memory, 0, memory + 4096, 0, 64), OB_DEVICE_LOST);
  CHECK(driver.error_has("CL_DEVICE_NOT_AVAILABLE"));
}

TEST(an_illegal_access_loses_the_device) {
  if (fake() == nullptr) return skip("an_illegal_access_loses_the_device", "OB_FAKE is not set");
  const Library driver(path, {{"library", fake()}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(1 << 20);
  CHECK_OK(driver.copy(stream, memory, 0, memory + 4096, 0, 64));
  setenv("FAKE_OPENCL", "illegal", 1);
  CHECK_STATUS(driver.sync(stream), OB_DEVICE_LOST);
}

TEST(streams_run_out) {
  if (fake() == nullptr) return skip("streams_run_out", "OB_FAKE is not set");
  setenv("FAKE_OPENCL", "queues", 1);
  const Library driver(path, {{"library", fake()}});
  driver.open();
  ob_status status = OB_OK;
  uint64_t stream = 0;
  for (int i = 0; i < 100 && status == OB_OK; ++i) status = driver->stream_create(driver.self(), 0, 0, &stream);
  CHECK(status == OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("cannot create more streams"));
}

TEST(the_host_loses_access_by_an_option) {
  const Library driver(path, {{"host_access", "0"}, {"platform", "portable computing"}});
  if (driver->device_count(driver.self()) <= 0) return skip("the_host_loses_access_by_an_option", "PoCL");
  driver.open();
  const uint64_t memory = driver.alloc(1 << 20);
  CHECK(driver.host<char>(memory, 1 << 20) == nullptr);
  std::vector<char> out(64), back(64);
  std::iota(out.begin(), out.end(), '0');
  const uint64_t stream = driver.stream();
  CHECK_OK(driver.copy(stream, memory, 0, address_of(out.data()), OB_HOST, out.size()));
  CHECK_OK(driver.copy(stream, address_of(back.data()), OB_HOST, memory, 0, back.size()));
  CHECK_OK(driver.sync(stream));
  CHECK(back == out);
  CHECK(Library(path, {{"host_access", "maybe"}}).error.find("host_access must be 0 or 1") != std::string::npos);
}

TEST(coarse_memory_has_no_host_address) {
  if (fake() == nullptr) return skip("coarse_memory_has_no_host_address", "OB_FAKE is not set");
  setenv("FAKE_OPENCL", "coarse", 1);
  setenv("POCL_DEVICES", "pthread pthread", 1);
  const Library driver(path, {{"library", fake()}});
  CHECK(driver->device_count(driver.self()) == 2);
  driver.open();
  driver.open(1);
  const uint64_t memory = driver.alloc(1 << 20);
  CHECK(driver.host<char>(memory, 1 << 20) == nullptr);
  void* host = nullptr;
  CHECK_OK(driver->host_alloc(driver.self(), 1 << 20, &host));  // through the runtime
  CHECK(address_of(host) % 64 == 0);
  std::memset(host, 5, 1 << 20);
  const uint64_t stream = driver.stream();
  CHECK_OK(driver.copy(stream, memory, 0, address_of(host), OB_HOST, 1 << 20));
  const uint64_t other = driver.alloc(1 << 20, 1);  // in another context, so the copy goes through the host
  CHECK_OK(driver.copy(stream, other, 1, memory, 0, 1 << 20));
  std::memset(host, 0, 1 << 20);
  const uint64_t second = driver.stream(1);
  CHECK_OK(driver.copy(second, address_of(host), OB_HOST, other, 1, 1 << 20, 1));
  CHECK_OK(driver.sync(second, 1));
  CHECK(std::count(static_cast<char*>(host), static_cast<char*>(host) + (1 << 20), 5) == 1 << 20);
  CHECK_OK(driver->host_free(driver.self(), host));
  CHECK_STATUS(driver->host_free(driver.self(), host), OB_INVALID_ARGUMENT);
}

TEST(waits_cross_devices) {
  setenv("POCL_DEVICES", "pthread pthread", 1);
  const Library driver(path);
  if (driver->device_count(driver.self()) < 2) return skip("waits_cross_devices", "there is one device");
  driver.open();
  driver.open(1);
  const uint64_t first = driver.stream(0);
  const uint64_t second = driver.stream(1);
  const uint64_t event = driver.event();
  Gate gate;
  std::atomic<bool> is_after{false};
  auto mark = [&] { is_after = true; };
  CHECK_OK(driver.call(first, &gate));
  CHECK_OK(driver.record(first, event));
  CHECK_OK(driver.wait(second, event, 1, 0));
  CHECK_OK(driver.call(second, &mark, 1));
  CHECK_STATUS(driver->stream_query(driver.self(), 1, second), OB_NOT_READY);
  CHECK(!is_after);
  gate.open();
  CHECK_OK(driver.sync(second, 1));
  CHECK(is_after);
}

constexpr const char* kProgram = R"(
kernel void scale(global float* x, const float factor, local float* scratch) {
  const size_t i = get_global_id(0);
  scratch[get_local_id(0)] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[i] = factor * scratch[get_local_id(0)];
}
)";

TEST(kernels_run) {
  const Library driver(path, {{"cache", "0"}});
  driver.open();
  uint64_t program = 0, kernel = 0, again = 0;
  if (!CHECK_OK(build(driver, "opencl_c", kProgram, &program))) return;
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
  given.block[0] = 1 << 20;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("scale") && driver.error_has("work-items"));
  given.block[0] = 0;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  given.block[0] = 64;
  given.arg_count = 2;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("takes 3 arguments"));
  given.arg_count = 3;
  given.shared_memory = 64;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  given.shared_memory = 0;
  given.is_cooperative = 1;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_UNIMPLEMENTED);
  given.is_cooperative = 0;
  given.kernel = 12345;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->program_destroy(driver.self(), 0, program));
  given.kernel = kernel;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->program_destroy(driver.self(), 0, program), OB_INVALID_ARGUMENT);
}

TEST(addresses_in_memory) {
  if (fake() == nullptr) return skip("addresses_in_memory", "OB_FAKE is not set");
  const Library driver(path, {{"library", fake()}, {"cache", "0"}});
  driver.open();
  const char* text = "kernel void follow(global const ulong* table) { *(global int*)table[get_global_id(0)] += 7; }";
  uint64_t program = 0, kernel = 0;
  if (!CHECK_OK(build(driver, "opencl_c", text, &program))) return;
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "follow", &kernel));
  const uint64_t stream = driver.stream();
  const uint64_t table = driver.alloc(4096);
  const std::vector<ob_kernel_arg> args = {pointer_arg(table)};
  ob_launch given = launch_of(kernel, 1, 1, args);
  const auto copy = [&](uint64_t dst, int32_t dst_device, uint64_t src, int32_t src_device, uint64_t bytes) {
    CHECK_OK(driver.copy(stream, dst, dst_device, src, src_device, bytes));
    CHECK_OK(driver.sync(stream));
  };
  const auto launch = [&](uint64_t target) {
    const int32_t zero = 0;
    copy(target, 0, address_of(&zero), OB_HOST, 4);
    copy(table, 0, address_of(&target), OB_HOST, 8);
    return driver->kernel_launch(driver.self(), 0, stream, &given);
  };
  const auto found = [&](uint64_t target) {
    int32_t number = 0;
    copy(address_of(&number), OB_HOST, target, 0, 4);
    return number;
  };
  given.follows_addresses = 1;
  const uint64_t first = driver.alloc(4096);
  CHECK_OK(launch(first));
  CHECK(found(first) == 7);
  // The runtime is told about memory only when it has changed.
  setenv("FAKE_OPENCL", "deaf", 1);
  CHECK_OK(launch(first + 64));
  CHECK(found(first + 64) == 7);
  const uint64_t second = driver.alloc(4096);
  CHECK(launch(second) != OB_OK && driver.error_has("clSetKernelExecInfo"));
  given.follows_addresses = 0;
  CHECK_OK(launch(first));
  unsetenv("FAKE_OPENCL");
  given.follows_addresses = 1;
  CHECK_OK(launch(second));
  CHECK(found(second) == 7);
  CHECK_OK(driver->mem_free(driver.self(), 0, first));
  CHECK_OK(launch(second));
  CHECK(found(second) == 7);
}

TEST(one_kernel_from_many_threads) {
  const Library driver(path, {{"cache", "0"}});
  driver.open();
  uint64_t program = 0, kernel = 0;
  CHECK_OK(build(driver, "opencl_c", "kernel void put(global int* x, int v) { x[get_global_id(0)] = v; }", &program));
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
      }
      CHECK_OK(driver.sync(stream));
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
  const Library driver(path, {{"cache", "0"}});
  driver.open();
  uint64_t program = 0;
  CHECK_STATUS(build(driver, "opencl_c", "kernel void f(global int* x) {\n  x[0] = undeclared_name;\n}\n", &program),
               OB_PROGRAM_REFUSED);
  CHECK(driver.error_has("does not build") && driver.error_has("undeclared_name") && driver.error_has("  2 | "));
  CHECK_STATUS(build(driver, "ptx", "anything", &program), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("opencl_c"));
}

TEST(binaries_are_taken_again) {
  if (fake() == nullptr) return skip("binaries_are_taken_again", "OB_FAKE is not set");
  std::string bytes;
  // Set explicitly, because the runtime below the fake may cache programs itself.
  {
    const Library driver(path, {{"library", fake()}, {"cache", "1"}});
    driver.open();
    uint64_t program = 0;
    if (!CHECK_OK(build(driver, "opencl_c", kProgram, &program))) return;
    bytes = binary_of(driver, program);
    CHECK(!bytes.empty());
    CHECK_STATUS(driver->program_binary(driver.self(), 0, 12345, nullptr, nullptr), OB_INVALID_ARGUMENT);
  }
  // If nothing can be compiled, the program can only come from the binary.
  setenv("FAKE_OPENCL", "no_compiler", 1);
  const Library driver(path, {{"library", fake()}, {"cache", "1"}});
  driver.open();
  uint64_t program = 0, kernel = 0;
  CHECK(build(driver, "opencl_c", kProgram, &program) != OB_OK);
  if (!CHECK_OK(build(driver, OB_LANGUAGE_BINARY, bytes, &program))) return;
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &kernel));
  CHECK_STATUS(build(driver, OB_LANGUAGE_BINARY, bytes, &program, "-DOTHER"), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("with other options"));
  CHECK_STATUS(build(driver, OB_LANGUAGE_BINARY, "x" + bytes, &program), OB_INVALID_ARGUMENT);
}

TEST(no_binary_if_nothing_is_kept) {
  const Library driver(path, {{"cache", "0"}});
  driver.open();
  uint64_t program = 0;
  if (!CHECK_OK(build(driver, "opencl_c", kProgram, &program))) return;
  CHECK(binary_of(driver, program, OB_UNIMPLEMENTED).empty() && driver.error_has("cache"));
}

TEST(strided_copies_are_right) {
  const Library driver(path, {{"cache", "0"}});
  driver.open();
  check_strided_copies(driver, 150);
}

TEST(fills_are_right) {
  const Library driver(path);
  driver.open();
  check_fills(driver);
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
}

TEST(more_than_one_allocation_may_have) {
  const Library driver(path);
  driver.open();
  ob_device_properties properties = {};
  properties.struct_size = sizeof properties;
  CHECK_OK(driver->device_properties(driver.self(), 0, &properties));
  uint64_t address = 0;
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, properties.max_allocation + 1, &address), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("CL_DEVICE_MAX_MEM_ALLOC_SIZE"));
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

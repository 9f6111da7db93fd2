// SPDX-License-Identifier: BSD-3-Clause
// The driver for NVIDIA's GPUs, on a GPU, or on the built fake_cuda.cpp that OB_FAKE names. Tests
// of features that the fake lacks are skipped there.
#include <csignal>
#include <ctime>
#include <thread>

#include "apart.h"

namespace {

// A driver on the fake if OB_FAKE is set, else on CUDA.
struct Nv : Library {
  explicit Nv(const char* path) : Library(path, {{"library", library()}}) {}
  static bool is_fake() { return std::getenv("OB_FAKE") != nullptr; }
  static const char* library() { return is_fake() ? std::getenv("OB_FAKE") : "libcuda.so.1"; }
};

bool needs_gpu(const char* test) {
  if (Nv::is_fake()) skip(test, "the fake has none of this");
  return Nv::is_fake();
}

constexpr const char* kPtx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 factor) {
  .reg .f32 %f<4>;
  .reg .b32 %r<6>;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [x];
  ld.param.f32 %f1, [factor];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %d2, %r4, 4;
  add.s64 %d3, %d1, %d2;
  ld.global.f32 %f2, [%d3];
  mul.f32 %f3, %f1, %f2;
  st.global.f32 [%d3], %f3;
  ret;
}
.visible .entry illegal(.param .u64 x) {
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [x];
  mov.u32 %r1, 7;
  st.global.u32 [%d1], %r1;
  ret;
}
)";

TEST(no_driver_library) {
  const Library driver(path, {{"library", "/nowhere/libcuda.so.1"}});
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(driver.error_has("the CUDA driver cannot be loaded") && driver.error_has("Install"));
  CHECK_STATUS(driver->device_open(driver.self(), 0), OB_UNAVAILABLE);
}

TEST(no_device) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  setenv("FAKE_CUDA_DEVICES", "0", 1);
  const Nv driver(path);
  CHECK(driver->device_count(driver.self()) == -OB_UNAVAILABLE);
  CHECK(!driver.last_error().empty());
  CHECK(driver->device_open(driver.self(), 0) != OB_OK);
}

TEST(visible_devices_are_counted) {
  if (needs_gpu("visible_devices_are_counted")) return;
  for (const auto& [visible, count] :
       {std::pair{"0", 1}, {"-1", -OB_UNAVAILABLE}, {"0,99", 1}, {"0,0", -OB_UNAVAILABLE}}) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const Nv driver(path);
    const int32_t got = driver->device_count(driver.self());
    if (!CHECK(got == count)) std::fprintf(stderr, "CUDA_VISIBLE_DEVICES=%s gave %d\n", visible, got);
  }
}

TEST(kernels_run) {
  const Nv driver(path);
  driver.open();
  uint64_t program = 0, kernel = 0, again = 0;
  if (!CHECK_OK(build(driver, "ptx", kPtx, &program))) return;
  CHECK(binary_of(driver, program, OB_UNIMPLEMENTED).empty());
  CHECK_STATUS(driver->kernel_get(driver.self(), 0, program, "missing", &kernel), OB_NOT_FOUND);
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &kernel));
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &again));
  CHECK(kernel != 0 && kernel == again);
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(4096);
  const float factor = 3;
  const std::vector<ob_kernel_arg> args = {pointer_arg(memory + 1024), value_arg(factor)};
  ob_launch given = launch_of(kernel, 4, 64, args);
  if (!Nv::is_fake()) {
    std::vector<float> host(1024, 2.0f);
    CHECK_OK(driver.copy(stream, memory, 0, address_of(host.data()), OB_HOST, 4096));
    CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
    CHECK_OK(driver.copy(stream, address_of(host.data()), OB_HOST, memory, 0, 4096));
    CHECK_OK(driver.sync(stream));
    for (size_t i = 0; i < host.size(); ++i) {
      if (!CHECK(host[i] == (i >= 256 && i < 512 ? 6.0f : 2.0f))) break;
    }
  }
  // A launch that a device cannot run is refused before anything is queued.
  given.block[0] = 4096;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("scale") && driver.error_has("threads"));
  given.block[0] = given.block[1] = 64;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  given.block[1] = 1;
  given.grid[1] = 1 << 20;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  given.grid[1] = 0;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  given.grid[1] = 1;
  given.shared_memory = 1 << 30;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("shared memory"));
  given.shared_memory = 0;
  given.arg_count = 0;
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("arguments"));
  const std::vector<ob_kernel_arg> local = {local_arg(64), value_arg(factor)};
  given.arg_count = Nv::is_fake() ? 1 : 2;
  given.args = local.data();
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  CHECK(driver.error_has("shared_memory"));
  CHECK_OK(driver->program_destroy(driver.self(), 0, program));
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
}

TEST(shared_memory_clusters_and_cooperation) {
  if (needs_gpu("shared_memory_clusters_and_cooperation")) return;
  const Nv driver(path);
  driver.open();
  uint64_t program = 0, kernel = 0;
  CHECK_OK(build(driver, "ptx", kPtx, &program));
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "scale", &kernel));
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(1 << 20);
  const float factor = 1;
  const std::vector<ob_kernel_arg> args = {pointer_arg(memory), value_arg(factor)};
  ob_launch given = launch_of(kernel, 4, 64, args);
  given.shared_memory = 64 << 10;  // more than a kernel has by default
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  given.shared_memory = 0;
  given.is_cooperative = 1;
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  given.grid[0] = 1 << 20;  // more than are on the device at once
  CHECK_STATUS(driver->kernel_launch(driver.self(), 0, stream, &given), OB_INVALID_ARGUMENT);
  given.grid[0] = 4;
  given.is_cooperative = 0;
  ob_device_properties properties = {};
  properties.struct_size = sizeof properties;
  CHECK_OK(driver->device_properties(driver.self(), 0, &properties));
  if (properties.major >= 9) {
    given.cluster[0] = 2;
    CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
    given.cluster[0] = 3;  // does not divide the grid
    CHECK(driver->kernel_launch(driver.self(), 0, stream, &given) != OB_OK);
  }
  CHECK_OK(driver.sync(stream));
}

TEST(a_failed_build_shows_log_and_source) {
  const Nv driver(path);
  driver.open();
  uint64_t program = 0;
  CHECK_STATUS(build(driver, "ptx", ".version 7.0\nsyntax error here\n", &program), OB_PROGRAM_REFUSED);
  CHECK(driver.error_has("does not build") && driver.error_has("line 2") && driver.error_has("  2 | syntax error"));
  CHECK_STATUS(build(driver, "cobol", "x", &program), OB_INVALID_ARGUMENT);
  CHECK_STATUS(build(driver, "ptx", kPtx, &program, "-O3"), OB_INVALID_ARGUMENT);
}

TEST(cuda_cpp_is_compiled_where_nvrtc_is) {
  {
    const Library driver(path, {{"library", Nv::library()}, {"nvrtc", "/nowhere/libnvrtc.so"}});
    driver.open();
    uint64_t program = 0;
    CHECK_STATUS(build(driver, "cuda", "", &program), OB_UNAVAILABLE);
    CHECK(driver.error_has("NVRTC"));
  }
  if (needs_gpu("cuda_cpp_is_compiled_where_nvrtc_is")) return;
  const char* nvrtc = std::getenv("OB_NVRTC");
  const Library driver(path, {{"nvrtc", nvrtc != nullptr ? nvrtc : ""}});
  driver.open();
  uint64_t program = 0, kernel = 0;
  const ob_status status =
      build(driver, "cuda", "extern \"C\" __global__ void put(int* x, int v) { x[threadIdx.x] = v; }", &program,
            "--std=c++17");
  if (status == OB_UNAVAILABLE) return skip("cuda_cpp_is_compiled_where_nvrtc_is", "there is no NVRTC");
  CHECK_OK(status);
  const std::string bytes = binary_of(driver, program);
  CHECK_OK(build(driver, OB_LANGUAGE_BINARY, bytes, &program, "--std=c++17"));
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "put", &kernel));
  const uint64_t memory = driver.alloc(256);
  const uint64_t stream = driver.stream();
  const int value = 41;
  const std::vector<ob_kernel_arg> args = {pointer_arg(memory), value_arg(value)};
  const ob_launch given = launch_of(kernel, 1, 64, args);
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  const auto got = read(driver, stream, memory, 256);
  CHECK(reinterpret_cast<const int*>(got.data())[63] == 41);
  CHECK_STATUS(build(driver, "cuda", "__global__ void f() {\n  undeclared_name;\n}", &program), OB_PROGRAM_REFUSED);
  CHECK(driver.error_has("undeclared_name") && driver.error_has("  2 | "));
}

TEST(an_illegal_address_loses_the_device) {
  const Nv driver(path);
  driver.open();
  uint64_t program = 0, kernel = 0, out = 0;
  CHECK_OK(build(driver, "ptx", kPtx, &program));
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "illegal", &kernel));
  const uint64_t stream = driver.stream();
  const std::vector<ob_kernel_arg> args = {pointer_arg(64)};
  const ob_launch given = launch_of(kernel, 1, 1, args);
  CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
  CHECK_STATUS(driver.sync(stream), OB_DEVICE_LOST);
  CHECK(driver.error_has("CUDA_ERROR_ILLEGAL_ADDRESS"));
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, 1 << 20, &out), OB_DEVICE_LOST);
  CHECK_STATUS(driver->event_create(driver.self(), 0, 0, &out), OB_DEVICE_LOST);
}

TEST(memory_runs_out) {
  const Nv driver(path);
  driver.open();
  uint64_t free = 0, total = 0;
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(free <= total && free > 0);
  const uint64_t half = driver.alloc(free / 2);
  uint64_t out = 0;
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, free / 4 * 3, &out), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("are free"));
  CHECK_OK(driver->mem_free(driver.self(), 0, half));
  const uint64_t most = driver.alloc(free / 4 * 3);
  CHECK_OK(driver->mem_free(driver.self(), 0, most));
}

TEST(many_streams_and_events) {
  const Nv driver(path);
  driver.open();
  std::vector<uint64_t> streams, events;
  for (int i = 0; i < 1000; ++i) {
    streams.push_back(driver.stream(0, -(i % 6)));
    events.push_back(driver.event());
    CHECK_OK(driver.record(streams.back(), events.back()));
    CHECK_OK(driver.wait(streams.front(), events.back()));
  }
  CHECK_OK(driver.sync(streams.front()));
  for (const uint64_t event : events) CHECK_OK(driver->event_destroy(driver.self(), 0, event));
  for (const uint64_t stream : streams) CHECK_OK(driver->stream_destroy(driver.self(), 0, stream));
  CHECK_STATUS(driver.sync(streams.back()), OB_INVALID_ARGUMENT);
}

TEST(graphs_replay) {
  if (needs_gpu("graphs_replay")) return;
  const Nv driver(path);
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(101 * 1024);
  const std::vector<char> zeros(101 * 1024, 0), ones(1024, 1);
  CHECK_OK(driver.copy(stream, memory, 0, address_of(zeros.data()), OB_HOST, zeros.size()));
  CHECK_OK(driver.sync(stream));
  CHECK_OK(driver->graph_capture_begin(driver.self(), 0, stream));
  for (uint64_t i = 0; i < 100; ++i)
    CHECK_OK(driver.copy(stream, memory + (i + 1) * 1024, 0, memory + i * 1024, 0, 1024));
  std::atomic<int> calls{0};
  auto count = [&] { ++calls; };
  CHECK_OK(driver.call(stream, &count));
  const uint64_t beside = driver.alloc(1 << 20);  // memory may be had meanwhile
  CHECK_STATUS(driver.sync(stream), OB_FAILED_PRECONDITION);
  uint64_t graph = 0, executable = 0;
  // The wait above has spoilt the capture. That is reported, and the next capture works.
  CHECK_STATUS(driver->graph_capture_end(driver.self(), 0, stream, &graph), OB_FAILED_PRECONDITION);
  CHECK_OK(driver->graph_capture_begin(driver.self(), 0, stream));
  for (uint64_t i = 0; i < 100; ++i)
    CHECK_OK(driver.copy(stream, memory + (i + 1) * 1024, 0, memory + i * 1024, 0, 1024));
  CHECK_OK(driver.call(stream, &count));
  CHECK_OK(driver->graph_capture_end(driver.self(), 0, stream, &graph));
  CHECK_OK(driver->graph_instantiate(driver.self(), 0, graph, &executable));
  CHECK_OK(driver->graph_destroy(driver.self(), 0, graph));
  CHECK(read(driver, stream, memory + 100 * 1024, 1024) == std::vector<unsigned char>(1024, 0));
  CHECK_OK(driver.copy(stream, memory, 0, address_of(ones.data()), OB_HOST, 1024));
  for (int i = 0; i < 3; ++i) CHECK_OK(driver->graph_launch(driver.self(), 0, stream, executable));
  CHECK(read(driver, stream, memory + 100 * 1024, 1024) == std::vector<unsigned char>(1024, 1));
  CHECK(calls == 3);
  CHECK_OK(driver->graph_executable_destroy(driver.self(), 0, executable));
  CHECK_STATUS(driver->graph_launch(driver.self(), 0, stream, executable), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->mem_free(driver.self(), 0, beside));
}

TEST(memory_is_mapped_in_parts) {
  if (needs_gpu("memory_is_mapped_in_parts")) return;
  const Nv driver(path);
  driver.open();
  ob_device_properties properties = {};
  properties.struct_size = sizeof properties;
  CHECK_OK(driver->device_properties(driver.self(), 0, &properties));
  const uint64_t granule = properties.mem_granularity;
  if (granule == 0) return skip("memory_is_mapped_in_parts", "the device maps no memory");
  uint64_t base = 0;
  CHECK_OK(driver->mem_reserve(driver.self(), 0, 16 * granule, &base));
  CHECK_STATUS(driver->mem_map(driver.self(), 0, base + 1, granule), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->mem_map(driver.self(), 0, base + 16 * granule, granule), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->mem_map(driver.self(), 0, base + 2 * granule, 3 * granule));
  CHECK_OK(driver->mem_map(driver.self(), 0, base + 5 * granule, granule));
  CHECK_STATUS(driver->mem_map(driver.self(), 0, base + 4 * granule, 2 * granule), OB_INVALID_ARGUMENT);
  const uint64_t stream = driver.stream();
  const char value = 9;
  CHECK_OK(driver->fill_async(driver.self(), 0, stream, base + 2 * granule, &value, 1, 4 * granule));
  CHECK(driver->fill_async(driver.self(), 0, stream, base + 2 * granule, &value, 1, 4 * granule + 1) != OB_OK);
  CHECK(read(driver, stream, base + 6 * granule - 512, 512) == std::vector<unsigned char>(512, 9));
  CHECK_OK(driver->mem_unmap(driver.self(), 0, base + 3 * granule, 2 * granule));  // a part of the first and no more
  CHECK(read(driver, stream, base + 2 * granule, 512) == std::vector<unsigned char>(512, 9));
  CHECK_OK(driver->mem_map(driver.self(), 0, base + 3 * granule, granule));
  CHECK_OK(driver->mem_unmap(driver.self(), 0, base + 2 * granule, 2 * granule));
  CHECK_OK(driver->mem_unmap(driver.self(), 0, base + 5 * granule, granule));
  CHECK_OK(driver->mem_release(driver.self(), 0, base, 16 * granule));
}

TEST(memory_is_shared_between_processes) {
  if (needs_gpu("memory_is_shared_between_processes")) return;
  int to_child[2], to_parent[2];
  if (!CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0)) return;
  const pid_t child = fork();  // before CUDA starts here
  if (child == 0) {
    char handle[64], answer = 1;
    if (::read(to_child[0], handle, sizeof handle) != sizeof handle) _exit(2);
    const Nv driver(path);
    driver.open();
    uint64_t memory = 0;
    const uint64_t stream = driver.stream();
    if (driver->ipc_open(driver.self(), 0, handle, sizeof handle, &memory) != OB_OK) _exit(3);
    if (read(driver, stream, memory, 4096) != std::vector<unsigned char>(4096, 5)) _exit(4);
    const char value = 6;
    if (driver->fill_async(driver.self(), 0, stream, memory, &value, 1, 4096) != OB_OK) _exit(5);
    if (driver.sync(stream) != OB_OK || driver->ipc_close(driver.self(), 0, memory) != OB_OK) _exit(6);
    _exit(write(to_parent[1], &answer, 1) == 1 ? 0 : 7);
  }
  const Nv driver(path);
  driver.open();
  const uint64_t memory = driver.alloc(4 << 20);
  const uint64_t stream = driver.stream();
  const char value = 5;
  CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, &value, 1, 4 << 20));
  CHECK_OK(driver.sync(stream));
  char handle[128];
  size_t size = 3;
  CHECK_STATUS(driver->ipc_export(driver.self(), 0, memory, handle, &size), OB_OUT_OF_RANGE);
  CHECK(size == 64);
  CHECK_OK(driver->ipc_export(driver.self(), 0, memory, handle, &size));
  CHECK(write(to_child[1], handle, size) == 64);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(read(driver, stream, memory, 4096) == std::vector<unsigned char>(4096, 6));
}

TEST(host_memory_is_registered) {
  const Nv driver(path);
  driver.open();
  std::vector<char> host(8 << 20, 3);
  CHECK_OK(driver->host_register(driver.self(), host.data(), host.size()));
  CHECK_STATUS(driver->host_register(driver.self(), host.data(), host.size()), OB_ALREADY_EXISTS);
  const uint64_t memory = driver.alloc(host.size());
  const uint64_t stream = driver.stream();
  CHECK_OK(driver.copy(stream, memory, 0, address_of(host.data()), OB_HOST, host.size()));
  CHECK(read(driver, stream, memory + host.size() - 16, 16) == std::vector<unsigned char>(16, 3));
  CHECK_OK(driver->host_unregister(driver.self(), host.data()));
  CHECK_STATUS(driver->host_unregister(driver.self(), host.data()), OB_NOT_FOUND);
  void* pinned = nullptr;
  CHECK_OK(driver->host_alloc(driver.self(), 1 << 20, &pinned));
  CHECK_STATUS(driver->host_register(driver.self(), pinned, 1 << 20), OB_ALREADY_EXISTS);
  CHECK_STATUS(driver->host_register(driver.self(), nullptr, 1 << 20), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->host_free(driver.self(), pinned));
}

TEST(strided_copies_are_right) {
  const Nv driver(path);
  driver.open();
  check_strided_copies(driver, 400);
}

TEST(fills_are_right) {
  const Nv driver(path);
  driver.open();
  check_fills(driver);
}

TEST(queries_end) {
  const Nv driver(path);
  driver.open();
  check_queries_end(driver);
}

TEST(event_times_are_right) {
  if (needs_gpu("event_times_are_right")) return;
  const Nv driver(path);
  driver.open();
  check_event_times(driver);
}

TEST(foreign_streams_are_accepted) {
  if (needs_gpu("foreign_streams_are_accepted")) return;
  const Nv driver(path);
  driver.open();
  const uint64_t memory = driver.alloc(4096);
  for (const uint64_t stream : {0u, 1u, 2u}) {  // CUDA's default streams
    CHECK_OK(driver.copy(stream, memory, 0, memory + 2048, 0, 64));
    CHECK_OK(driver.sync(stream));
  }
}

TEST(a_forked_child_is_reported) {
  const Nv driver(path);
  driver.open();
  CHECK(in_child([&] {
          ob_device_properties properties = {};
          properties.struct_size = sizeof properties;
          const bool is_reported = driver->device_properties(driver.self(), 0, &properties) == OB_FAILED_PRECONDITION;
          return is_reported && driver.error_has("spawn") ? 0 : 1;
        }) == 0);
}

TEST(counting_survives_a_fork) {
  const Nv driver(path);
  const int32_t count = driver->device_count(driver.self());
  CHECK(count > 0);
  CHECK(in_child([&] {
          const Nv ours(path);
          if (ours->device_count(ours.self()) != count) return 1;
          return ours->device_open(ours.self(), 0) == OB_OK ? 0 : 2;
        }) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests_apart(argc, argv);
}

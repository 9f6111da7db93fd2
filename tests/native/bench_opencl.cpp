// SPDX-License-Identifier: BSD-3-Clause
// The OpenCL driver against the layer below it: a copy of 256 MB against memcpy (on CPU devices),
// and the launch of an empty kernel against a bare loop over the API. Usage: bench_opencl LIBRARY
#include <algorithm>
#include <chrono>

#include "../../drivers/opencl/cl.h"
#include "apart.h"

namespace {

constexpr int kCopyRounds = 15;
constexpr int kLaunchRounds = 101;  // short rounds, because other work of the machine disturbs some of them
constexpr int kLaunches = 2000;
constexpr size_t kBytes = size_t{256} << 20;
constexpr const char* kEmpty = "kernel void nothing(void) {}";

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs both in turns and prints the median of each, and of their ratio.
void compare(const char* what, int rounds, const std::function<void()>& ours, const std::function<void()>& bare) {
  std::vector<double> our_times, bare_times, ratios;
  for (int round = -2; round < rounds; ++round) {
    const bool is_first = round % 2 == 0;
    double our_time = is_first ? seconds(ours) : 0;
    const double bare_time = seconds(bare);
    if (!is_first) our_time = seconds(ours);
    if (round < 0) continue;
    our_times.push_back(our_time);
    bare_times.push_back(bare_time);
    ratios.push_back(our_time / bare_time);
  }
  for (auto* times : {&our_times, &bare_times, &ratios}) std::sort(times->begin(), times->end());
  std::printf("%-40s %10.1f us %10.1f us  ratio %.3f\n", what, our_times[rounds / 2] * 1e6,
              bare_times[rounds / 2] * 1e6, ratios[rounds / 2]);
}

// The same device, by the API alone.
struct Bare {
  opencl::Api api;
  opencl::cl_command_queue queue = nullptr;
  opencl::cl_kernel kernel = nullptr;

  bool open() {
    std::string error;
    opencl::cl_platform_id platform = nullptr;
    opencl::cl_device_id device = nullptr;
    opencl::cl_int code = 0;
    if (!api.load("libOpenCL.so.1", &error)) return false;
    if (api.GetPlatformIDs(1, &platform, nullptr) != 0) return false;
    if (api.GetDeviceIDs(platform, opencl::CL_DEVICE_TYPE_ALL, 1, &device, nullptr) != 0) return false;
    const opencl::cl_context context = api.CreateContext(nullptr, 1, &device, nullptr, nullptr, &code);
    const opencl::cl_properties properties[] = {opencl::CL_QUEUE_PROPERTIES, opencl::CL_QUEUE_PROFILING_ENABLE, 0};
    queue = api.CreateCommandQueueWithProperties(context, device, properties, &code);
    const char* text = kEmpty;
    const opencl::cl_program program = api.CreateProgramWithSource(context, 1, &text, nullptr, &code);
    if (code != 0 || api.BuildProgram(program, 1, &device, "", nullptr, nullptr) != 0) return false;
    kernel = api.CreateKernel(program, "nothing", &code);
    return code == 0;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s LIBRARY\n", argv[0]), 1;
  const Library driver(argv[1]);
  Bare bare;
  if (!CHECK_OK(driver->device_open(driver.self(), 0)) || !CHECK(bare.open())) return 1;
  const uint64_t stream = driver.stream();

  const uint64_t from = driver.alloc(kBytes);
  const uint64_t to = driver.alloc(kBytes);
  std::vector<char> host_from(kBytes, 1), host_to(kBytes, 2);
  // Both sides are written first. Reading memory that was never written reads one page of zeros,
  // which is twice as fast.
  for (const uint64_t block : {from, to}) {
    CHECK_OK(driver.copy(stream, block, 0, reinterpret_cast<uint64_t>(host_from.data()), OB_HOST, kBytes));
    CHECK_OK(driver.sync(stream));
  }
  compare(
      "copy of 256 MB against memcpy", kCopyRounds,
      [&] {
        CHECK_OK(driver.copy(stream, to, 0, from, 0, kBytes));
        CHECK_OK(driver.sync(stream));
      },
      [&] { std::memcpy(host_to.data(), host_from.data(), kBytes); });

  uint64_t program = 0, kernel = 0;
  CHECK_OK(build(driver, "opencl_c", kEmpty, &program));
  CHECK_OK(driver->kernel_get(driver.self(), 0, program, "nothing", &kernel));
  const ob_launch given = launch_of(kernel, 1, 64, {});
  const size_t global[] = {64, 1, 1};
  const size_t local[] = {64, 1, 1};
  compare(
      "2000 launches of an empty kernel", kLaunchRounds,
      [&] {
        for (int i = 0; i < kLaunches; ++i) CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
        CHECK_OK(driver.sync(stream));
      },
      [&] {
        for (int i = 0; i < kLaunches; ++i) {
          bare.api.EnqueueNDRangeKernel(bare.queue, bare.kernel, 3, nullptr, global, local, 0, nullptr, nullptr);
        }
        bare.api.Finish(bare.queue);
      });
  compare(
      "200 launches, each waited for", kLaunchRounds,
      [&] {
        for (int i = 0; i < 200; ++i) {
          CHECK_OK(driver->kernel_launch(driver.self(), 0, stream, &given));
          CHECK_OK(driver.sync(stream));
        }
      },
      [&] {
        for (int i = 0; i < 200; ++i) {
          bare.api.EnqueueNDRangeKernel(bare.queue, bare.kernel, 3, nullptr, global, local, 0, nullptr, nullptr);
          bare.api.Finish(bare.queue);
        }
      });
  return failed_checks.load() != 0 ? 1 : 0;
}

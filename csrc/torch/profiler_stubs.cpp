// SPDX-License-Identifier: BSD-3-Clause
// torch.autograd.profiler without Kineto: record an event before and after each operator,
// on its thread's current stream.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <memory>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/event.h"
#include "torch/profiler.h"

namespace outboard {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const c10::DeviceIndex current = current_device();
    if (device) {
      *device = current;
    }
    auto mark = std::make_shared<Event>(OB_EVENT_TIMING);
    mark->record(current_stream(current));
    *event = std::move(mark);
    if (cpu_ns) {
      *cpu_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
              .count();
    }
  }

  // Return microseconds.
  float elapsed(const ProfilerVoidEventStub* event, const ProfilerVoidEventStub* event2) const override {
    const auto* start = static_cast<const Event*>(event->get());
    const auto* end = static_cast<const Event*>(event2->get());
    start->synchronize();
    end->synchronize();
    return static_cast<float>(start->elapsed_ms(*end) * 1000.0);
  }

  void mark(const char*) const override { refuse("marks"); }
  void rangePush(const char*) const override { refuse("ranges"); }
  void rangePop() const override { refuse("ranges"); }
  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> op) const override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      if (is_open(device)) {
        op(device);
      }
    }
  }

  void synchronize() const override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      synchronize_device(device);
    }
  }

 private:
  [[noreturn]] static void refuse(const char* what) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          std::string(what) +
              " for a vendor's profiling tool are not supported: drivers have no entry for them. To name a range for"
              " torch.profiler.profile, use torch.profiler.record_function");
  }
};

}  // namespace

void register_profiler_stubs() {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
}

}  // namespace outboard

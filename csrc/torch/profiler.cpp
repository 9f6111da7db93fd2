// SPDX-License-Identifier: BSD-3-Clause
// torch.profiler: turn the records of core/activity.h into activities of Kineto.
#include "torch/profiler.h"

// Torch's own build defines this for these headers. Its libraries do not export fmt's functions.
#ifndef USE_KINETO
#define USE_KINETO
#endif
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <IActivityProfiler.h>
#include <ThreadUtil.h>
#include <c10/util/Exception.h>
#include <libkineto.h>
#include <output_base.h>
#if OUTBOARD_TORCH_MINOR >= 13
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#endif

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/activity.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"

namespace outboard {

namespace {

using libkineto::ActivityLogger;
using libkineto::ActivityType;
using libkineto::CpuTraceBuffer;
using libkineto::GenericTraceActivity;
using LinkedActivity = libkineto::getLinkedActivityCallback;

const std::set<ActivityType>& activity_types() {
  static const std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                            ActivityType::GPU_MEMSET, ActivityType::GPU_USER_ANNOTATION,
                                            ActivityType::PRIVATEUSE1_RUNTIME};
  return types;
}

// Kineto's clock is the time of day; drivers use the monotonic clock. The two drift apart, so both
// ends of the recording are used.
class Clock {
 public:
  Clock(const ClockPair& begin, const ClockPair& end) : begin_(begin) {
    const auto passed = static_cast<double>(end.monotonic - begin.monotonic);
    rate_ = passed > 0 ? static_cast<double>(end.unix_time - begin.unix_time) / passed : 1.0;
  }
  int64_t to_unix(int64_t monotonic) const {
    return begin_.unix_time + static_cast<int64_t>(static_cast<double>(monotonic - begin_.monotonic) * rate_);
  }

 private:
  ClockPair begin_;
  double rate_;
};

ActivityType type_of(ActivityKind kind) {
  switch (kind) {
    case ActivityKind::Copy:
      return ActivityType::GPU_MEMCPY;
    case ActivityKind::Fill:
      return ActivityType::GPU_MEMSET;
    default:
      return ActivityType::CONCURRENT_KERNEL;
  }
}

// Return the names that torch.profiler uses for CUDA, because readers of the table know them.
std::string name_of(const ActivityInfo& info) {
  if (info.kind == ActivityKind::Fill) {
    return "Memset (Device)";
  }
  if (info.kind == ActivityKind::Copy) {
    if (info.src_device == OB_HOST || info.dst_device == OB_HOST) {
      return info.src_device == OB_HOST ? "Memcpy HtoD (Host -> Device)" : "Memcpy DtoH (Device -> Host)";
    }
    return info.src_device == info.dst_device ? "Memcpy DtoD (Device -> Device)" : "Memcpy PtoP (Device -> Device)";
  }
  return info.name ? info.name : info.entry;
}

std::string lane_name(c10::DeviceIndex device, c10::StreamId stream) {
  return device_text(device) + " stream " + std::to_string(stream) + (stream == 0 ? " (default)" : "");
}

// The struct had a constructor with another order of arguments before it became an aggregate.
template <class Info>
Info make_resource(int64_t id, int64_t device, const std::string& name) {
  if constexpr (std::is_aggregate_v<Info>) {
    return Info{.id = id, .sortIndex = id, .deviceId = device, .name = name};
  } else {
    return Info(device, id, id, name);
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override { start_activities(); }

  void stop() override {
    profile_ = stop_activities();
    if (profile_.unfinished > 0) {
      profile_.problems.push_back(std::to_string(profile_.unfinished) +
                                  " calls had queued work that was unfinished when the profile ended, and"
                                  " are shown without that work: call torch." +
                                  driver_name() + ".synchronize() for each device in use before the profile ends");
    }
    for (const std::string& problem : profile_.problems) {
      TORCH_WARN("profiler: ", problem);
    }
  }

  std::vector<std::string> errors() override { return profile_.problems; }

  void processTrace(ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(ActivityLogger& logger, LinkedActivity linked, int64_t, int64_t) override {
    if (profile_.calls.empty() && profile_.works.empty()) {
      return;
    }
    buffer_ = std::make_unique<CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(profile_.begin.unix_time, profile_.end.unix_time, driver_name());
    buffer_->gpuOpCount = static_cast<int>(profile_.works.size());
    const Clock clock(profile_.begin, profile_.end);
    add_calls(clock, linked);
    add_works(clock, linked);
    add_annotations(linked);
    name_lanes(logger);
    for (const std::unique_ptr<GenericTraceActivity>& activity : buffer_->activities) {
      activity->log(logger);
    }
  }

  // Kineto names the first sixteen devices itself ("GPU 0"); the lanes name the device.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { push_activity_op(id); }
  void popCorrelationId() override { pop_activity_op(); }
  void pushUserCorrelationId(uint64_t id) override { push_activity_annotation(id); }
  void popUserCorrelationId() override { pop_activity_annotation(); }

 private:
  using Lane = std::pair<c10::DeviceIndex, c10::StreamId>;

  GenericTraceActivity& add(ActivityType type, const std::string& name) {
    buffer_->activities.push_back(std::make_unique<GenericTraceActivity>(buffer_->span, type, name));
    return *buffer_->activities.back();
  }

  // Kineto's numbers have 32 bits; a process may have used more.
  int32_t number(uint64_t correlation) { return correlation == 0 ? 0 : static_cast<int32_t>(correlation - first_ + 1); }

  void add_calls(const Clock& clock, const LinkedActivity& linked) {
    first_ = UINT64_MAX;
    for (const CallRecord& call : profile_.calls) {
      first_ = std::min(first_, call.correlation);
      calls_[call.correlation] = &call;
    }
    std::set<uint64_t> worked;
    for (const WorkRecord& work : profile_.works) {
      worked.insert(work.correlation);
    }
    for (const CallRecord& call : profile_.calls) {
      GenericTraceActivity& activity = add(ActivityType::PRIVATEUSE1_RUNTIME, call.info.entry);
      activity.startTime = clock.to_unix(call.start);
      activity.endTime = clock.to_unix(call.end);
      activity.id = number(call.correlation);
      activity.device = libkineto::processId();
      activity.resource = call.thread;
      activity.threadId = call.thread;
      if (worked.contains(call.correlation)) {
        set_flow(activity, /*is_start=*/true);
      }
      activity.linked = call.op != 0 ? linked(static_cast<int32_t>(call.op)) : nullptr;
      activity.addMetadata("correlation", activity.id);
    }
  }

  void add_works(const Clock& clock, const LinkedActivity& linked) {
    for (const WorkRecord& work : profile_.works) {
      GenericTraceActivity& activity = add(type_of(work.info.kind), name_of(work.info));
      activity.startTime = clock.to_unix(work.start);
      activity.endTime = clock.to_unix(work.end);
      activity.id = number(work.correlation);
      activity.device = work.device;
      activity.resource = static_cast<int32_t>(work.stream);
      lanes_.insert({work.device, work.stream});
      activity.addMetadata("device", static_cast<int>(work.device));
      activity.addMetadata("stream", static_cast<int64_t>(work.stream));
      if (work.info.bytes != 0) {
        activity.addMetadata("bytes", work.info.bytes);
        const int64_t nanoseconds = std::max<int64_t>(work.end - work.start, 1);
        activity.addMetadata("memory bandwidth (GB/s)",
                             static_cast<double>(work.info.bytes) / static_cast<double>(nanoseconds));
      }
      const auto entry = calls_.find(work.correlation);
      if (entry == calls_.end()) {
        continue;
      }
      activity.addMetadata("correlation", activity.id);
      set_flow(activity, /*is_start=*/false);
      const CallRecord& call = *entry->second;
      activity.linked = call.op != 0 ? linked(static_cast<int32_t>(call.op)) : nullptr;
      if (call.annotation != 0) {
        extend(call.annotation, work, activity);
      }
    }
  }

  // Torch keeps the flows of all profilers in one table. CUPTI, present beside a GPU that torch
  // knows, counts its own flows up from 1 in each process.
  static void set_flow(GenericTraceActivity& activity, bool is_start) {
    activity.flow.id = static_cast<uint32_t>(activity.id) | 0x40000000U;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = is_start ? 1 : 0;
  }

  // Extend a user's range: on each stream it spans the first to the
  // last work that was queued in it.
  void extend(uint64_t annotation, const WorkRecord& work, const GenericTraceActivity& activity) {
    const auto [at, is_new] =
        ranges_.try_emplace({annotation, {work.device, work.stream}}, activity.startTime, activity.endTime);
    if (!is_new) {
      at->second.first = std::min(at->second.first, activity.startTime);
      at->second.second = std::max(at->second.second, activity.endTime);
    }
  }

  void add_annotations(const LinkedActivity& linked) {
    for (const auto& [key, range] : ranges_) {
      const auto& [annotation, lane] = key;
      const libkineto::ITraceActivity* named = linked(static_cast<int32_t>(annotation));
      if (named == nullptr) {
        continue;  // it began before the profile
      }
      GenericTraceActivity& activity = add(ActivityType::GPU_USER_ANNOTATION, named->name());
      activity.startTime = range.first;
      activity.endTime = range.second;
      activity.id = static_cast<int32_t>(annotation);
      activity.device = lane.first;
      activity.resource = static_cast<int32_t>(lane.second);
      // Not linked: the CPU range would count its work a second time.
    }
  }

  void name_lanes(ActivityLogger& logger) {
    for (const auto& [device, stream] : lanes_) {
      logger.handleResourceInfo(make_resource<libkineto::ResourceInfo>(stream, device, lane_name(device, stream)),
                                profile_.begin.unix_time);
    }
  }

  ActivityProfile profile_;
  uint64_t first_ = 0;
  std::map<uint64_t, const CallRecord*> calls_;
  std::set<Lane> lanes_;
  std::map<std::pair<uint64_t, Lane>, std::pair<int64_t, int64_t>> ranges_;
  std::unique_ptr<CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return driver_name(); }
  const std::set<ActivityType>& availableActivities() const override { return activity_types(); }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    // ProfilerActivity.CPU alone delivers calls too, without a request for the device.
    if (!types.contains(ActivityType::CONCURRENT_KERNEL)) {
      return nullptr;
    }
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

}  // namespace

void register_profiler() {
  const auto make = []() -> std::unique_ptr<libkineto::IActivityProfiler> { return std::make_unique<Profiler>(); };
#if OUTBOARD_TORCH_MINOR >= 13
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(make);
#else
  libkineto::api().registerProfilerFactory(make);
#endif
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "core/activity_works.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/driver.h"
#include "core/stream_handles.h"

namespace outboard {

namespace {

ActivityKind kind_of(uint32_t driver_kind) {
  switch (driver_kind) {
    case OB_ACTIVITY_COPY:
      return ActivityKind::Copy;
    case OB_ACTIVITY_FILL:
      return ActivityKind::Fill;
    case OB_ACTIVITY_HOST:
      return ActivityKind::Host;
    default:
      return ActivityKind::Kernel;
  }
}

}  // namespace

void complete(WorkRecord& work, const CallRecord& call) {
  work.info = call.info;
  work.device = call.device;
  work.stream = call.stream;
}

void add_driver_records(const std::vector<ob_activity>& records, const CallsByCorrelation& calls,
                        ActivityProfile& profile) {
  StreamsOfHandles streams;
  for (const ob_activity& record : records) {
    WorkRecord work;
    const auto entry = calls.find(record.correlation);
    const CallRecord* call = entry == calls.end() ? nullptr : entry->second;
    work.correlation = call ? record.correlation : 0;
    work.start = record.start;
    work.end = record.end;
    work.device = static_cast<c10::DeviceIndex>(std::clamp<int32_t>(record.device, 0, kMaxDevices - 1));
    work.stream = streams.find(work.device, record.stream, call && call->device == work.device ? call->stream : -1);
    work.info.kind = kind_of(record.kind);
    work.info.bytes = record.bytes;
    work.info.src_device = record.src_device;
    work.info.dst_device = record.dst_device;
    // The core knows the operator of a host call; the driver knows the names of its kernels.
    const std::string name(record.name, ::strnlen(record.name, sizeof(record.name)));
    const bool knows_better = call && call->info.name && (work.info.kind == ActivityKind::Host || name.empty());
    work.info.name = knows_better ? call->info.name : intern_name(name);
    work.info.entry = call ? call->info.entry : "";
    profile.works.push_back(work);
  }
}

void begin_with_calls(const CallsByCorrelation& calls, ActivityProfile& profile) {
  constexpr int64_t kOfConversion = 1'000'000;  // a millisecond
  int64_t furthest = 0;
  for (WorkRecord& work : profile.works) {
    const auto call = calls.find(work.correlation);
    if (call == calls.end()) {
      continue;
    }
    const int64_t call_start = call->second->start;
    // No work starts before its event is recorded, and none ends before its call.
    const int64_t off = std::max((work.earliest != 0 ? work.earliest : call_start) - work.start, call_start - work.end);
    if (off > 0) {
      // The clock is off. Only the length of the work is known, so move it as a whole.
      work.end += call_start - work.start;
      furthest = std::max(furthest, off);
    }
    work.start = std::max(work.start, call_start);
    work.end = std::max(work.end, work.start);
  }
  if (furthest > kOfConversion) {
    profile.problems.push_back("the driver's timestamps precede the calls that queued the work by up to " +
                               std::to_string(furthest / 1000) +
                               " us, so this work is shown as starting at its call. The driver must report"
                               " nanoseconds of CLOCK_MONOTONIC");
  }
}

}  // namespace outboard

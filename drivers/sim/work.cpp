// SPDX-License-Identifier: BSD-3-Clause
#include "work.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"
#include "error.h"

namespace sim {
namespace {

struct Described {
  uint32_t kind;
  const char* name;
  uint64_t bytes;
  int32_t src_device;
  int32_t dst_device;
};

Described describe(const Stream& stream, const Task& task) {
  switch (task.work) {
    case Work::kCopy:
      return {OB_ACTIVITY_COPY, "copy_async", task.copy.bytes, task.copy.src_device, task.copy.dst_device};
    case Work::kStridedCopy:
      return {OB_ACTIVITY_COPY, "copy_nd_async", task.strided->bytes, task.strided->src_device,
              task.strided->dst_device};
    case Work::kFill:
      return {OB_ACTIVITY_FILL, "fill_async", task.fill.count * task.pattern_size, stream.device, stream.device};
    default:
      return {OB_ACTIVITY_HOST, "host_callback", 0, stream.device, stream.device};
  }
}

void fill(char* dst, const unsigned char* pattern, size_t pattern_size, uint64_t count) {
  if (pattern_size == 1) {
    std::memset(dst, pattern[0], count);
    return;
  }
  // Fill one block with patterns, then copy it, doubling the size each
  // time while it stays in the cache.
  const uint64_t bytes = count * pattern_size;
  uint64_t done = std::min<uint64_t>(pattern_size, bytes);
  std::memcpy(dst, pattern, done);
  constexpr uint64_t kBlock = 16384;
  while (done < bytes) {
    const uint64_t more = std::min({done, kBlock, bytes - done});
    std::memcpy(dst + done, dst, more);
    done += more;
  }
}

// End an interval that began at `start` only once `nanoseconds` have passed.
void stretch(int64_t start, int64_t nanoseconds) {
  const int64_t end = start + nanoseconds;
  constexpr int64_t kWakeUp = 60'000;  // the time by which a sleep may be too long
  if (end - now() > 2 * kWakeUp) {
    const int64_t until = end - kWakeUp;
    const timespec time = {static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
    }
  }
  while (now() < end) pause();
}

void perform(const Task& task) {
  switch (task.work) {
    case Work::kCall:
      task.call.fn(task.call.user);
      break;
    case Work::kCopy:
      std::memmove(task.copy.dst, task.copy.src, task.copy.bytes);
      break;
    case Work::kFill:
      fill(static_cast<char*>(task.fill.dst), task.fill.pattern, task.pattern_size, task.fill.count);
      break;
    case Work::kStridedCopy:
      run_strided_copy(*task.strided);
      break;
    case Work::kMark:
      task.mark.event->reach(task.mark.record);
      break;
    case Work::kWait:
      break;
  }
}

[[gnu::noinline]] void run_observed(Driver& driver, Stream& stream, const Task& task) {
  const Described what = describe(stream, task);
  const int64_t start = now();
  // A function always runs, because its user may wait for its effect.
  if (task.injected == OB_OK || task.work == Work::kCall) perform(task);
  if (task.injected != OB_OK) {
    char text[128];
    std::snprintf(text, sizeof text, "injected fault: queued %s fails with %s", what.name,
                  status_name(task.injected).c_str());
    stream.failure.add(task.injected, text);
  }
  uint64_t least = driver.options.latency;
  if (driver.options.bandwidth != 0) {
    least +=
        static_cast<uint64_t>(static_cast<double>(what.bytes) * 1e9 / static_cast<double>(driver.options.bandwidth));
  }
  if (least != 0) stretch(start, static_cast<int64_t>(least));
  if ((driver.activity.kinds() & what.kind) == 0) return;
  ob_activity record = {};
  record.struct_size = sizeof record;
  record.kind = what.kind;
  record.device = stream.device;
  record.stream = stream.last_handle;
  record.correlation = task.correlation;
  record.start = start;
  record.end = now();
  record.bytes = what.bytes;
  record.src_device = what.src_device;
  record.dst_device = what.dst_device;
  std::snprintf(record.name, sizeof record.name, "%s", what.name);
  driver.activity.add(record);
}

}  // namespace

void run_task(Driver& driver, Stream& stream, const Task& task) {
  const bool is_plain = task.injected == OB_OK && !driver.is_modelled && driver.activity.kinds() == 0;
  if (is_plain || task.work == Work::kMark) {
    perform(task);
  } else {
    run_observed(driver, stream, task);
  }
  if (task.work == Work::kStridedCopy) delete task.strided;
}

}  // namespace sim

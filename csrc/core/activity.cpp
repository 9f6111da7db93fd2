// SPDX-License-Identifier: BSD-3-Clause
#include "core/activity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/activity_works.h"
#include "core/capture.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/event.h"
#include "core/lost_device.h"
#include "core/pending.h"
#include "core/process.h"

namespace outboard {

namespace detail {
std::atomic<bool> is_recording_activities{false};
}

namespace {

// Work that is timed by a pair of events.
struct Bracket {
  uint64_t correlation;
  int64_t earliest;  // the host's time before `before` was queued
  Event before;
  Event after;
};

// The records of one thread. Only that thread and the one that stops the recording take the lock.
struct ThreadLog {
  std::mutex mutex;
  std::deque<CallRecord> calls;
  std::deque<WorkRecord> works;
  std::deque<Bracket> brackets;
};

struct Recording {
  std::mutex mutex;  // guards start, stop and the lists
  std::vector<std::shared_ptr<ThreadLog>> logs;
  std::unordered_set<std::string> names;
  std::vector<std::string> problems;
  ClockPair begin;
  std::atomic<bool> driver_records{false};  // activity_enable has succeeded
  std::atomic<uint64_t> next_correlation{1};
  std::atomic<uint64_t> number{0};  // recordings begun
};

Recording& recording() {
  static auto* const instance = new Recording();  // threads may record until the end of the process
  return *instance;
}

constexpr uint32_t kAllKinds = OB_ACTIVITY_KERNEL | OB_ACTIVITY_COPY | OB_ACTIVITY_FILL | OB_ACTIVITY_HOST;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Return the closest of a few tries: a thread may be descheduled between the two clocks.
ClockPair read_clocks() {
  ClockPair best;
  int64_t least = INT64_MAX;
  for (int i = 0; i < 9; ++i) {
    const int64_t before = now();
    const int64_t unix_time =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    const int64_t after = now();
    if (after - before < least) {
      least = after - before;
      best = {before + (after - before) / 2, unix_time};
    }
  }
  return best;
}

int32_t thread_number() {
#if defined(__linux__)
  thread_local const auto number = static_cast<int32_t>(::syscall(SYS_gettid));
#else
  thread_local const auto number = static_cast<int32_t>(std::hash<std::thread::id>{}(std::this_thread::get_id()));
#endif
  return number;
}

ThreadLog& thread_log() {
  thread_local std::shared_ptr<ThreadLog> log;
  if (C10_UNLIKELY(!log)) {
    log = std::make_shared<ThreadLog>();
    std::lock_guard lock(recording().mutex);
    recording().logs.push_back(log);
  }
  return *log;
}

// The ids of a thread. A recording may stop between a push and its pop, so ids of an
// earlier recording are dropped.
struct ThreadIds {
  uint64_t recording = 0;
  std::vector<uint64_t> ops;
  std::vector<uint64_t> annotations;
};

ThreadIds& current_ids() {
  thread_local ThreadIds ids;
  const uint64_t current = recording().number.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(ids.recording != current)) {
    ids.recording = current;
    ids.ops.clear();
    ids.annotations.clear();
  }
  return ids;
}

uint64_t last_of(const std::vector<uint64_t>& ids) {
  return ids.empty() ? 0 : ids.back();
}

bool has_activity_entries() {
  return driver().activity_enable != nullptr;
}

bool times_events() {
  return driver().event_timestamp != nullptr;
}

// Read the driver's records, up to its first error.
ob_status read_driver_records(std::vector<ob_activity>& out_records) {
  constexpr size_t kBatch = 256;
  for (;;) {
    std::vector<ob_activity> batch(kBatch);
    for (ob_activity& record : batch) {
      record.struct_size = sizeof(record);
    }
    size_t count = 0;
    const ob_status status = driver().activity_read(driver().self, kBatch, sizeof(ob_activity), batch.data(), &count);
    if (status != OB_OK) {
      return status;
    }
    count = std::min(count, kBatch);
    out_records.insert(out_records.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(count));
    if (count < kBatch) {
      return OB_OK;
    }
  }
}

std::string untimed() {
  return "driver '" + driver_name() +
         "' has neither activity records nor event_timestamp, so the profile times work on the host only";
}

std::string problem_of(const char* entry, ob_status status) {
  const std::string reason = last_driver_error();
  return "driver '" + driver_name() + "': " + entry + " failed with " + status_name(status) +
         (reason.empty() ? "" : ": " + reason);
}

// Note each problem once.
void note_problem(const std::string& problem) {
  Recording& all = recording();
  std::lock_guard lock(all.mutex);
  if (std::find(all.problems.begin(), all.problems.end(), problem) == all.problems.end()) {
    all.problems.push_back(problem);
  }
}

// Run a step of recording a call. If the step fails, the call does not.
template <class Step>
void attempt(Step step) {
  try {
    try {
      step();
    } catch (const std::exception& error) {
      note_problem(std::string("a call is missing from the profile: ") + error.what());
    }
  } catch (const std::bad_alloc&) {  // no memory to report it either
  }
}

void correlate(uint64_t correlation) {
  if (recording().driver_records.load(std::memory_order_relaxed)) {
    const ob_status status = driver().activity_correlate(driver().self, correlation);
    if (status != OB_OK) {
      note_problem(problem_of("activity_correlate", status));
    }
  }
}

std::vector<std::shared_ptr<ThreadLog>> take_logs(Recording& all) {
  std::lock_guard lock(all.mutex);
  // A log without another owner belongs to a thread that has ended.
  std::vector<std::shared_ptr<ThreadLog>> logs = all.logs;
  std::erase_if(all.logs, [](const std::shared_ptr<ThreadLog>& log) { return log.use_count() <= 2; });
  return logs;
}

void clear(ThreadLog& log) {
  std::deque<Bracket> brackets;  // their events are returned to the pool without the lock
  std::lock_guard lock(log.mutex);
  log.calls.clear();
  log.works.clear();
  brackets.swap(log.brackets);
}

ob_status timestamp_of(const Event& event, int64_t* out_nanoseconds) {
  return driver().event_timestamp(driver().self, event.device(), event.handle(), out_nanoseconds);
}

// Compute the end from event_elapsed if the driver has it. Between two readings of a timestamp, a
// driver may recalibrate its device's clock.
ob_status read_times(const Bracket& bracket, WorkRecord& work, const char*& out_entry) {
  out_entry = "event_timestamp";
  const ob_status status = timestamp_of(bracket.before, &work.start);
  if (status != OB_OK) {
    return status;
  }
  if (driver().event_elapsed != nullptr) {
    double milliseconds = 0;
    const ob_status elapsed = driver().event_elapsed(driver().self, bracket.after.device(), bracket.before.handle(),
                                                     bracket.after.handle(), &milliseconds);
    if (!is_unimplemented(elapsed)) {
      out_entry = "event_elapsed";
      work.end = work.start + std::llround(milliseconds * 1e6);
      return elapsed;
    }
  }
  return timestamp_of(bracket.after, &work.end);
}

// Return false if no further bracket needs to be tried.
bool add_bracket(const Bracket& bracket, const CallRecord& call, ActivityProfile& profile) {
  const char* entry = "event_query";
  const c10::DeviceIndex device = bracket.after.device();
  ob_status status =
      is_lost(device) ? OB_DEVICE_LOST : driver().event_query(driver().self, device, bracket.after.handle());
  if (status == OB_NOT_READY) {
    return true;  // counted as unfinished
  }
  WorkRecord work;
  if (status == OB_OK) {
    status = read_times(bracket, work, entry);
  }
  if (status != OB_OK) {
    profile.problems.push_back(is_unimplemented(status) ? untimed() : problem_of(entry, status));
    return false;
  }
  work.correlation = bracket.correlation;
  work.earliest = bracket.earliest;
  complete(work, call);
  profile.works.push_back(work);
  return true;
}

// How this recording times work, except host work, which always has a time.
enum class Timing { DriverRecords, Events, None };

void count_unfinished(ActivityProfile& profile, Timing timing) {
  std::unordered_set<uint64_t> done;
  for (const WorkRecord& work : profile.works) {
    done.insert(work.correlation);
  }
  profile.unfinished =
      static_cast<size_t>(std::count_if(profile.calls.begin(), profile.calls.end(), [&](const CallRecord& call) {
        // A driver's own kernel may queue nothing, so a call without records may have finished.
        const bool is_timed = call.info.kind == ActivityKind::Host || timing == Timing::Events ||
                              (timing == Timing::DriverRecords && call.info.kind != ActivityKind::Kernel);
        return call.is_queued && is_timed && !done.contains(call.correlation);
      }));
}

}  // namespace

struct ActivityScope::Open {
  CallRecord call;
  std::optional<Event> before;
  int64_t earliest = 0;  // the host's time before `before` was queued
  Stream* stream = nullptr;
  Open* outer = nullptr;
  bool has_inner = false;  // calls within this one have queued the work
};

namespace {
thread_local void* innermost_scope = nullptr;  // an ActivityScope::Open
}

void start_activities() {
  flush_all_pending(Interruptible::Yes);  // earlier calls are not part of it
  Recording& all = recording();
  detail::is_recording_activities.store(false);
  all.number.fetch_add(1);
  for (const std::shared_ptr<ThreadLog>& log : take_logs(all)) {
    clear(*log);
  }
  std::vector<std::string> problems;
  bool driver_records = false;
  if (driver_is_gone()) {
    problems.push_back("the devices can no longer be used in this process, so nothing on them is recorded");
  } else if (has_activity_entries()) {
    std::vector<ob_activity> old;  // of work that ended after the last recording
    ob_status status = read_driver_records(old);
    const char* entry = "activity_read";
    if (status == OB_OK) {
      entry = "activity_enable";
      status = driver().activity_enable(driver().self, kAllKinds);
    }
    driver_records = status == OB_OK;
    if (!driver_records && !is_unimplemented(status)) {
      problems.push_back(problem_of(entry, status));
    }
  }
  if (!driver_is_gone() && !driver_records && !times_events()) {
    problems.push_back(untimed());
  }
  all.driver_records.store(driver_records);
  std::lock_guard lock(all.mutex);
  all.problems = std::move(problems);
  all.begin = read_clocks();
  detail::is_recording_activities.store(!driver_is_gone());
}

ActivityProfile stop_activities() {
  Recording& all = recording();
  detail::is_recording_activities.store(false);
  ActivityProfile profile;
  profile.end = read_clocks();
  {
    std::lock_guard lock(all.mutex);
    profile.begin = all.begin;
    profile.problems = std::move(all.problems);
    all.problems.clear();
  }
  std::vector<ob_activity> records;
  const bool driver_records = all.driver_records.exchange(false);
  if (driver_records && !driver_is_gone()) {
    ob_status status = driver().activity_enable(driver().self, 0);
    const char* entry = "activity_enable";
    if (status == OB_OK) {
      entry = "activity_read";
      status = read_driver_records(records);
    }
    if (status != OB_OK) {
      profile.problems.push_back(problem_of(entry, status));
    }
  }
  std::deque<Bracket> brackets;
  for (const std::shared_ptr<ThreadLog>& log : take_logs(all)) {
    std::lock_guard lock(log->mutex);
    profile.calls.insert(profile.calls.end(), log->calls.begin(), log->calls.end());
    profile.works.insert(profile.works.end(), log->works.begin(), log->works.end());
    std::move(log->brackets.begin(), log->brackets.end(), std::back_inserter(brackets));
    log->calls.clear();
    log->works.clear();
    log->brackets.clear();
  }
  CallsByCorrelation calls;
  for (const CallRecord& call : profile.calls) {
    calls.emplace(call.correlation, &call);
  }
  // Work that began in an earlier recording, or whose call is not finished, has no call here.
  std::erase_if(profile.works, [&](const WorkRecord& work) { return !calls.contains(work.correlation); });
  for (WorkRecord& work : profile.works) {
    complete(work, *calls.at(work.correlation));
  }
  Timing timing = driver_records ? Timing::DriverRecords : times_events() ? Timing::Events : Timing::None;
  for (const Bracket& bracket : brackets) {
    const auto call = calls.find(bracket.correlation);
    if (call != calls.end() && !driver_is_gone() && !add_bracket(bracket, *call->second, profile)) {
      timing = Timing::None;
      break;
    }
  }
  add_driver_records(records, calls, profile);
  begin_with_calls(calls, profile);
  count_unfinished(profile, timing);
  return profile;
}

void push_activity_op(uint64_t id) {
  current_ids().ops.push_back(id);
}
void pop_activity_op() noexcept {
  if (ThreadIds& ids = current_ids(); !ids.ops.empty()) {
    ids.ops.pop_back();
  }
}
void push_activity_annotation(uint64_t id) {
  current_ids().annotations.push_back(id);
}
void pop_activity_annotation() noexcept {
  if (ThreadIds& ids = current_ids(); !ids.annotations.empty()) {
    ids.annotations.pop_back();
  }
}

const char* intern_name(const std::string& name) {
  Recording& all = recording();
  std::lock_guard lock(all.mutex);
  return all.names.insert(name).first->c_str();
}

void ActivityScope::begin(Stream& stream, const ActivityInfo& info) {
  attempt([&] {
    auto open = std::make_unique<Open>();
    open->call.info = info;
    open->call.device = stream.device;
    open->call.stream = stream.id;
    open->stream = &stream;
    if (info.kind != ActivityKind::Wait) {
      // Captured work runs at the replay. Events around it would be captured with it.
      open->call.is_queued = capture_of(stream) == nullptr;
      const bool has_bracket = open->call.is_queued && info.kind != ActivityKind::Host && times_events() &&
                               !recording().driver_records.load(std::memory_order_relaxed);
      if (has_bracket) {
        open->before.emplace(OB_EVENT_TIMING);
        open->earliest = now();
        open->before->record(stream);
      }
    }
    enter(std::move(open));
  });
}

void ActivityScope::begin_wait(c10::DeviceIndex device, const char* entry) {
  attempt([&] {
    auto open = std::make_unique<Open>();
    open->call.info = {ActivityKind::Wait, entry};
    open->call.device = device;
    open->call.stream = -1;
    enter(std::move(open));
  });
}

void ActivityScope::enter(std::unique_ptr<Open> open) {
  CallRecord& call = open->call;
  call.correlation = recording().next_correlation.fetch_add(1, std::memory_order_relaxed);
  const ThreadIds& ids = current_ids();
  call.op = last_of(ids.ops);
  call.annotation = last_of(ids.annotations);
  call.thread = thread_number();
  if (call.is_queued) {
    correlate(call.correlation);
  }
  open->outer = static_cast<Open*>(innermost_scope);
  open_ = open.release();
  innermost_scope = open_;
  open_->call.start = now();
}

void ActivityScope::end() {
  open_->call.end = now();
  const std::unique_ptr<Open> open(std::exchange(open_, nullptr));
  innermost_scope = open->outer;
  // Work on another stream does not belong to the outer call: sends and receives of a group have
  // one scope per stream.
  if (Open* const outer = open->outer; outer && open->call.is_queued && outer->stream == open->stream) {
    outer->has_inner = true;
  }
  attempt([&] { log(*open); });
}

void ActivityScope::log(Open& open) {
  if (open.call.is_queued) {
    correlate(open.outer ? open.outer->call.correlation : 0);
  }
  std::optional<Bracket> bracket;
  if (open.before && !open.has_inner) {
    bracket.emplace(Bracket{open.call.correlation, open.earliest, std::move(*open.before), Event(OB_EVENT_TIMING)});
    bracket->after.record(*open.stream);
  }
  // Its work belongs to the calls within it.
  open.call.is_queued = open.call.is_queued && !open.has_inner;
  ThreadLog& log = thread_log();
  std::lock_guard lock(log.mutex);
  log.calls.push_back(open.call);
  if (bracket) {
    log.brackets.push_back(std::move(*bracket));
  }
}

void ActivityScope::drop() noexcept {
  const std::unique_ptr<Open> open(std::exchange(open_, nullptr));
  innermost_scope = open->outer;
}

void ActivityScope::TimedHostWork::run(void* timed) {
  const std::unique_ptr<TimedHostWork> work(static_cast<TimedHostWork*>(timed));
  WorkRecord record;
  record.correlation = work->correlation;
  record.start = now();
  work->fn(work->user);
  record.end = now();
  ThreadLog& log = thread_log();
  std::lock_guard lock(log.mutex);
  log.works.push_back(record);
}

std::unique_ptr<ActivityScope::TimedHostWork> ActivityScope::time_host_work(ob_host_fn fn, void* user) const {
  // A driver records only its own calls; without host_callback the core runs the work itself.
  const bool driver_reports = recording().driver_records.load(std::memory_order_relaxed) && driver().host_callback;
  return driver_reports ? nullptr : time_own_work(fn, user);
}

std::unique_ptr<ActivityScope::TimedHostWork> ActivityScope::time_own_work(ob_host_fn fn, void* user) const {
  if (open_ == nullptr) {
    return nullptr;
  }
  return std::make_unique<TimedHostWork>(TimedHostWork{fn, user, open_->call.correlation});
}

uint64_t ActivityScope::correlation() const noexcept {
  return open_ == nullptr ? 0 : open_->call.correlation;
}

void OwnWorkTimer::begin() noexcept {
  start_ = now();
}

void OwnWorkTimer::finish() {
  if (correlation_ == 0 || start_ == 0) {
    return;
  }
  WorkRecord record;
  record.correlation = std::exchange(correlation_, 0);
  record.start = start_;
  record.end = now();
  attempt([&] {
    ThreadLog& log = thread_log();
    std::lock_guard lock(log.mutex);
    log.works.push_back(record);
  });
}

}  // namespace outboard

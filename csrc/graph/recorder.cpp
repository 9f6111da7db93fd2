// SPDX-License-Identifier: BSD-3-Clause
#include "graph/recorder.h"

#include <algorithm>
#include <utility>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/process.h"
#include "memory/management.h"

namespace outboard::graph {

namespace {

std::atomic<uint64_t> next_id{1};

[[noreturn]] void raise_capture(const std::string& message) {
  raise(ErrorKind::Capture, OB_FAILED_PRECONDITION, message);
}

std::string text_of(const Stream& stream) {
  return "stream " + std::to_string(stream.id) + " of " + driver_name() + ":" +
         std::to_string(static_cast<int>(stream.device));
}

// Host work in a driver's graph, which the driver calls once per launch.
struct NativeHostWork final : HostCommand {
  NativeHostWork(std::unique_ptr<HostCommand> work, Body& of) : command(std::move(work)), body(of) {}
  void run(const WorkPosition& on) noexcept override { command->run(on); }
  std::string describe() const override { return command->describe(); }
  std::unique_ptr<HostCommand> command;
  Body& body;
};

void run_native(void* user) {
  auto* work = static_cast<NativeHostWork*>(user);
  work->run(work->body.replaying);
}

struct FreeRecorders {
  std::mutex mutex;
  Recorder* list = nullptr;
};
FreeRecorders& free_recorders() {
  static auto* const instance = new FreeRecorders();
  return *instance;
}

}  // namespace

Recorder& Recorder::take() {
  const std::lock_guard lock(free_recorders().mutex);
  if (free_recorders().list == nullptr) {
    return *new Recorder();
  }
  return *std::exchange(free_recorders().list, free_recorders().list->next_free_);
}

void Recorder::give(Recorder& recorder) noexcept {
  const std::lock_guard lock(free_recorders().mutex);
  recorder.next_free_ = std::exchange(free_recorders().list, &recorder);
}

Recorder& Recorder::begin(Stream& stream, c10::MempoolId_t pool, Mode mode) {
  auto body = std::make_unique<Body>();
  body->stream = &stream;
  body->is_native = driver().graph_capture_begin != nullptr;
  body->pool = pool;
  stream_handle(stream);
  if (body->is_native) {
    drain_stream(stream);  // from here on the stream cannot be waited for
  }
  Recorder& recorder = take();
  try {
    recorder.open(stream, std::move(body), mode);
  } catch (...) {
    give(recorder);
    throw;
  }
  try {
    recorder.start(stream);
  } catch (...) {
    const std::exception_ptr first = std::current_exception();
    try {
      recorder.abort();
    } catch (...) {  // of the same capture
    }
    std::rethrow_exception(first);
  }
  return recorder;
}

// Take the stream, or raise with nothing done.
void Recorder::open(Stream& stream, std::unique_ptr<Body> body, Mode mode) {
  Lock lock(mutex_);
  is_native_ = body->is_native;
  mode_ = mode;
  thread_ = std::this_thread::get_id();
  cause_.clear();
  participants_.assign(1, {&stream, 0, {0}});
  body_ = std::move(body);
  id_.store(next_id.fetch_add(1), std::memory_order_release);
  Capture* none = nullptr;
  if (!stream.capture.compare_exchange_strong(none, this)) {
    id_.store(0);
    body_.reset();
    lock.unlock();
    raise_capture(text_of(stream) +
                  " is already capturing a graph: captures cannot be nested. End that capture first, or use another"
                  " stream");
  }
}

void Recorder::start(Stream& stream) {
  enter_capture(*this);
  use_pool_on(stream.device);
  if (!is_native_) {
    return;
  }
  const ob_status status = driver().graph_capture_begin(driver().self, stream.device, stream.handle);
  if (is_unimplemented(status)) {
    const Lock lock(mutex_);
    body_->is_native = false;
    is_native_ = false;
    return;
  }
  outboard::check(status, "graph_capture_begin", stream.device);
  is_begun_ = true;
}

void Recorder::use_pool_on(c10::DeviceIndex device) {
  c10::MempoolId_t pool;
  {
    const Lock lock(mutex_);
    pool = body_->pool;
    for (const PoolUse& use : body_->pool_uses) {
      if (use.device == device) {
        return;
      }
    }
    body_->pool_uses.push_back({device, 0});  // so that another thread does not use it too
  }
  RouteId route = 0;
  try {
    route = begin_allocate_to_pool(device, pool, [this](Stream& stream) { return capture_of(stream) == this; });
  } catch (...) {
    const Lock lock(mutex_);
    std::erase_if(body_->pool_uses, [&](const PoolUse& use) { return use.device == device; });
    throw;
  }
  const Lock lock(mutex_);
  for (PoolUse& use : body_->pool_uses) {
    use.route = use.device == device ? route : use.route;
  }
}

// End the driver's capture. Its streams belong to it until then. Store a failure in *out_error.
uint64_t Recorder::end_at_driver(std::exception_ptr* out_error) {
  Stream* stream = nullptr;
  {
    const Lock lock(mutex_);
    is_ending_ = true;
    stream = body_->stream;
    const Participant& origin = participants_.front();
    for (size_t i = 1; i < participants_.size() && cause_.empty(); ++i) {
      const uint64_t seen = i < origin.seen.size() ? origin.seen[i] : 0;
      if (seen < participants_[i].ticks) {
        cause_ = text_of(*participants_[i].stream) + " joined the capture through an event, but " +
                 text_of(*origin.stream) + ", on which the capture began, does not wait for its work";
      }
    }
  }
  uint64_t graph = 0;
  if (std::exchange(is_begun_, false) && !driver_is_gone()) {
    try {
      ensure_usable(stream->device);
      const TrackedCall noted("graph_capture_end", stream->device, stream);
      const ob_status status = driver().graph_capture_end(driver().self, stream->device, stream->handle, &graph);
      outboard::check(status, "graph_capture_end", stream->device);
    } catch (...) {
      graph = 0;
      *out_error = std::current_exception();
    }
  }
  return graph;
}

// Finish the capture with the driver's result. `out_cause` is why the
// capture has failed, if it has.
std::unique_ptr<Body> Recorder::finish(std::string* out_cause, std::exception_ptr* out_error) {
  const uint64_t graph = end_at_driver(out_error);
  std::unique_ptr<Body> body;
  {
    const Lock lock(mutex_);
    for (const Participant& participant : participants_) {
      participant.stream->capture.store(nullptr, std::memory_order_release);
    }
    participants_.clear();
    body = std::move(body_);
    *out_cause = std::exchange(cause_, {});
    is_ending_ = false;
    id_.store(0, std::memory_order_release);
  }
  leave_capture(*this);
  body->graph = graph;
  for (const PoolUse& use : body->pool_uses) {
    end_allocate_to_pool(use.device, use.route);
  }
  give(*this);
  return body;
}

std::unique_ptr<Body> Recorder::end() {
  std::string cause;
  std::exception_ptr error;
  std::unique_ptr<Body> body = finish(&cause, &error);
  if (cause.empty() && !error) {
    return body;
  }
  free_body(std::move(body));
  if (!cause.empty()) {
    raise_capture("the graph was not captured: " + cause);
  }
  std::rethrow_exception(error);
}

void Recorder::abort() {
  std::string cause;
  std::exception_ptr error;
  free_body(finish(&cause, &error));
  if (error && cause.empty()) {  // a driver may fail at the end of a capture that has failed
    std::rethrow_exception(error);
  }
}

void Recorder::drop() noexcept {
  try {
    if (!is_native_) {
      abort();  // the driver does not know a software capture
      return;
    }
    const Lock lock(mutex_);
    is_dropped_ = true;
  } catch (const std::exception& error) {
    TORCH_WARN("a graph was destroyed during its capture, and the capture could not be ended: ", error.what());
  }
}

// End a capture whose graph was destroyed, on a thread that may call the driver, and
// raise. Call it with the lock held.
void Recorder::end_dropped(Lock& lock) {
  if (C10_LIKELY(!std::exchange(is_dropped_, false))) {
    return;
  }
  const std::string stream = text_of(*body_->stream);
  lock.unlock();
  abort();
  raise_capture("a graph was destroyed while it was capturing " + stream +
                ". That capture has been ended, but this call was not run: repeat it");
}

void Recorder::check_active(Lock& lock) {
  end_dropped(lock);
  if (id_.load(std::memory_order_relaxed) == 0 || is_ending_) {
    lock.unlock();
    raise_capture("the graph capture ended while another thread was queuing work on its stream");
  }
  if (!cause_.empty()) {
    const std::string message = "the graph capture has failed and accepts no more work: " + cause_;
    lock.unlock();
    raise_capture(message);
  }
}

Recorder::Participant* Recorder::find(const Stream& stream) {
  for (Participant& candidate : participants_) {
    if (candidate.stream == &stream) {
      return &candidate;
    }
  }
  return nullptr;
}

Recorder::Participant& Recorder::participant(Lock& lock, Stream& stream) {
  check_active(lock);
  Participant* known = find(stream);
  if (!known) {
    lock.unlock();
    raise_capture("the graph capture ended while another thread was queuing work on its stream");
  }
  return *known;
}

void Recorder::check(Stream& stream) {
  Lock lock(mutex_);
  Participant& on = participant(lock, stream);
  const auto index = static_cast<size_t>(&on - participants_.data());
  on.seen[index] = ++on.ticks;
}

void Recorder::add(Stream& stream, std::unique_ptr<DriverCommand> command) {
  Lock lock(mutex_);
  participant(lock, stream);
  body_->steps.push_back({&stream, std::move(command), nullptr});
  commands_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::add(Stream& stream, std::unique_ptr<HostCommand> command) {
  check(stream);
  if (!is_native_) {
    Lock lock(mutex_);
    participant(lock, stream);
    auto& steps = body_->steps;
    if (steps.empty() || !steps.back().batch || steps.back().stream->device != stream.device) {
      steps.push_back({&stream, nullptr, std::make_unique<HostBatch>()});
    }
    steps.back().batch->commands.push_back(std::move(command));
    commands_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (!driver().host_callback) {
    refuse(command->describe() + ", which runs on the host (the driver captures graphs but has no host_callback),");
  }
  NativeHostWork* raw = nullptr;
  {
    Lock lock(mutex_);
    participant(lock, stream);
    auto work = std::make_unique<NativeHostWork>(std::move(command), *body_);
    raw = work.get();
    body_->host_commands.push_back(std::move(work));
  }
  const TrackedCall noted("host_callback", stream.device, &stream);
  detail::set_repeated_host_work(true);
  const ob_status status = driver().host_callback(driver().self, stream.device, stream_handle(stream), run_native, raw);
  detail::set_repeated_host_work(false);
  outboard::check(status, "host_callback", stream.device);
}

void Recorder::keep(std::shared_ptr<const void> object) {
  Lock lock(mutex_);
  check_active(lock);
  body_->kept.push_back(std::move(object));
}

// Return the record of the graph's kernels on the stream's device,
// null if the host cannot read one.
std::shared_ptr<GraphRecord> Recorder::record_of(Stream& stream) {
  const auto find_it = [&]() -> std::shared_ptr<GraphRecord> {
    Lock lock(mutex_);
    participant(lock, stream);
    const auto& records = body_->records;
    const auto known = std::ranges::find(records, stream.device, [](const auto& record) { return record->device(); });
    return known == records.end() ? nullptr : *known;
  };
  if (std::shared_ptr<GraphRecord> known = find_it()) {
    return known;
  }
  std::shared_ptr<GraphRecord> new_record = GraphRecord::make(stream.device);  // calls the driver
  if (std::shared_ptr<GraphRecord> known = find_it(); known || !new_record) {  // another thread was faster
    return known;
  }
  Lock lock(mutex_);
  participant(lock, stream);
  return body_->records.emplace_back(std::move(new_record));
}

void Recorder::set_record(Stream& stream, RecordArguments& record, ob_kernel_arg* args, const char* name) {
  const std::shared_ptr<GraphRecord> of_graph = record_of(stream);
  if (!of_graph) {
    refuse(std::string("the kernel ") + (name != nullptr ? name : "") +
           ", which checks an index or an assertion and reports a failure in memory that the host cannot read,");
  }
  of_graph->set(record, args);
}

RandomDraw Recorder::draw(const std::shared_ptr<RandomSource>& source, uint64_t increment) {
  Lock lock(mutex_);
  check_active(lock);
  auto use = std::find_if(body_->random.begin(), body_->random.end(),
                          [&](const RandomUse& known) { return known.source == source; });
  if (use == body_->random.end()) {
    body_->random.push_back({source, std::make_unique<RandomCell>(), 0});
    use = std::prev(body_->random.end());
  }
  return {use->cell.get(), std::exchange(use->increment, use->increment + increment)};
}

CaptureMark Recorder::mark(Stream& stream) {
  Lock lock(mutex_);
  return {this, id_.load(), participant(lock, stream).seen};
}

void Recorder::join(Stream& stream, const CaptureMark& mark) {
  Lock lock(mutex_);
  if (id_.load() != mark.id) {
    lock.unlock();
    raise_capture(
        "cannot wait for an event whose latest record was captured in a graph, because that capture has ended: record"
        " the event again outside the capture");
  }
  check_active(lock);
  Participant* joined = find(stream);
  if (!joined) {
    if (is_native_) {
      lock.unlock();
      drain_stream(stream);
      lock.lock();
      check_active(lock);
    }
    Capture* none = nullptr;
    if (!stream.capture.compare_exchange_strong(none, this)) {
      lock.unlock();
      refuse("a wait of " + text_of(stream) + ", which takes part in another capture,");
    }
    participants_.push_back({&stream, 0, {}});
    for (Participant& participant : participants_) {
      participant.seen.resize(participants_.size());
    }
    lock.unlock();
    use_pool_on(stream.device);
    lock.lock();
    joined = &participant(lock, stream);
  }
  for (size_t i = 0; i < mark.seen.size(); ++i) {
    joined->seen[i] = std::max(joined->seen[i], mark.seen[i]);
  }
}

bool Recorder::is_active(uint64_t id) const noexcept {
  return id_.load(std::memory_order_acquire) == id;
}

bool Recorder::forbids_wait_for(c10::DeviceIndex device) const noexcept {
  const std::lock_guard lock(mutex_);
  if (id_.load() == 0 || mode_ == Mode::Relaxed ||
      (mode_ == Mode::ThreadLocal && thread_ != std::this_thread::get_id())) {
    return false;
  }
  return std::any_of(participants_.begin(), participants_.end(),
                     [&](const Participant& participant) { return participant.stream->device == device; });
}

void Recorder::refuse(const std::string& what) {
  const std::string message = what + " cannot be captured in a graph";
  {
    Lock lock(mutex_);
    end_dropped(lock);
    if (id_.load() != 0 && !is_ending_ && cause_.empty()) {
      cause_ = message;
    }
  }
  raise_capture(message +
                ". The capture is lost: end it, move this call before or after the capture, and capture again");
}

}  // namespace outboard::graph

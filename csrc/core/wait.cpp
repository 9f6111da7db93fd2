// SPDX-License-Identifier: BSD-3-Clause
#include "core/wait.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/driver.h"
#include "core/process.h"
#include "core/stream.h"

namespace outboard {

namespace {

using Clock = std::chrono::steady_clock;

// A thread's wait. The thread writes it and the watch reads it: a read is valid if the
// number is the same before and after.
struct Note {
  std::atomic<uint64_t> number{0};  // number of the thread's wait; 0 between waits
  std::atomic<const char*> entry{nullptr};
  std::atomic<const StreamState*> stream{nullptr};
  std::atomic<const char*> what{nullptr};
  std::atomic<c10::DeviceIndex> device{0};
  uint64_t last = 0;  // number of the thread's last wait; private to the thread
  const pid_t thread = gettid();
  // Private to the watch: the wait that it saw last, when it saw it first,
  // and whether it has reported it.
  uint64_t seen = 0;
  Clock::time_point since;
  bool is_reported = false;
};

std::atomic<WaitReporter> wait_reporter{nullptr};

std::string describe(const Note& note, std::chrono::milliseconds waited) {
  const StreamState* stream = note.stream.load(std::memory_order_relaxed);
  const char* last_work = stream ? stream->last_work.load(std::memory_order_relaxed) : nullptr;
  const char* what = note.what.load(std::memory_order_relaxed);
  const std::string entry = note.entry.load(std::memory_order_relaxed);
  const auto device = static_cast<int>(note.device.load(std::memory_order_relaxed));
  std::string text = driver_name() + (device == OB_HOST ? std::string() : ":" + std::to_string(device)) + ": thread " +
                     std::to_string(note.thread) + " has been waiting in " + entry + " for " +
                     std::to_string(waited.count() / 1000) + " s";
  if (what) {
    text += std::string(", for ") + what;
  } else if (stream) {
    text += stream->id == 0 ? std::string(", for the default stream")
                            : ", for the stream with id " + std::to_string(stream->id);
    text += last_work ? std::string(", on which ") + last_work + " was queued last" : "";
  } else if (entry.ends_with("_synchronize")) {
    text += ", for all work of the device";
  }
  return text +
         ". Still waiting. On the main thread, Ctrl-C interrupts synchronize() and kernel builds. During a copy or an"
         " operator the driver may still write to memory: end the process instead (Ctrl-\\).";
}

// The thread that reads the notes. It starts with the first one and
// lives until the end of the process.
class Watch {
 public:
  void add(Note* note) {
    const std::lock_guard lock(mutex_);
    notes_.push_back(note);
    if (!is_running_ && !is_stopping_) {
      start();
    }
  }
  void remove(Note* note) {
    const std::lock_guard lock(mutex_);
    notes_.erase(std::find(notes_.begin(), notes_.end(), note));
  }
  void set_limit(std::chrono::milliseconds limit) {
    {
      const std::lock_guard lock(mutex_);
      limit_ = limit;
    }
    changed_.notify_all();
  }
  void stop() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_running_; });
  }

 private:
  void start() {
    is_running_ = detail::start_thread([this] {
      pthread_setname_np(pthread_self(), "outboard-waits");
      look();
    });
    if (!is_running_) {
      std::fprintf(stderr, "torch_outboard: long waits will not be reported: no thread could be started\n");
    }
  }

  void look() {
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
      changed_.wait_for(lock, limit_ / 5);
      std::vector<std::string> texts;
      for (Note* note : notes_) {
        look_at(*note, &texts);
      }
      lock.unlock();
      for (const std::string& text : texts) {
        if (const WaitReporter reporter = wait_reporter.load(std::memory_order_acquire)) {
          reporter(text);
        } else {
          std::fprintf(stderr, "torch_outboard: %s\n", text.c_str());
        }
      }
      lock.lock();
    }
    is_running_ = false;
    changed_.notify_all();
  }

  void look_at(Note& note, std::vector<std::string>* out_texts) const {
    const uint64_t number = note.number.load(std::memory_order_acquire);
    if (number == 0 || number != note.seen) {
      note.seen = number;
      note.since = Clock::now();
      note.is_reported = false;
      return;
    }
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - note.since);
    if (note.is_reported || waited < limit_) {
      return;
    }
    const std::string text = describe(note, waited);
    if (note.number.load(std::memory_order_acquire) == number) {
      note.is_reported = true;
      out_texts->push_back(text);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Note*> notes_;
  std::chrono::milliseconds limit_{30'000};
  bool is_running_ = false;
  bool is_stopping_ = false;
};

Watch& watch() {
  static auto* const instance = new Watch();  // threads wait until the end of the process
  return *instance;
}

struct OwnNote {
  OwnNote() { watch().add(&note); }
  ~OwnNote() {
    if (!driver_is_gone()) {  // the watch has stopped, and in a forked child the lock may be held forever
      watch().remove(&note);
    }
  }
  Note note;
};

Note& own_note() {
  thread_local OwnNote own;
  return own.note;
}

std::atomic<bool (*)(const char*)> can_interrupt_hook{nullptr};
std::atomic<void (*)()> handle_hook{nullptr};

struct OwnCalls {
  std::mutex mutex;
  std::condition_variable ended;
  int count = 0;
};
OwnCalls& own_calls() {
  static auto* const instance = new OwnCalls();  // threads may outlive static destruction
  return *instance;
}

// Sleep for microseconds, which Linux would extend by 50 more.
class FineSleep {
 public:
  FineSleep() : slack_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1000); }
  ~FineSleep() { prctl(PR_SET_TIMERSLACK, std::max(slack_, 0)); }
  FineSleep(const FineSleep&) = delete;
  FineSleep& operator=(const FineSleep&) = delete;

 private:
  int slack_;
};

}  // namespace

TrackedCall::TrackedCall(const char* entry, c10::DeviceIndex device, const StreamState* stream, const char* what) {
  Note& note = own_note();
  is_noted_ = note.number.load(std::memory_order_relaxed) == 0;
  if (is_noted_) {
    note.entry.store(entry, std::memory_order_relaxed);
    note.device.store(device, std::memory_order_relaxed);
    note.stream.store(stream, std::memory_order_relaxed);
    note.what.store(what, std::memory_order_relaxed);
    note.number.store(++note.last, std::memory_order_release);
  }
}

TrackedCall::~TrackedCall() {
  if (is_noted_) {
    own_note().number.store(0, std::memory_order_release);
  }
}

void set_wait_reporter(WaitReporter reporter) noexcept {
  wait_reporter.store(reporter, std::memory_order_release);
}

void set_long_wait(std::chrono::milliseconds limit) {
  watch().set_limit(limit);
}

void set_interrupt_hooks(InterruptHooks hooks) noexcept {
  handle_hook.store(hooks.handle, std::memory_order_release);
  can_interrupt_hook.store(hooks.can_interrupt, std::memory_order_release);
}

namespace detail {

bool can_interrupt(const char* entry) {
  const auto hook = can_interrupt_hook.load(std::memory_order_acquire);
  return hook != nullptr && hook(entry);
}

void handle_signals() {
  handle_hook.load(std::memory_order_acquire)();
}

void poll_until_done(const TrackedWait&, c10::DeviceIndex device, bool (*is_done)(void*), void* user) {
  using namespace std::chrono_literals;
  const auto begin = Clock::now();
  // Most waits are short: spin first, without sleeping past the end or yielding the processor.
  while (Clock::now() - begin < 100us) {
    if (is_done(user)) {
      return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // Polling lengthens a wait by about a hundredth. If the device computes on the host's processors,
  // each poll takes time from its work, 24 us in a virtual machine. A wait with fewer polls ends
  // sooner, although it may overshoot by a thirtieth.
  const bool takes_processors = device_properties(device).machine == OB_MACHINE_CPU;
  const int share = takes_processors ? 16 : 64;
  const Clock::duration shortest = takes_processors ? 20us : 5us;
  const FineSleep fine;
  auto handled = Clock::now();
  while (!is_done(user)) {
    const auto now = Clock::now();
    if (now - handled > 20ms) {
      handle_signals();
      handled = now;
    }
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / share, shortest, 10ms));
  }
}

std::thread new_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

bool start_thread(std::function<void()> body) {
  try {
    new_thread(std::move(body)).detach();  // so that a program which does not shut the core down still ends
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void begin_own_call() noexcept {
  const std::lock_guard lock(own_calls().mutex);
  ++own_calls().count;
}

void end_own_call() noexcept {
  const std::lock_guard lock(own_calls().mutex);
  --own_calls().count;
  own_calls().ended.notify_all();
}

bool wait_for_own_calls() noexcept {
  try {
    const TrackedWait waiting("program_build", OB_HOST);
    std::unique_lock lock(own_calls().mutex);
    wait_for_thread(waiting, own_calls().ended, lock, [] { return own_calls().count == 0; });
    return true;
  } catch (...) {
    return false;  // a signal, at the end of the process
  }
}

void stop_reporting_waits() {
  watch().stop();
}

}  // namespace detail

}  // namespace outboard

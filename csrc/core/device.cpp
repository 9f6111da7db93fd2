// SPDX-License-Identifier: BSD-3-Clause
#include "core/device.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "core/activity.h"
#include "core/blocking.h"
#include "core/capture.h"
#include "core/error.h"
#include "core/event.h"
#include "core/graph_record.h"
#include "core/kernel_failure.h"
#include "core/late_warnings.h"
#include "core/lost_device.h"
#include "core/observer.h"
#include "core/pending.h"
#include "core/process.h"
#include "core/stream.h"
#include "core/touched.h"

namespace outboard {

namespace detail {
std::atomic<DeviceState> device_state[kMaxDevices];
}

namespace {

using detail::device_state;

// Guards the members beside the atomics. Held briefly, never during a driver call.
std::mutex device_mutex;
std::condition_variable device_changed;
std::atomic<bool> opened_once{false};

struct DeviceInfo {
  std::atomic<bool> has_properties{false};
  ob_device_properties properties{};
  std::string lost_cause;
  std::atomic<int8_t> peer[kMaxDevices] = {};  // 0 not asked, 1 yes, -1 no
};
DeviceInfo info[kMaxDevices];

thread_local c10::DeviceIndex thread_device = 0;

std::atomic<AfterWait> after_wait_hook{nullptr};
std::atomic<AfterOpen> after_open_hook{nullptr};

// End texts that a driver copied without the final zero, as strncpy does
// with long texts. They are cut.
void end_texts(ob_device_properties* properties) {
  for (const auto& [text, size] :
       {std::pair{properties->name, sizeof properties->name}, std::pair{properties->vendor, sizeof properties->vendor},
        std::pair{properties->architecture, sizeof properties->architecture},
        std::pair{properties->driver_version, sizeof properties->driver_version},
        std::pair{properties->matrix_units, sizeof properties->matrix_units}}) {
    text[size - 1] = '\0';
  }
}

}  // namespace

std::string device_text(c10::DeviceIndex device) {
  return driver_name() + ":" + std::to_string(static_cast<int>(device));
}

void raise_bad_device(int64_t device) {
  const int count = device_count();
  std::string message = "device index " + std::to_string(device) + " is out of range: driver '" + driver_name() +
                        "' has " + std::to_string(count) + (count == 1 ? " device" : " devices");
  if (!probe_error().empty()) {
    message += " (" + probe_error() + ")";
  }
  raise(ErrorKind::BadDevice, OB_OUT_OF_RANGE, message);
}

void check_device_index(c10::DeviceIndex device) {
  if (C10_UNLIKELY(device < 0 || device >= device_count())) {
    raise_bad_device(device);
  }
}

bool any_device_opened() noexcept {
  return opened_once.load(std::memory_order_acquire);
}

bool is_any_device_touched() noexcept {
  bool is_touched = any_device_opened() || has_runtime_opened();
  for (int i = 0; i < kMaxDevices; ++i) {
    is_touched = is_touched || device_state[i].load() != DeviceState::Closed || info[i].has_properties.load();
  }
  return is_touched;
}

void detail::open_device(c10::DeviceIndex device) {
  check_device_index(device);
  std::unique_lock lock(device_mutex, std::defer_lock);
  for (;;) {
    if (const std::string reason = opening_refusal(); !reason.empty()) {
      raise(ErrorKind::Driver, OB_FAILED_PRECONDITION, "Cannot open " + device_text(device) + " here: " + reason);
    }
    // In a forked child the mutex may be held by a thread that does not
    // exist there: check before locking.
    if (in_bad_fork()) {
      raise(ErrorKind::BadFork, OB_FAILED_PRECONDITION,
            "Cannot use " + device_text(device) +
                " in a forked process after a device was opened in its parent, or was being opened there. To use"
                " it with multiprocessing, use the 'spawn' start method.");
    }
    if (driver_is_gone()) {
      raise(ErrorKind::Driver, OB_FAILED_PRECONDITION, device_text(device) + " was closed at the end of the process");
    }
    lock.lock();
    const DeviceState state = device_state[device].load();
    if (state == DeviceState::Open) {
      return;
    }
    if (state == DeviceState::Lost) {
      const std::string cause = info[device].lost_cause;
      lock.unlock();
      raise(ErrorKind::DeviceLost, OB_DEVICE_LOST,
            device_text(device) + " was lost; restart the process to use it again. The first cause: " + cause);
    }
    if (state == DeviceState::Closed) {
      device_state[device].store(DeviceState::Opening);
      break;
    }
    const TrackedWait waiting("device_open", device, nullptr, "another thread that is opening the device");
    wait_for_thread(waiting, device_changed, lock, [&] { return device_state[device].load() != DeviceState::Opening; });
    lock.unlock();
  }
  lock.unlock();
  ob_status status = OB_OK;
  if (driver().device_open) {
    const TrackedWait waiting("device_open", device);
    status = driver().device_open(driver().self, device);
  }
  if (is_unimplemented(status)) {
    status = OB_OK;
  }
  const FailedEntry failed("device_open", device);
  const std::string reason = status == OB_OK ? std::string() : last_driver_error();
  lock.lock();
  device_state[device].store(status == OB_OK ? DeviceState::Open : DeviceState::Closed);
  if (status == OB_OK) {
    opened_once.store(true);
  }
  lock.unlock();
  device_changed.notify_all();
  if (status != OB_OK) {
    raise(ErrorKind::Driver, status,
          "driver '" + driver_name() + "': device_open on device " + std::to_string(static_cast<int>(device)) +
              " failed with " + status_name(status) + (reason.empty() ? "" : ": " + reason));
  }
  if (const AfterOpen hook = after_open_hook.load(std::memory_order_acquire)) {
    hook();
  }
}

void mark_lost(c10::DeviceIndex device, const std::string& cause) noexcept {
  std::lock_guard lock(device_mutex);
  if (device_state[device].load() != DeviceState::Lost) {
    info[device].lost_cause = cause;
    device_state[device].store(DeviceState::Lost);
    detail::forget_streams(device);
  }
}

void detail::lock_devices() noexcept {
  device_mutex.lock();
}

void detail::unlock_devices() noexcept {
  device_mutex.unlock();
}

bool detail::any_device_opening() noexcept {
  return std::ranges::any_of(device_state, [](const auto& state) { return state.load() == DeviceState::Opening; });
}

const ob_device_properties& device_properties(c10::DeviceIndex device) {
  check_device_index(device);
  DeviceInfo& entry = info[device];
  if (!entry.has_properties.load(std::memory_order_acquire)) {
    if (in_bad_fork()) {
      ensure_open(device);  // raises an error that says what to do
    }
    ensure_usable(device);
    ob_device_properties properties{};
    properties.struct_size = sizeof(properties);
    detail::mark_runtime_opened();
    OB_CALL(device_properties, device, &properties);
    end_texts(&properties);
    std::lock_guard lock(device_mutex);
    if (!entry.has_properties.load()) {
      entry.properties = properties;
      entry.has_properties.store(true, std::memory_order_release);
    }
  }
  return entry.properties;
}

void mem_info(c10::DeviceIndex device, uint64_t* out_free, uint64_t* out_total) {
  check_device_index(device);
  ensure_open(device);
  *out_free = 0;
  *out_total = 0;
  if (driver().mem_info) {
    const ob_status status = driver().mem_info(driver().self, device, out_free, out_total);
    if (!is_unimplemented(status)) {
      check(status, "mem_info", device);
      return;
    }
  }
  // The allocator, one layer up, subtracts what this process has allocated.
  *out_total = device_properties(device).total_memory;
  *out_free = *out_total;
}

bool can_access_peer(c10::DeviceIndex device, c10::DeviceIndex peer) {
  check_device_index(device);
  check_device_index(peer);
  if (device == peer || !driver().peer_access) {
    return false;
  }
  std::atomic<int8_t>& known = info[device].peer[peer];
  if (known.load() == 0) {
    ensure_open(device);
    ensure_open(peer);
    int32_t can_access = 0;
    const ob_status status = driver().peer_access(driver().self, device, peer, &can_access);
    if (!is_unimplemented(status)) {
      check(status, "peer_access", device);
    }
    known.store(can_access ? 1 : -1);
  }
  return known.load() == 1;
}

c10::DeviceIndex current_device() noexcept {
  return thread_device;
}

void set_device(c10::DeviceIndex device) {
  check_device_index(device);
  thread_device = device;
}

void set_device_unchecked(c10::DeviceIndex device) noexcept {
  thread_device = device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  check_device_index(device);
  return std::exchange(thread_device, device);
}

namespace {

// Wait for each stream, even if another wait fails, and raise the first failure. A driver cannot
// wait for a stream that it captures.
void synchronize_streams(c10::DeviceIndex device) {
  std::exception_ptr error;
  detail::for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        if (is_captured_by_driver(stream)) {
          return;
        }
        ob_status status;
        {
          const TrackedWait waiting("stream_synchronize", stream.device, &stream);
          status = driver().stream_synchronize(driver().self, stream.device, stream.handle);
        }
        auto& first = *static_cast<std::exception_ptr*>(user);
        try {
          detail::check_wait(status, stream);
        } catch (...) {
          first = first ? first : std::current_exception();
        }
      },
      &error);
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace

void synchronize_device(c10::DeviceIndex device, Interruptible interruptible) {
  check_device_index(device);
  refuse_device_wait(device);
  ensure_usable(device);
  if (!is_open(device)) {
    return;
  }
  flush_pending(device, interruptible);
  detail::fetch_records(device);
  const std::vector<WorkPosition> replays = detail::graph_replays(device);
  ActivityScope activity(device, "device_synchronize");
  detail::wait_interruptibly(device, interruptible);
  bool is_done = false;
  if (driver().device_synchronize && !is_capturing_natively()) {
    ob_status status;
    {
      const TrackedWait waiting("device_synchronize", device);
      status = driver().device_synchronize(driver().self, device);
    }
    if (!is_unimplemented(status)) {
      check(status, "device_synchronize", device);
      is_done = true;
    }
  }
  if (!is_done) {
    synchronize_streams(device);
  }
  activity.finish();
  observe_order(ObservedOrder::DeviceSync, device, 0);
  detail::end_graph_replays(replays);
  raise_device_failures(device);
  detail::after_wait(device);
}

namespace {
constexpr int kMaxFailures = 16;  // upper bound on failures of work on one device at one time
}

void drain_device(c10::DeviceIndex device) {
  if (device_state[device].load() == DeviceState::Closed) {
    return;
  }
  ensure_open(device);
  flush_pending(device, Interruptible::No);
  // While a driver captures, the device cannot be waited for as a whole.
  if (driver().device_synchronize && !is_capturing_natively()) {
    const auto wait = [device] {
      const TrackedWait waiting("device_synchronize", device);
      return driver().device_synchronize(driver().self, device);
    };
    const WorkPosition position = next_position(default_stream(device));
    ActivityScope activity(device, "device_synchronize");
    ob_status status = wait();
    if (!is_unimplemented(status)) {
      try {
        check(status, "device_synchronize", device);
      } catch (...) {
        // As in drain_stream, but each wait returns one of several failures.
        const std::exception_ptr failure = std::current_exception();
        for (int i = 0; status != OB_OK && status != OB_DEVICE_LOST && i < kMaxFailures; ++i) {
          status = wait();
        }
        if (status != OB_OK) {
          throw;
        }
        report_failure(position, failure);
      }
      activity.finish();
      observe_order(ObservedOrder::DeviceSync, device, 0);
      return;
    }
  }
  std::exception_ptr error;
  detail::for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        try {
          drain_stream(stream);
        } catch (...) {
          *static_cast<std::exception_ptr*>(user) = std::current_exception();
        }
      },
      &error);
  if (error) {
    std::rethrow_exception(error);
  }
}

void drain_all_devices() {
  if (!is_attached() || driver_is_gone() || in_bad_fork() || !any_device_opened()) {
    return;
  }
  for (int i = 0; i < device_count(); ++i) {
    if (const auto device = static_cast<c10::DeviceIndex>(i); is_open(device)) {
      drain_device(device);
    }
  }
}

void set_after_open(AfterOpen hook) {
  after_open_hook.store(hook);
}

void set_after_wait(AfterWait hook) {
  after_wait_hook.store(hook);
}

void detail::after_wait(c10::DeviceIndex device) {
  if (const AfterWait hook = after_wait_hook.load(std::memory_order_acquire)) {
    hook(device);
  }
  issue_late_warnings(device);
}

}  // namespace outboard

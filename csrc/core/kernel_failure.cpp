// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernel_failure.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "core/blocking.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/graph_record.h"
#include "core/record_slots.h"
#include "core/stream.h"
#include "core/wait.h"

namespace outboard {

namespace {

constexpr uint64_t kSeal = 0x6f7574626f617264;
constexpr KernelRecord kEmpty{};

uint64_t seal_of(const KernelRecord& record) {
  return record.ticket ^ static_cast<uint64_t>(record.index) ^ static_cast<uint64_t>(record.size) ^
         (static_cast<uint64_t>(record.kernel) << 32) ^ record.check ^ kSeal;
}

struct CheckedKernel {
  std::string name;
  std::vector<KernelCheck> checks;
};

struct Kernels {
  std::mutex mutex;
  std::deque<CheckedKernel> list;  // elements never move or change
};

Kernels& kernels() {
  static auto* const instance = new Kernels();
  return *instance;
}

template <class Error>
std::exception_ptr new_error(std::string message, std::string where) {
  Error error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(message));
  error.add_context(std::move(where));
  return std::make_exception_ptr(error);
}

}  // namespace

void detail::set_record_arguments(uint64_t address, RecordArguments& record, ob_kernel_arg* args) noexcept {
  ob_kernel_arg* const own = args + record.first;
  own[0] = {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, address, nullptr};
  own[1] = {sizeof(ob_kernel_arg), OB_ARG_VALUE, sizeof(record.ticket), 0, &record.ticket};
  own[2] = {sizeof(ob_kernel_arg), OB_ARG_VALUE, sizeof(record.kernel), 0, &record.kernel};
}

bool detail::copy_record(const KernelRecord* record, KernelRecord* out_record) noexcept {
  std::memcpy(static_cast<void*>(out_record), record, sizeof(*out_record));
  return out_record->taken != out_record->erased && out_record->seal == seal_of(*out_record);
}

void detail::erase_record(KernelRecord* record) noexcept {
  record->seal = 0;
  const uint32_t taken = std::atomic_ref(record->taken).load(std::memory_order_relaxed);
  std::atomic_ref(record->erased).store(taken, std::memory_order_release);
}

std::exception_ptr detail::error_of(const KernelRecord& record) {
  const CheckedKernel* kernel = nullptr;
  {
    const std::lock_guard lock(kernels().mutex);
    kernel = record.kernel < kernels().list.size() ? &kernels().list[record.kernel] : nullptr;
  }
  if (kernel == nullptr || record.check >= kernel->checks.size()) {
    const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    return std::make_exception_ptr(
        c10::Error(here, "a kernel reported the unknown failure number " + std::to_string(record.check)));
  }
  const KernelCheck& check = kernel->checks[record.check];
  std::string where = "in the kernel " + kernel->name + ", which ran on the device's stream";
  where += waits_for_calls() ? "" : "; OUTBOARD_BLOCKING=1 raises it at the call";
  if (check.kind == KernelCheck::Kind::Assertion) {
    return new_error<c10::Error>(check.text, std::move(where));
  }
  std::string message = check.text + ": index " + std::to_string(record.index) +
                        " is out of bounds for a dimension of size " + std::to_string(record.size);
  return check.kind == KernelCheck::Kind::Range ? new_error<c10::Error>(std::move(message), std::move(where))
                                                : new_error<c10::IndexError>(std::move(message), std::move(where));
}

std::atomic<bool> detail::any_record{false};

// A stream's record, and the host's knowledge of it. Threads share a stream, so the copies and
// erasures that any thread owes must be queued before another thread's launch or wait. Therefore
// the count of due work increases first, and the count of queued work follows only after the work
// is queued.
class StreamRecord {
 public:
  explicit StreamRecord(const RecordSlot& slot)
      : address_(slot.address), host_(slot.host), is_copied_(slot.is_copied), due_(slot.is_copied ? 1 : 0) {}

  uint64_t address() const noexcept { return address_; }

  // Prepare the record before a launch, in the launch's stream.
  void prepare(Stream& stream) {
    if (C10_UNLIKELY(is_reading_.load(std::memory_order_acquire))) {
      // Wait until a failure that this thread may have raised is processed: it must not hide the
      // next failure.
      const std::lock_guard lock(mutex_);
    }
    if (C10_UNLIKELY(erased_.load(std::memory_order_acquire) != due_.load(std::memory_order_acquire))) {
      erase(stream);
    }
    note_launch();
  }

  // Note a launch. Called before it, because a wait may come with it, and after it, because another
  // thread may have queued the copy meanwhile.
  void note_launch() noexcept {
    if (is_copied_) {
      launches_.fetch_add(1, std::memory_order_acq_rel);
    }
  }

  // Queue the copy to the host, if kernels that check were queued since the last.
  // Several threads may copy at once.
  void fetch(Stream& stream) {
    const uint64_t launches = launches_.load(std::memory_order_acquire);
    if (fetched_.load(std::memory_order_acquire) < launches && capture_of(stream) == nullptr) {
      copy(stream, {sizeof(ob_copy), reinterpret_cast<uint64_t>(host_), address_, sizeof(KernelRecord), OB_HOST,
                    stream.device});
      detail::store_max(fetched_, launches);
    }
  }

  void read(Stream& stream) {
    if (C10_LIKELY(!detail::is_record_taken(host_))) {
      return;
    }
    const std::lock_guard lock(mutex_);
    KernelRecord seen{};
    if (!detail::copy_record(host_, &seen)) {
      return;
    }
    // A copy that was queued before the last one was read has the same content. Without
    // copies, the same ticket is another item of the launch, which wrote after another
    // thread's wait had read the first.
    if (is_copied_ && has_last_ && seen.ticket == last_) {
      return;
    }
    std::exception_ptr error = detail::error_of(seen);
    last_ = seen.ticket;
    has_last_ = true;
    is_reading_.store(true, std::memory_order_release);  // before the failure is visible, as is the next line
    due_.fetch_add(is_copied_ ? 1 : 0, std::memory_order_acq_rel);
    report_failure({&stream, seen.ticket}, std::move(error));
    if (!is_copied_) {
      detail::erase_record(host_);
    }
    is_reading_.store(false, std::memory_order_release);
  }

 private:
  // Queue the erasure of the record, unless another thread has. Each failure is erased once: a
  // second erasure would wipe out the next failure.
  void erase(Stream& stream) {
    const TrackedWait waiting("copy_async", stream.device, &stream);
    std::unique_lock lock(mutex_);
    wait_for_thread(waiting, erasing_ended_, lock, [this] { return !is_erasing_; });
    const uint64_t due = due_.load(std::memory_order_acquire);
    if (erased_.load(std::memory_order_acquire) == due) {
      return;
    }
    is_erasing_ = true;
    lock.unlock();
    const auto end = [&](uint64_t erased) {
      lock.lock();
      is_erasing_ = false;
      erased_.store(erased, std::memory_order_release);
      lock.unlock();
      erasing_ended_.notify_all();
    };
    try {
      copy(stream,
           {sizeof(ob_copy), address_, reinterpret_cast<uint64_t>(&kEmpty), sizeof(kEmpty), stream.device, OB_HOST});
    } catch (...) {
      end(erased_.load());
      throw;
    }
    end(due);
  }

  static void copy(Stream& stream, const ob_copy& copy) {
    const uint64_t handle = stream_handle(stream);
    const TrackedCall noted("copy_async", stream.device, &stream);
    const ob_status status = driver().copy_async(driver().self, stream.device, handle, &copy);
    if (C10_UNLIKELY(status != OB_OK) && stream.is_external) {
      stream.is_created.store(false);  // as for a wait that fails: its owner may have destroyed it
    }
    check(status, "copy_async", stream.device);
  }

  const uint64_t address_;
  KernelRecord* const host_;
  const bool is_copied_;
  // For a record that is copied: erasures due, erasures queued, launches, and launches before the
  // last copy.
  std::atomic<uint64_t> due_;
  std::atomic<uint64_t> erased_{0};
  std::atomic<uint64_t> launches_{0};
  std::atomic<uint64_t> fetched_{0};
  std::atomic<bool> is_reading_{false};
  std::mutex mutex_;  // guards the rest; no driver entry is called with it
  std::condition_variable erasing_ended_;
  bool is_erasing_ = false;
  uint64_t last_ = 0;  // the ticket that was read last
  bool has_last_ = false;
};

namespace {

struct StreamsWithRecords {
  std::mutex mutex;
  std::vector<Stream*> streams;  // with a record
};

StreamsWithRecords& streams_with_records() {
  static auto* const instance = new StreamsWithRecords();
  return *instance;
}

std::vector<Stream*> recording_streams() {
  const std::lock_guard lock(streams_with_records().mutex);
  return streams_with_records().streams;
}

// If two threads come at once, the second record stays unused.
StreamRecord& new_record(Stream& stream) {
  auto fresh = std::make_unique<StreamRecord>(take_record_slot(stream.device));
  const std::lock_guard lock(streams_with_records().mutex);
  if (StreamRecord* known = stream.failures.record.load()) {
    return *known;
  }
  streams_with_records().streams.push_back(&stream);
  stream.failures.record.store(fresh.get(), std::memory_order_release);
  detail::any_record.store(true);
  return *fresh.release();  // lives as long as the process, as streams do
}

}  // namespace

uint32_t add_checked_kernel(std::string name, std::vector<KernelCheck> checks) {
  const std::lock_guard lock(kernels().mutex);
  // Plans that were evicted are built again.
  for (size_t i = 0; i < kernels().list.size(); ++i) {
    if (kernels().list[i].name == name && kernels().list[i].checks == checks) {
      return static_cast<uint32_t>(i);
    }
  }
  kernels().list.push_back({std::move(name), std::move(checks)});
  return static_cast<uint32_t>(kernels().list.size() - 1);
}

void set_record(StreamState& stream, RecordArguments& record, ob_kernel_arg* args) {
  static_cast<void>(stream_handle(stream));  // the device is open
  StreamRecord* stream_record = stream.failures.record.load(std::memory_order_acquire);
  if (C10_UNLIKELY(stream_record == nullptr)) {
    stream_record = &new_record(stream);
  }
  stream_record->prepare(stream);
  record.ticket = next_unique_position(stream).mark;
  detail::set_record_arguments(stream_record->address(), record, args);
}

void note_checked_launch(StreamState& stream) noexcept {
  stream.failures.record.load(std::memory_order_acquire)->note_launch();
}

namespace detail {

void queue_record_copy(StreamState& stream) {
  if (StreamRecord* record = stream.failures.record.load(std::memory_order_acquire)) {
    record->fetch(stream);
  }
}

void fetch_records(c10::DeviceIndex device) {
  if (C10_LIKELY(!has_records())) {
    return;
  }
  for (Stream* stream : recording_streams()) {
    if (stream->device == device && stream->is_created.load(std::memory_order_acquire)) {
      queue_record_copy(*stream);
    }
  }
}

void read_record(StreamState& stream) {
  if (StreamRecord* record = stream.failures.record.load(std::memory_order_acquire)) {
    record->read(stream);
  }
  read_graph_records(stream);
}

void read_records() {
  for (Stream* stream : recording_streams()) {
    read_record(*stream);
  }
  read_graph_records();
}

}  // namespace detail

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The capture that csrc/core reports to. It writes one list of steps in call order. The steps may
// run sequentially in this order, whatever their streams were. Vector clocks over the streams show
// whether all work was joined to the stream on which the capture began.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/capture.h"
#include "graph/body.h"

namespace outboard::graph {

enum class Mode : int { Default = 0, Global = 1, ThreadLocal = 2, Relaxed = 3 };

class Recorder final : public Capture {
 public:
  // Make the stream capture. Raise CaptureError if it captures already.
  // Recorders are reused and never freed.
  static Recorder& begin(Stream& stream, c10::MempoolId_t pool, Mode mode);
  uint64_t id() const noexcept { return id_.load(std::memory_order_acquire); }  // the id of the capture under way
  // End the capture on all its streams and return what was recorded. If it failed, raise
  // CaptureError with the first cause. The recorder is free afterwards in any case.
  std::unique_ptr<Body> end();
  // End the capture without a result. Raise only the driver's errors, and only for a
  // capture that has not failed before.
  void abort();
  // End the capture from a destructor, without calling a driver entry. If the driver captures, the
  // next call on the capture's streams ends its capture with an error.
  void drop() noexcept;

  bool is_native() const noexcept override { return is_native_; }
  void add(Stream& stream, std::unique_ptr<DriverCommand> command) override;
  void add(Stream& stream, std::unique_ptr<HostCommand> command) override;
  void check(Stream& stream) override;
  void keep(std::shared_ptr<const void> object) override;
  void set_record(Stream& stream, RecordArguments& record, ob_kernel_arg* args, const char* name) override;
  RandomDraw draw(const std::shared_ptr<RandomSource>& source, uint64_t increment) override;
  CaptureMark mark(Stream& stream) override;
  void join(Stream& stream, const CaptureMark& mark) override;
  bool is_active(uint64_t id) const noexcept override;
  uint64_t command_count() const noexcept override { return commands_.load(std::memory_order_relaxed); }
  bool forbids_wait_for(c10::DeviceIndex device) const noexcept override;
  [[noreturn]] void refuse(const std::string& what) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Participant {
    Stream* stream;
    uint64_t ticks = 0;  // work so far
    std::vector<uint64_t> seen;  // per participant: its work before the next work on this stream
  };

  static Recorder& take();
  static void give(Recorder& recorder) noexcept;
  void open(Stream& stream, std::unique_ptr<Body> body, Mode mode);
  void start(Stream& stream);

  // Call these functions with the lock held. They release the lock before they raise.
  void end_dropped(Lock& lock);
  void check_active(Lock& lock);
  Participant& participant(Lock& lock, Stream& stream);
  Participant* find(const Stream& stream);

  std::shared_ptr<GraphRecord> record_of(Stream& stream);
  void use_pool_on(c10::DeviceIndex device);
  uint64_t end_at_driver(std::exception_ptr* out_error);
  std::unique_ptr<Body> finish(std::string* out_cause, std::exception_ptr* out_error);

  mutable std::mutex mutex_;
  std::atomic<uint64_t> id_{0};  // id of the capture under way, 0 if there is none
  std::atomic<bool> is_native_{false};
  std::atomic<uint64_t> commands_{0};
  bool is_begun_ = false;  // the capturing thread began the driver's capture
  bool is_dropped_ = false;  // the capture's graph was destroyed
  bool is_ending_ = false;  // it records nothing more, but keeps its streams until the end
  Mode mode_ = Mode::Default;
  std::thread::id thread_;
  std::string cause_;  // why the capture has failed; "" if it has not
  std::vector<Participant> participants_;
  std::unique_ptr<Body> body_;
  Recorder* next_free_ = nullptr;
};

}  // namespace outboard::graph

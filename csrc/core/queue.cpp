// SPDX-License-Identifier: BSD-3-Clause
#include "core/queue.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/activity.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/named_error.h"

namespace outboard {

namespace {

// Raise for other devices that are gone. The stream's own device is checked with its handle.
void ensure_usable_sides(const Stream& stream, const int32_t dst_device, const int32_t src_device) {
  for (const int32_t device : {dst_device, src_device}) {
    if (device != OB_HOST && device != stream.device) {
      ensure_open(static_cast<c10::DeviceIndex>(device));
    }
  }
}

void note_work(Stream& stream, const char* name) {
  stream.last_work.store(name, std::memory_order_relaxed);
  stream.failures.has_driver_work.store(true, std::memory_order_relaxed);
}

void call_copy(Stream& stream, const ob_copy& copy) {
  ensure_usable_sides(stream, copy.dst_device, copy.src_device);
  note_work(stream, "copy_async");
  const TrackedCall noted("copy_async", stream.device, &stream);
  ActivityScope activity(stream,
                         {ActivityKind::Copy, "copy_async", nullptr, copy.bytes, copy.src_device, copy.dst_device});
  check(driver().copy_async(driver().self, stream.device, stream_handle(stream), &copy), "copy_async", stream.device);
  activity.finish();
}

ob_status call_fill(Stream& stream, uint64_t dst, const void* pattern, uint32_t pattern_size, uint64_t count) {
  const TrackedCall noted("fill_async", stream.device, &stream);
  ActivityScope activity(
      stream, {ActivityKind::Fill, "fill_async", nullptr, pattern_size * count, stream.device, stream.device});
  const ob_status status =
      driver().fill_async(driver().self, stream.device, stream_handle(stream), dst, pattern, pattern_size, count);
  if (!is_unimplemented(status)) {
    check(status, "fill_async", stream.device);
    note_work(stream, "fill_async");
    activity.finish();
  }
  return status;
}

void call_launch(Stream& stream, const ob_launch& launch, const char* name) {
  note_work(stream, name != nullptr ? name : "kernel_launch");
  const TrackedCall noted("kernel_launch", stream.device, &stream);
  ActivityScope activity(stream, {ActivityKind::Kernel, "kernel_launch", name});
  const ob_status status = driver().kernel_launch(driver().self, stream.device, stream_handle(stream), &launch);
  if (C10_UNLIKELY(status != OB_OK)) {
    raise_status_of(name != nullptr ? name : "", status, "kernel_launch", stream.device);
  }
  activity.finish();
}

class CopyCommand final : public DriverCommand {
 public:
  explicit CopyCommand(const ob_copy& copy) : copy_(copy) {}
  void queue(Stream& stream) override { call_copy(stream, copy_); }
  std::string describe() const override { return "copy of " + std::to_string(copy_.bytes) + " bytes"; }

 private:
  ob_copy copy_;
};

class FillCommand final : public DriverCommand {
 public:
  FillCommand(uint64_t dst, const void* pattern, uint32_t pattern_size, uint64_t count)
      : dst_(dst), pattern_size_(pattern_size), count_(count) {
    std::memcpy(pattern_, pattern, pattern_size);
  }
  void queue(Stream& stream) override {
    check(call_fill(stream, dst_, pattern_, pattern_size_, count_), "fill_async", stream.device);
  }
  std::string describe() const override { return "fill of " + std::to_string(pattern_size_ * count_) + " bytes"; }

 private:
  uint64_t dst_;
  std::byte pattern_[16];
  uint32_t pattern_size_;
  uint64_t count_;
};

class LaunchCommand : public DriverCommand {
 public:
  LaunchCommand(const ob_launch& launch, const char* name) : launch_(launch), name_(name), values_(launch.arg_count) {
    const auto* next = reinterpret_cast<const std::byte*>(launch.args);
    for (size_t i = 0; i < launch.arg_count; ++i, next += launch.arg_stride) {
      ob_kernel_arg arg{};
      std::memcpy(&arg, next, std::min(sizeof(arg), launch.arg_stride));
      if (arg.kind == OB_ARG_VALUE) {
        const auto* value = static_cast<const std::byte*>(arg.value);
        values_[i].assign(value, value + arg.size);
        arg.value = values_[i].data();
      }
      args_.push_back(arg);
    }
    launch_.args = args_.data();
    launch_.arg_stride = sizeof(ob_kernel_arg);
  }
  void queue(Stream& stream) override { call_launch(stream, launch_, name_); }
  std::string describe() const override { return name_ != nullptr ? name_ : "launch of a kernel"; }

 protected:
  ob_kernel_arg* args() { return args_.data(); }
  void set_kernel(uint64_t kernel) { launch_.kernel = kernel; }

 private:
  ob_launch launch_;
  const char* name_;
  std::vector<ob_kernel_arg> args_;
  std::vector<std::vector<std::byte>> values_;
};

class CheckedLaunchCommand final : public LaunchCommand {
 public:
  CheckedLaunchCommand(const ob_launch& launch, const char* name, RecordArguments record)
      : LaunchCommand(launch, name), record_(record) {}
  void queue(Stream& stream) override {
    set_record(stream, record_, args());
    LaunchCommand::queue(stream);
    note_checked_launch(stream);
  }

 private:
  RecordArguments record_;
};

class AwaitedLaunch final : public LaunchCommand {
 public:
  AwaitedLaunch(const ob_launch& launch, std::shared_ptr<const Awaited> kernel, const char* name,
                const RecordArguments* record)
      : LaunchCommand(launch, name), kernel_(std::move(kernel)) {
    if (record != nullptr) {
      record_ = *record;
    }
  }
  void queue(Stream& stream) override {
    if (kernel_) {
      set_kernel(kernel_->kernel());
    }
    if (record_) {
      set_record(stream, *record_, args());
    }
    LaunchCommand::queue(stream);
    if (record_) {
      note_checked_launch(stream);
    }
  }

 private:
  std::shared_ptr<const Awaited> kernel_;
  std::optional<RecordArguments> record_;
};

// The pattern sizes, as bits, of fills that the driver has done. It may not support the others.
std::atomic<uint32_t> known_fills{0};

// Return true for a copy that may join the stream's list: another device's memory may be freed
// first. A copy to the host has a caller that waits, and Ctrl-C may end the wait for programs
// before it.
bool is_own_copy(const Stream& stream, const ob_copy& copy) {
  return copy.dst_device == stream.device && (copy.src_device == OB_HOST || copy.src_device == stream.device);
}

uint64_t bytes_of(const ob_copy_nd& copy) {
  uint64_t bytes = copy.element_size;
  for (uint32_t i = 0; i < copy.ndim; ++i) {
    bytes *= static_cast<uint64_t>(copy.sizes[i]);
  }
  return bytes;
}

void refuse_without_launches() {
  if (!driver().kernel_launch) {
    raise_not_supported("kernel_launch", "launching a kernel");
  }
}

// Return the stream's capture if it takes the call in place of the driver.
Capture* software_capture(Stream& stream) {
  Capture* capture = capture_of(stream);
  if (C10_LIKELY(capture == nullptr)) {
    refuse_second_stream(stream);
    return nullptr;
  }
  capture->check(stream);
  return capture->is_native() ? nullptr : capture;
}

}  // namespace

void queue_copy(Stream& stream, const ob_copy& copy) {
  if (Capture* capture = software_capture(stream)) {
    capture->add(stream, std::make_unique<CopyCommand>(copy));
    return;
  }
  if (has_pending(stream) && is_own_copy(stream, copy) && may_add_pending(stream)) {
    add_pending(stream, std::make_unique<CopyCommand>(copy), nullptr, "copy_async");
    return;
  }
  call_copy(stream, copy);
  finish_call(stream);
}

bool queue_copy_nd(Stream& stream, const ob_copy_nd& copy) {
  if (!driver().copy_nd_async || software_capture(stream)) {
    return false;
  }
  ensure_usable_sides(stream, copy.dst_device, copy.src_device);
  const TrackedCall noted("copy_nd_async", stream.device, &stream);
  ActivityScope activity(
      stream, {ActivityKind::Copy, "copy_nd_async", nullptr, bytes_of(copy), copy.src_device, copy.dst_device});
  const ob_status status = driver().copy_nd_async(driver().self, stream.device, stream_handle(stream), &copy);
  if (is_unimplemented(status)) {
    return false;
  }
  check(status, "copy_nd_async", stream.device);
  note_work(stream, "copy_nd_async");
  activity.finish();
  finish_call(stream);
  return true;
}

bool queue_fill(Stream& stream, uint64_t dst, const void* pattern, uint32_t pattern_size, uint64_t count) {
  if (!driver().fill_async) {
    return false;
  }
  if (Capture* capture = software_capture(stream)) {
    capture->add(stream, std::make_unique<FillCommand>(dst, pattern, pattern_size, count));
    return true;
  }
  if (has_pending(stream) && (known_fills.load(std::memory_order_relaxed) & pattern_size) != 0 &&
      may_add_pending(stream)) {
    add_pending(stream, std::make_unique<FillCommand>(dst, pattern, pattern_size, count), nullptr, "fill_async");
    return true;
  }
  if (is_unimplemented(call_fill(stream, dst, pattern, pattern_size, count))) {
    return false;
  }
  if (C10_UNLIKELY((known_fills.load(std::memory_order_relaxed) & pattern_size) == 0)) {
    known_fills.fetch_or(pattern_size, std::memory_order_relaxed);  // a power of two
  }
  finish_call(stream);
  return true;
}

void queue_launch(Stream& stream, const ob_launch& launch, const char* name) {
  refuse_without_launches();
  if (Capture* capture = software_capture(stream)) {
    capture->add(stream, std::make_unique<LaunchCommand>(launch, name));
    return;
  }
  call_launch(stream, launch, name);
  finish_call(stream);
}

void queue_awaited_launch(Stream& stream, const ob_launch& launch, std::shared_ptr<const Awaited> kernel,
                          const char* name, const RecordArguments* record) {
  refuse_without_launches();
  auto work = std::make_unique<AwaitedLaunch>(launch, kernel, name, record);
  add_pending(stream, std::move(work), std::move(kernel), name);
}

void queue_checked_launch(Stream& stream, const ob_launch& launch, ob_kernel_arg* args, const char* name,
                          RecordArguments record) {
  refuse_without_launches();
  if (Capture* capture = software_capture(stream)) {
    capture->add(stream, std::make_unique<CheckedLaunchCommand>(launch, name, record));
    return;
  }
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    capture->set_record(stream, record, args, name);
    call_launch(stream, launch, name);
    return;
  }
  set_record(stream, record, args);
  call_launch(stream, launch, name);
  note_checked_launch(stream);
  finish_call(stream);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "core/capture.h"

#include <algorithm>
#include <mutex>

namespace outboard {

namespace {

std::atomic<int> capture_count{0};
std::mutex captures_mutex;
std::vector<Capture*>& captures() {
  static auto* const list = new std::vector<Capture*>();
  return *list;
}

thread_local bool repeated_host_work = false;

}  // namespace

bool is_repeated_host_work() noexcept {
  return repeated_host_work;
}

void detail::set_repeated_host_work(bool is_repeated) noexcept {
  repeated_host_work = is_repeated;
}

uint64_t handle_for_caller(Stream& stream) {
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr && !capture->is_native())) {
    capture->refuse("work that is queued directly on the driver's stream handle (launch it with"
                    " torch_outboard.launch, or return NotImplemented during a capture),");
  }
  stream.is_handle_exposed.store(true, std::memory_order_relaxed);
  return stream_handle(stream);
}

void refuse_handle_in_capture(c10::DeviceIndex device, uint64_t handle, const char* what) {
  if (C10_LIKELY(capture_count.load(std::memory_order_acquire) == 0)) {
    return;
  }
  struct Search {
    uint64_t handle;
    Capture* found;
  } search{handle, nullptr};
  detail::for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        auto& wanted = *static_cast<Search*>(user);
        Capture* capture = stream.handle == wanted.handle ? capture_of(stream) : nullptr;
        wanted.found = capture != nullptr && !capture->is_native() ? capture : wanted.found;
      },
      &search);
  if (search.found != nullptr) {
    search.found->refuse(what);
  }
}

void enter_capture(Capture& capture) {
  const std::lock_guard lock(captures_mutex);
  captures().push_back(&capture);
  capture_count.fetch_add(1);
}

void leave_capture(Capture& capture) noexcept {
  const std::lock_guard lock(captures_mutex);
  capture_count.fetch_sub(static_cast<int>(std::erase(captures(), &capture)));
}

bool is_capturing_natively() {
  if (C10_LIKELY(capture_count.load(std::memory_order_acquire) == 0)) {
    return false;
  }
  const std::lock_guard lock(captures_mutex);
  return std::any_of(captures().begin(), captures().end(), [](const Capture* capture) { return capture->is_native(); });
}

void refuse_device_wait(c10::DeviceIndex device) {
  if (C10_LIKELY(capture_count.load(std::memory_order_acquire) == 0)) {
    return;
  }
  Capture* forbidding = nullptr;
  {
    const std::lock_guard lock(captures_mutex);
    const auto it = std::find_if(captures().begin(), captures().end(),
                                 [&](Capture* capture) { return capture->forbids_wait_for(device); });
    forbidding = it == captures().end() ? nullptr : *it;
  }
  if (forbidding) {
    forbidding->refuse("synchronizing a device");
  }
}

}  // namespace outboard

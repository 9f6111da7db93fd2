// SPDX-License-Identifier: BSD-3-Clause
#include "graph/body.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "core/driver.h"
#include "core/error.h"
#include "core/lost_device.h"
#include "core/process.h"
#include "memory/management.h"

namespace outboard::graph {

namespace {

// Bodies without a replay under way, which wait for a thread that may call the driver.
struct Idle {
  std::mutex mutex;
  Body* list = nullptr;
  std::atomic<bool> has_any{false};
};
Idle& idle() {
  static auto* const instance = new Idle();
  return *instance;
}

void add_idle(Body* body) noexcept {
  const std::lock_guard lock(idle().mutex);
  body->next_idle = idle().list;
  idle().list = body;
  idle().has_any.store(true, std::memory_order_release);
}

}  // namespace

memory::StreamUses& replay_uses() {
  static auto* const instance = new memory::StreamUses();
  return *instance;
}

void free_when_done(std::unique_ptr<Body> body) noexcept {
  if (!body) {
    return;
  }
  Body* raw = body.release();
  if (raw->execution.is_idle()) {
    add_idle(raw);
  } else {
    raw->execution.transfer_uses_to(replay_uses());
  }
}

void free_done(memory::WaitMode wait_mode) {
  if (C10_LIKELY(replay_uses().is_empty() && !idle().has_any.load(std::memory_order_acquire)) || driver_is_gone()) {
    return;
  }
  memory::ProcessedUses processed = replay_uses().process(wait_mode);
  while (processed.done.head) {
    Body* body = static_cast<BodyUse*>(processed.done.pop())->body;
    if (body->execution.pending.fetch_sub(1) == 1) {
      add_idle(body);
    }
  }
  Body* list = nullptr;
  {
    const std::lock_guard lock(idle().mutex);
    list = std::exchange(idle().list, nullptr);
    idle().has_any.store(false);
  }
  std::exception_ptr error = processed.error;
  while (list) {
    std::unique_ptr<Body> body(list);
    list = body->next_idle;
    try {
      free_body(std::move(body));
    } catch (...) {
      error = error ? error : std::current_exception();
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void free_body(std::unique_ptr<Body> body) {
  if (!body) {
    return;
  }
  if (driver_is_gone()) {
    static_cast<void>(body.release());  // its members would call the driver
    return;
  }
  const c10::DeviceIndex device = body->stream->device;
  std::exception_ptr error;
  const auto destroy = [&](auto entry, const char* name, uint64_t handle) {
    if (handle == 0 || is_lost(device)) {
      return;
    }
    try {
      check(entry(driver().self, device, handle), name, device);
    } catch (...) {
      error = error ? error : std::current_exception();
    }
  };
  destroy(driver().graph_executable_destroy, "graph_executable_destroy", body->executable);
  destroy(driver().graph_destroy, "graph_destroy", body->graph);
  for (const PoolUse& use : body->pool_uses) {
    release_pool(use.device, body->pool);
  }
  body.reset();
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace outboard::graph

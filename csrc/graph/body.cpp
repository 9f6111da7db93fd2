// SPDX-License-Identifier: BSD-3-Clause
#include "graph/body.h"

#include <atomic>
#include <mutex>

#include "core/driver.h"
#include "core/error.h"
#include "core/process.h"
#include "memory/management.h"

namespace outboard::graph {

namespace {

std::atomic<size_t> retired_count{0};
std::mutex retired_mutex;
std::vector<std::unique_ptr<Body>>& retired() {
  static auto* const list = new std::vector<std::unique_ptr<Body>>();
  return *list;
}

}  // namespace

void retire(std::unique_ptr<Body> body) noexcept {
  if (!body) {
    return;
  }
  const std::lock_guard lock(retired_mutex);
  retired().push_back(std::move(body));
  retired_count.store(retired().size(), std::memory_order_release);
}

void free_retired() {
  if (C10_LIKELY(retired_count.load(std::memory_order_acquire) == 0) || driver_is_gone()) {
    return;
  }
  std::vector<std::unique_ptr<Body>> taken;
  {
    const std::lock_guard lock(retired_mutex);
    taken.swap(retired());
    retired_count.store(0);
  }
  std::exception_ptr error;
  for (std::unique_ptr<Body>& body : taken) {
    try {
      if (body->last_replay.query()) {
        free_body(std::move(body));
      } else {
        retire(std::move(body));
      }
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
    static_cast<void>(body.release());  // what it holds would call the driver
    return;
  }
  const c10::DeviceIndex device = body->stream->device;
  ob_status status = OB_OK;
  const char* entry = nullptr;
  if (body->executable != 0) {
    status = driver().graph_executable_destroy(driver().self, device, body->executable);
    entry = "graph_executable_destroy";
  }
  if (body->graph != 0) {
    const ob_status second = driver().graph_destroy(driver().self, device, body->graph);
    if (status == OB_OK) {
      status = second;
      entry = "graph_destroy";
    }
  }
  for (const c10::DeviceIndex used : body->pool_devices) {
    release_pool(used, body->pool);
  }
  body.reset();
  check(status, entry, device);
}

}  // namespace outboard::graph

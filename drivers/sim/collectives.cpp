// SPDX-License-Identifier: BSD-3-Clause
// The collectives of this device, if the option `collectives` is set. Each communicator has a
// thread. A call makes its stream wait at a gate, and the thread exchanges with the other processes
// through shared memory, then opens the gate.
//
// In the lazy schedule the rank's seed decides for each call whether the thread exchanges at once,
// when little else has run, or only when the host waits and nothing else can run. So a missing wait
// shows for some seeds, on either side.
#include "torch_outboard/collectives.h"

#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "driver.h"
#include "entries.h"
#include "error.h"
#include "torch_outboard/support/collective.h"
#include "torch_outboard/support/handles.h"
#include "torch_outboard/support/table.h"

namespace sim {
namespace {

struct Part {
  ob_collective call = {};
  char* src = nullptr;
  char* dst = nullptr;
  uint64_t stream = 0;
};

// A stream that waits for a call.
struct Waiter {
  Stream* stream = nullptr;
  uint64_t begin = 0;  // the position of the stream before the call
  uint64_t correlation = 0;  // of the call, for a profiler
  Stream* gate = nullptr;
  uint64_t gate_handle = 0;
};

// The parts of a group, or a single one.
struct Collective {
  std::vector<Part> parts;
  std::map<uint64_t, Waiter> waiters;  // by stream
};

class Comm {
 public:
  Comm(Driver& driver, std::unique_ptr<support::Exchange> exchange, int32_t device, uint64_t seed)
      : driver_(driver), exchange_(std::move(exchange)), device_(device), state_(seed) {
    thread_ = std::thread([this] { work(); });
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  ~Comm() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int32_t device() const { return device_; }
  int size() const { return exchange_->size(); }

  void add(Collective call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }

  ob_status status() {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) return fail(OB_UNAVAILABLE, "%s", error_.c_str());
    const std::string error = exchange_->find_error();
    if (!error.empty()) return fail(OB_UNAVAILABLE, "%s", error.c_str());
    return exchange_->has_all() ? OB_OK : OB_NOT_READY;
  }

  void abort() {
    exchange_->abort();
    {
      const std::lock_guard lock(mutex_);
      is_aborted_ = true;
    }
    changed_.notify_all();
    driver_.scheduler->resume();  // a call that waits for its turn
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !calls_.empty() || is_ending_; });
      if (calls_.empty()) return;
      const Collective call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      std::string error;
      run(call, &error);
      lock.lock();
      if (!error.empty()) {
        if (error_.empty()) error_ = error;
        // The caller learns of the failure before a stream goes on.
        changed_.wait(lock, [&] { return is_aborted_ || is_ending_; });
      }
      lock.unlock();
      for (const auto& [handle, waiter] : call.waiters) open(waiter);
      lock.lock();
    }
  }

  void run(const Collective& call, std::string* out_error) {
    if (draw() % 2 == 0) driver_.scheduler->wait_until_needed(is_aborted_);
    for (const auto& [handle, waiter] : call.waiters) {
      if (!is_aborted_) driver_.scheduler->wait(waiter.stream, waiter.begin, false);
    }
    // An abort ends the wait for streams. After it, this thread must not touch memory that they
    // use.
    if (is_aborted_) {
      *out_error = "the communicator was aborted";
      return;
    }
    const int64_t start = now();
    support::Plan plan;
    std::vector<std::function<void()>> finishes;
    for (const Part& part : call.parts) {
      support::add_to_plan(part.call, part.src, part.dst, exchange_->rank(), exchange_->size(), &plan);
      if (plan.finish) finishes.push_back(std::move(plan.finish));
      plan.finish = nullptr;
    }
    if (!exchange_->run(plan.transfers, out_error)) return;
    for (const auto& finish : finishes) finish();
    if ((driver_.activity.kinds() & OB_ACTIVITY_KERNEL) != 0) record(call, start, now());
  }

  // One record for each stream, whose parts run together.
  void record(const Collective& call, int64_t start, int64_t end) {
    for (const auto& [handle, waiter] : call.waiters) {
      ob_activity record = {};
      record.struct_size = sizeof record;
      record.kind = OB_ACTIVITY_KERNEL;
      record.device = device_;
      record.stream = handle;
      record.correlation = waiter.correlation;
      record.start = start;
      record.end = end;
      record.src_device = record.dst_device = device_;
      const char* name = nullptr;
      for (const Part& part : call.parts) {
        if (part.stream != handle) continue;
        record.bytes += part.call.count * support::size_of(part.call.dtype);
        name = name == nullptr ? support::name_of_kind(part.call.kind) : "exchange";
      }
      std::snprintf(record.name, sizeof record.name, "sim_%s", name);
      driver_.activity.add(record);
    }
  }

  void open(const Waiter& waiter) {
    for (Stream* released = waiter.gate->open(); released != nullptr;) {
      Stream* next = released->next;
      driver_.scheduler->make_ready(released);
      released = next;
    }
    driver_.gates.give_back(waiter.gate_handle);
    driver_.scheduler->resume();
  }

  uint64_t draw() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    return z ^ (z >> 31);
  }

  Driver& driver_;
  const std::unique_ptr<support::Exchange> exchange_;
  const int32_t device_;
  uint64_t state_;
  std::atomic<bool> is_aborted_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Collective> calls_;  // this and the next two under mutex_
  std::string error_;
  bool is_ending_ = false;
  std::thread thread_;
};

struct Collectives {
  explicit Collectives(Driver& owner) : driver(owner) {}
  Driver& driver;
  support::Handles<std::unique_ptr<Comm>, 9> comms;
  // The parts of this thread's group.
  static inline thread_local bool is_grouping = false;
  static inline thread_local std::vector<std::pair<Comm*, Part>> grouped;
};

ob_status find(Collectives& self, uint64_t handle, Comm** out_comm) {
  std::unique_ptr<Comm>* comm = self.comms.find(handle);
  if (comm == nullptr) return fail(OB_INVALID_ARGUMENT, "there is no communicator 0x%" PRIx64, handle);
  *out_comm = comm->get();
  return OB_OK;
}

// Run an entry's body and keep exceptions from crossing into C.
template <class Body>
ob_status guarded(const char* entry, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    return fail(OB_INTERNAL, "%s: %s", entry, error.what());
  }
}

ob_status make_id(void*, void* out_id) {
  unsigned char random[12];
  if (getentropy(random, sizeof random) != 0) return fail(OB_INTERNAL, "the system returned no random numbers");
  char* text = static_cast<char*>(out_id);
  std::memset(text, 0, OB_COMM_ID_BYTES);
  int length = std::snprintf(text, OB_COMM_ID_BYTES, "outboard-sim-");
  for (const unsigned char byte : random) {
    length += std::snprintf(text + length, static_cast<size_t>(OB_COMM_ID_BYTES - length), "%02x", byte);
  }
  return OB_OK;
}

ob_status comm_create(void* self_pointer, const ob_comm_config* config, uint64_t* out_comm) {
  return guarded("comm_create", [&]() -> ob_status {
    auto& self = *static_cast<Collectives*>(self_pointer);
    Device* device = nullptr;
    if (const ob_status status = self.driver.find_device(config->device, &device); status != OB_OK) return status;
    const char* id = static_cast<const char*>(config->id);
    const std::string name(id, strnlen(id, OB_COMM_ID_BYTES));
    if (name.empty() || name.find('/') != std::string::npos) {
      return fail(OB_INVALID_ARGUMENT, "device %d: make_id did not create this id", config->device);
    }
    std::string error;
    auto exchange = support::Exchange::open(name, config->rank, config->size, &error);
    if (!exchange) return fail(OB_INVALID_ARGUMENT, "device %d: %s", config->device, error.c_str());
    const uint64_t seed = self.driver.options.seed + static_cast<uint64_t>(config->rank);
    *out_comm = self.comms.make(std::make_unique<Comm>(self.driver, std::move(exchange), config->device, seed));
    return OB_OK;
  });
}

ob_status comm_status(void* self_pointer, uint64_t handle) {
  return guarded("comm_status", [&]() -> ob_status {
    Comm* comm = nullptr;
    const ob_status status = find(*static_cast<Collectives*>(self_pointer), handle, &comm);
    return status == OB_OK ? comm->status() : status;
  });
}

// Find the host's addresses of what the call reads and writes.
ob_status translate(Driver& driver, const Comm& comm, const ob_collective& call, Part* out_part) {
  const auto ranks = static_cast<uint64_t>(comm.size());
  const uint64_t bytes = call.count * support::size_of(call.dtype);
  Device* device = nullptr;
  ob_status status = driver.find_device(comm.device(), &device);
  const auto reach = [&](uint64_t address, uint64_t size, char** out) {
    void* host = nullptr;
    if (status == OB_OK && address != 0) status = device->memory.translate(address, size, &host);
    *out = static_cast<char*>(host);
  };
  reach(call.src, call.kind == OB_REDUCE_SCATTER ? bytes * ranks : bytes, &out_part->src);
  reach(call.dst, call.kind == OB_ALL_GATHER ? bytes * ranks : bytes, &out_part->dst);
  return status;
}

// Make a stream wait at a gate.
ob_status close_gate(Driver& driver, const Comm& comm, uint64_t handle, Waiter* waiter) {
  waiter->stream = driver.stream(comm.device(), handle);
  if (waiter->stream == nullptr) return OB_INVALID_ARGUMENT;
  waiter->gate = driver.gates.take(comm.device(), &waiter->gate_handle);
  if (waiter->gate == nullptr) return fail(OB_OUT_OF_MEMORY, "device %d: too many events", comm.device());
  waiter->correlation = Activity::correlation();
  waiter->begin = waiter->stream->tail.load(std::memory_order_acquire);
  Task task = {};
  task.work = Work::kWait;
  task.wait = {waiter->gate, waiter->gate->close()};
  return driver.queue(waiter->stream, handle, task);
}

// One gate for each stream: parts of a group do not wait for one another.
ob_status submit(Driver& driver, Comm& comm, std::vector<Part> parts) {
  Collective call;
  for (const Part& part : parts) {
    if (call.waiters.contains(part.stream)) continue;
    if (const ob_status status = close_gate(driver, comm, part.stream, &call.waiters[part.stream]); status != OB_OK) {
      return status;
    }
  }
  call.parts = std::move(parts);
  comm.add(std::move(call));
  return OB_OK;
}

ob_status queue(void* self_pointer, uint64_t handle, uint64_t stream, const ob_collective* call) {
  return guarded("queue", [&]() -> ob_status {
    auto& self = *static_cast<Collectives*>(self_pointer);
    Comm* comm = nullptr;
    ob_status status = find(self, handle, &comm);
    if (status != OB_OK) return status;
    if (!support::has_collective(*call)) {
      return fail(OB_UNIMPLEMENTED, "collectives of kind %d with reduction %d and dtype %d are not supported",
                  call->kind, call->reduce, call->dtype);
    }
    if (call->count == 0 || call->root < 0 || call->root >= comm->size()) {
      return fail(OB_INVALID_ARGUMENT, "invalid collective of %" PRIu64 " elements with rank %d in a group of %d",
                  call->count, call->root, comm->size());
    }
    Part part;
    part.call = *call;
    part.stream = stream;
    if (self.driver.stream(comm->device(), stream) == nullptr) return OB_INVALID_ARGUMENT;
    status = translate(self.driver, *comm, *call, &part);
    if (status != OB_OK || !Collectives::is_grouping) {
      return status == OB_OK ? submit(self.driver, *comm, {part}) : status;
    }
    Collectives::grouped.emplace_back(comm, part);
    return OB_OK;
  });
}

ob_status group_begin(void*) {
  Collectives::is_grouping = true;
  return OB_OK;
}

ob_status group_end(void* self_pointer) {
  return guarded("group_end", [&]() -> ob_status {
    Collectives::is_grouping = false;
    std::map<Comm*, std::vector<Part>> calls;
    for (auto& [comm, part] : Collectives::grouped) calls[comm].push_back(part);
    Collectives::grouped.clear();
    ob_status status = OB_OK;
    for (auto& [comm, parts] : calls) {
      const ob_status submitted = submit(static_cast<Collectives*>(self_pointer)->driver, *comm, std::move(parts));
      status = status == OB_OK ? submitted : status;
    }
    return status;
  });
}

ob_status comm_abort(void* self_pointer, uint64_t handle) {
  Comm* comm = nullptr;
  const ob_status status = find(*static_cast<Collectives*>(self_pointer), handle, &comm);
  if (status == OB_OK) comm->abort();
  return status;
}

ob_status comm_destroy(void* self_pointer, uint64_t handle) {
  std::unique_ptr<Comm> comm;
  if (static_cast<Collectives*>(self_pointer)->comms.take(handle, &comm)) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "there is no communicator 0x%" PRIx64, handle);
}

void last_error(void*, char* buffer, size_t size) {
  copy_last_error("", buffer, size);
}

}  // namespace
}  // namespace sim

extern "C" OB_EXPORT ob_status ob_collectives_table(const ob_driver* driver, ob_collectives* out_collectives, char*,
                                                    size_t) {
  auto& own = *static_cast<sim::Driver*>(driver->self);
  // Inline, a wait at a gate would block the caller.
  if (!own.options.collectives || own.options.schedule == sim::Schedule::kInline) return OB_UNIMPLEMENTED;
  ob_collectives table = {};
  table.abi_major = OB_COLLECTIVES_MAJOR;
  table.abi_minor = OB_COLLECTIVES_MINOR;
  table.make_id = sim::make_id;
  table.comm_create = sim::comm_create;
  table.comm_status = sim::comm_status;
  table.queue = sim::queue;
  table.comm_abort = sim::comm_abort;
  table.comm_destroy = sim::comm_destroy;
  table.group_begin = sim::group_begin;
  table.group_end = sim::group_end;
  table.last_error = sim::last_error;
  table.self = new sim::Collectives(own);
  support::return_struct(table, out_collectives);
  return OB_OK;
}

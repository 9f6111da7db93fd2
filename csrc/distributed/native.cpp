// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/native.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "core/blocking.h"
#include "core/capture.h"
#include "core/collectives.h"
#include "core/device.h"
#include "core/error.h"
#include "core/observer.h"
#include "core/process.h"
#include "distributed/waiters.h"

namespace outboard {

namespace {

constexpr std::chrono::microseconds kStatusInterval{200};  // between two queries of a communicator
constexpr int kPollsWithoutSleep = 1000;

NativeForm form_of(const ob_collective& part) {
  return {part.kind, part.reduce, static_cast<int32_t>(part.dtype)};
}

}  // namespace

// ---- NativeCall ----

void NativeCall::wait_until_ready(ob_status status, const char* entry) {
  if (status == OB_NOT_READY) {
    const ob_collectives& table = *collectives();
    const BlockingRegion without_interpreter;
    // A library that queues on its own thread takes microseconds. Only ranks that meet for the
    // first time take longer.
    for (int polls = 0; status == OB_NOT_READY; ++polls) {
      if (polls < kPollsWithoutSleep) {
        std::this_thread::yield();
      } else {
        check_timeout_();
        std::this_thread::sleep_for(kStatusInterval);
      }
      status = table.comm_status(table.self, communicator_.handle);
    }
  }
  if (status != OB_OK) {
    raise_entry(entry, status);
  }
}

bool NativeCall::add(ob_collective part) {
  if (part.count == 0) {
    return true;
  }
  const ob_collectives& table = *collectives();
  part.struct_size = sizeof(part);
  if (to_graph_) {
    return add_to_graph(part);
  }
  const uint64_t stream = stream_handle(stream_);
  std::optional<ActivityScope> activity;
  if (!is_grouped_) {
    activity.emplace(stream_, ActivityInfo{ActivityKind::Kernel, "queue", info_.kind.title, info_.bytes});
  }
  ob_status status;
  {
    const BlockingRegion without_interpreter;  // the driver may wait for peers
    status = table.queue(table.self, communicator_.handle, stream, &part);
  }
  if (is_unimplemented(status) && !is_grouped_) {
    communicator_.does[form_of(part)] = false;
    return false;
  }
  if (!is_grouped_ || status != OB_NOT_READY) {
    wait_until_ready(status, "queue");
  }
  communicator_.does[form_of(part)] = true;
  if (activity) {
    activity->finish();
  }
  return true;
}

// Only an earlier call shows whether the driver supports this one, because asking would queue it.
bool NativeCall::add_to_graph(const ob_collective& part) {
  const auto entry = communicator_.does.find(form_of(part));
  if (entry == communicator_.does.end()) {
    refuse_in_capture(stream_, c10::str(info_.kind.name, ", which has not run in its group before with this dtype and"
                                                         " reduction (run it once before the capture),")
                                   .c_str());
  }
  if (is_grouped_) {
    grouped_.push_back(part);
  } else if (entry->second) {
    to_graph_({{part}, false});
  }
  return is_grouped_ || entry->second;
}

bool NativeCall::add(int32_t kind, const at::Tensor& src, const at::Tensor& dst, int root) {
  ob_collective part{};
  part.kind = kind;
  part.dtype = OB_UINT8;
  part.root = root;
  const auto address = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.numel() != 0 ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
  };
  part.src = address(src);
  part.dst = address(dst);
  part.count = kind == OB_REDUCE_SCATTER || kind == OB_RECV ? dst.nbytes() : src.nbytes();
  return add(part);
}

void NativeCall::begin() {
  const ob_collectives& table = *collectives();
  if (to_graph_) {
    is_grouped_ = true;
    return;
  }
  activity_.emplace(stream_, ActivityInfo{ActivityKind::Kernel, "group_end", info_.kind.title, info_.bytes});
  if (const ob_status status = table.group_begin(table.self); status != OB_OK) {
    raise_entry("group_begin", status);
  }
  is_grouped_ = true;
}

void NativeCall::end() {
  is_grouped_ = false;
  if (to_graph_) {
    if (!grouped_.empty()) {
      to_graph_({std::exchange(grouped_, {}), true});
    }
    return;
  }
  wait_until_ready(end_native_group(), "group_end");
  activity_->finish();
  activity_.reset();
}

// ---- Communicators ----

bool NativeGroup::exchange_id(const std::string& key, int rank, std::chrono::milliseconds timeout,
                              std::string* out_id) {
  const ob_collectives& table = *collectives();
  std::vector<uint8_t> message;
  if (rank == 0) {
    std::string id(OB_COMM_ID_BYTES, '\0');
    const ob_status status = table.make_id(table.self, id.data());
    if (status != OB_OK && status != OB_UNAVAILABLE) {
      raise_entry("make_id", status);
    }
    message.push_back(status == OB_OK);
    message.insert(message.end(), id.begin(), id.end());
    store_->set(key, message);
  } else {
    store_->wait({key}, timeout);
    message = store_->get(key);
  }
  if (message.size() != 1 + OB_COMM_ID_BYTES || message[0] == 0) {
    return false;
  }
  out_id->assign(message.begin() + 1, message.end());
  return true;
}

void NativeGroup::wait_until_joined(uint64_t handle, std::chrono::milliseconds timeout) {
  const ob_collectives& table = *collectives();
  const Clock::time_point deadline = Clock::now() + timeout;
  ob_status status = OB_NOT_READY;
  std::string why;
  while ((status = table.comm_status(table.self, handle)) == OB_NOT_READY) {
    if (failure_.has_failed()) {
      why = "the group ended while its ranks were connecting";
    } else if (Clock::now() > deadline) {
      why = c10::str("the other ranks did not join within ", timeout.count(), " ms");
    }
    if (!why.empty()) {
      break;
    }
    std::this_thread::sleep_for(kStatusInterval);
  }
  if (status == OB_OK) {
    return;
  }
  if (why.empty()) {
    why = describe_entry("comm_status", status);
  }
  static_cast<void>(table.comm_abort(table.self, handle));
  static_cast<void>(table.comm_destroy(table.self, handle));
  C10_THROW_ERROR(DistBackendError, why);
}

uint64_t NativeGroup::join(const std::string& key, c10::DeviceIndex device, int rank, int size,
                           std::chrono::milliseconds timeout) {
  const ob_collectives& table = *collectives();
  const BlockingRegion without_interpreter;
  std::string id;
  if (!exchange_id("native/" + key, rank, timeout, &id)) {
    return 0;
  }
  ob_comm_config config{};
  config.struct_size = sizeof(config);
  config.device = device;
  config.rank = rank;
  config.size = size;
  config.id = id.data();
  config.name = name_.c_str();
  uint64_t handle = 0;
  if (const ob_status status = table.comm_create(table.self, &config, &handle); status != OB_OK) {
    raise_entry("comm_create", status);
  }
  wait_until_joined(handle, timeout);
  return handle;
}

Communicator* NativeGroup::communicator(c10::DeviceIndex device, int peer, bool sends,
                                        std::chrono::milliseconds timeout) {
  const std::lock_guard joining(join_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (is_unavailable_) {
      return nullptr;
    }
    if (device_ >= 0 && device_ != device) {
      raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
            c10::str("in the collectives of '", driver_name(), "', a rank uses one device per group, which is ",
                     static_cast<int>(device_), ", not ", static_cast<int>(device),
                     ". Set the rank's device with torch.accelerator.set_device_index(), or remove `native` from"
                     " OUTBOARD_PROVIDERS."));
    }
    if (const auto entry = communicators_.find({peer, sends}); entry != communicators_.end()) {
      return entry->second.get();
    }
  }
  // Both directions of a pair at once: each rank may begin with a send.
  for (const bool is_send : {rank_ < peer, rank_ >= peer}) {
    auto communicator = std::make_unique<Communicator>();
    communicator->name = "all";
    if (peer >= 0) {
      communicator->name = is_send ? c10::str(rank_, "-", peer) : c10::str(peer, "-", rank_);
    }
    communicator->rank = peer < 0 ? rank_ : is_send ? 0 : 1;
    communicator->size = peer < 0 ? size_ : 2;
    communicator->handle = join(communicator->name, device, communicator->rank, communicator->size, timeout);
    const std::lock_guard lock(mutex_);
    if (communicator->handle == 0) {
      is_unavailable_ = true;
      return nullptr;
    }
    device_ = device;
    communicators_[{peer, peer < 0 ? sends : is_send}] = std::move(communicator);
    if (peer < 0) {
      break;
    }
  }
  const std::lock_guard lock(mutex_);
  return communicators_.at({peer, sends}).get();
}

std::function<void()> NativeGroup::make_timeout_check(const Kind& kind, std::chrono::milliseconds timeout) {
  return [this, name = kind.name, timeout, deadline = Clock::now() + timeout] {
    failure_.check(name);
    if (Clock::now() > deadline) {
      C10_THROW_ERROR(DistBackendError, c10::str("it was not queued within ", timeout.count(), " ms"));
    }
  };
}

// The watcher's note of a call that is being queued.
class NativeGroup::Entry {
 public:
  Entry(NativeGroup& group, const Kind& kind, uint64_t sequence, std::chrono::milliseconds timeout) : group_(group) {
    const std::lock_guard lock(group_.mutex_);
    group_.queueing_.push_back({&kind, sequence, timeout, Clock::now() + timeout, nullptr});
    self_ = std::prev(group_.queueing_.end());
    group_.wake_watcher();
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  ~Entry() {
    const std::lock_guard lock(group_.mutex_);
    group_.queueing_.erase(self_);
    if (group_.is_closing_) {
      group_.changed_.notify_all();
    }
  }
  std::exception_ptr error() const {
    const std::lock_guard lock(group_.mutex_);
    return self_->error;
  }

 private:
  NativeGroup& group_;
  std::list<Queueing>::iterator self_;
};

// A failure to queue ends the group, because this rank does not take part in a call that the others
// have begun.
void NativeGroup::guarded(const Kind& kind, uint64_t sequence, std::chrono::milliseconds timeout,
                          const std::function<void()>& body) {
  const Entry entry(*this, kind, sequence, timeout);
  try {
    body();
  } catch (const c10::DistBackendError&) {
    std::exception_ptr error = entry.error();
    error = error ? error : failure_.fail(kind.name, sequence, std::current_exception());
    abort();
    std::rethrow_exception(error);
  } catch (...) {  // no memory for a copy
    static_cast<void>(failure_.fail(kind.name, sequence, std::current_exception()));
    abort();
    throw;
  }
}

bool NativeGroup::post(Communicator& communicator, const NativePost& post, Staging& staging, const NativeCallInfo& info,
                       const std::shared_ptr<const void>& owner) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const DisableObserver unobserved;
  const c10::StreamGuard guard(to_c10(*staging.out_stream()));
  if (staging.is_captured()) {
    return capture(communicator, post, staging, info, owner);
  }
  NativeCall call(communicator, *staging.out_stream(), info, make_timeout_check(info.kind, info.timeout));
  bool is_done = false;
  guarded(info.kind, info.sequence, info.timeout, [&] {
    is_done = post(call, staging.in(), staging.out());
    if (is_done) {
      staging.queue_results(info.kind.title);
    }
  });
  return is_done;
}

// ---- The end ----

void NativeGroup::abort() noexcept {
  const ob_collectives& table = *collectives();
  std::vector<uint64_t> handles;
  std::deque<Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    pending.swap(pending_);
    if (!std::exchange(is_aborted_, true)) {
      for (const auto& [key, communicator] : communicators_) {
        handles.push_back(communicator->handle);
      }
    }
    changed_.notify_all();
  }
  // The failure is set before a stream continues.
  for (const Pending& pending_work : pending) {
    pending_work.work->complete(failure_.ended(pending_work.work->kind().name, pending_work.work->getSequencenumber()));
  }
  if (driver_is_gone()) {
    return;
  }
  for (const uint64_t handle : handles) {
    static_cast<void>(table.comm_abort(table.self, handle));  // the group already has the cause of its failure
  }
}

void NativeGroup::stop() {
  std::thread watcher;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    watcher = std::move(watcher_);
    changed_.notify_all();
  }
  if (!watcher.joinable()) {
    return;
  }
  if (watcher.get_id() == std::this_thread::get_id()) {
    watcher.detach();
    return;
  }
  const BlockingRegion without_interpreter;
  watcher.join();
}

void NativeGroup::shut_down() {
  {
    const BlockingRegion without_interpreter;
    std::unique_lock lock(mutex_);
    is_closing_ = true;
    changed_.wait(lock,
                  [&] { return (pending_.empty() && queueing_.empty()) || is_stopping_ || !watcher_.joinable(); });
  }
  stop();
  const std::lock_guard lock(mutex_);
  // A library may wait for the other ranks, so all ranks destroy theirs in one order.
  std::map<std::string, uint64_t> handles;
  for (const auto& [key, communicator] : communicators_) {
    handles[communicator->name] = communicator->handle;
  }
  communicators_.clear();
  for (const auto& [name, handle] : handles) {
    const ob_collectives& table = *collectives();
    if (const ob_status status = table.comm_destroy(table.self, handle); status != OB_OK) {
      TORCH_WARN(describe_entry("comm_destroy", status));
    }
  }
}

void NativeGroup::release_after_fork() noexcept {
  if (watcher_.joinable()) {
    watcher_.detach();
  }
}

}  // namespace outboard

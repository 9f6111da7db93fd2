// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/backend.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <sstream>

#include "core/capture.h"
#include "core/collectives.h"
#include "core/device.h"
#include "core/error.h"
#include "distributed/checks.h"
#include "ops/host/fallback.h"
#include "ops/providers.h"
#include "ops/tensors/host_view.h"

namespace outboard {

namespace {

// How many of a group's first collectives the ranks compare before running them. A comparison takes
// as long as a small collective, and mismatches usually show early. Torch compares all under
// TORCH_DISTRIBUTED_DEBUG=DETAIL.
constexpr uint64_t kMaxComparedCalls = 100;

// One work for all calls between startCoalescing and endCoalescing.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, Works works) : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](const WorkPtr& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](const WorkPtr& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const WorkPtr& work : works_) {
      if (const std::exception_ptr error = work->exception()) {
        return error;
      }
    }
    return nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const WorkPtr& work : works_) {
      work->wait(timeout);
    }
    return true;
  }
  void synchronize() override {
    for (const WorkPtr& work : works_) {
      work->synchronize();
    }
  }
  Tensors result() override {
    Tensors all;
    for (const WorkPtr& work : works_) {
      const Tensors result = work->result();
      all.insert(all.end(), result.begin(), result.end());
    }
    return all;
  }
  // Return the last work's future: the exchanges of a group end in order.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return works_.back()->getFuture(); }

 private:
  const Works works_;
};

void refuse_exchange_in_capture(const Stream& stream, const char* name) {
  if (capture_of(stream) != nullptr) {
    refuse_in_capture(stream, c10::str(name, ", which Gloo exchanges through the host,").c_str());
  }
}

void refuse_native_in_capture(const Stream& stream, const Kind& kind) {
  if (is_captured_by_driver(stream)) {
    refuse_in_capture(stream, c10::str(kind.name, ", which the driver's own capture does not support,").c_str());
  }
  if (c10d::isP2POp(kind.type)) {
    refuse_in_capture(stream, kind.name);
  }
}

Tensors tensors_of(const Tensors& read, const Tensors& written) {
  Tensors all = read;
  all.insert(all.end(), written.begin(), written.end());
  return all;
}

}  // namespace

DistributedBackend::DistributedBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       c10::intrusive_ptr<Options> options, MakeGloo make_gloo)
    : Backend(rank, size),
      options_(std::move(options)),
      make_gloo_(make_gloo),
      store_(store),
      group_(std::make_shared<Group>(
          make_gloo(c10::make_intrusive<c10d::PrefixStore>("outboard", store), rank, size, options_->timeout),
          options_->group_name, rank)),
      cpu_group_(std::make_shared<Group>(
          make_gloo(c10::make_intrusive<c10d::PrefixStore>("outboard-cpu", store), rank, size, options_->timeout),
          options_->group_name, rank)) {
  if (collectives() != nullptr) {
    group_->set_native(std::make_unique<NativeGroup>(c10::make_intrusive<c10d::PrefixStore>("outboard", store), rank,
                                                     size, options_->group_name, group_->failure()));
  }
  init();
}

DistributedBackend::~DistributedBackend() {
  for (const auto& group : {group_, cpu_group_}) {
    if (group->is_forked()) {
      group->release_after_fork();
      continue;
    }
    try {
      group->abort("it was destroyed.");
    } catch (const std::exception& error) {
      TORCH_WARN("a process group could not be shut down: ", error.what());
    }
  }
}

c10::intrusive_ptr<c10d::Backend> DistributedBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                            const std::vector<int>& ranks,
                                                            const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  // Torch asks once for each type of device, with one store, and drops all groups but the first. A
  // rank that drops a group closes connections that a slower one is still making.
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (last_split_.store.lock() == store) {
      return last_split_.child.lock();
    }
    last_split_ = {WeakStore(store), WeakBackend(c10::intrusive_ptr<c10d::Backend>())};
    number = splits_++;
  }
  const auto position = std::find(ranks.begin(), ranks.end(), getRank());
  if (position == ranks.end()) {
    return nullptr;
  }
  auto own = c10::make_intrusive<Options>(options->timeout);
  own->group_name = options->group_name;
  own->group_desc = options->group_desc;
  own->global_ranks_in_group = options->global_ranks_in_group;
  // Keys that are the same on each rank. Torch prefixes its store with the new group's name, which
  // depends on the groups of a rank.
  const std::string prefix = c10::str("split/", number, "/", c10::Join("_", ranks));
  c10::intrusive_ptr<c10d::Backend> child = c10::make_intrusive<DistributedBackend>(
      c10::make_intrusive<c10d::PrefixStore>(prefix, store_), static_cast<int>(position - ranks.begin()),
      static_cast<int>(ranks.size()), std::move(own), make_gloo_);
  const std::lock_guard lock(mutex_);
  last_split_.child = WeakBackend(child);
  return child;
}

c10d::ErrorType DistributedBackend::getError() {
  const bool has_failed = group_->failure().has_failed() || cpu_group_->failure().has_failed();
  return has_failed ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void DistributedBackend::abort() {
  group_->abort("it was aborted.");
  cpu_group_->abort("it was aborted.");
}

void DistributedBackend::shutdown() {
  group_->shut_down();
  cpu_group_->shut_down();
}

void DistributedBackend::startCoalescing() {
  const std::lock_guard lock(mutex_);
  is_coalescing_ = true;
  coalesced_.clear();
  deferred_.clear();
}

// Torch does not end a batch in which a call has raised: later calls would wait
// for an end that does not come.
void DistributedBackend::drop_batch() {
  Works works;
  std::vector<NativeDeferred> deferred;
  const std::lock_guard lock(mutex_);
  is_coalescing_ = false;
  works.swap(coalesced_);
  deferred.swap(deferred_);
}

WorkPtr DistributedBackend::endCoalescing() {
  Works works;
  std::vector<NativeDeferred> deferred;
  {
    const std::lock_guard lock(mutex_);
    is_coalescing_ = false;
    works = std::exchange(coalesced_, {});
    deferred = std::exchange(deferred_, {});
  }
  if (!deferred.empty()) {
    group_->native()->post_together(deferred, options_->timeout);
  }
  return works.empty() ? nullptr : c10::make_intrusive<CoalescedWork>(getRank(), std::move(works));
}

CallStreams DistributedBackend::streams_for(c10::DeviceIndex device, Transport transport, const Call& call) {
  Stream& current = current_stream(device);
  if (!call.is_async && (transport != Transport::Native || may_wait_in_streams())) {
    return {&current, &current, &current};
  }
  const std::lock_guard lock(mutex_);
  const std::pair key(device, call.channel);
  auto entry = streams_.find(key);
  if (entry == streams_.end()) {
    entry = streams_.emplace(key, std::pair(&pool_stream(device, -1), &pool_stream(device, -1))).first;
  }
  // In-place calls copy nothing before the exchange.
  return {&current, transport == Transport::Staged ? entry->second.first : &current, entry->second.second};
}

std::vector<Stream*> DistributedBackend::streams_of_collectives() {
  std::vector<Stream*> streams;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, in_and_out] : streams_) {
    if (key.second == 0) {
      streams.push_back(in_and_out.second);
    }
  }
  return streams;
}

Transport DistributedBackend::transport_of(const Call& call, const at::Tensor& first) const {
  if (first.is_cpu()) {
    return Transport::Cpu;
  }
  bool is_reached = allows_host();
  for (const Tensors* list : {&call.read, &call.written}) {
    for (const at::Tensor& tensor : *list) {
      is_reached = is_reached && is_host_reachable(tensor);
    }
  }
  if (is_reached) {
    return Transport::Host;
  }
  if (forbids_copies()) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          c10::str(call.kind.name,
                   " would copy its tensors to the CPU and back, because the host cannot reach the memory of ",
                   first.device(), ". OUTBOARD_FALLBACK=error forbids the copies: set OUTBOARD_FALLBACK=warn."));
  }
  return Transport::Staged;
}

void DistributedBackend::check(const Call& call, const Tensors& all) const {
  check_tensors(call.kind.name, all);
  for (const at::Tensor& tensor : call.is_in_place ? call.read : call.written) {
    at::assert_no_internal_overlap(tensor);
  }
}

std::shared_ptr<Staging> DistributedBackend::stage(const Call& call) {
  const Tensors all = tensors_of(call.read, call.written);
  if (all.empty()) {  // a barrier
    CallStreams streams;
    if (const c10::DeviceIndex device = current_device(); device < device_count() && is_open(device)) {
      Stream& current = current_stream(device);
      refuse_exchange_in_capture(current, call.kind.name);
      streams = {&current, &current, &current};
    }
    auto staging = std::make_shared<Staging>(Transport::Host, streams, all, all, true);
    staging->follow(streams_of_collectives());
    return staging;
  }
  check(call, all);
  const Transport transport = transport_of(call, all.front());
  CallStreams streams;
  if (transport != Transport::Cpu) {
    const c10::DeviceIndex device = all.front().device().index();
    ensure_open(device);
    refuse_exchange_in_capture(current_stream(device), call.kind.name);
    if (call.channel == 0) {
      unwaited_.wait_for(call.read, transport);
    }
    streams = streams_for(device, transport, call);
  }
  auto staging = std::make_shared<Staging>(transport, streams, call.read, call.written, call.is_in_place);
  staging->observe(call.kind.op);
  call.kind.count(transport);
  return staging;
}

void DistributedBackend::record_async_results(const Call& call, const c10::intrusive_ptr<DistributedWork>& work,
                                              const std::shared_ptr<Staging>& staging) {
  if (call.is_async && call.channel == 0 && staging->transport() != Transport::Cpu && !staging->is_captured()) {
    unwaited_.add(call.is_in_place ? call.read : call.written, work, staging);
  }
}

WorkPtr DistributedBackend::submit(Call call) {
  if (group_->is_forked()) {
    raise(ErrorKind::BadFork, OB_FAILED_PRECONDITION,
          c10::str(call.kind.name, " was called in a child process that was forked after the group was created. The "
                                   "group's threads do not exist there."
                                   " Start processes with multiprocessing's 'spawn', and create the group in each."));
  }
  group_of(call)->failure().check(call.kind.name);
  WorkPtr work;
  try {
    work = at::hasCallbacks() ? submit_recorded(call) : submit_to_any(call);
  } catch (...) {
    drop_batch();
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (is_coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

WorkPtr DistributedBackend::submit_to_any(Call& call) {
  WorkPtr work = submit_native(call);
  return work ? work : submit_to_gloo(call);
}

WorkPtr DistributedBackend::submit(Call call, NativePost native) {
  call.native = std::move(native);
  return submit(std::move(call));
}

const std::shared_ptr<Group>& DistributedBackend::group_of(const Call& call) const {
  const Tensors& tensors = call.read.empty() ? call.written : call.read;
  return !tensors.empty() && tensors.front().defined() && tensors.front().is_cpu() ? cpu_group_ : group_;
}

// Return true if the driver's own collectives are asked first.
bool DistributedBackend::uses_native(const at::Tensor& tensor) const {
  const NativeGroup* const native = group_->native();
  return native != nullptr && native->is_usable() && allows_native() && tensor.defined() && !tensor.is_cpu();
}

// Return null if the driver's own collectives do not support the call. All ranks get the same
// answer.
WorkPtr DistributedBackend::submit_native(Call& call) {
  NativeGroup* const native = group_->native();
  const Tensors all = tensors_of(call.read, call.written);
  if (!call.native || all.empty() || !uses_native(all.front())) {
    return nullptr;
  }
  const bool is_point_to_point = c10d::isP2POp(call.kind.type);
  if (is_point_to_point && collectives()->group_begin == nullptr) {
    return nullptr;
  }
  check(call, all);
  const c10::DeviceIndex device = all.front().device().index();
  ensure_open(device);
  refuse_native_in_capture(current_stream(device), call.kind);
  const uint64_t sequence = group_->sequence() + !is_point_to_point;
  Communicator* communicator = nullptr;
  try {
    communicator = native->communicator(device, call.peer, call.kind.type == c10d::OpType::SEND, options_->timeout);
  } catch (const c10::DistBackendError&) {
    std::rethrow_exception(group_->failure().fail(call.kind.name, sequence, std::current_exception()));
  }
  if (communicator == nullptr) {
    return nullptr;
  }
  if (is_point_to_point && is_coalescing()) {
    return defer(*communicator, call, device, sequence);
  }
  if (call.channel == 0) {
    unwaited_.wait_for(call.read, Transport::Native);
  }
  const std::lock_guard queueing(communicator->mutex);
  auto staging = std::make_shared<Staging>(Transport::Native, streams_for(device, Transport::Native, call), call.read,
                                           call.written, call.is_in_place);
  staging->observe(call.kind.op);
  const NativeCallInfo info{call.kind, sequence, options_->timeout, staging->bytes()};
  if (!native->post(*communicator, call.native, *staging, info, group_)) {
    return nullptr;
  }
  call.kind.count(Transport::Native);
  if (!is_point_to_point) {
    group_->next_sequence();
  }
  auto work = c10::make_intrusive<DistributedWork>(getRank(), call.kind, sequence, staging, std::move(call.results),
                                                   group_->waiters());
  record_async_results(call, work, staging);
  if (staging->is_captured()) {
    work->complete(nullptr);  // the graph's replays are watched
  } else {
    native->watch(work, std::move(staging), options_->timeout);
  }
  return work;
}

// Sends and receives of a batch wait for their peers together.
WorkPtr DistributedBackend::defer(Communicator& communicator, Call& call, c10::DeviceIndex device, uint64_t sequence) {
  auto staging = std::make_shared<Staging>(Transport::Native, streams_for(device, Transport::Native, call), call.read,
                                           call.written, call.is_in_place);
  staging->observe(call.kind.op);
  call.kind.count(Transport::Native);
  auto work = c10::make_intrusive<DistributedWork>(getRank(), call.kind, sequence, staging, std::move(call.results),
                                                   group_->waiters());
  const std::lock_guard lock(mutex_);
  deferred_.push_back({&communicator, call.native, std::move(staging), work});
  return work;
}

// Return what must be the same on each rank. The sizes of an all-to-all may differ between ranks,
// and so may the root's list of a gather or a scatter.
CallFingerprint DistributedBackend::fingerprint_of(const Call& call) {
  const bool is_written = call.read.empty() || call.kind.type == c10d::OpType::SCATTER;
  const Tensors& tensors = is_written ? call.written : call.read;
  std::ostringstream text;
  text << call.kind.name;
  if (*call.reduction != '\0') {
    text << ' ' << call.reduction;
  }
  if (call.root >= 0) {
    text << " (root " << call.root << ')';
  }
  for (const at::Tensor& tensor : tensors) {
    text << (&tensor == tensors.data() ? " of " : ", ");
    if (call.part_bytes.empty()) {
      text << tensor.numel() << ' ';
    }
    text << tensor.scalar_type();
    if (!call.part_bytes.empty()) {
      break;
    }
  }
  return {text.str(), call.part_bytes};
}

WorkPtr DistributedBackend::submit_to_gloo(Call& call) {
  const bool is_point_to_point = c10d::isP2POp(call.kind.type);
  const std::shared_ptr<Staging> staging = stage(call);
  const std::shared_ptr<Group>& group = group_of(call);
  const uint64_t sequence = is_point_to_point ? group->sequence() : group->next_sequence();
  auto request = std::make_shared<Request>();
  request->work = c10::make_intrusive<DistributedWork>(getRank(), call.kind, sequence, staging, std::move(call.results),
                                                       group->waiters());
  request->staging = staging;
  if (!is_point_to_point && sequence <= kMaxComparedCalls && getSize() > 1) {
    request->fingerprint = fingerprint_of(call);
  }
  request->post = std::move(call.post);
  request->adjust = std::move(call.adjust);
  request->timeout = options_->timeout;
  const c10::intrusive_ptr<DistributedWork> work = request->work;
  submit_timed(*group, std::move(request), is_point_to_point);
  if (staging->is_streamed()) {
    staging->queue_results(call.kind.title);
  }
  record_async_results(call, work, staging);
  return work;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/staging.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "core/blocking.h"
#include "core/capture.h"
#include "core/driver.h"
#include "core/observer.h"
#include "core/process.h"
#include "distributed/group.h"
#include "memory/caching_allocator.h"
#include "ops/tensors/host_view.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

at::Tensor empty_on_cpu(const at::Tensor& like, bool is_pinned) {
  return at::empty(like.sizes(), like.options().device(at::kCPU).requires_grad(false).pinned_memory(is_pinned));
}

// Return true if the tensor's memory holds its elements as Gloo would order them.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

Staging::Staging(Transport transport, const CallStreams& streams, const Tensors& read, const Tensors& written,
                 bool is_in_place)
    : transport_(transport),
      streams_(streams),
      is_in_place_(is_in_place),
      may_stream_(may_wait_in_streams()),
      read_(read) {
  if (!is_in_place) {
    written_ = written;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (streams_.current != nullptr) {
    if (streams_.out != streams_.current) {
      ready_.record(*streams_.current);
      if (streams_.in != streams_.current) {
        ready_.block(*streams_.in);
      }
      ready_.block(*streams_.out);
    }
    if (transport_ == Transport::Staged) {
      copy_in();
    }
    ready_.record(*streams_.in);
  }
  if (transport_ == Transport::Native) {
    is_captured_ = capture_of(*streams_.out) != nullptr;
    if (!is_captured_) {
      queued_at_ = next_unique_position(*streams_.out);
    }
    make_contiguous();
    return;
  }
  if (transport_ != Transport::Staged) {
    reach(read_, &read_views_, &in_);
    reach(written_, &out_views_, &out_);
  }
  if (can_stream()) {
    exchanged_.emplace(*streams_.out);
  }
}

// A stream may wait for the host unless work behind the wait would block the caller, because the
// caller may hold data that the peer needs. OUTBOARD_BLOCKING makes each call block.
bool Staging::can_stream() const {
  if (streams_.out == nullptr || read_.size() + written_.size() == 0 || !HostEvent::is_supported() ||
      waits_for_calls() || !may_stream_) {
    return false;
  }
  const Tensors& to = is_in_place_ ? read_ : written_;
  return transport_ != Transport::Staged ||
         (driver().host_alloc != nullptr && std::all_of(to.begin(), to.end(), is_plain));
}

Staging::~Staging() {
  // Reference counts in torch's libraries order this behind every use. The lock
  // shows it to ThreadSanitizer too.
  const std::lock_guard lock(mutex_);
  const bool is_copied = transport_ == Transport::Staged || transport_ == Transport::Native;
  if (!is_copied || is_captured_ || streams_.out == streams_.current || driver_is_gone()) {
    return;
  }
  const auto keep_for = [](const Tensors& tensors, Stream& stream) {
    for (const at::Tensor& tensor : tensors) {
      record_stream(tensor.storage().data_ptr(), stream);
    }
  };
  // Copies that were not waited for may still be queued: the memory is theirs until they are done.
  if (!is_ready_) {
    keep_for(read_, transport_ == Transport::Native ? *streams_.out : *streams_.in);
  }
  if (!done_->is_joined) {
    keep_for(is_in_place_ ? read_ : written_, *streams_.out);
  }
}

void Staging::make_contiguous() {
  const DisableObserver unobserved;
  const c10::StreamGuard guard(to_c10(*streams_.out));
  const auto fresh = [](const at::Tensor& like) {
    return at::empty(like.sizes(), like.options().requires_grad(false));
  };
  for (const at::Tensor& tensor : read_) {
    in_.push_back(is_plain(tensor) ? tensor.detach() : fresh(tensor).copy_(tensor, /*non_blocking=*/true));
  }
  for (const at::Tensor& tensor : written_) {
    out_.push_back(is_plain(tensor) ? tensor.detach() : fresh(tensor));
  }
}

void Staging::copy_in() {
  const DisableObserver unobserved;
  const c10::StreamGuard guard(to_c10(*streams_.in));
  for (const at::Tensor& tensor : read_) {
    in_.push_back(empty_on_cpu(tensor, true).copy_(tensor, /*non_blocking=*/true));
  }
  for (const at::Tensor& tensor : written_) {
    out_.push_back(empty_on_cpu(tensor, true));
  }
}

void Staging::reach(const Tensors& tensors, Tensors* views, Tensors* buffers) const {
  for (const at::Tensor& tensor : tensors) {
    views->push_back(transport_ == Transport::Cpu ? tensor.detach() : host_view_without_wait(tensor));
    buffers->push_back(is_plain(views->back()) ? views->back() : at::Tensor());
  }
}

void Staging::wait_until_ready() {
  if (streams_.current != nullptr) {
    ready_.synchronize_for_queued_work();
  }
  for (Stream* const stream : followed_) {
    Event end;
    end.record(*stream);
    end.synchronize_for_queued_work();
  }
  is_ready_ = true;
  for (size_t i = 0; i < in_.size(); ++i) {
    if (!in_[i].defined()) {
      in_[i] = empty_on_cpu(read_views_[i], false).copy_(read_views_[i]);
    }
  }
  for (size_t i = 0; i < out_.size(); ++i) {
    if (!out_[i].defined()) {
      out_[i] = empty_on_cpu(out_views_[i], false);
    }
  }
}

void Staging::finish() {
  if (transport_ == Transport::Staged) {
    if (is_streamed()) {
      return;  // queue_results, which may be under way, has the tensors
    }
    copy_out();
    done_->event.record(*streams_.out);
  } else {
    Tensors& from = out();
    const Tensors& to = is_in_place_ ? read_views_ : out_views_;
    for (size_t i = 0; i < to.size(); ++i) {
      if (!is_plain(to[i])) {
        to[i].copy_(from[i]);
      }
    }
  }
  in_.clear();
  out_.clear();
  read_views_.clear();
  out_views_.clear();
}

void Staging::copy_out() {
  const DisableObserver unobserved;
  const Tensors& from = out();
  const Tensors& to = is_in_place_ ? read_ : written_;
  const c10::StreamGuard guard(to_c10(*streams_.out));
  for (size_t i = 0; i < to.size(); ++i) {
    if (transport_ == Transport::Staged || !is_plain(to[i])) {
      to[i].copy_(from[i], /*non_blocking=*/true);
    }
  }
}

void Staging::queue_results(const char* name) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (exchanged_) {
    exchanged_->block(name);
  } else {
    streams_.out->last_work.store(name, std::memory_order_relaxed);
  }
  if (transport_ == Transport::Staged || transport_ == Transport::Native) {
    copy_out();
  }
  done_->event.record(*streams_.out);
}

void Staging::release(const std::exception_ptr& error) {
  if (exchanged_) {
    exchanged_->signal(error);
  } else if (transport_ == Transport::Native && error && !is_captured_) {
    report_failure(queued_at_, error);
  }
}

void Staging::raise_failure() {
  std::exception_ptr first;
  for (bool is_clear = false; !is_clear;) {
    try {
      done_->event.drain();
    } catch (...) {  // the wait itself: it would fail each time
      first = first ? first : std::current_exception();
      break;
    }
    try {
      done_->event.synchronize();
      is_clear = true;
    } catch (...) {
      // Further failures belong to streams that this stream waited for. Those streams raise them.
      first = first ? first : std::current_exception();
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

void Staging::join() {
  const std::lock_guard lock(mutex_);
  if (!is_in_place_) {
    read_.clear();  // not on the group's thread, which may outlive the objects needed to free a tensor
  }
  if (done_->event.is_recorded()) {
    Stream& current = current_stream(streams_.current->device);
    done_->event.block(current);
    done_->is_joined = true;
    if (transport_ == Transport::Native) {
      is_ready_ = true;  // memory is used again behind this wait
      in_.clear();
      out_.clear();
    }
  }
}

bool Staging::is_done() const {
  return done_->event.query();
}

uint64_t Staging::bytes() const {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : read_.empty() ? written_ : read_) {
    bytes += tensor.nbytes();
  }
  return bytes;
}

void Staging::observe(const char* op) const {
  Observer* const active = outboard::observer();
  if (C10_LIKELY(active == nullptr) || transport_ == Transport::Cpu || streams_.out == nullptr || is_captured_) {
    return;
  }
  std::vector<ObservedAccess> accesses;
  const auto add = [&](const Tensors& tensors, bool is_write) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() > 0) {
        accesses.push_back(access_to(tensor, is_write));
      }
    }
  };
  add(read_, is_in_place_);
  add(written_, true);
  const Stream& stream = *streams_.out;
  if (!accesses.empty()) {
    active->access(op, stream, accesses.data(), accesses.size());
  }
  if (waits_on_host()) {
    observe_order(ObservedOrder::EventRecord, stream.device, stream.id, stream.device,
                  reinterpret_cast<uint64_t>(this));
  }
}

void Staging::observe_wait() const {
  if (waits_on_host()) {
    const c10::DeviceIndex device = streams_.out->device;
    observe_order(ObservedOrder::EventSync, device, 0, device, reinterpret_cast<uint64_t>(this));
  }
}

}  // namespace outboard

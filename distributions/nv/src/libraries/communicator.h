// SPDX-License-Identifier: BSD-3-Clause
// One rank's end of a group, in NCCL.
//
// Ranks meet without blocking calls, so a rank that does not come is noticed. A communicator of
// that kind starts a thread for each call, which takes longer than exchanging a few kilobytes. Once
// all ranks have met, a second one is split from it, whose calls are queued at once (NCCL 2.18.1).
// Such a call may wait within NCCL for its peers, if they have yet to be connected. The two
// communicators have one flag for aborts: an abort of the first, on which no call is ever under
// way, ends a call within the second.
#pragma once

#include <atomic>
#include <mutex>

#include "nccl.h"
#include "torch_outboard/driver.h"

namespace nv {

ob_status nccl_fail(const Nccl& nccl, ncclComm comm, ncclResult code, const char* function);

// Thread-safe. The device's context is current in all calls.
class Communicator {
 public:
  Communicator(const Nccl& nccl, int32_t device, int32_t size, int32_t rank)
      : device(device), size(size), nccl_(nccl), rank_(rank) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const int32_t device;
  const int32_t size;

  ob_status join(const void* id);
  ob_status status();
  ob_status abort();
  ob_status destroy();

  // Held by calls: an abort must not free what they use.
  std::mutex& mutex() noexcept { return mutex_; }
  // The rest with the mutex held. Return OB_OK if a call may be queued.
  ob_status check() const;
  ncclComm handle() const noexcept { return calls_; }
  // Return what a queued call is at.
  ob_status outcome(ncclResult code, const char* function) const;

 private:
  enum class Stage { kJoining, kSplitting, kReady };
  ob_status query_status(ncclComm comm) const;
  ob_status advance();
  bool splits() const;
  ob_status end(ncclComm comm) const;

  const Nccl& nccl_;
  const int32_t rank_;
  std::atomic<bool> is_aborted_{false};
  std::mutex join_mutex_;  // guards the next two; never held during a wait for a peer
  Stage stage_ = Stage::kJoining;
  ncclComm joined_ = nullptr;
  std::mutex mutex_;
  ncclComm calls_ = nullptr;  // guarded by mutex_ once ready
};

}  // namespace nv

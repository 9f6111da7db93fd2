// SPDX-License-Identifier: BSD-3-Clause
#include "communicator.h"

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "../driver.h"

namespace nv {

namespace {
constexpr int kSplitVersion = 21801;
}  // namespace

ob_status nccl_fail(const Nccl& nccl, ncclComm comm, ncclResult code, const char* function) {
  const char* detail = nccl.GetLastError(comm);
  const char* text = nccl.GetErrorString(code);
  // 1 to 6: CUDA, system, internal, invalid argument, invalid usage, remote.
  const ob_status status = code == 4 || code == 5 ? OB_INVALID_ARGUMENT : code == 6 ? OB_UNAVAILABLE : OB_INTERNAL;
  return fail(status, "%s returned %s%s%s", function, text, detail != nullptr && *detail != '\0' ? ": " : "",
              detail != nullptr ? detail : "");
}

ob_status Communicator::join(const void* id_bytes) {
  ncclId id;
  std::memcpy(&id, id_bytes, sizeof id);
  ncclConfig options;
  options.splitShare = 1;  // one flag for aborts
  const std::lock_guard lock(join_mutex_);
  const ncclResult code = nccl_.CommInitRankConfig(&joined_, size, id, rank_, &options);
  if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS) return OB_OK;
  return nccl_fail(nccl_, nullptr, code, "ncclCommInitRankConfig");
}

// Do not split if NCCL's environment variable turns off the shared abort flag: without it, calls on
// the split communicator could not be aborted.
bool Communicator::splits() const {
  const char* const shares = std::getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES");
  return nccl_.CommSplit != nullptr && nccl_.version >= kSplitVersion &&
         (shares == nullptr || std::strcmp(shares, "1") == 0);
}

ob_status Communicator::query_status(ncclComm comm) const {
  ncclResult state = NCCL_SUCCESS;
  const ncclResult code = nccl_.CommGetAsyncError(comm, &state);
  if (code != NCCL_SUCCESS) return nccl_fail(nccl_, comm, code, "ncclCommGetAsyncError");
  if (state == NCCL_IN_PROGRESS) return OB_NOT_READY;
  return state == NCCL_SUCCESS ? OB_OK : nccl_fail(nccl_, comm, state, "the communicator");
}

// Go on to the next stage that can be reached without waiting. join_mutex_ is held.
ob_status Communicator::advance() {
  if (is_aborted_) return fail(OB_ABORTED, "the communicator was aborted");
  if (stage_ == Stage::kReady) return OB_OK;
  if (const ob_status status = query_status(joined_); status != OB_OK) return status;
  if (stage_ == Stage::kJoining && splits()) {
    ncclConfig options;
    options.blocking = 1;
    options.splitShare = 1;
    const ncclResult code = nccl_.CommSplit(joined_, 0, rank_, &calls_, &options);
    if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) return nccl_fail(nccl_, joined_, code, "ncclCommSplit");
    stage_ = Stage::kSplitting;
    if (const ob_status status = query_status(joined_); status != OB_OK) return status;
  } else if (stage_ == Stage::kJoining) {
    calls_ = std::exchange(joined_, nullptr);
  }
  stage_ = Stage::kReady;
  return OB_OK;
}

ob_status Communicator::status() {
  {
    const std::lock_guard lock(join_mutex_);
    if (const ob_status status = advance(); status != OB_OK) return status;
  }
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return OB_NOT_READY;  // a call is being queued
  const ob_status status = check();
  return status == OB_OK ? query_status(calls_) : status;
}

ob_status Communicator::check() const {
  return is_aborted_ ? fail(OB_ABORTED, "the communicator was aborted") : OB_OK;
}

ob_status Communicator::outcome(ncclResult code, const char* function) const {
  if (code == NCCL_SUCCESS) return OB_OK;
  return code == NCCL_IN_PROGRESS ? query_status(calls_) : nccl_fail(nccl_, calls_, code, function);
}

ob_status Communicator::abort() {
  ncclResult first = NCCL_SUCCESS, second = NCCL_SUCCESS;
  bool is_ready = false;
  {
    const std::lock_guard lock(join_mutex_);
    if (is_aborted_.exchange(true)) return OB_OK;
    is_ready = stage_ == Stage::kReady;
    if (joined_ != nullptr) first = nccl_.CommAbort(std::exchange(joined_, nullptr));
  }
  const std::lock_guard lock(mutex_);  // a call that holds it ends, because the flag is set
  if (is_ready) second = nccl_.CommAbort(std::exchange(calls_, nullptr));
  for (const ncclResult code : {first, second}) {
    if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) return nccl_fail(nccl_, nullptr, code, "ncclCommAbort");
  }
  return OB_OK;
}

ob_status Communicator::end(ncclComm comm) const {
  ncclResult code = nccl_.CommFinalize(comm);
  if (code == NCCL_IN_PROGRESS) {
    ob_status status;
    while ((status = query_status(comm)) == OB_NOT_READY) {
      const timespec pause = {0, 100'000};
      nanosleep(&pause, nullptr);
    }
    if (status != OB_OK) {
      static_cast<void>(nccl_.CommAbort(comm));
      return status;
    }
    code = NCCL_SUCCESS;
  }
  if (code == NCCL_SUCCESS) code = nccl_.CommDestroy(comm);
  return code == NCCL_SUCCESS ? OB_OK : nccl_fail(nccl_, nullptr, code, "ncclCommDestroy");
}

ob_status Communicator::destroy() {
  const std::scoped_lock lock(join_mutex_, mutex_);
  if (is_aborted_) return OB_OK;  // an abort frees both
  ob_status status = OB_OK;
  for (ncclComm* const comm : {&calls_, &joined_}) {
    if (*comm == nullptr) continue;
    const ob_status ended = end(std::exchange(*comm, nullptr));
    status = status == OB_OK ? ended : status;
  }
  return status;
}

}  // namespace nv

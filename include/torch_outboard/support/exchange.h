// SPDX-License-Identifier: BSD-3-Clause
// Exchanges of bytes between the processes of a group, through shared memory, for simulated
// collectives.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "torch_outboard/support/differing_calls.h"

namespace support {

// A transfer: bytes that are sent to a rank, or received from one. `call` describes the call that
// both ranks must be making.
struct Transfer {
  bool is_send;
  int peer;
  char* data;
  uint64_t bytes;
  uint64_t done = 0;
  std::string call = {};
};

// One rank's end. A file in /dev/shm holds a box for each ordered pair of ranks, through which
// messages pass in pieces. Each rank locks one byte of the file, so that the others notice when its
// process ends. Only one thread at a time may call `run`; any thread may call the other functions.
class Exchange {
 public:
  static constexpr int kMaxRanks = 16;

  // Join the group. Return null, with a sentence that states the reason, if the system refuses.
  static std::unique_ptr<Exchange> open(const std::string& name, int rank, int size, std::string* out_error) {
    if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
      *out_error = "rank " + std::to_string(rank) + " does not exist in a group of " + std::to_string(size) +
                   ", or the group has more than 16 ranks";
      return nullptr;
    }
    std::unique_ptr<Exchange> made(new Exchange(name, rank, size));
    return made->map(out_error) ? std::move(made) : nullptr;
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() {
    if (shared_ != nullptr) {
      shared_->has_left[rank_].store(1);
      munmap(static_cast<void*>(shared_), bytes());
    }
    if (file_ >= 0) close(file_);
    if (!is_unlinked_) unlink(path_.c_str());
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Return true if all ranks have joined. The file is then unlinked, so that a killed process
  // leaves no file behind.
  bool has_all() {
    for (int i = 0; i < size_; ++i) {
      if (shared_->has_joined[i].load() == 0) return false;
    }
    if (!is_unlinked_.exchange(true)) unlink(path_.c_str());
    return true;
  }

  void abort() { shared_->is_aborted.store(1); }

  // Return the reason why the group cannot continue; "" if it can.
  std::string find_error() const {
    if (shared_->is_aborted.load() != 0) return "the communicator was aborted";
    for (int i = 0; i < size_; ++i) {
      if (i != rank_ && shared_->has_joined[i].load() != 0 && shared_->has_left[i].load() == 0 && is_gone(i)) {
        return "the process of rank " + std::to_string(i) + " has ended";
      }
    }
    return "";
  }

  // Run all transfers to completion, in any order except among transfers with the same peer and
  // direction. Return false, with a sentence that states the reason, if the group cannot continue
  // or a peer makes a different call.
  bool run(std::vector<Transfer>& transfers, std::string* out_error) {
    for (int idle = 0;;) {
      bool is_over = true;
      bool has_moved = false;
      bool is_held[2][kMaxRanks] = {};  // an earlier transfer is under way
      for (Transfer& transfer : transfers) {
        if (transfer.done == transfer.bytes) continue;
        is_over = false;
        bool& held = is_held[transfer.is_send][transfer.peer];
        has_moved = (!held && move(transfer, out_error)) || has_moved;
        if (!out_error->empty()) return false;
        held = true;
      }
      if (is_over) return true;
      if (has_moved) {
        idle = 0;
        continue;
      }
      if (!rest(++idle, transfers, out_error)) return false;
    }
  }

 private:
  static constexpr uint64_t kPieceBytes = 64 << 10;
  static constexpr size_t kCallBytes = 96;
  struct Box {
    std::atomic<uint64_t> filled;  // bytes; 0: empty
    char call[kCallBytes];         // the call of the rank that filled the box, cut to fit
    char data[kPieceBytes];
  };
  struct Shared {
    std::atomic<int32_t> is_aborted;
    std::atomic<int32_t> has_joined[kMaxRanks];
    std::atomic<int32_t> has_left[kMaxRanks];
    Box boxes[1];  // size * size
  };

  Exchange(const std::string& name, int rank, int size) : path_("/dev/shm/" + name), rank_(rank), size_(size) {}

  uint64_t bytes() const { return sizeof(Shared) + sizeof(Box) * static_cast<uint64_t>(size_ * size_); }

  bool map(std::string* out_error) {
    const auto refuse = [&](const char* what) {
      *out_error = std::string(what) + " of " + path_ + ": " + std::strerror(errno);
      return false;
    };
    file_ = ::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file_ < 0) return refuse("opening");
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank_;
    lock.l_len = 1;
    if (fcntl(file_, F_OFD_SETLK, &lock) != 0) return refuse("locking");
    // Take the memory now: if /dev/shm is full, a write to a missing page ends the process.
    errno = posix_fallocate(file_, 0, static_cast<off_t>(bytes()));
    if (errno != 0) return refuse("growth");
    void* memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) return refuse("mapping");
    shared_ = static_cast<Shared*>(memory);
    shared_->has_joined[rank_].store(1);
    return true;
  }

  bool is_gone(int peer) const {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = peer;
    lock.l_len = 1;
    return fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  }

  Box& box(int from, int to) { return shared_->boxes[from * size_ + to]; }

  bool move(Transfer& transfer, std::string* out_error) {
    Box& through = transfer.is_send ? box(rank_, transfer.peer) : box(transfer.peer, rank_);
    const uint64_t filled = through.filled.load(std::memory_order_acquire);
    if ((filled == 0) != transfer.is_send) return false;
    if (transfer.is_send) {
      std::snprintf(through.call, kCallBytes, "%s", transfer.call.c_str());
    } else if (transfer.call.compare(0, kCallBytes - 1, through.call) != 0) {
      *out_error = differing_calls(transfer.peer, through.call, rank_, transfer.call);
      return false;
    }
    const uint64_t left = transfer.bytes - transfer.done;
    const uint64_t size = std::min(transfer.is_send ? kPieceBytes : filled, left);
    if (transfer.is_send) {
      std::memcpy(through.data, transfer.data + transfer.done, size);
    } else {
      std::memcpy(transfer.data + transfer.done, through.data, size);
    }
    through.filled.store(transfer.is_send ? size : 0, std::memory_order_release);
    transfer.done += size;
    return true;
  }

  // Wait briefly. Return false if the group cannot continue.
  bool rest(int idle, const std::vector<Transfer>& transfers, std::string* out_error) {
    if (idle < 64) {
      sched_yield();
      return true;
    }
    const timespec pause = {0, 50'000};
    nanosleep(&pause, nullptr);
    if (idle % 64 != 0 && shared_->is_aborted.load() == 0) return true;
    *out_error = find_error();
    for (const Transfer& transfer : transfers) {
      if (out_error->empty() && transfer.done != transfer.bytes && shared_->has_left[transfer.peer].load() != 0 &&
          (transfer.is_send || box(transfer.peer, rank_).filled.load() == 0)) {
        *out_error = "rank " + std::to_string(transfer.peer) + " has left the group";
      }
    }
    return out_error->empty();
  }

  const std::string path_;
  const int rank_;
  const int size_;
  int file_ = -1;
  std::atomic<bool> is_unlinked_{false};
  Shared* shared_ = nullptr;
};

}  // namespace support

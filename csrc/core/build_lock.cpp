// SPDX-License-Identifier: BSD-3-Clause
#include "core/build_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace outboard {

namespace {

constexpr std::chrono::seconds kMaxWait{60};  // behind a process that is stopped, or a compiler that hangs
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLastPause{50};

std::atomic<bool> are_ended{false};

bool try_lock(int file) {
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

BuildLock::BuildLock(std::string path) : path_(std::move(path)) {
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0 || try_lock(file_)) {
    return;
  }
  has_waited_ = errno == EWOULDBLOCK;  // otherwise the file system has no locks
  const auto end = std::chrono::steady_clock::now() + kMaxWait;
  for (auto pause = kFirstPause; has_waited_ && !are_ended.load() && std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLastPause);
    if (try_lock(file_)) {
      flock(file_, LOCK_UN);  // waiting processes find a result, or work at the same time
      break;
    }
  }
  close(std::exchange(file_, -1));
}

BuildLock::~BuildLock() {
  if (file_ >= 0) {
    unlink(path_.c_str());
    flock(file_, LOCK_UN);  // a forked child may hold the file open
    close(std::exchange(file_, -1));
  }
}

void end_lock_waits() noexcept {
  are_ended.store(true);
}

}  // namespace outboard

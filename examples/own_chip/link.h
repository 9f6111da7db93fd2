// SPDX-License-Identifier: BSD-3-Clause
// The connection to the chip's process: a thread sends, and another one receives, so that no caller
// waits until its request is understood.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "chip.h"
#include "failure.h"
#include "protocol.h"

// The reply to a request. `then` gets its bytes before a waiting thread is woken.
struct Reply {
  uint64_t number = 0;
  std::function<void(const std::string&)> then;
  bool has_come = false;
  chip_result result = CHIP_OK;
  uint64_t value = 0;
  std::string bytes;
};
using ReplyPtr = std::shared_ptr<Reply>;

class Link {
 public:
  Link(int socket, pid_t process) : socket_(socket), process_(process) {}
  ~Link() { close(socket_); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Send a request that has no reply.
  void notify(chip_protocol::Op op, std::array<uint64_t, 4> numbers, const void* bytes = nullptr, size_t size = 0) {
    const std::lock_guard lock(mutex_);
    post(0, op, numbers, bytes, size);
  }

  // Send a request and return its reply, which comes later.
  ReplyPtr request(chip_protocol::Op op, std::array<uint64_t, 4> numbers, const void* bytes = nullptr, size_t size = 0,
                   std::function<void(const std::string&)> then = nullptr) {
    const std::lock_guard lock(mutex_);
    auto reply = std::make_shared<Reply>();
    reply->number = ++last_number_;
    reply->then = std::move(then);
    post(reply->number, op, numbers, bytes, size);
    pending_[reply->number] = reply;
    return reply;
  }

  bool has_come(const ReplyPtr& reply) {
    const std::lock_guard lock(mutex_);
    return reply->has_come;
  }

  // Throw a Failure if the chip's process is known to have ended.
  void check() {
    const std::lock_guard lock(mutex_);
    if (!loss_.empty()) throw Failure(CHIP_LOST, loss_);
  }

  uint64_t wait(const ReplyPtr& reply) {
    std::unique_lock lock(mutex_);
    come_.wait(lock, [&] { return reply->has_come; });
    if (reply->result != CHIP_OK) throw Failure(reply->result, reply->bytes);
    return reply->value;
  }

  void end() {
    shutdown(socket_, SHUT_WR);
    std::unique_lock lock(mutex_);
    come_.wait(lock, [&] { return !loss_.empty(); });
  }

  void send() {
    std::unique_lock lock(mutex_);
    while (true) {
      posted_.wait(lock, [&] { return !outbox_.empty() || !loss_.empty(); });
      if (!loss_.empty()) return;
      const std::string next = std::move(outbox_.front());
      outbox_.pop_front();
      lock.unlock();
      chip_protocol::send_all(socket_, next);  // a loss is told by `receive`
      lock.lock();
    }
  }

  void receive() {
    chip_protocol::Answer head;
    std::string bytes, last_words;
    while (chip_protocol::receive(socket_, &head, &bytes)) {
      const std::lock_guard lock(mutex_);
      const auto found = pending_.find(head.number);
      if (found != pending_.end()) {
        come(*found->second, static_cast<chip_result>(head.result), head.value, std::move(bytes));
        pending_.erase(found);
      } else {
        last_words = ": " + bytes;
      }
    }
    int status = 0;
    waitpid(process_, &status, 0);
    const std::lock_guard lock(mutex_);
    loss_ = "the chip's process, " + std::to_string(process_) + ", has ended " +
            (WIFSIGNALED(status) ? "by signal " + std::to_string(WTERMSIG(status))
                                 : "with status " + std::to_string(WEXITSTATUS(status))) +
            last_words;
    for (auto& [number, reply] : pending_) come(*reply, CHIP_LOST, 0, loss_);
    pending_.clear();
    come_.notify_all();
    posted_.notify_all();
  }

 private:
  void post(uint64_t number, chip_protocol::Op op, std::array<uint64_t, 4> n, const void* bytes, size_t size) {
    if (!loss_.empty()) throw Failure(CHIP_LOST, loss_);
    const chip_protocol::Request head = {op, 0, number, {n[0], n[1], n[2], n[3]}};
    outbox_.push_back(chip_protocol::message(head, bytes, size));
    posted_.notify_one();
  }

  void come(Reply& reply, chip_result result, uint64_t value, std::string bytes) {
    if (result == CHIP_OK && reply.then) reply.then(bytes);
    reply.result = result;
    reply.value = value;
    reply.bytes = std::move(bytes);
    reply.has_come = true;
    come_.notify_all();
  }

  const int socket_;
  const pid_t process_;
  std::mutex mutex_;  // of all below
  std::condition_variable come_, posted_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, ReplyPtr> pending_;
  std::deque<std::string> outbox_;
  std::string loss_;  // why the chip is lost
};

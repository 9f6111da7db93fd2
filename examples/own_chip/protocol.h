// SPDX-License-Identifier: BSD-3-Clause
// The messages between the runtime and the chip's process: a header, and `size` bytes behind it.
// Requests are taken one at a time, in the order in which they were sent; an answer has its
// request's number. 0: nobody waits for an answer.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace chip_protocol {

constexpr int kSocket = 3;  // of the chip's process

// What is asked for, with the numbers that each takes, and what it answers.
enum class Op : uint64_t {
  kMemoryCreate,  // device, bytes: the address
  kMemoryDestroy,  // address, of the host's memory too
  kMemoryLeft,  // device: bytes
  kHostMap,  // address, bytes, and the path of memory that is to be reached by that address
  kProgramLoad,  // program, and its bytes
  kProgramDestroy,  // program
  kKernelFind,  // program, kernel, and the name: 1, or 0 if there is none
  kStreamCreate,  // stream; this and what follows name the stream first
  kStreamDestroy,
  kSynchronize,  // answered once all before it is done, with its first failure
  kWrite,  // address, and the bytes
  kRead,  // address, bytes: the bytes
  kCopy,  // dst, src, bytes
  kFill,  // address, count, and the pattern
  kMark,  // when it was reached, in nanoseconds of CLOCK_MONOTONIC; the bytes are the stream's failure so far
  kWait,  // number of a mark
  kLaunch,  // kernel, items, and each argument behind its Argument
};

struct Request {
  Op op;
  uint64_t size;
  uint64_t number;
  uint64_t numbers[4];
};

struct Answer {
  int64_t result;  // chip_result; the bytes of a failure are its reason
  uint64_t size;
  uint64_t number;
  uint64_t value;
};

struct Argument {
  uint32_t is_address;
  uint32_t size;
};

template <class Head>
std::string message(Head head, const void* bytes, size_t size) {
  head.size = size;
  std::string text(reinterpret_cast<const char*>(&head), sizeof head);
  return size == 0 ? text : text.append(static_cast<const char*>(bytes), size);
}

// Both give false once the other side has ended.
inline bool send_all(int socket, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t sent = send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    done += static_cast<size_t>(sent);
  }
  return true;
}

inline bool receive_all(int socket, void* out, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = recv(socket, static_cast<char*>(out) + done, size - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

template <class Head>
bool receive(int socket, Head* head, std::string* bytes) {
  if (!receive_all(socket, head, sizeof *head)) return false;
  bytes->resize(head->size);
  return receive_all(socket, bytes->data(), bytes->size());
}

}  // namespace chip_protocol

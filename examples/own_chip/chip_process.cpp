// SPDX-License-Identifier: BSD-3-Clause
// The chip: a process that owns the memory of its devices and runs their streams, started by
// chip.cpp:
//
//     chip_process BYTES
//
// Each stream has its own thread, so requests never wait. The process ends when the socket closes,
// however the other process has ended.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "chip.h"
#include "protocol.h"

namespace {

using chip_protocol::Op;
using chip_protocol::Request;

constexpr uint64_t kSpacing = 1 << 21;  // addresses are multiples of it and are never reused
constexpr uint64_t kHost = UINT64_MAX;  // in place of a device

using Kernel = void (*)(int64_t items, void* const* arguments);

std::mutex sending;

void answer(uint64_t number, uint64_t value = 0, const std::string& bytes = "", chip_result result = CHIP_OK) {
  const std::lock_guard lock(sending);
  const chip_protocol::Answer head = {result, 0, number, value};
  chip_protocol::send_all(chip_protocol::kSocket, chip_protocol::message(head, bytes.data(), bytes.size()));
}

// ---- Memory ----

struct Block {
  uint64_t device;
  std::shared_ptr<char> memory;
  uint64_t size;
};

class Memory {
 public:
  explicit Memory(uint64_t size) : size_(size) {}

  uint64_t left(uint64_t device) {
    const std::lock_guard lock(mutex_);
    uint64_t left = size_;
    for (const auto& [address, block] : blocks_) left -= block.device == device ? block.size : 0;
    return left;
  }

  // Return 0 if not enough bytes are left.
  uint64_t create(uint64_t device, uint64_t bytes) {
    if (bytes > left(device)) return 0;
    const uint64_t address = next_;
    next_ += (bytes + kSpacing - 1) / kSpacing * kSpacing;
    add(address,
        {device, std::shared_ptr<char>(static_cast<char*>(aligned_alloc(512, (bytes + 511) / 512 * 512)), free),
         bytes});
    return address;
  }

  void add(uint64_t address, Block block) {
    const std::lock_guard lock(mutex_);
    blocks_[address] = std::move(block);
  }

  void destroy(uint64_t address) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(address);
  }

  // Return the address of these bytes in this process.
  char* find(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto found = blocks_.upper_bound(address);
    if (found != blocks_.begin()) {
      --found;
      const uint64_t offset = address - found->first;
      if (offset <= found->second.size && bytes <= found->second.size - offset) {
        return found->second.memory.get() + offset;
      }
    }
    char text[96];
    snprintf(text, sizeof text, "the %llu bytes at 0x%llx are not memory of a device",
             static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address));
    throw std::runtime_error(text);
  }

 private:
  const uint64_t size_;
  std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;
  uint64_t next_ = kSpacing;
};

// ---- Streams ----

// A point in a stream's work, which others wait for.
class Mark {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    is_reached_ = true;
    reached_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    reached_.wait(lock, [&] { return is_reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  bool is_reached_ = false;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  void start() {
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  void put(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    is_there_.notify_one();
  }
  // Called by the stream's own thread. Return its first failure since the last call, or "".
  std::string take_failure() { return std::exchange(failure_, ""); }
  const std::string& failure() const { return failure_; }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      is_there_.wait(lock, [&] { return !work_.empty(); });
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!work) return;
      try {
        work();
      } catch (const std::exception& error) {
        if (failure_.empty()) failure_ = error.what();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable is_there_;
  std::deque<std::function<void()>> work_;
  std::string failure_;
};

// ---- Programs ----

// Return a program, or null. Its file gets a new name, because the loader opens libraries of the
// same name only once.
void* load(const std::string& binary) {
  std::string path = (getenv("TMPDIR") != nullptr ? std::string(getenv("TMPDIR")) : "/tmp") + "/chip_XXXXXX";
  const int file = mkstemp(path.data());
  const bool is_written = write(file, binary.data(), binary.size()) == static_cast<ssize_t>(binary.size());
  void* library = is_written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  close(file);
  unlink(path.c_str());
  return library;
}

std::mutex running;  // one kernel at a time: their additions to memory are not atomic

void launch(Memory& memory, Kernel kernel, uint64_t items, const std::string& bytes) {
  std::vector<std::unique_ptr<char[]>> values;
  std::vector<void*> places;
  for (size_t at = 0; at < bytes.size();) {
    chip_protocol::Argument head;
    std::memcpy(&head, bytes.data() + at, sizeof head);
    at += sizeof head;
    values.push_back(std::make_unique<char[]>(head.size));
    std::memcpy(values.back().get(), bytes.data() + at, head.size);
    at += head.size;
    places.push_back(values.back().get());
    if (head.is_address == 0) continue;
    uint64_t address = 0;
    std::memcpy(&address, places.back(), sizeof address);
    if (address == 0) continue;
    const char* here = memory.find(address, 1);
    std::memcpy(places.back(), &here, sizeof here);
  }
  const std::lock_guard lock(running);
  kernel(static_cast<int64_t>(items), places.data());
}

// ---- Requests ----

class Chip {
 public:
  explicit Chip(uint64_t memory) : memory_(memory) {}

  void take(const Request& request, std::string bytes) {
    const auto [a, b, c, d] = request.numbers;
    const uint64_t number = request.number;
    switch (request.op) {
      case Op::kMemoryCreate: {
        const uint64_t address = memory_.create(a, b);
        if (address != 0) return answer(number, address);
        const std::string left = std::to_string(memory_.left(a));
        return answer(number, 0, std::to_string(b) + " bytes asked for, " + left + " are free", CHIP_OUT_OF_MEMORY);
      }
      case Op::kMemoryDestroy:
        return memory_.destroy(a);
      case Op::kMemoryLeft:
        return answer(number, memory_.left(a));
      case Op::kHostMap: {
        const int file = open(bytes.c_str(), O_RDWR);
        void* here = mmap(nullptr, b, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (here == MAP_FAILED) return answer(number, 0, "the host's memory can't be mapped", CHIP_OUT_OF_MEMORY);
        memory_.add(a, {kHost, std::shared_ptr<char>(static_cast<char*>(here), [b = b](char* p) { munmap(p, b); }), b});
        return answer(number);
      }
      case Op::kProgramLoad:
        programs_[a] = load(bytes);
        if (programs_[a] != nullptr) return answer(number);
        return answer(number, 0, "these bytes are not a program for this chip", CHIP_INVALID);
      case Op::kProgramDestroy:
        dlclose(programs_.at(a));
        programs_.erase(a);
        return;
      case Op::kKernelFind:
        kernels_[b] = reinterpret_cast<Kernel>(dlsym(programs_.at(a), bytes.c_str()));
        return answer(number, kernels_[b] != nullptr);
      case Op::kStreamCreate:
        streams_[a] = std::make_shared<Stream>();
        return streams_[a]->start();
      case Op::kStreamDestroy:
        streams_.at(a)->put(nullptr);
        streams_.erase(a);
        return;
      default:
        const std::shared_ptr<Stream> stream = streams_.at(a);
        return stream->put(work(request, stream.get(), std::move(bytes)));
    }
  }

 private:
  // Return the work of a request.
  std::function<void()> work(const Request& request, Stream* stream, std::string bytes) {
    const auto [unused, a, b, c] = request.numbers;
    const uint64_t number = request.number;
    Memory& memory = memory_;
    switch (request.op) {
      case Op::kSynchronize:
        return [=] {
          const std::string failure = stream->take_failure();
          answer(number, 0, failure, failure.empty() ? CHIP_OK : CHIP_FAILED);
        };
      case Op::kWrite:
        return [=, &memory] { std::memcpy(memory.find(a, bytes.size()), bytes.data(), bytes.size()); };
      case Op::kRead:
        return [=, &memory] {
          try {
            answer(number, 0, std::string(memory.find(a, b), b));
          } catch (...) {
            answer(number);  // the stream keeps why
            throw;
          }
        };
      case Op::kCopy:
        return [=, &memory] { std::memmove(memory.find(a, c), memory.find(b, c), c); };
      case Op::kFill:
        return [=, &memory] {
          char* at = memory.find(a, b * bytes.size());
          for (uint64_t i = 0; i < b; ++i, at += bytes.size()) std::memcpy(at, bytes.data(), bytes.size());
        };
      case Op::kMark: {
        const auto mark = std::make_shared<Mark>();
        const std::lock_guard lock(marks_mutex_);
        marks_[number] = mark;
        return [=, this] {
          timespec now = {};
          clock_gettime(CLOCK_MONOTONIC, &now);
          const auto seconds = static_cast<uint64_t>(now.tv_sec);
          answer(number, seconds * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec), stream->failure());
          mark->reach();
          const std::lock_guard lock(marks_mutex_);
          marks_.erase(number);
        };
      }
      case Op::kWait: {
        const std::lock_guard lock(marks_mutex_);
        const auto mark = marks_.find(a);  // a missing mark was reached
        if (mark == marks_.end()) return [] {};
        return [mark = mark->second] { mark->wait(); };
      }
      case Op::kLaunch:
        return [=, &memory, kernel = kernels_.at(a)] { launch(memory, kernel, b, bytes); };
      default:
        throw std::runtime_error("there is no request " + std::to_string(static_cast<uint64_t>(request.op)));
    }
  }

  Memory memory_;
  std::map<uint64_t, void*> programs_;
  std::map<uint64_t, Kernel> kernels_;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;
  std::mutex marks_mutex_;
  std::map<uint64_t, std::shared_ptr<Mark>> marks_;  // those that are not reached
};

}  // namespace

int main(int argc, char** argv) {
  Chip& chip = *new Chip(strtoull(argc > 1 ? argv[1] : "0", nullptr, 10));  // streams use it to the very end
  Request request;
  std::string bytes;
  try {
    while (chip_protocol::receive(chip_protocol::kSocket, &request, &bytes)) chip.take(request, std::move(bytes));
  } catch (const std::exception& error) {
    answer(0, 0, error.what(), CHIP_FAILED);  // the last reply, for the next caller
    _exit(1);
  }
  _exit(0);
}

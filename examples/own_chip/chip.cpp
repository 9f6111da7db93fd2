// SPDX-License-Identifier: BSD-3-Clause
// What stands for your vendor's runtime, as chip.h describes it: it starts the chip's
// process and sends it requests.
//
// One thread sends and another receives, so that callers do not wait for replies. A mark in a
// stream is a request that is answered when the stream reaches it, so a query only looks at the
// replies so far.
#include "chip.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "failure.h"
#include "link.h"
#include "protocol.h"

extern char** environ;

namespace {

using chip_protocol::Op;

thread_local std::string last_reason;

template <class Body>
chip_result guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const Failure& failure) {
    last_reason = failure.what();
    return failure.result;
  } catch (const std::bad_alloc&) {
    last_reason = "the host is out of memory";
    return CHIP_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_reason = error.what();
    return CHIP_FAILED;
  }
}

std::string hex(uint64_t number) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
  return text;
}

std::shared_ptr<Link> start(uint64_t memory) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    throw Failure(CHIP_UNAVAILABLE, std::string("no socket: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], chip_protocol::kSocket);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A separate process group: Ctrl-C goes to this process, and the chip's process ends with it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string program = library_folder() + "chip_process", bytes = std::to_string(memory);
  char* arguments[] = {program.data(), bytes.data(), nullptr};
  pid_t process = 0;
  const int status = posix_spawn(&process, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(sockets[1]);
  if (status != 0) {
    close(sockets[0]);
    throw Failure(CHIP_UNAVAILABLE, program + " can't be run: " + std::strerror(status));
  }
  auto link = std::make_shared<Link>(sockets[0], process);
  std::thread([link] { link->send(); }).detach();
  std::thread([link] { link->receive(); }).detach();
  return link;
}

struct Stream {
  uint64_t handle;
  std::mutex mutex{};     // `last` is of what was sent last
  ReplyPtr last = nullptr;  // its reply, null if it has none
  bool is_mark = false;     // the reply says what has failed before it
};

struct Event {
  std::mutex mutex{};
  ReplyPtr mark = nullptr;  // the latest record's
};

// Objects by their handles, for any thread.
template <class Thing>
class Table {
 public:
  explicit Table(const char* name) : name_(name) {}
  void add(uint64_t handle, Thing thing) {
    const std::lock_guard lock(mutex_);
    things_[handle] = std::move(thing);
  }
  Thing get(uint64_t handle) const {
    const std::lock_guard lock(mutex_);
    return find(handle)->second;
  }
  Thing take(uint64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = find(handle);
    Thing taken = std::move(found->second);
    things_.erase(found);
    return taken;
  }
  // Return true if one of them (sizes by address) contains all of these bytes.
  bool has(uint64_t address, uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    auto found = things_.upper_bound(address);
    if (found == things_.begin()) return false;
    --found;
    const uint64_t offset = address - found->first;
    return offset <= found->second && bytes <= found->second - offset;
  }

 private:
  typename std::map<uint64_t, Thing>::const_iterator find(uint64_t handle) const {
    const auto found = things_.find(handle);
    if (found == things_.end()) throw Failure(CHIP_INVALID, hex(handle) + " is not a live " + name_);
    return found;
  }
  const char* name_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Thing> things_;
};

}  // namespace

std::string library_folder() {
  Dl_info info = {};
  dladdr(reinterpret_cast<const void*>(&chip_start), &info);
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

struct chip {
  std::shared_ptr<Link> link;
  int devices;
  std::atomic<uint64_t> last_handle{0};
  Table<uint64_t> memory{"allocation"};  // bytes
  Table<uint64_t> pinned{"host memory"};
  Table<std::shared_ptr<Stream>> streams{"stream"};
  Table<std::shared_ptr<Event>> events{"event"};
  Table<std::string> programs{"program"};  // what the compiler made, until it was asked for
  Table<bool> kernels{"kernel"};

  void check(int device) const {
    if (device >= 0 && device < devices) return;
    throw Failure(CHIP_INVALID, "there is no device " + std::to_string(device) + " of " + std::to_string(devices));
  }
  void check_range(uint64_t address, uint64_t bytes) const {
    if (memory.has(address, bytes)) return;
    throw Failure(CHIP_INVALID,
                  "the " + std::to_string(bytes) + " bytes at " + hex(address) + " are not inside an allocation");
  }
  void notify(uint64_t stream, Op op, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, const void* bytes = nullptr,
              size_t size = 0) {
    const auto queue = streams.get(stream);
    const std::lock_guard lock(queue->mutex);
    link->notify(op, {stream, a, b, c}, bytes, size);
    queue->last = nullptr;
  }
  ReplyPtr request(uint64_t stream, Op op, uint64_t a = 0, uint64_t b = 0,
                   std::function<void(const std::string&)> then = nullptr) {
    const auto queue = streams.get(stream);
    const std::lock_guard lock(queue->mutex);
    queue->is_mark = op == Op::kMark || op == Op::kSynchronize;
    return queue->last = link->request(op, {stream, a, b, 0}, nullptr, 0, std::move(then));
  }
  ReplyPtr mark(uint64_t event) {
    const auto found = events.get(event);
    const std::lock_guard lock(found->mutex);
    return found->mark;
  }
};

extern "C" {

const char* chip_reason(void) {
  return last_reason.c_str();
}

chip_result chip_start(int devices, uint64_t memory, chip** out_chip) {
  return guarded([&] {
    *out_chip = new chip{start(memory), devices};
    return CHIP_OK;
  });
}

void chip_stop(chip* c) {
  if (c != nullptr) c->link->end();
  delete c;
}

// ---- Memory ----

chip_result chip_memory_create(chip* c, int device, uint64_t bytes, uint64_t* out_address) {
  return guarded([&] {
    c->check(device);
    *out_address = c->link->wait(c->link->request(Op::kMemoryCreate, {static_cast<uint64_t>(device), bytes}));
    c->memory.add(*out_address, bytes);
    return CHIP_OK;
  });
}

chip_result chip_memory_destroy(chip* c, int device, uint64_t address) {
  return guarded([&] {
    c->check(device);
    c->memory.take(address);
    c->link->notify(Op::kMemoryDestroy, {address});
    return CHIP_OK;
  });
}

chip_result chip_memory_left(chip* c, int device, uint64_t* out_bytes) {
  return guarded([&] {
    c->check(device);
    *out_bytes = c->link->wait(c->link->request(Op::kMemoryLeft, {static_cast<uint64_t>(device)}));
    return CHIP_OK;
  });
}

chip_result chip_host_create(chip* c, uint64_t bytes, void** out_pointer) {
  return guarded([&] {
    const int file = memfd_create("pinned", MFD_CLOEXEC);
    void* here = posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0
                     ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                     : MAP_FAILED;
    if (here == MAP_FAILED) {
      close(file);
      throw Failure(CHIP_OUT_OF_MEMORY, "the host has no " + std::to_string(bytes) + " bytes to pin");
    }
    const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
    const auto address = reinterpret_cast<uint64_t>(here);
    const ReplyPtr reply = c->link->request(Op::kHostMap, {address, bytes}, path.data(), path.size());
    try {
      c->link->wait(reply);
    } catch (...) {
      close(file);
      munmap(here, bytes);
      throw;
    }
    close(file);
    c->pinned.add(address, bytes);
    *out_pointer = here;
    return CHIP_OK;
  });
}

chip_result chip_host_destroy(chip* c, void* pointer) {
  return guarded([&] {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    const uint64_t bytes = c->pinned.take(address);
    c->link->notify(Op::kMemoryDestroy, {address});
    munmap(pointer, bytes);
    return CHIP_OK;
  });
}

chip_result chip_copy_to(chip* c, uint64_t stream, uint64_t dst, const void* src, uint64_t bytes) {
  return guarded([&] {
    c->check_range(dst, bytes);
    const auto address = reinterpret_cast<uint64_t>(src);
    if (c->pinned.has(address, bytes)) {
      c->notify(stream, Op::kCopy, dst, address, bytes);
    } else {
      c->notify(stream, Op::kWrite, dst, 0, 0, src, bytes);
    }
    return CHIP_OK;
  });
}

chip_result chip_copy_from(chip* c, uint64_t stream, void* dst, uint64_t src, uint64_t bytes) {
  return guarded([&] {
    c->check_range(src, bytes);
    const auto address = reinterpret_cast<uint64_t>(dst);
    if (c->pinned.has(address, bytes)) {
      c->notify(stream, Op::kCopy, address, src, bytes);
    } else {
      c->request(stream, Op::kRead, src, bytes,
                 [dst](const std::string& read) { std::memcpy(dst, read.data(), read.size()); });
    }
    return CHIP_OK;
  });
}

chip_result chip_copy(chip* c, uint64_t stream, uint64_t dst, uint64_t src, uint64_t bytes) {
  return guarded([&] {
    c->check_range(dst, bytes);
    c->check_range(src, bytes);
    c->notify(stream, Op::kCopy, dst, src, bytes);
    return CHIP_OK;
  });
}

chip_result chip_fill(chip* c, uint64_t stream, uint64_t dst, const void* pattern, size_t size, uint64_t count) {
  return guarded([&] {
    c->check_range(dst, size * count);
    c->notify(stream, Op::kFill, dst, count, 0, pattern, size);
    return CHIP_OK;
  });
}

// ---- Streams and events ----

chip_result chip_stream_create(chip* c, int device, uint64_t* out_stream) {
  return guarded([&] {
    c->check(device);
    const uint64_t stream = ++c->last_handle;
    c->link->notify(Op::kStreamCreate, {stream});
    c->streams.add(stream, std::make_shared<Stream>(stream));
    *out_stream = stream;
    return CHIP_OK;
  });
}

chip_result chip_stream_destroy(chip* c, uint64_t stream) {
  return guarded([&] {
    c->notify(stream, Op::kStreamDestroy);
    c->streams.take(stream);
    return CHIP_OK;
  });
}

chip_result chip_stream_query(chip* c, uint64_t stream) {
  return guarded([&] {
    const auto queue = c->streams.get(stream);
    const std::lock_guard lock(queue->mutex);
    if (queue->last == nullptr) {
      queue->last = c->link->request(Op::kMark, {stream});
      queue->is_mark = true;
    }
    return c->link->has_come(queue->last) ? CHIP_OK : CHIP_NOT_READY;
  });
}

chip_result chip_stream_wait(chip* c, uint64_t stream) {
  return guarded([&] {
    const auto queue = c->streams.get(stream);
    {
      // Send no request if all work is known to be done: the chip may hang, and this wait cannot be
      // interrupted.
      const std::lock_guard lock(queue->mutex);
      const ReplyPtr& last = queue->last;
      const bool has_come = last != nullptr && queue->is_mark && c->link->has_come(last);
      if (has_come && last->result == CHIP_OK && last->bytes.empty()) {
        c->link->check();
        return CHIP_OK;
      }
    }
    c->link->wait(c->request(stream, Op::kSynchronize));
    return CHIP_OK;
  });
}

chip_result chip_stream_wait_event(chip* c, uint64_t stream, uint64_t event) {
  return guarded([&] {
    c->streams.get(stream);
    if (const ReplyPtr mark = c->mark(event); mark != nullptr) c->notify(stream, Op::kWait, mark->number);
    return CHIP_OK;
  });
}

chip_result chip_event_create(chip* c, int device, uint64_t* out_event) {
  return guarded([&] {
    c->check(device);
    *out_event = ++c->last_handle;
    c->events.add(*out_event, std::make_shared<Event>());
    return CHIP_OK;
  });
}

chip_result chip_event_destroy(chip* c, uint64_t event) {
  return guarded([&] {
    c->events.take(event);
    return CHIP_OK;
  });
}

chip_result chip_event_record(chip* c, uint64_t stream, uint64_t event) {
  return guarded([&] {
    const auto found = c->events.get(event);
    const std::lock_guard lock(found->mutex);
    found->mark = c->request(stream, Op::kMark);
    return CHIP_OK;
  });
}

chip_result chip_event_query(chip* c, uint64_t event) {
  return guarded([&] {
    const ReplyPtr mark = c->mark(event);
    if (mark == nullptr) return CHIP_OK;
    if (!c->link->has_come(mark)) return CHIP_NOT_READY;
    c->link->wait(mark);  // the reply is there; this call reports a lost chip
    return CHIP_OK;
  });
}

chip_result chip_event_wait(chip* c, uint64_t event) {
  return guarded([&] {
    if (const ReplyPtr mark = c->mark(event); mark != nullptr) c->link->wait(mark);
    return CHIP_OK;
  });
}

chip_result chip_event_time(chip* c, uint64_t event, int64_t* out_nanoseconds) {
  return guarded([&] {
    const ReplyPtr mark = c->mark(event);
    if (mark == nullptr || !c->link->has_come(mark)) {
      throw Failure(CHIP_INVALID, "the event was not recorded, or is not complete");
    }
    *out_nanoseconds = static_cast<int64_t>(c->link->wait(mark));
    return CHIP_OK;
  });
}

// ---- Programs ----

chip_result chip_program_build(chip* c, const char* text, uint64_t* out_program) {
  return guarded([&] {
    const std::string binary = compile_program(text);
    const chip_result result = chip_program_load(c, binary.data(), binary.size(), out_program);
    if (result == CHIP_OK) c->programs.add(*out_program, binary);
    return result;
  });
}

chip_result chip_program_load(chip* c, const void* binary, size_t size, uint64_t* out_program) {
  return guarded([&] {
    const uint64_t program = ++c->last_handle;
    c->link->wait(c->link->request(Op::kProgramLoad, {program}, binary, size));
    c->programs.add(program, "");
    *out_program = program;
    return CHIP_OK;
  });
}

chip_result chip_program_binary(chip* c, uint64_t program, void** out_binary, size_t* out_size) {
  return guarded([&] {
    const std::string binary = c->programs.take(program);
    c->programs.add(program, "");
    *out_size = binary.size();
    *out_binary = binary.empty() ? nullptr : std::malloc(binary.size());
    if (!binary.empty() && *out_binary == nullptr) throw std::bad_alloc();
    if (!binary.empty()) std::memcpy(*out_binary, binary.data(), binary.size());
    return CHIP_OK;
  });
}

chip_result chip_program_destroy(chip* c, uint64_t program) {
  return guarded([&] {
    c->programs.take(program);
    c->link->notify(Op::kProgramDestroy, {program});
    return CHIP_OK;
  });
}

chip_result chip_kernel_find(chip* c, uint64_t program, const char* name, uint64_t* out_kernel) {
  return guarded([&] {
    c->programs.get(program);
    const uint64_t kernel = ++c->last_handle;
    const std::string symbol = std::string("run_") + name;
    if (c->link->wait(c->link->request(Op::kKernelFind, {program, kernel}, symbol.data(), symbol.size())) == 0) {
      throw Failure(CHIP_NOT_FOUND, std::string("the program has no kernel '") + name + "'");
    }
    c->kernels.add(kernel, true);
    *out_kernel = kernel;
    return CHIP_OK;
  });
}

chip_result chip_launch(chip* c, uint64_t stream, uint64_t kernel, uint64_t items, const chip_argument* arguments,
                        size_t count) {
  return guarded([&] {
    c->kernels.get(kernel);
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      const chip_protocol::Argument head = {arguments[i].is_address, arguments[i].size};
      bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
      bytes.append(static_cast<const char*>(arguments[i].value), arguments[i].size);
    }
    c->notify(stream, Op::kLaunch, kernel, items, 0, bytes.data(), bytes.size());
    return CHIP_OK;
  });
}

}  // extern "C"

// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/program.h"

#include <torch_outboard/driver.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/activity.h"
#include "core/build_lock.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/lost_device.h"
#include "core/named_error.h"
#include "core/wait.h"
#include "kernels/builds.h"
#include "kernels/program_store.h"

namespace outboard::kernels {

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::chrono::milliseconds> build_limit{std::chrono::minutes{5}};
constexpr std::chrono::milliseconds kSignalCheckInterval{20};  // between looks at signals and at the clock

// A build under way.
struct Build {
  const Clock::time_point begin = Clock::now();
  bool is_over = false;
  bool is_left = false;  // it hangs: nobody waits for it, not even the end of the process
  std::exception_ptr failure;
};

struct Program {
  uint64_t handle = 0;  // 0 while it is being built
  std::shared_ptr<Build> build;  // then
  int users = 0;  // threads that request a kernel of it
  std::unordered_map<std::string, uint64_t> kernels;
};

using Key = std::tuple<c10::DeviceIndex, std::string, std::string, std::string>;

struct Table {
  std::mutex mutex;  // never held during a driver call
  std::condition_variable built;
  std::map<Key, Program> programs;  // its elements do not move
};

Table& table() {
  static Table* const instance = new Table;  // threads may outlive static destruction
  return *instance;
}

ob_status ask_for(c10::DeviceIndex device, const ProgramText& text, uint64_t* out_program) {
  ob_program_source source{};
  source.struct_size = sizeof(source);
  source.language = text.language.c_str();
  source.code = text.code.c_str();
  source.code_size = text.code.size();
  source.options = text.options.c_str();
  ActivityScope activity(device, "program_build");  // on the thread that builds, and no work of the device
  const ob_status status = driver().program_build(driver().self, device, &source, out_program);
  activity.finish();
  return status;
}

// Return true for the user's interrupt and for a lost device: another try does not help.
bool is_final(ob_status status) {
  return status == OB_CANCELLED || status == OB_DEVICE_LOST;
}

// Build the program from the bytes of a pack or of an earlier process. Return 0 if that fails: the
// driver may have its own reasons.
uint64_t build_binary(c10::DeviceIndex device, const ProgramText& text, std::string bytes, const std::string& name) {
  uint64_t program = 0;
  if (bytes.empty()) {
    return 0;
  }
  const ob_status status = ask_for(device, {OB_LANGUAGE_BINARY, std::move(bytes), text.options}, &program);
  if (is_final(status)) {
    raise_status_of(name, status, "program_build", device);
  }
  return status == OB_OK ? program : 0;
}

void keep(c10::DeviceIndex device, uint64_t program, const std::string& key, const std::string& name) {
  std::string bytes;
  const auto take = [](void* context, const void* bytes, size_t size) {
    static_cast<std::string*>(context)->assign(static_cast<const char*>(bytes), size);
  };
  const ob_status status = driver().program_binary(driver().self, device, program, &bytes, take);
  if (is_final(status)) {
    raise_status_of(name, status, "program_binary", device);
  }
  // A program without bytes works as well as one with bytes.
  if (status == OB_OK && !bytes.empty()) {
    write_program(key, bytes);
  }
}

// Return true if the driver says that the next try will fail too. Other failures may pass.
bool is_refusal(ob_status status) {
  return status == OB_PROGRAM_REFUSED || status == OB_INVALID_ARGUMENT || status == OB_OUT_OF_RANGE;
}

uint64_t build(c10::DeviceIndex device, const ProgramText& text, const std::string& name) {
  if (text.read_binary) {
    if (const uint64_t packed = build_binary(device, text, text.read_binary(), name); packed != 0) {
      return packed;
    }
  }
  const std::string key = program_key(device, text);
  std::optional<BuildLock> build_lock;
  if (!key.empty()) {
    if (const uint64_t kept = build_binary(device, text, read_program(key), name); kept != 0) {
      return kept;
    }
    build_lock.emplace(lock_path_of(key));
    if (const uint64_t kept = build_lock->has_waited() ? build_binary(device, text, read_program(key), name) : 0;
        kept != 0) {
      return kept;
    }
  }
  uint64_t program = 0;
  const ob_status status = ask_for(device, text, &program);
  if (is_refusal(status)) {
    throw ProgramRefused({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                         describe_status(name, status, "program_build", device));
  }
  if (status != OB_OK) {
    raise_status_of(name, status, "program_build", device);
  }
  if (!key.empty()) {
    try {
      keep(device, program, key, name);
    } catch (...) {
      if (!is_lost(device)) {
        static_cast<void>(driver().program_destroy(driver().self, device, program));  // unused
      }
      throw;
    }
  }
  return program;
}

using ProgramEntry = std::map<Key, Program>::iterator;

// Build a program that the table marks as being built, and notify the threads that wait for it.
void run_build(ProgramEntry entry, c10::DeviceIndex device, const ProgramText& text, const std::string& name,
               Build& build_it) {
  uint64_t handle = 0;
  std::exception_ptr failure;
  try {
    handle = build(device, text, name);
  } catch (...) {
    failure = std::current_exception();
  }
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  if (failure) {
    all.programs.erase(entry);
  } else {
    entry->second.handle = handle;
    entry->second.build = nullptr;
  }
  build_it.failure = std::move(failure);
  build_it.is_over = true;
  if (!build_it.is_left) {
    detail::end_own_call();
  }
  all.built.notify_all();
}

// Do the same on a separate thread, so that Ctrl-C and the limit end the wait: a compiler cannot be
// interrupted. The build then continues, and the next request uses its result. Return false if no
// thread can be started.
bool start_build(ProgramEntry entry, c10::DeviceIndex device, const ProgramText& text, const std::string& name,
                 const std::shared_ptr<Build>& build_it) {
  return detail::start_thread([=] { run_build(entry, device, text, name, *build_it); });
}

[[noreturn]] void raise_hanging(const std::string& name, c10::DeviceIndex device) {
  throw ProgramHangs({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                     "driver '" + driver_name() + "': program_build (" + name + ") on device " +
                         std::to_string(device) + " has not finished after " +
                         std::to_string(build_limit.load().count() / 1000) +
                         " s. The compiler hangs or needs more time: to wait longer, set OUTBOARD_BUILD_SECONDS");
}

// Wait until nobody builds the program any more. Return false if the build hangs.
bool wait_for_build(const Key& key, c10::DeviceIndex device, const char* name) {
  Table& all = table();
  const TrackedWait waiting("program_build", device, nullptr,
                            name);  // the building thread may need the interpreter lock
  const bool may_interrupt = detail::can_interrupt("");
  std::unique_lock lock(all.mutex);
  for (;;) {
    const auto now = all.programs.find(key);
    if (now == all.programs.end() || now->second.handle != 0) {
      return true;
    }
    Build& build = *now->second.build;
    if (Clock::now() - build.begin > build_limit.load()) {
      if (!std::exchange(build.is_left, true)) {
        detail::end_own_call();
      }
      return false;
    }
    all.built.wait_for(lock, kSignalCheckInterval);
    if (may_interrupt) {
      lock.unlock();
      detail::handle_signals();
      lock.lock();
    }
  }
}

// Return the program with one more user. The first thread builds it.
ProgramEntry acquire(c10::DeviceIndex device, const ProgramText& text, const std::string& name) {
  Table& all = table();
  const Key key{device, text.language, text.options, text.code};
  const char* const known_name = intern_name(name);
  std::shared_ptr<Build> own;
  std::unique_lock lock(all.mutex);
  for (;;) {
    if (own && own->is_over && own->failure) {
      // Move it out. Otherwise the building thread, which holds `own`, may drop the last reference.
      const std::exception_ptr failure = std::move(own->failure);
      lock.unlock();
      std::rethrow_exception(failure);
    }
    const auto [entry, is_new] = all.programs.try_emplace(key);
    if (is_new) {
      own = entry->second.build = std::make_shared<Build>();
      detail::begin_own_call();  // the end of the process waits for it
      lock.unlock();
      if (!start_build(entry, device, text, name, own)) {
        const TrackedCall noted("program_build", device, nullptr, known_name);
        run_build(entry, device, text, name, *own);
      }
      lock.lock();
      continue;
    }
    if (entry->second.handle != 0) {
      ++entry->second.users;
      return entry;
    }
    lock.unlock();
    if (!wait_for_build(key, device, known_name)) {
      raise_hanging(name, device);
    }
    lock.lock();
  }
}

// End a use. A program of which no kernel was found is destroyed.
void release(ProgramEntry program, c10::DeviceIndex device) {
  uint64_t unused = 0;
  {
    Table& all = table();
    const std::lock_guard lock(all.mutex);
    if (--program->second.users == 0 && program->second.kernels.empty()) {
      unused = program->second.handle;
      all.programs.erase(program);
    }
  }
  if (unused != 0 && !is_lost(device)) {
    // The reason why it is unused was already read, and a failure here would add nothing.
    static_cast<void>(driver().program_destroy(driver().self, device, unused));
  }
}

uint64_t get_kernel(c10::DeviceIndex device, Program& program, const std::string& entry, const std::string& name) {
  Table& all = table();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto known = program.kernels.find(entry); known != program.kernels.end()) {
      return known->second;
    }
  }
  uint64_t kernel = 0;
  const TrackedCall noted("kernel_get", device);
  const ob_status status = driver().kernel_get(driver().self, device, program.handle, entry.c_str(), &kernel);
  if (status == OB_NOT_FOUND || is_refusal(status)) {
    throw ProgramRefused({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                         describe_status(name, status, "kernel_get", device));
  }
  if (status != OB_OK) {
    raise_status_of(name, status, "kernel_get", device);
  }
  const std::lock_guard lock(all.mutex);
  return program.kernels.try_emplace(entry, kernel).first->second;
}

// Return a permanent copy of a name. Names repeat with each plan of an operator. Queued
// launches and graphs refer to them.
const std::string& intern_kernel_name(const std::string& name) {
  static auto* const mutex = new std::mutex;
  static auto* const names = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return *names->insert(name).first;
}

}  // namespace

void set_build_limit(std::chrono::milliseconds limit) noexcept {
  build_limit.store(limit);
}

ProgramKernel::ProgramKernel(const std::string& name, ProgramText program, std::string entry)
    : name_(intern_kernel_name(name)), program_(std::move(program)), entry_(std::move(entry)) {}

uint64_t ProgramKernel::handle(c10::DeviceIndex device) const {
  std::atomic<uint64_t>& known = handles_[static_cast<size_t>(device)];
  uint64_t kernel = known.load(std::memory_order_acquire);
  if (C10_UNLIKELY(kernel == 0)) {
    const std::shared_ptr<const BackgroundBuild> build = find_background_build(device);
    kernel = build ? build->wait(device, name_.c_str()) : find_kernel(device, program_, entry_, name_);
    known.store(kernel, std::memory_order_release);
  }
  return kernel;
}

bool ProgramKernel::was_refused(c10::DeviceIndex device) const {
  return known(device) == 0 && is_known_refusal(device, program_);
}

void ProgramKernel::note_refused(c10::DeviceIndex device) const {
  static_cast<void>(kernels::note_refused(device, program_));
}

bool ProgramKernel::start(c10::DeviceIndex device, const std::function<void()>& on_refusal) const {
  if (known(device) != 0 || find_background_build(device) != nullptr || known(device) != 0) {
    return true;
  }
  std::shared_ptr<const BackgroundBuild> build = start_build(device, program_, entry_, name_, on_refusal);
  if (build == nullptr) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  builds_.try_emplace(device, std::move(build));
  return true;
}

std::shared_ptr<const BackgroundBuild> ProgramKernel::find_background_build(c10::DeviceIndex device) const {
  std::shared_ptr<const BackgroundBuild> known;  // destroyed without the lock: its failure may be a Python object
  const std::lock_guard lock(mutex_);
  const auto entry = builds_.find(device);
  if (entry == builds_.end()) {
    return nullptr;
  }
  known = entry->second;
  if (!known->is_ready() || (known->has_failed() && !known->is_raised())) {
    return known;
  }
  if (!known->has_failed()) {
    handles_[static_cast<size_t>(device)].store(known->kernel(), std::memory_order_release);
  }
  builds_.erase(entry);
  return nullptr;
}

uint64_t find_kernel(c10::DeviceIndex device, const ProgramText& program, const std::string& entry,
                     const std::string& name) {
  if (!driver().program_build) {
    raise_not_supported("program_build", "building the kernel " + name);
  }
  ensure_open(device);
  const auto built = acquire(device, program, name);
  try {
    const uint64_t kernel = get_kernel(device, built->second, entry, name);
    release(built, device);
    return kernel;
  } catch (...) {
    release(built, device);
    throw;
  }
}

}  // namespace outboard::kernels

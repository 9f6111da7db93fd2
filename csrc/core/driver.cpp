// SPDX-License-Identifier: BSD-3-Clause
#include "core/driver.h"

#include <built/contract.inc>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/process.h"
#include "core/touched.h"

namespace outboard {

namespace detail {
ob_driver table{};
}

namespace {

std::string attached_name;
std::atomic<bool> attached{false};

// Guards the result, which is written once. The probe itself runs without it, so two
// threads may probe at the same time.
std::mutex probe_mutex;
std::atomic<bool> is_probed{false};
std::string probe_failure;
int probed_count = 0;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  raise(ErrorKind::Registration, OB_INVALID_ARGUMENT, "driver '" + name + "' cannot be attached: " + why);
}

struct NamedEntry {
  template <typename Entry>
  NamedEntry(const char* entry_name, Entry* entry) : name(entry_name), is_present(entry != nullptr) {}
  const char* name;
  bool is_present;
};

void check_required(const std::string& name, const ob_driver& t) {
  const NamedEntry required[] = {
#define X(name) {#name, t.name},
      OB_REQUIRED_ENTRIES(X)
#undef X
  };
  std::string missing;
  for (const NamedEntry& entry : required) {
    if (!entry.is_present) {
      missing += (missing.empty() ? "" : ", ") + std::string(entry.name);
    }
  }
  if (!missing.empty()) {
    refuse(name,
           "its table lacks required entries: " + missing + ". See torch_outboard/driver.h for what each must do.");
  }
}

// Check that a table has all or none of a group of entries.
void check_group(const std::string& name, std::initializer_list<NamedEntry> group) {
  const bool any = std::any_of(group.begin(), group.end(), [](const NamedEntry& e) { return e.is_present; });
  for (const NamedEntry& entry : group) {
    if (any && !entry.is_present) {
      std::string all;
      for (const NamedEntry& e : group) {
        all += (all.empty() ? "" : ", ") + std::string(e.name);
      }
      refuse(name, std::string("entry `") + entry.name + "` is missing. The entries " + all +
                       " must be implemented together or not at all.");
    }
  }
}

void check_groups(const std::string& name, const ob_driver& t) {
  check_group(name, {{"host_alloc", t.host_alloc}, {"host_free", t.host_free}});
  check_group(name, {{"host_register", t.host_register}, {"host_unregister", t.host_unregister}});
  check_group(name, {{"mem_reserve", t.mem_reserve},
                     {"mem_release", t.mem_release},
                     {"mem_map", t.mem_map},
                     {"mem_unmap", t.mem_unmap}});
  check_group(name, {{"ipc_export", t.ipc_export}, {"ipc_open", t.ipc_open}, {"ipc_close", t.ipc_close}});
  check_group(name, {{"program_build", t.program_build},
                     {"program_destroy", t.program_destroy},
                     {"kernel_get", t.kernel_get},
                     {"kernel_launch", t.kernel_launch}});
  if (t.program_binary != nullptr && t.program_build == nullptr) {
    refuse(name, "entry `program_binary` needs `program_build`, which loads its binaries.");
  }
  check_group(name, {{"graph_capture_begin", t.graph_capture_begin},
                     {"graph_capture_end", t.graph_capture_end},
                     {"graph_instantiate", t.graph_instantiate},
                     {"graph_launch", t.graph_launch},
                     {"graph_destroy", t.graph_destroy},
                     {"graph_executable_destroy", t.graph_executable_destroy}});
  check_group(name, {{"activity_enable", t.activity_enable},
                     {"activity_correlate", t.activity_correlate},
                     {"activity_read", t.activity_read}});
}

void probe() {
  if (detail::table.flags & OB_DRIVER_PROBE_OPENS) {
    detail::mark_runtime_opened();
  }
  const int32_t count = detail::table.device_count(detail::table.self);
  std::string failure;
  if (count < 0) {
    failure = "device_count failed with " + status_name(-count);
    const FailedEntry failed("device_count", -1);
    if (const std::string reason = last_driver_error(); !reason.empty()) {
      failure += ": " + reason;
    }
  } else if (count > kMaxDevices) {
    failure = "device_count returned " + std::to_string(count) + "; only the first " + std::to_string(kMaxDevices) +
              " devices are used";
  }
  std::lock_guard lock(probe_mutex);
  if (!is_probed.load()) {
    probe_failure = std::move(failure);
    probed_count = std::clamp<int>(count, 0, kMaxDevices);
    is_probed.store(true, std::memory_order_release);
  }
}

// Refuse another number of devices: a caller may have sized something by the first number.
void check_count(const std::string& name, const ob_driver& table) {
  if (!is_probed.load(std::memory_order_acquire)) {
    return;
  }
  const int32_t count = table.device_count(table.self);
  if (std::clamp<int>(count, 0, kMaxDevices) != probed_count) {
    refuse(name, "with the new options it has " + std::to_string(count) +
                     " devices, but this process has already counted " + std::to_string(probed_count) +
                     ". Attach with these options before anything counts devices.");
  }
}

}  // namespace

void install_driver(const std::string& name, const ob_driver& table) {
  const bool is_again = attached.load();
  if (is_again && (attached_name != name || is_any_device_touched())) {
    raise(ErrorKind::Registration, OB_ALREADY_EXISTS,
          "driver '" + attached_name +
              "' is already attached, and a process can attach one driver. Start another process for '" + name + "'.");
  }
  if (table.abi_major != OB_ABI_MAJOR) {
    refuse(name, "it was built for version " + std::to_string(table.abi_major) +
                     " of the contract, but this is version " + std::to_string(OB_ABI_MAJOR) +
                     ". Rebuild the driver with the installed torch_outboard/driver.h.");
  }
  constexpr size_t kLeastSize = offsetof(ob_driver, stream_wait_event) + sizeof(ob_driver::stream_wait_event);
  if (table.struct_size < kLeastSize) {
    refuse(name, "its table's struct_size is " + std::to_string(table.struct_size) +
                     " bytes, which ends before the last"
                     " required entry (" +
                     std::to_string(kLeastSize) + "). Set struct_size to sizeof(ob_driver).");
  }
  ob_driver copy{};
  // A size that ends within an entry ends before it.
  constexpr size_t kEntries = offsetof(ob_driver, device_count);
  const size_t entries = (std::min(table.struct_size, sizeof(copy)) - kEntries) / sizeof(table.device_count);
  std::memcpy(&copy, &table, kEntries + entries * sizeof(table.device_count));
  copy.struct_size = sizeof(copy);
  check_required(name, copy);
  check_groups(name, copy);
  if (is_again) {
    check_count(name, copy);
    const ob_driver before = std::exchange(detail::table, copy);
    if (before.destroy) {
      before.destroy(before.self);
    }
    return;
  }
  detail::table = copy;
  attached_name = name;
  attached.store(true);
  install_fork_handler();
}

bool is_attached() noexcept {
  return attached.load(std::memory_order_acquire);
}

const std::string& driver_name() {
  return attached_name;
}

int device_count() noexcept {
  if (!is_attached()) {
    return 0;
  }
  if (C10_UNLIKELY(!is_probed.load(std::memory_order_acquire))) {
    probe();
  }
  return probed_count;
}

const std::string& probe_error() {
  device_count();
  return probe_failure;
}

}  // namespace outboard

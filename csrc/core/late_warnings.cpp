// SPDX-License-Identifier: BSD-3-Clause
#include "core/late_warnings.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <typeinfo>
#include <utility>

namespace outboard {

namespace {

constexpr size_t kMaxKept = 64;  // for each stream

struct StoredWarning {
  const Stream* stream;
  c10::Warning warning;
};

std::atomic<bool> has_kept{false};
std::atomic<WarningIssuer> warning_issuer{nullptr};
std::mutex mutex;
struct Shelf {
  std::deque<StoredWarning> warnings;
  std::vector<std::pair<const Stream*, size_t>> dropped;
};
Shelf& shelf() {
  static auto* const kept = new Shelf();  // workers may warn until the end of the process
  return *kept;
}

bool is_of(const Stream& stream, c10::DeviceIndex device) {
  return device < 0 || stream.device == device;
}

void drop(const Stream& stream) {
  for (auto& [known, count] : shelf().dropped) {
    if (known == &stream) {
      ++count;
      return;
    }
  }
  shelf().dropped.emplace_back(&stream, 1);
}

void issue(const c10::Warning& warning) {
  if (const WarningIssuer issuer = warning_issuer.load(std::memory_order_acquire)) {
    issuer(warning);
  } else {
    c10::warn(warning);
  }
}

// Take the device's oldest warning off the shelf.
std::optional<c10::Warning> take(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex);
  Shelf& kept = shelf();
  const auto it = std::find_if(kept.warnings.begin(), kept.warnings.end(),
                               [device](const StoredWarning& warning) { return is_of(*warning.stream, device); });
  if (it != kept.warnings.end()) {
    c10::Warning warning = std::move(it->warning);
    kept.warnings.erase(it);
    return warning;
  }
  const auto lost = std::find_if(kept.dropped.begin(), kept.dropped.end(),
                                 [device](const auto& entry) { return is_of(*entry.first, device); });
  if (lost != kept.dropped.end()) {
    const size_t count = lost->second;
    kept.dropped.erase(lost);
    return c10::Warning(c10::UserWarning(), {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                        std::to_string(count) +
                            " more warnings of operators that ran on the device's stream were "
                            "dropped: a stream keeps " +
                            std::to_string(kMaxKept) + " until the next wait",
                        /*verbatim=*/false);
  }
  has_kept.store(!kept.warnings.empty() || !kept.dropped.empty(), std::memory_order_release);
  return std::nullopt;
}

}  // namespace

DeferWarnings::DeferWarnings(const Stream& stream, const std::string& what) : stream_(stream), what_(what) {
  // Torch's own bindings set a handler that passes warnings to Python.
  if (typeid(*c10::WarningUtils::get_warning_handler()) == typeid(c10::WarningHandler)) {
    guard_.emplace(this);
  }
}

void DeferWarnings::process(const c10::Warning& warning) {
  const std::lock_guard lock(mutex);
  Shelf& kept = shelf();
  const auto of_stream = std::count_if(kept.warnings.begin(), kept.warnings.end(),
                                       [this](const StoredWarning& warning) { return warning.stream == &stream_; });
  if (static_cast<size_t>(of_stream) < kMaxKept) {
    kept.warnings.push_back(
        {&stream_, c10::Warning(warning.type(), warning.source_location(),
                                warning.msg() + " (" + what_ + ", on the device's stream)", warning.verbatim())});
  } else {
    drop(stream_);
  }
  has_kept.store(true, std::memory_order_release);
}

void issue_late_warnings(c10::DeviceIndex device) {
  if (C10_LIKELY(!has_kept.load(std::memory_order_acquire))) {
    return;
  }
  while (const std::optional<c10::Warning> warning = take(device)) {
    issue(*warning);
  }
}

void issue_all_late_warnings() {
  issue_late_warnings(-1);
}

void run_before_call(const std::function<void()>& run, bool refuses_call) {
  std::vector<c10::Warning> warnings;
  std::exception_ptr error;
  {
    CollectedWarnings collected;
    try {
      run();
    } catch (...) {
      error = std::current_exception();
    }
    warnings = collected.take();
  }
  if (C10_UNLIKELY(!warnings.empty())) {
    std::vector<c10::Warning> repeated;
    if (error == nullptr || !refuses_call) {
      CollectedWarnings collected;
      try {
        run();
      } catch (...) {  // the same as before, which is raised below
      }
      repeated = collected.take();
    }
    for (const c10::Warning& warning : warnings) {
      if (std::none_of(repeated.begin(), repeated.end(),
                       [&](const c10::Warning& other) { return other.msg() == warning.msg(); })) {
        c10::warn(warning);
      }
    }
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

void set_warning_issuer(WarningIssuer issuer) {
  warning_issuer.store(issuer, std::memory_order_release);
}

}  // namespace outboard

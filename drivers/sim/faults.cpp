// SPDX-License-Identifier: BSD-3-Clause
#include "faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "entries.h"
#include "error.h"

namespace sim {
namespace {

constexpr const char* kNames[] = {
#define X(name) #name,
    OB_ENTRIES(X)
#undef X
};

// Return true for the entries that a rule may name: all of this driver's, except
// those that return no status.
bool can_fail(size_t entry) {
  Options options;
  options.ipc = true;
  ob_driver table = {};
  fill_entries(&table, options);
  table.last_error = nullptr;
  table.destroy = nullptr;
  void* function = nullptr;
  const auto* first = reinterpret_cast<const char*>(&table) + offsetof(ob_driver, device_count);
  std::memcpy(&function, first + entry * sizeof function, sizeof function);
  return function != nullptr;
}

bool has_queued_work(Entry entry) {
  return entry == Entry::copy_async || entry == Entry::copy_nd_async || entry == Entry::fill_async ||
         entry == Entry::host_callback;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace

const char* entry_name(Entry entry) {
  return kNames[static_cast<size_t>(entry)];
}

bool Faults::add_rule(const std::string& text, std::string* out_problem) {
  std::vector<std::string> parts = split(text, ':');
  Rule rule = {};
  if (parts.size() == 4 && parts[0] == "queued") {
    rule.is_queued = true;
    parts.erase(parts.begin());
  }
  if (parts.size() != 3) {
    *out_problem = "'" + text + "' is not a rule; write ENTRY:N:STATUS, ENTRY:N+:STATUS or queued:ENTRY:N:STATUS";
    return false;
  }
  size_t entry = 0;
  while (entry < static_cast<size_t>(Entry::kCount) && parts[0] != kNames[entry]) ++entry;
  if (entry == static_cast<size_t>(Entry::kCount) || !can_fail(entry)) {
    *out_problem = "'" + parts[0] + "' in '" + text + "' is not an entry of this driver that can fail";
    return false;
  }
  rule.entry = static_cast<Entry>(entry);
  if (rule.is_queued && !has_queued_work(rule.entry)) {
    *out_problem = "'" + text + "': only copy_async, copy_nd_async, fill_async and host_callback can follow 'queued:'";
    return false;
  }
  std::string& number = parts[1];
  if (!number.empty() && number.back() == '+') {
    rule.and_later = true;
    number.pop_back();
  }
  if (number.empty() || number.size() > 18 || number.find_first_not_of("0123456789") != std::string::npos) {
    *out_problem = "'" + text + "': the call's number must be positive, with a + for this and all later calls";
    return false;
  }
  rule.call = std::strtoull(number.c_str(), nullptr, 10);
  if (rule.call == 0) {
    *out_problem = "'" + text + "': calls are counted from 1";
    return false;
  }
  if (!parse_status(parts[2], &rule.status)) {
    *out_problem = "'" + parts[2] + "' in '" + text + "' is not a status that fails; write one like OUT_OF_MEMORY or 8";
    return false;
  }
  rules_.push_back(rule);
  return true;
}

bool Faults::add_rules(const std::string& text, std::string* out_problem) {
  if (text.empty()) return true;
  for (const std::string& rule : split(text, ',')) {
    if (!add_rule(rule, out_problem)) return false;
  }
  return true;
}

bool Faults::keep_counts(const std::string& path, std::string* out_problem) {
  constexpr size_t kBytes = static_cast<size_t>(Entry::kCount) * sizeof(Count);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* mapped = MAP_FAILED;
  if (file >= 0 && ftruncate(file, kBytes) == 0) {
    mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (mapped == MAP_FAILED) *out_problem = "'" + path + "' cannot hold counts: " + std::strerror(errno);
  if (file >= 0) close(file);
  if (mapped == MAP_FAILED) return false;
  counts_ = static_cast<Count*>(mapped);
  for (size_t i = 0; i < static_cast<size_t>(Entry::kCount); ++i) {
    std::strncpy(counts_[i].name, kNames[i], sizeof counts_[i].name - 1);
  }
  return true;
}

Faults::~Faults() {
  if (counts_ != nullptr) munmap(counts_, static_cast<size_t>(Entry::kCount) * sizeof(Count));
}

ob_status Faults::count_call(Entry entry, ob_status* out_queued_status) {
  const uint64_t call = calls_[static_cast<size_t>(entry)].fetch_add(1, std::memory_order_relaxed) + 1;
  ob_status status = OB_OK;
  for (const Rule& rule : rules_) {
    if (rule.entry != entry || (rule.and_later ? call < rule.call : call != rule.call)) continue;
    ob_status& affected = rule.is_queued ? *out_queued_status : status;
    if (affected == OB_OK) affected = rule.status;
  }
  if (counts_ != nullptr) {
    Count& count = counts_[static_cast<size_t>(entry)];
    uint64_t most = count.calls.load(std::memory_order_relaxed);
    while (most < call && !count.calls.compare_exchange_weak(most, call, std::memory_order_relaxed)) {
    }
    if (status != OB_OK || *out_queued_status != OB_OK) count.failures.fetch_add(1, std::memory_order_relaxed);
  }
  if (status == OB_OK) return OB_OK;
  return fail(status, "injected fault: call %" PRIu64 " of %s returns %s", call, entry_name(entry),
              status_name(status).c_str());
}

}  // namespace sim

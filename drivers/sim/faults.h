// SPDX-License-Identifier: BSD-3-Clause
// Faults on demand: "the n-th call of entry E returns status S".
#pragma once

#include <built/contract.inc>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "torch_outboard/driver.h"

namespace sim {

enum class Entry : uint8_t {
#define X(name) name,
  OB_ENTRIES(X)
#undef X
      kCount
};

const char* entry_name(Entry entry);

// The fault rules. Calls are counted for each entry of one driver table, over all
// its devices and threads, from 1.
class Faults {
 public:
  Faults() = default;
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  ~Faults();

  // Add rules, separated by commas: "ENTRY:N:STATUS" (the N-th call fails), "ENTRY:N+:STATUS" (it
  // and all later calls fail) and "queued:ENTRY:N:STATUS" (the call succeeds, its queued work
  // fails). Not thread-safe. Return false, with a sentence, for an invalid rule.
  bool add_rules(const std::string& text, std::string* out_problem);

  // Keep the numbers of calls in a file, which is made, too: a record for each entry. The file is
  // mapped, so the numbers are there however the process ends. Of several processes with one file,
  // the highest numbers count. Return false, with a sentence, if there can be no such file.
  bool keep_counts(const std::string& path, std::string* out_problem);

  bool active() const { return !rules_.empty() || counts_ != nullptr; }

  // Count a call. Return the status that the call must return, or OB_OK, and in
  // `out_queued_status` the status with which its queued work must fail, or OB_OK. Sets the
  // last error for the first of them.
  ob_status count_call(Entry entry, ob_status* out_queued_status);

 private:
  struct Rule {
    Entry entry;
    bool is_queued;
    bool and_later;
    uint64_t call;
    ob_status status;
  };

  // A record of the file of counts, which torch_outboard/race/counts.py reads.
  struct Count {
    char name[24];
    std::atomic<uint64_t> calls;     // of the process that has made most
    std::atomic<uint64_t> failures;  // of calls and queued work, by rules
  };

  bool add_rule(const std::string& text, std::string* out_problem);

  std::vector<Rule> rules_;
  Count* counts_ = nullptr;  // a mapping, or null
  std::atomic<uint64_t> calls_[static_cast<size_t>(Entry::kCount)] = {};
};

}  // namespace sim

// SPDX-License-Identifier: BSD-3-Clause
// The options of `torch_outboard.attach("sim", **options)` and of the
// environment; README.md describes each.
#pragma once

#include <cstdint>
#include <string>

#include "torch_outboard/driver.h"

namespace sim {

// ThreadSanitizer treats two addresses of one memory as two memories.
#if defined(__SANITIZE_THREAD__)
constexpr bool kHasThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kHasThreadSanitizer = true;
#else
constexpr bool kHasThreadSanitizer = false;
#endif
#else
constexpr bool kHasThreadSanitizer = false;
#endif

enum class Schedule : uint8_t { kNormal, kInline, kLazy, kPct };

constexpr int32_t kMaxDevices = 64;

struct Options {
  int32_t devices = 2;
  uint64_t memory = uint64_t{4} << 30;  // bytes a device
  Schedule schedule = Schedule::kNormal;
  uint64_t seed = 0;   // of the lazy and the pct schedule
  uint32_t depth = 0;  // of the races that the pct schedule looks for; 0: the seed chooses
  uint64_t steps = 0;  // expected of the pct schedule; 0: the seed guesses
  uint64_t changes = UINT64_MAX;  // of ranks, beyond which the pct schedule makes none

  // One by default. Work of the host provider is OpenMP code, and OpenMP keeps a team for each
  // thread that enters it. Two workers mean two teams on the same cores, which made an addition
  // of a million floats up to 2.6 times slower. One worker also means that two streams run at
  // once only if a test asks for it.
  uint32_t workers = 1;

  std::string fault;  // rules, see faults.h
  std::string fault_counts;  // a file that holds the numbers of calls; "": none
  uint64_t bandwidth = 0;  // bytes a second of copies and fills; 0: no limit
  uint64_t latency = 0;  // minimum nanoseconds of each piece of work
  uint32_t spin = 50;  // microseconds for which an idle thread looks for work before it sleeps
  bool single_mapping = kHasThreadSanitizer;  // device addresses are host addresses
  bool poison = false;  // memory that changes hands is filled
  bool collectives = false;  // of its own, between processes
  bool ipc = false;  // memory lies in a file, so that other processes can map it

  bool runs_at_waits() const { return schedule == Schedule::kLazy || schedule == Schedule::kPct; }

  // Return `depth`, or the seed's choice: of four pairs of seeds, two look for races of depth 1,
  // where a stream never falls, which shows a missing wait best.
  uint32_t depth_of_seed() const;

  // Return the options that repeat the order of work, as "schedule=pct:7, depth=3"; "" if none do.
  std::string repeats() const;
};

// Read options and environment. On failure return OB_INVALID_ARGUMENT,
// and a sentence in `out_error`.
ob_status parse_options(const ob_options* options, Options* out_options, std::string* out_error);

}  // namespace sim

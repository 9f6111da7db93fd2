// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "faults.h"

namespace sim {
namespace {

// Parse a decimal number without sign, at most `max`.
bool parse_number(const std::string& text, uint64_t max, uint64_t* out) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return false;
  errno = 0;
  const unsigned long long value = std::strtoull(text.c_str(), nullptr, 10);
  if (errno != 0 || value > max) return false;
  *out = value;
  return true;
}

// Parse a number of bytes: digits, then nothing, "KiB", "MiB", "GiB" or "TiB".
bool parse_size(const std::string& text, uint64_t max, uint64_t* out) {
  struct Unit {
    const char* suffix;
    unsigned shift;
  };
  constexpr Unit kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  std::string digits = text;
  unsigned shift = 0;
  for (const Unit& unit : kUnits) {
    if (text.size() > 3 && text.compare(text.size() - 3, 3, unit.suffix) == 0) {
      digits.resize(text.size() - 3);
      shift = unit.shift;
    }
  }
  if (!parse_number(digits, max >> shift, out)) return false;
  *out <<= shift;
  return true;
}

bool parse_bool(const std::string& text, bool* out) {
  const bool on = text == "1" || text == "true" || text == "True";
  const bool off = text == "0" || text == "false" || text == "False";
  *out = on;
  return on || off;
}

bool parse_schedule(const std::string& text, Options* options) {
  if (text == "normal") {
    options->schedule = Schedule::kNormal;
  } else if (text == "inline") {
    options->schedule = Schedule::kInline;
  } else if (const bool is_lazy = text.rfind("lazy:", 0) == 0; is_lazy || text.rfind("pct:", 0) == 0) {
    options->schedule = is_lazy ? Schedule::kLazy : Schedule::kPct;
    return parse_number(text.substr(text.find(':') + 1), std::numeric_limits<uint64_t>::max(), &options->seed);
  } else {
    return false;
  }
  return true;
}

template <class Integer>
bool parse_integer(const std::string& text, Integer min, Integer max, Integer* out) {
  uint64_t value = 0;
  if (!parse_number(text, static_cast<uint64_t>(max), &value) || value < static_cast<uint64_t>(min)) return false;
  *out = static_cast<Integer>(value);
  return true;
}

constexpr uint64_t kMaxMemory = uint64_t{16} << 40;

struct OptionSpec {
  const char* name;
  const char* expects;
  bool (*parse)(const std::string& text, Options* options);
};

constexpr OptionSpec kOptions[] = {
    {"devices", "a number from 0 to 64",
     [](const std::string& text, Options* o) { return parse_integer(text, 0, kMaxDevices, &o->devices); }},
    {"memory", "the bytes of each device, from 1MiB to 16TiB, such as 4294967296, 512MiB or 4GiB",
     [](const std::string& text, Options* o) {
       return parse_size(text, kMaxMemory, &o->memory) && o->memory >= (uint64_t{1} << 20);
     }},
    {"schedule", "normal, inline, lazy:SEED or pct:SEED with a number from 0 to 18446744073709551615",
     [](const std::string& text, Options* o) { return parse_schedule(text, o); }},
    {"depth", "a number from 1 to 64",
     [](const std::string& text, Options* o) { return parse_integer(text, 1u, 64u, &o->depth); }},
    {"steps", "a number from 0 to 1000000000000",
     [](const std::string& text, Options* o) {
       return parse_integer<uint64_t>(text, 0, 1'000'000'000'000, &o->steps);
     }},
    {"changes", "a number from 0 to 1000000000000",
     [](const std::string& text, Options* o) {
       return parse_integer<uint64_t>(text, 0, 1'000'000'000'000, &o->changes);
     }},
    {"workers", "a number of threads from 1 to 64",
     [](const std::string& text, Options* o) { return parse_integer(text, 1u, 64u, &o->workers); }},
    {"fault", "rules separated by commas, such as mem_alloc:3:OUT_OF_MEMORY or queued:copy_async:1+:INTERNAL",
     [](const std::string& text, Options* o) {
       o->fault = text;
       return true;
     }},
    {"fault_counts", "the path of a file",
     [](const std::string& text, Options* o) {
       o->fault_counts = text;
       return true;
     }},
    {"bandwidth", "bytes per second, such as 1000000000 or 16GiB, or 0 for no limit",
     [](const std::string& text, Options* o) { return parse_size(text, uint64_t{1} << 50, &o->bandwidth); }},
    {"latency", "nanoseconds, at most 10000000000",
     [](const std::string& text, Options* o) { return parse_integer<uint64_t>(text, 0, 10'000'000'000, &o->latency); }},
    {"spin", "microseconds, at most 1000000",
     [](const std::string& text, Options* o) { return parse_integer(text, 0u, 1'000'000u, &o->spin); }},
    {"single_mapping", "0 or 1",
     [](const std::string& text, Options* o) { return parse_bool(text, &o->single_mapping); }},
    {"poison", "0 or 1", [](const std::string& text, Options* o) { return parse_bool(text, &o->poison); }},
    {"collectives", "0 or 1", [](const std::string& text, Options* o) { return parse_bool(text, &o->collectives); }},
    {"ipc", "0 or 1", [](const std::string& text, Options* o) { return parse_bool(text, &o->ipc); }},
};

ob_status apply(const std::string& where, const std::string& key, const std::string& value, Options* options,
                std::string* out_error) {
  std::string names;
  for (const OptionSpec& known : kOptions) {
    if (key == known.name) {
      if (known.parse(value, options)) return OB_OK;
      *out_error = where + ": '" + value + "' is not a valid value for '" + key + "', which must be " + known.expects;
      return OB_INVALID_ARGUMENT;
    }
    names += names.empty() ? known.name : std::string(", ") + known.name;
  }
  *out_error = where + ": unknown option '" + key + "'; the options are " + names;
  return OB_INVALID_ARGUMENT;
}

// Return true with one core, where a spinning thread keeps the awaited thread from running.
bool has_one_core() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < 2;
}

}  // namespace

uint32_t Options::depth_of_seed() const {
  constexpr uint32_t kDepths[] = {1, 2, 1, 3};
  return depth != 0 ? depth : kDepths[seed / 2 % 4];
}

std::string Options::repeats() const {
  if (schedule == Schedule::kLazy) return "schedule=lazy:" + std::to_string(seed);
  if (schedule != Schedule::kPct) return "";
  std::string text = "schedule=pct:" + std::to_string(seed) + ", depth=" + std::to_string(depth_of_seed());
  if (steps != 0) text += ", steps=" + std::to_string(steps);
  if (changes != Options().changes) text += ", changes=" + std::to_string(changes);
  return text;
}

ob_status parse_options(const ob_options* given, Options* out_options, std::string* out_error) {
  Options options;
  if (has_one_core()) options.spin = 0;
  if (const char* devices = std::getenv("OUTBOARD_SIM_DEVICES"); devices != nullptr && *devices != '\0') {
    const ob_status status =
        apply("environment variable OUTBOARD_SIM_DEVICES", "devices", devices, &options, out_error);
    if (status != OB_OK) return status;
  }
  const size_t count = given != nullptr ? given->count : 0;
  for (size_t i = 0; i < count; ++i) {
    const ob_status status = apply("options", given->keys[i], given->values[i], &options, out_error);
    if (status != OB_OK) return status;
  }
  std::string problem;
  Faults checked;
  if (!checked.add_rules(options.fault, &problem)) {
    *out_error = "options: fault: " + problem;
    return OB_INVALID_ARGUMENT;
  }
  if (const char* fault = std::getenv("OUTBOARD_SIM_FAULT"); fault != nullptr && *fault != '\0') {
    if (!checked.add_rules(fault, &problem)) {
      *out_error = "environment variable OUTBOARD_SIM_FAULT: " + problem;
      return OB_INVALID_ARGUMENT;
    }
    options.fault += options.fault.empty() ? fault : std::string(",") + fault;
  }
  if (!options.fault_counts.empty() && !checked.keep_counts(options.fault_counts, &problem)) {
    *out_error = "options: fault_counts: " + problem;
    return OB_INVALID_ARGUMENT;
  }
  *out_options = options;
  return OB_OK;
}

}  // namespace sim

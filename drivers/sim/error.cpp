// SPDX-License-Identifier: BSD-3-Clause
#include "error.h"

#include <built/contract.inc>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "torch_outboard/support/error.h"

namespace sim {
namespace {

// A plain array: a thread-local with a destructor could be destroyed
// before its last use at thread exit.
thread_local char last_error_text[512];

struct NamedStatus {
  const char* name;
  ob_status code;
};

constexpr NamedStatus kStatuses[] = {
#define X(name) {#name, OB_##name},
    OB_STATUSES(X)
#undef X
};

}  // namespace

ob_status fail(ob_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error_text, sizeof last_error_text, format, arguments);
  va_end(arguments);
  return code;
}

void copy_last_error(const std::string& repeats, char* buffer, size_t size) {
  std::string text = last_error_text;
  if (!repeats.empty() && !text.empty()) text += " (" + repeats + ")";
  support::copy_text(text.c_str(), buffer, size);
}

std::string status_name(ob_status code) {
  for (const NamedStatus& status : kStatuses) {
    if (status.code == code) return status.name;
  }
  return std::to_string(code);
}

bool parse_status(const std::string& text, ob_status* out_code) {
  for (const NamedStatus& status : kStatuses) {
    if (text == status.name) {
      *out_code = status.code;
      return status.code != OB_OK;
    }
  }
  if (text.empty() || text.size() > 4 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *out_code = std::stoi(text);
  return *out_code != OB_OK;
}

std::string size_text(unsigned long long bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  if (unit == 0) {
    std::snprintf(text, sizeof text, "%llu bytes", bytes);
  } else {
    std::snprintf(text, sizeof text, "%.2f %s (%llu bytes)", value, kUnits[unit], bytes);
  }
  return text;
}

}  // namespace sim

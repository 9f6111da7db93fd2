// SPDX-License-Identifier: BSD-3-Clause
// Errors of a driver: a status code, and the calling thread's text for it.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>

#include "torch_outboard/driver.h"

namespace support {

// A plain array: a thread-local with a destructor could be destroyed before its last use at thread
// exit. Build logs are long; the core reads at most 64 KiB.
inline thread_local char last_error_text[16 << 10];

// Store the formatted text as this thread's last error and return `code`.
[[gnu::format(printf, 2, 3)]] inline ob_status fail(ob_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error_text, sizeof last_error_text, format, arguments);
  va_end(arguments);
  return code;
}

// Copy any text, cut to `size` bytes with the final zero.
inline void copy_text(const char* text, char* buffer, size_t size) {
  if (buffer != nullptr && size > 0) std::snprintf(buffer, size, "%s", text);
}

inline void last_error(void*, char* buffer, size_t size) {
  copy_text(last_error_text, buffer, size);
}

// Run an entry's body and keep exceptions from crossing into C.
template <class Body>
ob_status guarded(const char* entry, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(OB_OUT_OF_MEMORY, "%s: the host is out of memory", entry);
  } catch (const std::exception& error) {
    return fail(OB_INTERNAL, "%s: %s", entry, error.what());
  }
}

}  // namespace support

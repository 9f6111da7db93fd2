// SPDX-License-Identifier: BSD-3-Clause
// A vendor's library that is opened at run time.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace support {

// Open the named file, or if that is "" the first of the usual names that the loader finds. Return null, with the
// loader's last sentence, if there is none. Users never close it: such libraries leave threads and exit handlers
// behind.
inline void* open_library(const std::string& path, std::initializer_list<const char*> usual, std::string* out_error) {
  const auto open = [&](const char* name) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (const char* reason = library == nullptr ? dlerror() : nullptr) *out_error = reason;
    return library;
  };
  if (!path.empty()) return open(path.c_str());
  for (const char* name : usual) {
    if (void* library = open(name)) return library;
  }
  return nullptr;
}

}  // namespace support

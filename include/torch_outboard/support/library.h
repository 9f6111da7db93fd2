// SPDX-License-Identifier: BSD-3-Clause
// Opens a vendor's library at run time.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <mutex>
#include <string>

namespace support {

// Open the named file or, if the path is "", the first of the usual names that the loader finds.
// Return null, with the loader's last message, if there is none. Callers never close the library:
// such libraries leave threads and exit handlers behind.
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

// Find a function of an opened library. Return false, with a clause that names it, if the library
// lacks it.
template <class Function>
bool find_function(void* library, const char* name, Function* out_function, std::string* out_error) {
  *out_function = reinterpret_cast<Function>(dlsym(library, name));
  if (*out_function == nullptr) *out_error = std::string("it lacks ") + name;
  return *out_function != nullptr;
}

// Open a library at the first call, for the life of the process. `open` fills it in, or returns
// false with a sentence that states the reason. On failure, return null with this sentence. There
// is one library per type.
template <class Library>
const Library* load_once(bool (*open)(const std::string&, Library*, std::string*), const std::string& path,
                         std::string* out_error) {
  static std::once_flag once;
  static Library library;
  static std::string problem;
  static bool is_loaded = false;
  std::call_once(once, [&] { is_loaded = open(path, &library, &problem); });
  if (!is_loaded) *out_error = problem;
  return is_loaded ? &library : nullptr;
}

}  // namespace support

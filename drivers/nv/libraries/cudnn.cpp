// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn.h"

#include <mutex>

#include "../../support/library.h"

namespace nv::cudnn {
namespace {

constexpr size_t kOldest = 90000;

bool open(const std::string& path, Library* out_library, std::string* out_error) {
  void* opened = support::open_library(path, {"libcudnn.so.9"}, out_error);
  if (opened == nullptr) return false;
  const auto version = reinterpret_cast<size_t (*)()>(dlsym(opened, "cudnnGetVersion"));
  out_library->version = version == nullptr ? 0 : version();
  if (out_library->version < kOldest) {
    *out_error = "its version is " + std::to_string(out_library->version) + "; version 9.0.0 or newer is needed";
    return false;
  }
#define OB_CUDNN_LOAD(name, parameters)                                                  \
  out_library->name = reinterpret_cast<int(*) parameters>(dlsym(opened, "cudnn" #name)); \
  if (out_library->name == nullptr) {                                                    \
    *out_error = "it has no cudnn" #name;                                                \
    return false;                                                                        \
  }
  OB_CUDNN_FUNCTIONS(OB_CUDNN_LOAD)
#undef OB_CUDNN_LOAD
  out_library->GetErrorString = reinterpret_cast<const char* (*)(int)>(dlsym(opened, "cudnnGetErrorString"));
  out_library->GetLastErrorString = reinterpret_cast<void (*)(char*, size_t)>(dlsym(opened, "cudnnGetLastErrorString"));
  if (out_library->GetErrorString == nullptr || out_library->GetLastErrorString == nullptr) {
    *out_error = "it has no cudnnGetErrorString or no cudnnGetLastErrorString";
    return false;
  }
  return true;
}

}  // namespace

std::string Library::describe(int status) const {
  char sentence[512] = "";
  GetLastErrorString(sentence, sizeof sentence);
  const std::string name = GetErrorString(status);
  return sentence[0] == '\0' ? name : name + ": " + sentence;
}

const Library* load(const std::string& path, std::string* out_error) {
  static std::once_flag once;
  static Library library;
  static std::string problem;
  static bool is_loaded = false;
  std::call_once(once, [&] { is_loaded = open(path, &library, &problem); });
  if (!is_loaded) *out_error = problem;
  return is_loaded ? &library : nullptr;
}

}  // namespace nv::cudnn

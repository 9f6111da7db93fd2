// SPDX-License-Identifier: BSD-3-Clause
#include "cublaslt.h"

#include <mutex>

#include "../../support/library.h"

namespace nv::cublaslt {
namespace {

bool open(const std::string& path, Library* out_library, std::string* out_error) {
  void* opened = support::open_library(path, {"libcublasLt.so.13", "libcublasLt.so.12"}, out_error);
  if (opened == nullptr) return false;
#define OB_CUBLASLT_LOAD(name, parameters)                                                \
  out_library->name = reinterpret_cast<int(*) parameters>(dlsym(opened, "cublasLt" #name)); \
  if (out_library->name == nullptr) {                                                         \
    *out_error = "it has no cublasLt" #name;                                              \
    return false;                                                                         \
  }
  OB_CUBLASLT_FUNCTIONS(OB_CUBLASLT_LOAD)
#undef OB_CUBLASLT_LOAD
  out_library->GetStatusName = reinterpret_cast<const char* (*)(int)>(dlsym(opened, "cublasLtGetStatusName"));
  if (out_library->GetStatusName == nullptr) *out_error = "it has no cublasLtGetStatusName";
  return out_library->GetStatusName != nullptr;
}

}  // namespace

const Library* load(const std::string& path, std::string* out_error) {
  static std::once_flag once;
  static Library library;
  static std::string problem;
  static bool is_loaded = false;
  std::call_once(once, [&] { is_loaded = open(path, &library, &problem); });
  if (!is_loaded) *out_error = problem;
  return is_loaded ? &library : nullptr;
}

}  // namespace nv::cublaslt

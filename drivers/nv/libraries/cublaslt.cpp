// SPDX-License-Identifier: BSD-3-Clause
#include "cublaslt.h"

#include <dlfcn.h>

#include <mutex>
#include <vector>

namespace nv::cublaslt {
namespace {

bool open(const std::string& path, Library* out_library, std::string* out_error) {
  std::vector<std::string> names = {path};
  if (path.empty()) names = {"libcublasLt.so.13", "libcublasLt.so.12"};
  void* opened = nullptr;
  for (const std::string& name : names) {
    opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened != nullptr) break;
    if (const char* reason = dlerror()) *out_error = reason;
  }
  if (opened == nullptr) return false;
#define OB_CUBLASLT_LOAD(name, parameters)                                                \
  out_library->name = reinterpret_cast<int(*) parameters>(dlsym(opened, "cublasLt" #name)); \
  if (out_library->name == nullptr) {                                                         \
    *out_error = "it has no cublasLt" #name;                                              \
    return false;                                                                         \
  }
  OB_CUBLASLT_FUNCTIONS(OB_CUBLASLT_LOAD)
#undef OB_CUBLASLT_LOAD
  return true;
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

std::string status_name(int status) {
  switch (status) {
    case 1:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case 8:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 13:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "status " + std::to_string(status);
  }
}

}  // namespace nv::cublaslt

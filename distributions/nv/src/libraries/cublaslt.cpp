// SPDX-License-Identifier: BSD-3-Clause
#include "cublaslt.h"

#include "torch_outboard/support/library.h"

namespace nv::cublaslt {
namespace {

bool open(const std::string& path, Library* out_library, std::string* out_error) {
  void* opened = support::open_library(path, {"libcublasLt.so.13", "libcublasLt.so.12"}, out_error);
  if (opened == nullptr) return false;
#define OB_CUBLASLT_LOAD(name, parameters) \
  if (!support::find_function(opened, "cublasLt" #name, &out_library->name, out_error)) return false;
  OB_CUBLASLT_FUNCTIONS(OB_CUBLASLT_LOAD)
#undef OB_CUBLASLT_LOAD
  return support::find_function(opened, "cublasLtGetStatusName", &out_library->GetStatusName, out_error);
}

}  // namespace

const Library* load(const std::string& path, std::string* out_error) {
  return support::load_once(open, path, out_error);
}

}  // namespace nv::cublaslt

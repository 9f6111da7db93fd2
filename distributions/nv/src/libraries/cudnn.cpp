// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn.h"

#include "torch_outboard/support/library.h"

namespace nv::cudnn {
namespace {

constexpr size_t kMinVersion = 90000;

bool open(const std::string& path, Library* out_library, std::string* out_error) {
  void* opened = support::open_library(path, {"libcudnn.so.9"}, out_error);
  if (opened == nullptr) return false;
  const auto version = reinterpret_cast<size_t (*)()>(dlsym(opened, "cudnnGetVersion"));
  out_library->version = version == nullptr ? 0 : version();
  if (out_library->version < kMinVersion) {
    *out_error = "its version is " + std::to_string(out_library->version) + "; version 9.0.0 or newer is needed";
    return false;
  }
#define OB_CUDNN_LOAD(name, parameters) \
  if (!support::find_function(opened, "cudnn" #name, &out_library->name, out_error)) return false;
  OB_CUDNN_FUNCTIONS(OB_CUDNN_LOAD)
#undef OB_CUDNN_LOAD
  std::string missing;
  out_library->has_recurrent = true;
#define OB_CUDNN_LOAD(name, parameters) \
  if (!support::find_function(opened, "cudnn" #name, &out_library->name, &missing)) out_library->has_recurrent = false;
  OB_CUDNN_RECURRENT_FUNCTIONS(OB_CUDNN_LOAD)
#undef OB_CUDNN_LOAD
  return support::find_function(opened, "cudnnGetErrorString", &out_library->GetErrorString, out_error) &&
         support::find_function(opened, "cudnnGetLastErrorString", &out_library->GetLastErrorString, out_error);
}

}  // namespace

std::string Library::describe(int status) const {
  char sentence[512] = "";
  GetLastErrorString(sentence, sizeof sentence);
  const std::string name = GetErrorString(status);
  return sentence[0] == '\0' ? name : name + ": " + sentence;
}

const Library* load(const std::string& path, std::string* out_error) {
  return support::load_once(open, path, out_error);
}

}  // namespace nv::cudnn

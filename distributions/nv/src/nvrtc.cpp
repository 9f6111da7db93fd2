// SPDX-License-Identifier: BSD-3-Clause
#include "nvrtc.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "torch_outboard/support/error.h"
#include "torch_outboard/support/library.h"
#include "torch_outboard/support/source_lines.h"

namespace nv {
namespace {

using support::fail;
using nvrtcProgram = struct NvrtcProgram*;

#define OB_NVRTC_FUNCTIONS(X)                                                                                     \
  X(CreateProgram, (nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*))        \
  X(CompileProgram, (nvrtcProgram, int, const char* const*))                                                      \
  X(GetProgramLogSize, (nvrtcProgram, size_t*))                                                                   \
  X(GetProgramLog, (nvrtcProgram, char*))                                                                         \
  X(GetCUBINSize, (nvrtcProgram, size_t*))                                                                        \
  X(GetCUBIN, (nvrtcProgram, char*))                                                                              \
  X(GetPTXSize, (nvrtcProgram, size_t*))                                                                          \
  X(GetPTX, (nvrtcProgram, char*))                                                                                \
  X(DestroyProgram, (nvrtcProgram*))                                                                              \
  X(GetNumSupportedArchs, (int*))                                                                                 \
  X(GetSupportedArchs, (int*))

struct Nvrtc {
#define OB_NVRTC_MEMBER(name, parameters) int(*name) parameters = nullptr;
  OB_NVRTC_FUNCTIONS(OB_NVRTC_MEMBER)
#undef OB_NVRTC_MEMBER
  const char* (*GetErrorString)(int) = nullptr;
  std::vector<int> architectures;  // sm_90 is 90; ascending
};

bool load(const std::string& path, Nvrtc* out_nvrtc, std::string* out_error) {
  void* handle = support::open_library(path, {}, out_error);
  if (handle == nullptr) return false;
  bool is_whole = true;
#define OB_NVRTC_LOAD(name, parameters)                                                             \
  out_nvrtc->name = reinterpret_cast<int(*) parameters>(dlsym(handle, "nvrtc" #name));              \
  is_whole = is_whole && out_nvrtc->name != nullptr;
  OB_NVRTC_FUNCTIONS(OB_NVRTC_LOAD)
#undef OB_NVRTC_LOAD
  out_nvrtc->GetErrorString = reinterpret_cast<const char* (*)(int)>(dlsym(handle, "nvrtcGetErrorString"));
  int count = 0;
  if (!is_whole || out_nvrtc->GetErrorString == nullptr || out_nvrtc->GetNumSupportedArchs(&count) != 0) {
    *out_error = path + " is older than CUDA 11.2";
    return false;
  }
  out_nvrtc->architectures.resize(count);
  return out_nvrtc->GetSupportedArchs(out_nvrtc->architectures.data()) == 0;
}

// Each NVRTC that the options name, or else each that is found by a usual name, in order. Each is
// opened once.
const std::vector<Nvrtc>& all_nvrtcs(const std::string& paths, std::string* out_error) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<Nvrtc>> opened;
  const std::lock_guard lock(mutex);
  std::vector<Nvrtc>& loaded = opened[paths];
  if (!loaded.empty()) return loaded;
  std::istringstream stream(paths.empty() ? "libnvrtc.so.13:libnvrtc.so.12:libnvrtc.so.11.2:libnvrtc.so" : paths);
  std::string first;
  for (std::string path; std::getline(stream, path, ':');) {
    Nvrtc nvrtc;
    std::string error;
    if (load(path, &nvrtc, &error)) loaded.push_back(std::move(nvrtc));
    if (first.empty()) first = error;
  }
  *out_error = first;
  return loaded;
}

// A program that is destroyed at the end of the scope.
struct Program {
  explicit Program(const Nvrtc& compiler) : nvrtc(compiler) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (handle != nullptr) static_cast<void>(nvrtc.DestroyProgram(&handle));
  }
  const Nvrtc& nvrtc;
  nvrtcProgram handle = nullptr;
};

std::string log_of(const Program& program) {
  size_t size = 0;
  if (program.nvrtc.GetProgramLogSize(program.handle, &size) != 0 || size == 0) return "";
  std::string log(size, '\0');
  if (program.nvrtc.GetProgramLog(program.handle, log.data()) != 0) return "";
  log.resize(log.find('\0') == std::string::npos ? log.size() : log.find('\0'));
  return log;
}

// Return the status for an nvrtcResult.
ob_status status_of_compiler(int code) {
  switch (code) {
    case 1:
      return OB_OUT_OF_MEMORY;
    case 3:  // invalid input
    case 5:  // invalid option
      return OB_INVALID_ARGUMENT;
    case 6:  // the source does not compile
      return OB_PROGRAM_REFUSED;
    default:
      return OB_INTERNAL;
  }
}

// Return the first NVRTC that compiles for an architecture: each major version has dropped the
// oldest chips. If there is none, fail with a sentence.
ob_status choose_nvrtc(const std::string& paths, const std::string& architecture, const Nvrtc** out_nvrtc) {
  std::string error;
  const std::vector<Nvrtc>& nvrtcs = all_nvrtcs(paths, &error);
  if (nvrtcs.empty()) {
    return fail(OB_UNAVAILABLE,
                "CUDA C++ needs NVRTC, which can't be opened: %s. Install it (the package nvidia-cuda-nvrtc), name it "
                "with the option `nvrtc`, or build from PTX.",
                error.c_str());
  }
  const int wanted = std::atoi(architecture.c_str() + architecture.find('_') + 1);
  std::string ranges;
  for (const Nvrtc& nvrtc : nvrtcs) {
    const std::vector<int>& known = nvrtc.architectures;
    if (std::find(known.begin(), known.end(), wanted) != known.end()) {
      *out_nvrtc = &nvrtc;
      return OB_OK;
    }
    if (known.empty()) continue;
    ranges +=
        (ranges.empty() ? "sm_" : " or sm_") + std::to_string(known.front()) + " to sm_" + std::to_string(known.back());
  }
  return fail(OB_INVALID_ARGUMENT,
              "the installed NVRTC compiles for %s, not for %s. Install %s, or name its file with the option `nvrtc`.",
              ranges.c_str(), architecture.c_str(),
              wanted < 75 ? "NVRTC 12, which serves GPUs from sm_50 on (the package nvidia-cuda-nvrtc-cu12)"
                          : "a newer NVRTC (the package nvidia-cuda-nvrtc)");
}

}  // namespace

ob_status compile_cuda(const std::string& libraries, const std::string& source, const std::string& options,
                       const std::string& architecture, std::string* out_image) {
  const Nvrtc* chosen = nullptr;
  if (const ob_status status = choose_nvrtc(libraries, architecture, &chosen); status != OB_OK) return status;
  const Nvrtc& nvrtc = *chosen;
  std::vector<std::string> words = {"--gpu-architecture=" + architecture};
  std::istringstream stream(options);
  for (std::string word; stream >> word;) words.push_back(word);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  Program program(nvrtc);
  int code = nvrtc.CreateProgram(&program.handle, source.c_str(), "program.cu", 0, nullptr, nullptr);
  if (code == 0) code = nvrtc.CompileProgram(program.handle, static_cast<int>(arguments.size()), arguments.data());
  if (code != 0) {
    const std::string log = program.handle != nullptr ? log_of(program) : "";
    return fail(status_of_compiler(code), "the program does not compile (%s), options '%s':\n%s%s",
                nvrtc.GetErrorString(code), options.c_str(), log.c_str(), support::cite_source(log, source).c_str());
  }
  // There is no machine code for a virtual architecture, but PTX.
  const bool is_virtual = architecture.starts_with("compute_");
  size_t size = 0;
  code = (is_virtual ? nvrtc.GetPTXSize : nvrtc.GetCUBINSize)(program.handle, &size);
  out_image->assign(size, '\0');
  if (code == 0) code = (is_virtual ? nvrtc.GetPTX : nvrtc.GetCUBIN)(program.handle, out_image->data());
  return code == 0 ? OB_OK : fail(OB_INTERNAL, "nvrtcGetCUBIN or nvrtcGetPTX returned %s", nvrtc.GetErrorString(code));
}

}  // namespace nv

// For NvDriver.compile_program, which has no device: pass the compiled program, or the reason why
// it did not compile, to `take`. Return the status.
extern "C" OB_EXPORT ob_status ob_nv_compile(const char* libraries, const char* architecture, const char* code,
                                             size_t code_size, const char* options, void* context, ob_take_fn take) {
  std::string image;
  const ob_status status = support::guarded("compile_program", [&] {
    return nv::compile_cuda(libraries, std::string(code, code_size), options, architecture, &image);
  });
  if (status != OB_OK) image = support::last_error_text;
  take(context, image.data(), image.size());
  return status;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "count.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "cuda.h"
#include "torch_outboard/support/child.h"

namespace nv {
namespace {

struct Gpus {
  bool is_known = false;
  std::vector<std::string> uuids;  // "GPU-…"; "" if it is not known
};

// Ask NVML, which does not start CUDA and survives a fork.
Gpus query_nvml() {
  Gpus gpus;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return gpus;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shut_down = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto get_count = reinterpret_cast<int (*)(unsigned*)>(dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto get_device = reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto get_uuid = reinterpret_cast<int (*)(void*, char*, unsigned)>(dlsym(library, "nvmlDeviceGetUUID"));
  const auto get_mig = reinterpret_cast<int (*)(void*, unsigned*, unsigned*)>(dlsym(library, "nvmlDeviceGetMigMode"));
  unsigned count = 0;
  if (init == nullptr || shut_down == nullptr || get_count == nullptr || get_device == nullptr || get_uuid == nullptr ||
      init() != 0) {
    return gpus;
  }
  if (get_count(&count) == 0) {
    gpus.is_known = true;
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      char uuid[96] = "";
      unsigned mig = 0;
      unsigned pending = 0;
      if (get_device(i, &device) != 0 || get_uuid(device, uuid, sizeof uuid) != 0) uuid[0] = '\0';
      gpus.uuids.emplace_back(uuid);
      // A sliced GPU counts as several devices or one, by rules that only CUDA knows.
      if (get_mig != nullptr && device != nullptr && get_mig(device, &mig, &pending) == 0 && mig == 1) {
        gpus.is_known = false;
      }
    }
  }
  shut_down();
  return gpus;
}

Gpus query_proc() {
  Gpus gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    static_cast<void>(entry);
    gpus.uuids.emplace_back();
  }
  gpus.is_known = !error;
  return gpus;
}

// Count the items of CUDA_VISIBLE_DEVICES that name a GPU. An item that names none ends the list,
// and naming a GPU twice hides all. Return -1 if there are names that only CUDA can resolve.
int32_t count_visible(const char* visible, const Gpus& gpus) {
  std::vector<size_t> chosen;
  const char* at = visible;
  for (;;) {
    const size_t length = std::strcspn(at, ",");
    const std::string word(at, length);
    size_t index = gpus.uuids.size();
    if (word.rfind("GPU-", 0) == 0) {
      for (size_t i = 0; i < gpus.uuids.size(); ++i) {
        if (gpus.uuids[i].empty()) return -1;
        if (gpus.uuids[i].rfind(word, 0) == 0) index = i;
      }
    } else if (word.rfind("MIG-", 0) == 0) {
      return -1;
    } else {
      char* end = nullptr;
      const long number = std::strtol(word.c_str(), &end, 10);
      if (end != word.c_str() && *end == '\0' && number >= 0) index = static_cast<size_t>(number);
    }
    if (index >= gpus.uuids.size()) break;
    if (std::find(chosen.begin(), chosen.end(), index) != chosen.end()) return 0;
    chosen.push_back(index);
    if (at[length] == '\0') break;
    at += length + 1;
  }
  return static_cast<int32_t>(chosen.size());
}

int32_t query_cuda(const std::string& library, std::string* out_error) {
  std::vector<std::string> lines;
  std::string why;
  const auto work = [&]() -> std::string {
    Api api;
    std::string error;
    int count = 0;
    if (!api.load(library, &error)) return "0\n" + error + "\n";
    CUresult code = api.Init(0);
    if (code == CUDA_SUCCESS) code = api.DeviceGetCount(&count);
    if (code == CUDA_SUCCESS) return std::to_string(count) + "\n\n";
    const char* name = nullptr;
    api.GetErrorName(code, &name);
    return "0\nCUDA cannot be initialized: " + std::string(name != nullptr ? name : "unknown error") + " (" +
           std::to_string(code) + ")\n";
  };
  if (!support::query_child(work, &lines, &why) || lines.size() < 2) {
    *out_error = "the child process that counts the GPUs " + (why.empty() ? "returned no answer" : why);
    return 0;
  }
  *out_error = lines[1];
  return static_cast<int32_t>(std::strtol(lines[0].c_str(), nullptr, 10));
}

}  // namespace

int32_t count_devices(const std::string& library, std::string* out_error) {
  Api api;  // only checks that the library exists; nothing is initialized
  if (!api.load(library, out_error)) return 0;
  Gpus gpus = query_nvml();
  if (!gpus.is_known && gpus.uuids.empty()) gpus = query_proc();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  int32_t count = -1;
  if (gpus.is_known) {
    count = visible != nullptr ? count_visible(visible, gpus) : static_cast<int32_t>(gpus.uuids.size());
  }
  if (count < 0) count = query_cuda(library, out_error);
  if (count == 0 && out_error->empty()) {
    *out_error = gpus.uuids.empty() ? "NVIDIA's driver is installed but there is no GPU"
                                    : "CUDA_VISIBLE_DEVICES='" + std::string(visible != nullptr ? visible : "") +
                                          "' hides all of the " + std::to_string(gpus.uuids.size()) + " GPUs";
  }
  return std::min(count, kMaxDevices);
}

}  // namespace nv

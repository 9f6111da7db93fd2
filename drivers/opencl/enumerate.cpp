// SPDX-License-Identifier: BSD-3-Clause
#include "enumerate.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "torch_outboard/support/lookup.h"

namespace opencl {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool parse_type(const std::string& text, cl_bitfield* out_type) {
  struct Named {
    const char* name;
    cl_bitfield type;
  };
  static constexpr Named kTypes[] = {{"all", CL_DEVICE_TYPE_ALL},
                                     {"gpu", CL_DEVICE_TYPE_GPU},
                                     {"cpu", CL_DEVICE_TYPE_CPU},
                                     {"accelerator", CL_DEVICE_TYPE_ACCELERATOR}};
  for (const Named& named : kTypes) {
    if (text == named.name) {
      *out_type = named.type;
      return true;
    }
  }
  return false;
}

template <class Get>
std::string text_of(Get&& get) {
  size_t size = 0;
  if (get(0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  if (get(size, text.data(), nullptr) != CL_SUCCESS) return "";
  text.resize(std::strlen(text.c_str()));
  return text;
}

// Return why a device cannot be used, or "".
std::string obstacle(const Api& api, cl_device_id device, cl_bitfield svm) {
  if (device_info<cl_bool>(api, device, CL_DEVICE_AVAILABLE) == 0) return "its runtime reports it as unavailable";
  if ((svm & (CL_SVM_COARSE_GRAIN_BUFFER | CL_SVM_FINE_GRAIN_BUFFER)) == 0) {
    return "it has no shared virtual memory (CL_DEVICE_SVM_CAPABILITIES is " + std::to_string(svm) +
           "), which tensors need for their addresses";
  }
  if (device_info<cl_bool>(api, device, CL_DEVICE_COMPILER_AVAILABLE) == 0) return "its runtime has no compiler";
  return "";
}

int rank(cl_bitfield type) {
  return (type & CL_DEVICE_TYPE_GPU) ? 0 : (type & CL_DEVICE_TYPE_ACCELERATOR) ? 1 : 2;
}

// Select devices: "2,0" on three devices selects the third and the first. As with
// CUDA_VISIBLE_DEVICES, an invalid number ends the list.
void select_visible(Enumeration* result) {
  const char* visible = std::getenv("OPENCL_VISIBLE_DEVICES");
  if (visible == nullptr) return;
  std::vector<FoundDevice> chosen;
  for (const char* at = visible; *at != '\0';) {
    char* end = nullptr;
    const long index = std::strtol(at, &end, 10);
    const bool is_known = end != at && index >= 0 && static_cast<size_t>(index) < result->devices.size();
    if (!is_known || (*end != ',' && *end != '\0')) break;
    const FoundDevice& device = result->devices[static_cast<size_t>(index)];
    const bool is_double = std::any_of(chosen.begin(), chosen.end(), [&](const FoundDevice& other) {
      return other.device == device.device && other.platform == device.platform;
    });
    if (is_double) break;
    chosen.push_back(device);
    at = *end == ',' ? end + 1 : end;
  }
  if (chosen.empty()) {
    result->error = "OPENCL_VISIBLE_DEVICES='" + std::string(visible) + "' hides all of the " +
                    std::to_string(result->devices.size()) + " OpenCL devices";
  }
  result->devices = std::move(chosen);
}

// Return the child's report: the count, the error, then a line for each device that is left out.
std::string report(const Enumeration& enumeration) {
  std::string text = std::to_string(enumeration.devices.size()) + "\n" + enumeration.error + "\n";
  for (const std::string& line : enumeration.unusable_devices) text += line + "\n";
  return text;
}

}  // namespace

ob_status parse_options(const ob_options* options, Options* out_options, std::string* out_error) {
  if (const char* platform = std::getenv("OUTBOARD_OPENCL_PLATFORM")) out_options->platform = platform;
  for (size_t i = 0; options != nullptr && i < options->count; ++i) {
    const std::string key = options->keys[i];
    const std::string value = options->values[i];
    if (key == "platform") {
      out_options->platform = value;
    } else if (key == "library") {
      out_options->library = value;
    } else if (key == "device_type") {
      if (!parse_type(value, &out_options->device_type)) {
        *out_error = "option device_type must be all, gpu, cpu or accelerator, not '" + value + "'";
        return OB_INVALID_ARGUMENT;
      }
    } else if (key == "cache" || key == "host_access") {
      if (value != "0" && value != "1") {
        *out_error = "option " + key + " must be 0 or 1, not '" + value + "'";
        return OB_INVALID_ARGUMENT;
      }
      if (key == "cache") {
        out_options->cache = value == "1";
      } else {
        out_options->host_access = value == "1";
      }
    } else {
      *out_error =
          "unknown option '" + key + "'; the options are platform, device_type, library, cache and host_access";
      return OB_INVALID_ARGUMENT;
    }
  }
  return OB_OK;
}

std::string platform_text(const Api& api, cl_platform_id platform, cl_uint what) {
  return text_of([&](size_t size, void* value, size_t* out_size) {
    return api.GetPlatformInfo(platform, what, size, value, out_size);
  });
}

std::string device_text(const Api& api, cl_device_id device, cl_uint what) {
  return text_of([&](size_t size, void* value, size_t* out_size) {
    return api.GetDeviceInfo(device, what, size, value, out_size);
  });
}

Enumeration enumerate(const Api& api, const Options& options) {
  Enumeration result;
  cl_uint count = 0;
  const cl_int code = api.GetPlatformIDs(0, nullptr, &count);
  if (code != CL_SUCCESS || count == 0) {
    result.error =
        "the OpenCL loader finds no platform (clGetPlatformIDs returned " +
        (code == CL_SUCCESS ? std::string("none") : error_name(code)) +
        "). Install a runtime for the device (for CPUs: Debian's pocl-opencl-icd), or set OCL_ICD_VENDORS to "
        "the folder of its .icd file.";
    return result;
  }
  std::vector<cl_platform_id> platforms(count);
  api.GetPlatformIDs(count, platforms.data(), nullptr);
  std::string names;
  size_t seen = 0;
  for (const cl_platform_id platform : platforms) {
    const std::string name = platform_text(api, platform, CL_PLATFORM_NAME);
    names += (names.empty() ? "" : ", ") + name;
    if (lower(name).find(lower(options.platform)) == std::string::npos) continue;
    cl_uint devices = 0;
    if (api.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &devices) != CL_SUCCESS || devices == 0) continue;
    std::vector<cl_device_id> ids(devices);
    api.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, devices, ids.data(), nullptr);
    for (const cl_device_id device : ids) {
      const auto type = device_info<cl_bitfield>(api, device, CL_DEVICE_TYPE);
      if ((type & options.device_type) == 0) continue;
      ++seen;
      const auto svm = device_info<cl_bitfield>(api, device, CL_DEVICE_SVM_CAPABILITIES);
      if (const std::string why = obstacle(api, device, svm); !why.empty()) {
        result.unusable_devices.push_back("OpenCL device '" + device_text(api, device, CL_DEVICE_NAME) +
                                          "' of platform '" + name + "' is left out: " + why);
        continue;
      }
      result.devices.push_back({platform, device, type, svm});
    }
  }
  std::stable_sort(result.devices.begin(), result.devices.end(),
                   [](const FoundDevice& a, const FoundDevice& b) { return rank(a.type) < rank(b.type); });
  if (result.devices.size() > kMaxDevices) result.devices.resize(kMaxDevices);
  if (!result.devices.empty()) {
    select_visible(&result);
  } else if (seen > 0) {
    result.error = "none of the OpenCL devices can be used";
    for (const std::string& line : result.unusable_devices) result.error += "; " + line;
  } else {
    result.error = "no OpenCL device matches platform '" + options.platform +
                   "' and the option device_type. The "
                   "platforms are: " +
                   names;
  }
  return result;
}

int32_t probe(const Options& options, Enumeration* out_enumeration) {
  const auto work = [&] {
    Api api;
    Enumeration enumeration;
    if (api.load(options.library, &enumeration.error)) enumeration = enumerate(api, options);
    return report(enumeration);
  };
  return support::count_in_child(
      work, "OpenCL", "Leave out a runtime with OCL_ICD_VENDORS, which names a folder of .icd files.", out_enumeration);
}

}  // namespace opencl

// SPDX-License-Identifier: BSD-3-Clause
// The OpenCL devices: which are used, and why the others are not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cl.h"

namespace opencl {

constexpr int32_t kMaxDevices = 64;

struct Options {
  std::string library = "libOpenCL.so.1";
  std::string platform;             // part of a platform's name, in any case; "" for all
  cl_bitfield device_type = CL_DEVICE_TYPE_ALL;
  std::optional<bool> cache;        // of compiled programs, on disk; unset: unless the runtime has its own
  bool host_access = true;          // false: memory is coarse-grain everywhere, so the host cannot reach it
};

// Return OB_INVALID_ARGUMENT and a sentence on failure.
ob_status parse_options(const ob_options* options, Options* out_options, std::string* out_error);

struct FoundDevice {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  cl_bitfield type = 0;
  cl_bitfield svm = 0;
};

struct Enumeration {
  std::vector<FoundDevice> devices;
  std::vector<std::string> unusable_devices;  // a sentence for each device that cannot be used
  std::string error;                  // why there is nothing to use, or ""
};

// Ask every platform, in this process. GPUs come first, then accelerators, then CPUs.
// OPENCL_VISIBLE_DEVICES, which counts in this order, selects and reorders.
Enumeration enumerate(const Api& api, const Options& options);

// Return the same count without opening anything in this process. Runtimes start threads and do not
// survive a fork, so a child process asks. `devices` stays empty.
int32_t probe(const Options& options, Enumeration* out_enumeration);

std::string platform_text(const Api& api, cl_platform_id platform, cl_uint what);
std::string device_text(const Api& api, cl_device_id device, cl_uint what);

// Return a number or a struct; all zero if the runtime does not know it.
template <class T>
T device_info(const Api& api, cl_device_id device, cl_uint what) {
  T value{};
  if (api.GetDeviceInfo(device, what, sizeof value, &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

}  // namespace opencl

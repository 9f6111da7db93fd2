// SPDX-License-Identifier: BSD-3-Clause
#include "vk.h"

#include <dlfcn.h>

#include "torch_outboard/support/error.h"

namespace vulkan {

bool Api::load(const std::string& library, std::string* out_error) {
  // Never closed: drivers leave threads and exit handlers behind.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    *out_error = "Vulkan cannot be loaded (" + std::string(reason != nullptr ? reason : library) +
                 "). Install the Vulkan loader (Debian: libvulkan1) and a driver for the device (for CPUs, AMD and "
                 "Intel: mesa-vulkan-drivers), or name the loader with the option `library`.";
    return false;
  }
  const auto get = [&](const char* name) { return reinterpret_cast<VkVoidFunction>(dlsym(handle, name)); };
  VkVoidFunction first = get("vkGetInstanceProcAddr");
  // the library is a driver itself, not the loader
  if (first == nullptr) first = get("vk_icdGetInstanceProcAddr");
  if (first == nullptr) {
    *out_error = library + " has no vkGetInstanceProcAddr, so it is not a Vulkan loader";
    return false;
  }
  GetInstanceProcAddr = reinterpret_cast<decltype(GetInstanceProcAddr)>(first);
#define OB_VK_OPTIONAL(result, name, parameters) \
  name = reinterpret_cast<result(*) parameters>(GetInstanceProcAddr(instance, "vk" #name));
#define OB_VK_LOAD(result, name, parameters)                                                    \
  OB_VK_OPTIONAL(result, name, parameters)                                                      \
  if (name == nullptr) {                                                                        \
    *out_error = library + " lacks vk" #name ": it is older than Vulkan 1.3. Install another."; \
    return false;                                                                               \
  }
  OB_VK_GLOBAL_FUNCTIONS(OB_VK_LOAD)
  const VkApplicationInfo application = {
      VK_STRUCTURE_TYPE_APPLICATION_INFO, nullptr, "torch_outboard", 0, nullptr, 0, kVulkan13};
  VkInstanceCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &application;
  if (const VkResult code = CreateInstance(&info, nullptr, &instance); code != VK_SUCCESS) {
    *out_error = "the Vulkan loader finds no working driver (vkCreateInstance returned " + error_name(code) +
                 "). Install one for the device (for CPUs, AMD and Intel: Debian's mesa-vulkan-drivers), or set "
                 "VK_DRIVER_FILES to its .json file.";
    return false;
  }
  OB_VK_INSTANCE_FUNCTIONS(OB_VK_LOAD)
  OB_VK_OPTIONAL_INSTANCE_FUNCTIONS(OB_VK_OPTIONAL)
#undef OB_VK_LOAD
#undef OB_VK_OPTIONAL
  return true;
}

bool DeviceApi::load(const Api& api, VkDevice device, std::string* out_error) {
#define OB_VK_OPTIONAL(result, name, parameters) \
  name = reinterpret_cast<result(*) parameters>(api.GetDeviceProcAddr(device, "vk" #name));
#define OB_VK_LOAD(result, name, parameters)               \
  OB_VK_OPTIONAL(result, name, parameters)                 \
  if (name == nullptr) {                                   \
    *out_error = "the device's driver lacks vk" #name "."; \
    return false;                                          \
  }
  OB_VK_DEVICE_FUNCTIONS(OB_VK_LOAD)
  OB_VK_OPTIONAL_FUNCTIONS(OB_VK_OPTIONAL)
#undef OB_VK_LOAD
#undef OB_VK_OPTIONAL
  return true;
}

std::string error_name(VkResult code) {
  struct Named {
    VkResult code;
    const char* name;
  };
  static constexpr Named kNames[] = {
      {VK_TIMEOUT, "VK_TIMEOUT"},
      {VK_INCOMPLETE, "VK_INCOMPLETE"},
      {VK_ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY"},
      {VK_ERROR_OUT_OF_DEVICE_MEMORY, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
      {VK_ERROR_INITIALIZATION_FAILED, "VK_ERROR_INITIALIZATION_FAILED"},
      {VK_ERROR_DEVICE_LOST, "VK_ERROR_DEVICE_LOST"},
      {VK_ERROR_MEMORY_MAP_FAILED, "VK_ERROR_MEMORY_MAP_FAILED"},
      {VK_ERROR_EXTENSION_NOT_PRESENT, "VK_ERROR_EXTENSION_NOT_PRESENT"},
      {VK_ERROR_FEATURE_NOT_PRESENT, "VK_ERROR_FEATURE_NOT_PRESENT"},
      {VK_ERROR_INCOMPATIBLE_DRIVER, "VK_ERROR_INCOMPATIBLE_DRIVER"},
      {VK_ERROR_TOO_MANY_OBJECTS, "VK_ERROR_TOO_MANY_OBJECTS"},
      {VK_ERROR_UNKNOWN, "VK_ERROR_UNKNOWN"},
      {VK_ERROR_FRAGMENTATION, "VK_ERROR_FRAGMENTATION"},
  };
  for (const Named& named : kNames) {
    if (named.code == code) return std::string(named.name) + " (" + std::to_string(code) + ")";
  }
  return "error " + std::to_string(code);
}

namespace {

ob_status status_of(VkResult code) {
  switch (code) {
    case VK_SUCCESS:
      return OB_OK;
    case VK_ERROR_DEVICE_LOST:
      return OB_DEVICE_LOST;
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_FRAGMENTATION:
    case VK_ERROR_MEMORY_MAP_FAILED:
    case VK_ERROR_TOO_MANY_OBJECTS:  // there are only so many allocations
      return OB_OUT_OF_MEMORY;
    case VK_ERROR_INITIALIZATION_FAILED:
    case VK_ERROR_INCOMPATIBLE_DRIVER:
    case VK_ERROR_EXTENSION_NOT_PRESENT:
    case VK_ERROR_FEATURE_NOT_PRESENT:
      return OB_UNAVAILABLE;
    default:
      return OB_INTERNAL;
  }
}

}  // namespace

ob_status vk_fail(VkResult code, const char* function, const std::string& what) {
  return support::fail(status_of(code), "%s: %s returned %s", what.c_str(), function, error_name(code).c_str());
}

}  // namespace vulkan

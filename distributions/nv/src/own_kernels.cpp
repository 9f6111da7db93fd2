// SPDX-License-Identifier: BSD-3-Clause
#include "own_kernels.h"

#include <map>

#include "nvrtc.h"
#include "own_source.h"
#include "recall.h"

namespace nv {
namespace {

constexpr const char* kOptions = "--std=c++17";

// The lines that make the kernels for a type: sizes of elements for copies and fills, names of
// types for biases.
const std::map<std::string, const char*>& lines_by_type() {
  static const std::map<std::string, const char*> lines = {
      {"1", "COPIES(1, u8)"},
      {"2", "COPIES(2, u16)"},
      {"4", "COPIES(4, u32)"},
      {"8", "COPIES(8, u64) FILL(8, u64)"},
      {"16", "COPIES(16, u128) FILL(16, u128)"},
      {"float", "BIASES(float, float, float)"},
      {"double", "BIASES(double, double, double)"},
      {"half", "BIASES(half, Half, float)"},
      {"bfloat16", "BIASES(bfloat16, BFloat16, float)"},
  };
  return lines;
}

std::string source_for(const std::string& type) {
  return std::string(kOwnSource) + lines_by_type().at(type) + "\n";
}

// Load the image that an earlier process compiled, or that a pack contains. Return false if there
// is none, or if CUDA refuses it, so that the source is compiled.
bool load_stored(Driver& driver, Device& device, const std::string& source, uint64_t* out_module) {
  std::string image;
  return recall_bytes(driver.recall, device.index, source, &image) &&
         build_image(driver, device, image.data(), nullptr, out_module) == OB_OK;
}

// Find, load or compile the module for a type. Call it with own_mutex held.
ob_status own_module(Driver& driver, Device& device, const std::string& type, uint64_t* out_module) {
  if (const auto known = device.own_modules.find(type); known != device.own_modules.end()) {
    *out_module = known->second;
    return OB_OK;
  }
  if (device.own_refusal.empty()) {
    const std::string source = source_for(type);
    if (load_stored(driver, device, source, out_module)) {
      device.own_modules[type] = *out_module;
      return OB_OK;
    }
    std::string image;
    const ob_status status = compile_cuda(driver.options.nvrtc, source, kOptions, device.architecture(), &image);
    if (status == OB_OK) {
      const ob_status built = build_image(driver, device, image.data(), nullptr, out_module);
      if (built != OB_OK) return built;
      device.own_modules[type] = *out_module;
      if (driver.keep != nullptr) {
        driver.keep(device.index, source.data(), source.size(), image.data(), image.size());
      }
      return OB_OK;
    }
    // Declined if there is no NVRTC that compiles for this GPU.
    if (status != OB_UNAVAILABLE && status != OB_INVALID_ARGUMENT) return status;
    device.own_refusal = support::last_error_text;
  }
  return fail(OB_UNIMPLEMENTED, "%s: the driver's own kernels cannot be compiled: %s", device.where.c_str(),
              device.own_refusal.c_str());
}

ob_status own_kernel(Driver& driver, Device& device, const std::string& kernel, const std::string& type,
                     uint64_t* out_kernel) {
  const std::string name = kernel + type;
  const std::lock_guard lock(device.own_mutex);
  if (const auto known = device.own_kernels.find(name); known != device.own_kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  uint64_t module = 0;
  ob_status status = own_module(driver, device, type, &module);
  if (status == OB_OK) status = kernel_get(driver, device, module, name.c_str(), out_kernel);
  if (status == OB_OK) device.own_kernels[name] = *out_kernel;
  return status;
}

}  // namespace

ob_status load_own(Driver& driver, Device& device, const std::string& type) {
  const std::lock_guard lock(device.own_mutex);
  uint64_t module = 0;
  return own_module(driver, device, type, &module);
}

ob_status run_own(Driver& driver, Device& device, CUstream stream, const std::string& kernel, const std::string& type,
                  uint32_t blocks, uint32_t columns, uint32_t rows, const std::vector<ob_kernel_arg>& args) {
  ob_launch request = {};
  request.struct_size = sizeof request;
  if (const ob_status status = own_kernel(driver, device, kernel, type, &request.kernel); status != OB_OK)
    return status;
  request.grid[0] = blocks;
  request.grid[1] = request.grid[2] = 1;
  request.block[0] = columns;
  request.block[1] = rows;
  request.block[2] = 1;
  request.arg_count = args.size();
  request.arg_stride = sizeof(ob_kernel_arg);
  request.args = args.data();
  return launch(driver, device, stream, request);
}

}  // namespace nv

// For NvDriver.own_programs: pass the source of each module to `take`, and return NVRTC's options.
extern "C" OB_EXPORT const char* ob_nv_own_sources(void* context, ob_take_fn take) {
  for (const auto& [type, line] : nv::lines_by_type()) {
    const std::string source = nv::source_for(type);
    take(context, source.data(), source.size());
  }
  return nv::kOptions;
}

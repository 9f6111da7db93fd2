// SPDX-License-Identifier: BSD-3-Clause
#include "own_kernels.h"

#include "_generated/kernels.h"

namespace nv {
namespace {

// Find one of the driver's own kernels. Its module is loaded at a device's first use of one.
ob_status own_kernel(Driver& driver, Device& device, const std::string& name, uint64_t* out_kernel) {
  if (device.major < kOldestMajor) {
    return fail(OB_UNIMPLEMENTED, "%s: the driver's kernels need compute capability %d.0", device.where.c_str(),
                kOldestMajor);
  }
  const std::lock_guard lock(device.own_mutex);
  if (const auto known = device.own_kernels.find(name); known != device.own_kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  if (device.own_module == 0) {
    const ob_status status = build_image(driver, device, kKernels, kKernels, &device.own_module);
    if (status != OB_OK) return status;
  }
  const ob_status status = kernel_get(driver, device, device.own_module, name.c_str(), out_kernel);
  if (status == OB_OK) device.own_kernels[name] = *out_kernel;
  return status;
}

}  // namespace

ob_status run_own(Driver& driver, Device& device, CUstream stream, const std::string& name, uint32_t blocks,
                  uint32_t columns, uint32_t rows, const std::vector<ob_kernel_arg>& args) {
  ob_launch given = {};
  given.struct_size = sizeof given;
  if (const ob_status status = own_kernel(driver, device, name, &given.kernel); status != OB_OK) return status;
  given.grid[0] = blocks;
  given.grid[1] = given.grid[2] = 1;
  given.block[0] = columns;
  given.block[1] = rows;
  given.block[2] = 1;
  given.arg_count = args.size();
  given.arg_stride = sizeof(ob_kernel_arg);
  given.args = args.data();
  return launch(driver, device, stream, given);
}

}  // namespace nv

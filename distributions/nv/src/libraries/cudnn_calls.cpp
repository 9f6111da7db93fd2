// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_calls.h"

namespace nv {

std::optional<int> cudnn::type_of(ob_dtype dtype) {
  switch (dtype) {
    case OB_FLOAT16:
      return kHalf;
    case OB_BFLOAT16:
      return kBFloat16;
    case OB_FLOAT32:
      return kFloat;
    case OB_FLOAT64:
      return kDouble;
    default:
      return std::nullopt;
  }
}

ob_status decline_cudnn(const char* reason) {
  return fail(OB_UNIMPLEMENTED, "cuDNN: %s", reason);
}

ob_status session_of(Driver& driver, Device& device, cudnn::Session** out_session) {
  const std::lock_guard lock(device.own_mutex);
  if (device.cudnn == nullptr) {
    std::string error;
    const cudnn::Library* library = cudnn::load(driver.options.cudnn, &error);
    if (library == nullptr) return decline_cudnn(error.c_str());
    if (const ob_status status = cudnn::Session::make(
            *library, {device.index, driver.keep, driver.recall, driver.build_in_background},
            [&api = driver.api, context = device.context] { return api.CtxSetCurrent(context) == CUDA_SUCCESS; },
            &device.cudnn);
        status != OB_OK) {
      return status;
    }
  }
  *out_session = device.cudnn.get();
  return OB_OK;
}

ob_status take_scratch(const ob_kernel_call& request, uint64_t bytes, uint64_t* out_address) {
  if (bytes == 0) return OB_OK;
  const ob_status status = request.scratch(request.scratch_context, bytes, out_address);
  return status == OB_OUT_OF_MEMORY ? decline_cudnn("not enough memory for its workspace") : status;
}

}  // namespace nv

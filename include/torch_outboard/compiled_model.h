// SPDX-License-Identifier: BSD-3-Clause
// torch_outboard/compiled_model.h: torch's runtime for AOTInductor models, adapted to
// torch-outboard's devices.
//
// On a device that torch's runtime does not know, it keeps a model's constants in host memory, and
// creates tensors of the device's type over this memory. This header replaces two of its calls. A
// call that creates such a tensor copies the memory to the device. A call that reads the address of
// a device tensor's data, to copy from it, returns a copy on the host.
#ifndef TORCH_OUTBOARD_COMPILED_MODEL_H
#define TORCH_OUTBOARD_COMPILED_MODEL_H

#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include "compiled.h"

namespace torch_outboard {

inline bool is_ours(int32_t device_type) {
  return device_type == aoti_torch_device_type_privateuse1();
}

inline AOTITorchError constant_from_blob(void* data, int64_t dim, const int64_t* sizes, const int64_t* strides,
                                         int64_t offset, int32_t dtype, int32_t device_type, int32_t device_index,
                                         AtenTensorHandle* out_tensor) {
  if (!is_ours(device_type)) {
    return aoti_torch_create_tensor_from_blob(data, dim, sizes, strides, offset, dtype, device_type, device_index,
                                              out_tensor);
  }
  compiled_functions().make_constant(data, dim, sizes, strides, offset, dtype, device_index, out_tensor);
  return AOTI_TORCH_SUCCESS;
}

inline AOTITorchError constant_from_blob_v2(void* data, int64_t dim, const int64_t* sizes, const int64_t* strides,
                                            int64_t offset, int32_t dtype, int32_t device_type, int32_t device_index,
                                            AtenTensorHandle* out_tensor, int32_t layout, const uint8_t* metadata,
                                            int64_t metadata_size) {
  if (!is_ours(device_type)) {
    return aoti_torch_create_tensor_from_blob_v2(data, dim, sizes, strides, offset, dtype, device_type, device_index,
                                                 out_tensor, layout, metadata, metadata_size);
  }
  if (layout != aoti_torch_layout_strided()) {
    throw std::runtime_error(
        "a constant of the model is not a dense tensor, but models for this device support only dense constants: call "
        "to_dense() on it before compiling");
  }
  return constant_from_blob(data, dim, sizes, strides, offset, dtype, device_type, device_index, out_tensor);
}

inline AOTITorchError host_data(AtenTensorHandle tensor, void** out_data) {
  int32_t device_type = 0;
  const AOTITorchError error = aoti_torch_get_device_type(tensor, &device_type);
  if (error != AOTI_TORCH_SUCCESS || !is_ours(device_type)) {
    return error != AOTI_TORCH_SUCCESS ? error : aoti_torch_get_data_ptr(tensor, out_data);
  }
  *out_data = compiled_functions().copy_to_host(tensor);
  return AOTI_TORCH_SUCCESS;
}

}  // namespace torch_outboard

#define aoti_torch_create_tensor_from_blob torch_outboard::constant_from_blob
#define aoti_torch_create_tensor_from_blob_v2 torch_outboard::constant_from_blob_v2
#define aoti_torch_get_data_ptr torch_outboard::host_data
#include <torch/csrc/inductor/aoti_runtime/model_container.h>
#undef aoti_torch_create_tensor_from_blob
#undef aoti_torch_create_tensor_from_blob_v2
#undef aoti_torch_get_data_ptr

#include <torch/csrc/inductor/aoti_include/common.h>

#endif  // TORCH_OUTBOARD_COMPILED_MODEL_H

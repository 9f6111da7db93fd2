// SPDX-License-Identifier: BSD-3-Clause
// Shells: CPU tensors over device memory that they do not own.
//
// A host call is queued with shells in place of its device tensors. A shell holds an address, sizes
// and strides, and keeps nothing alive. Only stream order makes this safe, as for a CUDA kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace outboard {

class ShellMaker {
 public:
  // A kernel may reallocate resizable shells in CPU memory, which the caller must then copy back.
  explicit ShellMaker(bool is_resizable = false) : is_resizable_(is_resizable) {}

  // Return a shell of a device tensor whose memory the host can reach. Tensors that share a storage
  // get shells that share a storage, so that the CPU kernels' overlap checks work.
  at::Tensor make(const at::Tensor& tensor);

  // Return false once `make` has met memory that the host cannot reach,
  // and returned an undefined tensor.
  bool is_reachable() const { return is_reachable_; }

 private:
  c10::SmallVector<std::pair<const c10::StorageImpl*, c10::Storage>, 6> storages_;
  bool is_reachable_ = true;
  bool is_resizable_;
};

// The stand-ins for the tensors of a call that is waited for. Kernels check whether an output *is*
// an argument, so if a call passes a tensor twice, its kernel sees the same stand-in twice.
class SeenTensors {
 public:
  template <typename Make>
  at::Tensor find_or_make(const at::Tensor& tensor, Make&& make) {
    for (const auto& [known, stand_in] : seen_) {
      if (known == tensor.unsafeGetTensorImpl()) {
        return stand_in;
      }
    }
    at::Tensor stand_in = make();
    seen_.emplace_back(tensor.unsafeGetTensorImpl(), stand_in);
    return stand_in;
  }

 private:
  c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 4> seen_;
};

// Return another shell of the same memory. Changes to the sizes and strides of one shell do not
// affect the other shell.
at::Tensor copy_shell(const at::Tensor& shell);

// Return a CPU tensor over `data`, which the caller owns.
at::Tensor make_cpu_view(void* data, size_t nbytes, c10::TensorImpl& like);

// Return a CPU tensor over `storage` with the dtype, sizes, strides and offset of `like`.
at::Tensor make_shell(c10::Storage storage, const c10::TensorImpl& like);

}  // namespace outboard

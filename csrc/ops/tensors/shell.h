// SPDX-License-Identifier: BSD-3-Clause
// Shells: CPU tensors over device memory that they do not own.
//
// A host call is queued with shells in place of its device tensors. A shell holds an address, sizes and strides and
// keeps nothing alive. Stream order alone makes it safe, as for a kernel on CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace outboard {

class ShellMaker {
 public:
  // Resizable shells may be given memory of the CPU's by a kernel, which the caller must then copy back.
  explicit ShellMaker(bool is_resizable = false) : is_resizable_(is_resizable) {}

  // A shell of a device tensor whose memory the host can reach. Tensors that share a storage get shells that share
  // one, so that the CPU kernels' checks for overlap see what they must.
  at::Tensor make(const at::Tensor& tensor);

  // False after a call of make met memory that the host cannot reach; its result is then undefined.
  bool is_reachable() const { return is_reachable_; }

 private:
  c10::SmallVector<std::pair<const c10::StorageImpl*, c10::Storage>, 6> storages_;
  bool is_reachable_ = true;
  bool is_resizable_;
};

// What stands for the tensors of a call that is waited for. Kernels ask whether an output *is* an argument: where a call
// has one tensor twice, its kernel sees one twice.
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

// Another shell of the same memory: what a kernel does to one shell's sizes and strides, the other does not see.
at::Tensor copy_shell(const at::Tensor& shell);

// A CPU tensor over `data`, which stays the caller's.
at::Tensor make_cpu_view(void* data, size_t nbytes, c10::TensorImpl& like);

// The CPU tensor that is to `storage` what `like` is to its own.
at::Tensor make_shell(c10::Storage storage, const c10::TensorImpl& like);

}  // namespace outboard

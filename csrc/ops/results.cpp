// SPDX-License-Identifier: BSD-3-Clause
#include "ops/results.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

#include "core/device.h"
#include "core/driver.h"
#include "core/stream.h"
#include "ops/copy.h"
#include "ops/sparse.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

// Pairs of an argument and the CPU tensor that stood for it.
using Pairs = c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 8>;

// A sparse tensor's parts stand beside it, unless only the written arguments themselves are asked for.
Pairs pair_arguments(const Call& call, const torch::jit::Stack& shells, bool only_written) {
  Pairs pairs;
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    if (only_written && !call.plan().args[i].is_written) {
      continue;
    }
    call.for_each_tensor(i, [&](size_t element, const at::Tensor& tensor) {
      const c10::IValue& shell = shells[i];
      const at::Tensor cpu = shell.isTensor() ? shell.toTensor() : shell.toListRef()[element].toTensor();
      pairs.emplace_back(tensor, cpu);
      if (is_sparse_coo(tensor) && !only_written) {
        pairs.emplace_back(tensor._indices(), cpu._indices());
        pairs.emplace_back(tensor._values(), cpu._values());
      }
    });
  }
  return pairs;
}

bool same_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
         b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

class Adopter {
 public:
  Adopter(const Call& call, Pairs pairs) : device_(call.device()), pairs_(std::move(pairs)) {}

  at::Tensor adopt(const at::Tensor& result) const {
    if (!result.defined() || !result.device().is_cpu()) {
      return result;
    }
    for (const auto& [tensor, shell] : pairs_) {
      if (shell.is_same(result)) {
        return tensor;
      }
    }
    if (result.layout() == c10::kStrided) {
      for (const auto& [tensor, shell] : pairs_) {
        if (shell.layout() == c10::kStrided && is_ours(*tensor.unsafeGetTensorImpl()) && same_storage(shell, result) &&
            result.scalar_type() == tensor.scalar_type()) {
          return at::as_strided(tensor, result.sizes(), result.strides(), result.storage_offset());
        }
      }
    }
    if (is_sparse_coo(result)) {
      return convert_sparse(result, [this](const at::Tensor& part) { return adopt(part); });
    }
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided, "a result of layout ", result.layout(),
                                " cannot be made on '", driver_name(), "': dense and sparse COO tensors can");
    return to_device(result, device_);
  }

  c10::IValue adopt(const c10::IValue& value) const {
    if (value.isTensor()) {
      return adopt(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> result;
      for (const at::Tensor& tensor : value.toTensorList()) {
        result.push_back(adopt(tensor));
      }
      return result;
    }
    return value;
  }

 private:
  c10::DeviceIndex device_;
  Pairs pairs_;
};

// A kernel may have resized a written argument's shell, or given it other memory.
void write_back(const at::Tensor& tensor, const at::Tensor& shell, const Adopter& adopter) {
  if (is_sparse_coo(tensor)) {
    write_back_sparse(tensor, shell, [&adopter](const at::Tensor& part) { return adopter.adopt(part); });
    return;
  }
  if (tensor.layout() != c10::kStrided || shell.layout() != c10::kStrided) {
    return;
  }
  void* expected = nullptr;
  const bool is_shell = is_ours(*tensor.unsafeGetTensorImpl()) && storage_host_address(tensor.storage(), &expected);
  const bool is_moved = !is_shell || shell.storage().data() != expected;
  if (tensor.sizes() != shell.sizes()) {
    resize_output(tensor, shell.sizes(), shell.strides());
  } else if (!is_moved) {
    return;
  }
  tensor.copy_(shell);
}

}  // namespace

void resize_output(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const bool was_empty = tensor.numel() == 0;
  at::native::resize_output(tensor, sizes);
  if (was_empty && tensor.strides() != strides) {
    const size_t span = span_bytes(sizes, strides, tensor.element_size());
    if (span > tensor.storage().nbytes()) {
      at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), span);
    }
    tensor.as_strided_(sizes, strides);
  }
}

void return_results(const Call& call, const CallShape& shape, c10::ArrayRef<at::Tensor> outputs,
                    torch::jit::Stack* stack) {
  const OpPlan& plan = call.plan();
  c10::SmallVector<c10::IValue, 4> results;
  size_t next_output = 0;
  size_t next_fresh = 0;
  for (const int8_t source : plan.returned_arg) {
    if (source >= 0) {
      results.push_back(call.arg(static_cast<size_t>(source)));
      continue;
    }
    const int32_t list_size = shape.list_sizes[next_fresh++];
    if (list_size < 0) {
      results.emplace_back(outputs[next_output++]);
      continue;
    }
    c10::List<at::Tensor> list;
    for (int32_t i = 0; i < list_size; ++i) {
      list.push_back(outputs[next_output++]);
    }
    results.emplace_back(std::move(list));
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(plan.args.size()), stack->end());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

void adopt_results(const Call& call, const torch::jit::Stack& shells, const torch::jit::Stack& returned,
                   torch::jit::Stack* stack) {
  const Adopter adopter(call, pair_arguments(call, shells, /*only_written=*/false));
  for (const auto& [tensor, shell] : pair_arguments(call, shells, /*only_written=*/true)) {
    write_back(tensor, shell, adopter);
  }
  c10::SmallVector<c10::IValue, 4> results;
  for (const c10::IValue& value : returned) {
    results.push_back(adopter.adopt(value));
  }
  const size_t args = call.plan().args.size();
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(args), stack->end());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

}  // namespace outboard

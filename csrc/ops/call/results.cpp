// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/results.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SparseTensorUtils.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "core/driver.h"
#include "ops/call/argument_checks.h"
#include "ops/call/transfer.h"
#include "ops/call/views.h"
#include "ops/tensors/sparse.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

bool same_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
         b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool is_dense_device_tensor(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && is_device_tensor(*tensor.unsafeGetTensorImpl());
}

[[noreturn]] void raise_undeclared(const Call& call, size_t result, const char* relation, size_t argument) {
  TORCH_CHECK(false, "operator ", call.op().name, ": result ", result, " ", relation, " argument '",
              call.op().handle.schema().arguments()[argument].name(),
              "', which its schema does not declare. Correct the schema's alias annotations ('Tensor(a)' for a view) or"
              " return a clone. Schema: ",
              call.op().handle.schema());
}

// A result that shows an argument's memory is a view of it on the CPU. Callers of other people's
// operators cannot correct the schemas, so this only warns.
void warn_undeclared(const Call& call, size_t result, size_t argument) {
  static std::mutex mutex;
  static auto* warned = new std::set<std::string>();
  const std::lock_guard lock(mutex);
  if (warned->insert(call.op().name).second) {
    TORCH_WARN("operator ", call.op().name, ": result ", result, " is in the memory of argument '",
               call.op().handle.schema().arguments()[argument].name(),
               "', which its schema does not declare, so the result was copied. The operator's author should correct"
               " the schema's alias annotations ('Tensor(a)' for a view) or return a clone. This warning appears once. "
               "Schema: ",
               call.op().handle.schema());
  }
}

// Converts what the CPU kernel returned into the device's results.
class Adopter {
 public:
  Adopter(const Call& call, const ArgumentPairs& arguments) : call_(call), arguments_(arguments) {}

  c10::IValue adopt(size_t index, const c10::IValue& value) const {
    if (const int8_t argument = call_.op().returned_arg[index]; argument >= 0) {
      check_returned(index, static_cast<size_t>(argument), value);
      return call_.arg(static_cast<size_t>(argument));
    }
    if (value.isTensor()) {
      return adopt_tensor(index, value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> result;
      for (const at::Tensor& tensor : value.toTensorList()) {
        result.push_back(adopt_tensor(index, tensor));
      }
      return result;
    }
    return value;
  }

  // The schema does not describe the parts of a sparse tensor: torch's operators share
  // them among arguments and results.
  at::Tensor adopt_part(const at::Tensor& part) const {
    for (const auto& [index, tensor, shell, is_part] : arguments_) {
      if (is_dense_device_tensor(tensor) && same_storage(shell, part)) {
        return shell.is_same(part) ? tensor : view_of(tensor, part);
      }
    }
    return to_device(part, call_.device());
  }

 private:
  void check_returned(size_t index, size_t argument, const c10::IValue& value) const {
    if (!value.isTensor() || !value.toTensor().defined()) {
      return;
    }
    for (const auto& [owner, tensor, shell, is_part] : arguments_) {
      if (owner == argument && !is_part && shell.is_same(value.toTensor())) {
        return;
      }
    }
    raise_undeclared(call_, index, "is not the same tensor as", argument);
  }

  at::Tensor adopt_tensor(size_t index, const at::Tensor& result) const {
    if (!result.defined() || !result.device().is_cpu()) {
      return result;
    }
    if (is_sparse_coo(result)) {
      return adopt_sparse(result);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && !result.is_quantized(), "a result of layout ",
                                result.layout(), result.is_quantized() ? " and a quantized dtype" : "",
                                " cannot be created on '", driver_name(),
                                "', which supports dense and sparse COO tensors");
    const int8_t viewed = call_.op().viewed_arg[index];
    return viewed >= 0 ? adopt_view(index, static_cast<size_t>(viewed), result) : adopt_fresh(index, result);
  }

  at::Tensor adopt_sparse(const at::Tensor& result) const {
    for (const auto& [index, tensor, shell, is_part] : arguments_) {
      if (shell.is_same(result)) {
        return tensor;
      }
    }
    return convert_sparse(result, [this](const at::Tensor& part) { return adopt_part(part); });
  }

  at::Tensor adopt_view(size_t index, size_t argument, const at::Tensor& result) const {
    for (const auto& [owner, tensor, shell, is_part] : arguments_) {
      if (owner == argument && shell.layout() == c10::kStrided && same_storage(shell, result)) {
        return shell.is_same(result) ? tensor : view_of(tensor, result);
      }
    }
    raise_undeclared(call_, index, "is not in the memory of", argument);
  }

  at::Tensor adopt_fresh(size_t index, const at::Tensor& result) const {
    for (const auto& [owner, tensor, shell, is_part] : arguments_) {
      if (is_dense_device_tensor(tensor) && same_storage(shell, result)) {
        if (call_.op().is_torch_operator) {
          return view_of(tensor, result);  // for example channel_shuffle of nothing
        }
        warn_undeclared(call_, index, owner);
        return to_device(result.clone(), call_.device());
      }
    }
    return to_device(result, call_.device());
  }

  const Call& call_;
  const ArgumentPairs& arguments_;
};

// Return true if the kernel wrote outside the argument's memory: to a copy, or to
// memory that it gave the shell.
bool is_elsewhere(const at::Tensor& tensor, const at::Tensor& shell) {
  void* expected = nullptr;
  return !is_device_tensor(*tensor.unsafeGetTensorImpl()) || !storage_host_address(tensor.storage(), &expected) ||
         shell.storage().data() != expected;
}

// Give the tensor the shape that the CPU kernel gave the argument's shell. The kernel has warned of
// it; the memory's content stays.
void reshape_as(const at::Tensor& tensor, const at::Tensor& shell) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(shell.sizes(), shell.strides());
  const size_t wanted = span_bytes(shell.sizes(), shell.strides(), tensor.element_size(), tensor.storage_offset());
  if (wanted > tensor.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), wanted);
  }
}

void write_back_dense(const at::Tensor& tensor, const at::Tensor& shell, bool was_reshaped) {
  if (tensor.is_same(shell)) {
    return;
  }
  if (was_reshaped) {
    reshape_as(tensor, shell);
  }
  if (!is_elsewhere(tensor, shell)) {
    return;
  }
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) {
    tensor.copy_(shell);
    return;
  }
  // Take each element of an expanded tensor once: copy_ refuses to write
  // to elements that share memory.
  c10::SmallVector<int64_t, 6> sizes(tensor.sizes().begin(), tensor.sizes().end());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.strides()[i] == 0) {
      sizes[i] = std::min<int64_t>(sizes[i], 1);
    }
  }
  tensor.as_strided(sizes, tensor.strides()).copy_(shell.as_strided(sizes, shell.strides()));
}

void write_back(const Call& call, const ArgumentPairs& arguments, const Adopter& adopter) {
  for (const ArgumentPairs::Pair& pair : arguments) {
    if (call.op().args[pair.index].is_written && pair.tensor.layout() == c10::kStrided &&
        pair.shell.layout() == c10::kStrided) {
      write_back_dense(pair.tensor, pair.shell, arguments.was_reshaped(pair));
    }
  }
  for (const auto& [index, tensor, shell, is_part] : arguments) {
    if (call.op().args[index].is_written && is_sparse_coo(tensor) && !tensor.is_same(shell)) {
      write_back_sparse(tensor, shell, [&adopter](const at::Tensor& part) { return adopter.adopt_part(part); });
    }
  }
}

}  // namespace

ArgumentPairs::ArgumentPairs(const Call& call, const torch::jit::Stack& shells) {
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    const bool is_written = call.op().args[i].is_written;
    call.for_each_tensor(i, [&](size_t element, const at::Tensor& tensor) {
      const c10::IValue& value = shells[i];
      const at::Tensor shell = value.isTensor() ? value.toTensor() : value.toListRef()[element].toTensor();
      add({i, tensor, shell, /*is_part=*/false}, is_written);
      if (is_sparse_coo(tensor)) {
        const at::SparseTensorImpl* of_sparse = at::sparse::get_sparse_impl(tensor);
        const at::SparseTensorImpl* of_shell = at::sparse::get_sparse_impl(shell);
        add({i, of_sparse->indices(), of_shell->indices(), /*is_part=*/true}, is_written);
        add({i, of_sparse->values(), of_shell->values(), /*is_part=*/true}, is_written);
      }
    });
  }
}

void ArgumentPairs::add(Pair pair, bool is_written) {
  if (is_written && pair.shell.layout() == c10::kStrided) {
    shapes_.push_back({pairs_.size(), pair.shell.sizes().vec(), pair.shell.strides().vec()});
  }
  pairs_.push_back(std::move(pair));
}

bool ArgumentPairs::was_reshaped(const Pair& pair) const {
  return std::any_of(shapes_.begin(), shapes_.end(), [&](const Shape& before) {
    return &pairs_[before.pair] == &pair && (pair.shell.sizes() != c10::IntArrayRef(before.sizes) ||
                                             pair.shell.strides() != c10::IntArrayRef(before.strides));
  });
}

void resize_output(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (!at::native::resize_output(tensor, sizes) || tensor.strides() == strides) {
    return;
  }
  const size_t wanted = span_bytes(sizes, strides, tensor.element_size(), tensor.storage_offset());
  if (wanted > tensor.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), wanted);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

// An in-place element-wise operator is its out= form with self as the
// output, which keeps its shape.
void check_output_is_no_input(const Call& call, size_t output, c10::IntArrayRef wanted) {
  const at::Tensor& tensor = call.arg(output).toTensor();
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    if (i != output && call.arg(i).isTensor() && call.arg(i).toTensor().is_same(tensor)) {
      TORCH_CHECK(false, "output with shape ", tensor.sizes(), " doesn't match the broadcast shape ", wanted);
    }
  }
}

void resize_written(const Call& call, const CallShape& shape) {
  for (const auto& [index, wanted] : shape.resized) {
    if (call.op().handle.hasTag(at::Tag::pointwise)) {
      check_output_is_no_input(call, index, wanted.sizes);
    }
    resize_output(call.arg(index).toTensor(), wanted.sizes, wanted.strides);
  }
  if (C10_UNLIKELY(!shape.resized.empty())) {
    check_arguments(call);
  }
}

void return_results(const Call& call, const CallShape& shape, c10::ArrayRef<at::Tensor> outputs,
                    torch::jit::Stack* stack) {
  const Operator& op = call.op();
  c10::SmallVector<c10::IValue, 4> results;
  size_t next_output = 0;
  size_t next_fresh = 0;
  for (const int8_t source : op.returned_arg) {
    if (source >= 0) {
      results.push_back(call.arg(static_cast<size_t>(source)));
      continue;
    }
    const int32_t list_size = shape.list_sizes[next_fresh++];
    if (list_size < 0) {
      const std::optional<int64_t> number = shape.outputs[next_output].number;
      const at::Tensor& output = outputs[next_output++];
      results.push_back(number ? c10::IValue(*number) : c10::IValue(output));
      continue;
    }
    c10::List<at::Tensor> list;
    for (int32_t i = 0; i < list_size; ++i) {
      list.push_back(outputs[next_output++]);
    }
    results.emplace_back(std::move(list));
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(op.args.size()), stack->end());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

namespace {

// Return how the results differ from the shape; "" if they agree.
std::string difference_of(const Operator& op, const CallShape& shape, const torch::jit::Stack& stack) {
  size_t next = 0;
  const size_t first = stack.size() - op.returned_arg.size();
  for (size_t i = 0; i < op.returned_arg.size(); ++i) {
    if (op.returned_arg[i] >= 0) {
      continue;
    }
    const c10::IValue& returned = stack[first + i];
    const std::vector<at::Tensor> results =
        returned.isTensorList() ? returned.toTensorVector()
                                : std::vector<at::Tensor>{returned.isTensor() ? returned.toTensor() : at::Tensor()};
    for (const at::Tensor& result : results) {
      if (next >= shape.outputs.size()) {
        return "the CPU kernel returned more results than the meta kernel";
      }
      const OutputShape& expected = shape.outputs[next++];
      if (expected.is_defined != result.defined() ||
          (expected.is_defined &&
           (expected.dtype != result.scalar_type() || result.sizes() != c10::IntArrayRef(expected.sizes)))) {
        return shape_difference(expected.dtype, expected.sizes, result);
      }
    }
  }
  return next == shape.outputs.size() ? "" : "the CPU kernel returned fewer results than the meta kernel";
}

}  // namespace

void note_results(const Call& call, const CallShape& shape, const torch::jit::Stack& stack) {
  ShapeClasses& classes = call.op().shape_classes;
  if (const std::string difference = difference_of(call.op(), shape, stack); difference.empty()) {
    classes.mark_agreed(shape.shape_class);
  } else {
    classes.mark_different(shape.shape_class, difference);
  }
}

void adopt_results(const Call& call, const ArgumentPairs& arguments, const torch::jit::Stack& returned,
                   torch::jit::Stack* stack) {
  const Adopter adopter(call, arguments);
  write_back(call, arguments, adopter);
  c10::SmallVector<c10::IValue, 4> results;
  for (size_t i = 0; i < returned.size(); ++i) {
    results.push_back(adopter.adopt(i, returned[i]));
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(call.op().args.size()), stack->end());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// One call of an operator as the chain sees it: its device and its signature.
#pragma once

#include <ATen/core/stack.h>

#include "core/stream.h"
#include "ops/operator/operator.h"

namespace outboard {

// A call of an operator. The constructor reads the last `op.args.size()` values of a stack, checks
// that the tensors share one device (with torch's message) and builds the call's signature.
class Call {
 public:
  Call(Operator& op, const torch::jit::Stack& stack);

  Operator& op() const { return op_; }
  const torch::jit::Stack& stack() const { return stack_; }
  size_t first() const { return first_; }
  const c10::IValue& arg(size_t index) const { return stack_[first_ + index]; }

  c10::DeviceIndex device() const { return device_; }
  uint64_t hash() const { return hash_; }
  const SignatureWords& words() const { return words_; }
  // Return false if an argument's influence on the shape is unknown. The
  // shape must not be cached then.
  bool has_signature() const { return has_signature_; }
  bool has_sparse() const { return has_sparse_; }
  // Note that only the CPU kernel can decide whether it accepts the arguments. If it runs, the
  // caller waits for it.
  void require_cpu_kernel() const { requires_cpu_kernel_ = true; }
  bool requires_cpu_kernel() const { return requires_cpu_kernel_; }
  // Return a dense tensor of the device, to query its memory; null if there is none.
  const c10::TensorImpl* some_dense() const { return some_dense_; }

  // Call visit(index among the tensors, tensor) for each defined tensor of argument `index`.
  template <typename Visit>
  void for_each_tensor(size_t index, Visit&& visit) const {
    const c10::IValue& value = arg(index);
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        visit(size_t{0}, value.toTensor());
      }
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      for (size_t i = 0; i < list.size(); ++i) {
        if (const at::Tensor tensor = list.get(i); tensor.defined()) {
          visit(i, tensor);
        }
      }
    } else if (value.isList()) {
      const auto list = value.toListRef();
      for (size_t i = 0; i < list.size(); ++i) {
        if (list[i].isTensor() && list[i].toTensor().defined()) {
          visit(i, list[i].toTensor());
        }
      }
    }
  }

 private:
  // The kind of object that the next words of the signature describe.
  enum Tag : uint64_t {
    kNone = 1,
    kUndefined,
    kTensor,
    kInt,
    kBool,
    kDouble,
    kComplex,
    kString,
    kIntList,
    kOther,
    kList,
    kContext
  };

  void add(uint64_t word) {
    words_.push_back(word);
    hash_ = mixed(hash_, word);
  }
  void add_tensor(size_t index, const ArgInfo& info, const at::Tensor& tensor);
  void refuse_generator() const;
  void add_number(Tag tag, uint64_t value, Decides decides);
  void add_constant(const c10::IValue& value, Decides decides);
  [[noreturn]] void raise_devices(size_t index, c10::Device actual) const;

  Operator& op_;
  const torch::jit::Stack& stack_;
  size_t first_;
  c10::DeviceIndex device_ = -1;
  uint64_t hash_ = 0;
  bool has_signature_ = true;
  bool has_sparse_ = false;
  mutable bool requires_cpu_kernel_ = false;
  const c10::TensorImpl* some_dense_ = nullptr;
  SignatureWords words_;
};

// Return true if an index tensor is a mask.
bool is_mask(const at::Tensor& index);

// Return true if an index of the call is a mask.
bool has_mask(const Call& call);

// Return the shapes of a call's new tensors, from the meta kernel, cached by signature. Raise the
// CPU kernel's exception if that kernel refuses the call (ops/call/acceptance.h).
std::shared_ptr<const CallShape> shape_of(const Call& call);

// Do the same for a provider that must not run a call which the CPU kernel may
// refuse. Raise for a refused call too.
std::shared_ptr<const CallShape> accepted_shape_of(const Call& call);

// Return true if a call may use its shape without waiting for the CPU kernel: the shape is known,
// and the CPU kernel has not disagreed about the call's class. For a custom operator, the CPU
// kernel must have agreed.
bool is_trusted(const Call& call, const CallShape& shape);

// Return true if a meta kernel's exception is meant for the program instead of the call (api.h).
// Such exceptions propagate.
bool is_interrupt(const std::exception& error);

// Run the operator's meta kernel on the arguments in `stack`, on this thread.
void run_meta_kernel(const Operator& op, torch::jit::Stack& stack);

}  // namespace outboard

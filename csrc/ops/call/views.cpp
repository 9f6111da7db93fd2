// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/views.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include "ops/call/arguments.h"

namespace outboard {

namespace {

// Meta tensors for a call's arguments. Arguments that share a storage
// get meta tensors that share one.
class MetaArguments {
 public:
  explicit MetaArguments(const Call& call) {
    stack_.reserve(call.op().args.size());
    for (size_t i = 0; i < call.op().args.size(); ++i) {
      const ArgInfo& info = call.op().args[i];
      stack_.push_back(info.kind == ArgKind::Device
                           ? map_device(call.arg(i), c10::DeviceType::Meta)
                           : map_tensors(info, call.arg(i), [&](const at::Tensor& tensor) { return make(i, tensor); }));
    }
  }

  torch::jit::Stack& stack() { return stack_; }

  // Return the view of argument `index`'s memory that `result` describes; undefined if `result` is
  // not in that memory.
  at::Tensor find_view(int8_t index, const at::Tensor& result) const {
    for (const Entry& entry : entries_) {
      if (static_cast<int8_t>(entry.index) == index && result.defined() && entry.meta.is_alias_of(result)) {
        return entry.meta.is_same(result) ? entry.tensor : view_of(entry.tensor, result);
      }
    }
    return {};
  }

 private:
  struct Entry {
    size_t index;
    at::Tensor tensor;
    at::Tensor meta;
  };

  at::Tensor make(size_t index, const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
        storage_for(tensor), c10::DispatchKeySet(c10::DispatchKey::Meta), impl.dtype());
    c10::TensorImpl* result = meta.unsafeGetTensorImpl();
    result->set_sizes_and_strides(impl.sizes(), impl.strides(), impl.storage_offset());
    result->_set_conj(impl.is_conj());
    result->_set_neg(impl.is_neg());
    entries_.push_back({index, tensor, meta});
    return meta;
  }

  c10::Storage storage_for(const at::Tensor& tensor) const {
    for (const Entry& entry : entries_) {
      if (entry.tensor.is_alias_of(tensor)) {
        return entry.meta.storage();
      }
    }
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
                                                 c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
                                                 c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
  }

  c10::SmallVector<Entry, 4> entries_;
  torch::jit::Stack stack_;
};

// Return false if a view's memory is not that of the argument which the schema names.
bool find_views(const Operator& op, const MetaArguments& arguments, const torch::jit::Stack& metas,
                c10::SmallVector<c10::IValue, 4>& views) {
  for (size_t i = 0; i < op.viewed_arg.size(); ++i) {
    if (metas[i].isTensor()) {
      views.emplace_back(arguments.find_view(op.viewed_arg[i], metas[i].toTensor()));
      if (!views.back().toTensor().defined()) {
        return false;
      }
      continue;
    }
    c10::List<at::Tensor> list;
    for (const at::Tensor& meta : metas[i].toTensorList()) {
      list.push_back(arguments.find_view(op.viewed_arg[i], meta));
      if (!list.get(list.size() - 1).defined()) {
        return false;
      }
    }
    views.emplace_back(std::move(list));
  }
  return true;
}

}  // namespace

at::Tensor view_of(const at::Tensor& base, const at::Tensor& like) {
  const c10::TensorImpl& impl = *like.unsafeGetTensorImpl();
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                             base.key_set(), impl.dtype());
  c10::TensorImpl* result = view.unsafeGetTensorImpl();
  result->set_sizes_and_strides(impl.sizes(), impl.strides(), impl.storage_offset());
  result->_set_conj(impl.is_conj());
  result->_set_neg(impl.is_neg());
  return view;
}

bool run_as_view(const Call& call, torch::jit::Stack* stack) {
  const Operator& op = call.op();
  if (call.has_sparse() || !op.handle.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return false;
  }
  MetaArguments arguments(call);
  torch::jit::Stack metas = arguments.stack();
  c10::SmallVector<c10::IValue, 4> views;
  try {
    run_meta_kernel(op, metas);
    if (!find_views(op, arguments, metas, views)) {
      return false;
    }
  } catch (const std::exception& error) {
    if (is_interrupt(error)) {
      throw;
    }
    return false;  // the CPU kernel raises for the arguments, in the words that users know
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(op.args.size()), stack->end());
  for (c10::IValue& view : views) {
    stack->push_back(std::move(view));
  }
  return true;
}

}  // namespace outboard

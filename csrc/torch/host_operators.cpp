// SPDX-License-Identifier: BSD-3-Clause
#include "torch/host_operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/observer.h"
#include "memory/host_ranges.h"

namespace outboard {

namespace {

// Host operators that touch no elements although their schemas declare no alias, or whose inner
// operators touch them and are reported themselves.
bool touches_no_elements(std::string_view name) {
  for (const std::string_view exempt :
       {"aten::_to_copy", "aten::_pin_memory", "aten::is_pinned", "aten::set_", "aten::resize_", "aten::resize_as_",
        "aten::record_stream", "aten::is_same_size"}) {
    if (name == exempt) {
      return true;
    }
  }
  constexpr std::string_view kLike = "_like";
  return name.size() > kLike.size() && name.substr(name.size() - kLike.size()) == kLike;
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

// Call visit(tensor) for a tensor or the tensors of a list. Return false once it does.
template <class Visit>
bool visit_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    return visit(value.toTensor());
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (!visit(tensor)) {
        return false;
      }
    }
  }
  return true;
}

// Return the bytes from the first to the last element.
size_t bytes_from_first(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return static_cast<size_t>(last + 1) * tensor.element_size();
}

std::unique_ptr<at::ObserverContext> report(const at::RecordFunction& call) {
  Observer* const active = observer();
  const std::optional<c10::OperatorName> name = call.operator_name();
  if (active == nullptr || !name) {
    return nullptr;
  }
  // Most calls have no pinned tensor, and the schema is looked up for the others only.
  c10::SmallVector<std::pair<size_t, at::Tensor>, 4> tensors;
  size_t place = 0;
  for (const c10::IValue& input : call.inputs()) {
    const bool is_of_host = visit_tensors(input, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) {
        return true;
      }
      if (!tensor.device().is_cpu()) {
        return false;  // a copy, which is reported with its stream
      }
      if (tensor.layout() == c10::kStrided && tensor.numel() > 0 && tensor.has_storage()) {
        if (memory::host_ranges().find(tensor.storage().data()).size != 0) {
          tensors.emplace_back(place, tensor);
        }
      }
      return true;
    });
    if (!is_of_host) {
      return nullptr;
    }
    ++place;
  }
  if (tensors.empty() || touches_no_elements(name->name)) {
    return nullptr;
  }
  const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || returns_view(op->schema())) {
    return nullptr;
  }
  const std::string text = toString(*name);
  for (const auto& [at, tensor] : tensors) {
    const auto& arguments = op->schema().arguments();
    const c10::AliasInfo* alias = at < arguments.size() ? arguments[at].alias_info() : nullptr;
    active->host_access(text.c_str(), reinterpret_cast<uint64_t>(tensor.const_data_ptr()), bytes_from_first(tensor),
                        alias != nullptr && alias->isWrite());
  }
  return nullptr;
}

}  // namespace

void watch_host_operators(bool is_watching) {
  static std::mutex mutex;
  static std::optional<at::CallbackHandle> handle;
  const std::lock_guard lock(mutex);
  if (is_watching == handle.has_value()) {
    return;
  }
  if (is_watching) {
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&report).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  } else {
    at::removeCallback(*std::exchange(handle, std::nullopt));
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/meta_kernels.h"

#include <ATen/core/boxing/impl/make_boxed_from_unboxed_functor.h>
#include <ATen/core/dispatch/OperatorEntry.h>

#include <unordered_map>
#include <vector>

// Written by cmake/meta_kernels.py when the core is built.
#define OB_META_HEADERS
#include <built/meta_kernels.inc>
#undef OB_META_HEADERS

namespace outboard {

namespace {

// Return the function with the operator's own signature, picked from the overloads in at::meta, as
// a boxed kernel; none if there is no such overload.
template <class TorchOp, class Pick>
void add(std::vector<MetaKernelEntry>& entries, Pick pick) {
  using Function = typename c10::fn_remove_symint<typename TorchOp::schema>::type;
  if (Function* const function = pick(static_cast<Function*>(nullptr)); function != nullptr) {
    entries.push_back({c10::OperatorName(TorchOp::name, TorchOp::overload_name),
                       c10::KernelFunction::makeFromUnboxedRuntimeFunction(function), /*is_structured=*/true});
  }
}

#define OB_META(op, function)                                       \
  add<at::_ops::op>(entries, []<class F>(F*) -> F* {                \
    if constexpr (requires { static_cast<F*>(&at::meta::function); }) { \
      return static_cast<F*>(&at::meta::function);                  \
    } else {                                                        \
      return nullptr;                                               \
    }                                                               \
  });

void add_structured(std::vector<MetaKernelEntry>& entries) {
#include <built/meta_kernels.inc>
}

#undef OB_META

struct Entry {
  c10::KernelFunction kernel;
  bool is_structured;
};
using Table = std::unordered_map<c10::OperatorName, Entry>;

Table make_table() {
  std::vector<MetaKernelEntry> entries;
  add_structured(entries);
  add_shape_rules(entries);
  Table table;
  for (MetaKernelEntry& entry : entries) {
    // Our own rule comes last, and wins.
    table.insert_or_assign(std::move(entry.name), Entry{std::move(entry.kernel), entry.is_structured});
  }
  return table;
}

}  // namespace

MetaKernel meta_kernel_of(const c10::OperatorName& name) {
  static const auto* const table = new Table(make_table());  // kernels may run until the end of the process
  const auto it = table->find(name);
  return it == table->end() ? MetaKernel{} : MetaKernel{&it->second.kernel, it->second.is_structured};
}

}  // namespace outboard

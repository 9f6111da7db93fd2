// SPDX-License-Identifier: BSD-3-Clause
#include "ops/register.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "ops/boxed.h"
#include "ops/own/factories.h"
#include "ops/register_native.h"

namespace outboard {

namespace {

torch::Library& keep(torch::Library::Kind kind, const char* space, c10::DispatchKey key) {
  // Permanent: torch removes registrations when their library is destroyed.
  return *new torch::Library(kind, space, key, __FILE__, __LINE__);
}

// Return true for composites that the chain replaces. They have no CPU kernel: the
// CPU's table holds the composite.
bool is_composite_worth_replacing(const c10::OperatorHandle& op) {
  constexpr std::array<std::string_view, 8> kNames = {
      // Convolution selects among the CPU's back ends, and has no composite form.
      "aten::convolution",
      "aten::convolution_backward",
      "aten::_convolution",
      // attention.cpp chooses it if a provider takes it.
      "aten::_scaled_dot_product_fused_attention_overrideable",
      "aten::_scaled_dot_product_fused_attention_overrideable_backward",
      // Written for torch's own devices by name.
      "aten::conj_physical",
      "aten::conj_physical_",
      "aten::mode",
  };
  const std::string& name = op.operator_name().name;
  return (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
          std::find(kNames.begin(), kNames.end(), name) != kNames.end()) ||
         // Calls the CPU's batch norm on any device except CUDA.
         name == "aten::_batch_norm_no_update" ||
         // rms_norm.cpp chooses it if the device has kernels for it.
         name == "aten::_fused_rms_norm" || name == "aten::_fused_rms_norm_backward";
}

// Install the chain for every operator with its own CPU kernel. Many of these have composite
// kernels too, which torch would use otherwise (native_layer_norm), and structured ones would
// run their meta function twice.
void install_chains() {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
        (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || is_composite_worth_replacing(*op))) {
      install_chain(operator_for(*op));
    }
  }
}

}  // namespace

void register_operators() {
  torch::Library& aten = keep(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1);
  register_factories(aten);
  register_views(aten);
  register_fill(aten);
  register_scalars(aten);
  register_ctc(aten);
  register_recurrent(aten);
  register_recurrent_cells();
  register_recurrent_nets();
  register_dropout(aten);
  register_composites(aten);
  register_attention();
  register_grouped_products(aten);
  register_rms_norm();
  register_sync_batch_norm(aten);
  register_lists();
  // Copies resolve lazy conjugation and negation themselves; torch's boxed
  // kernels for those keys would recurse.
  for (const c10::DispatchKey key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    torch::Library& lazy = keep(torch::Library::IMPL, "aten", key);
    lazy.impl("_copy_from", torch::CppFunction::makeFallthrough());
    lazy.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
  }
  install_chains();
  register_sparse();
  for (const c10::DispatchKey key : {c10::DispatchKey::PrivateUse1, c10::DispatchKey::SparsePrivateUse1}) {
    keep(torch::Library::IMPL, "_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&chain_fallback>());
  }
  register_driver_kernels();
}

}  // namespace outboard

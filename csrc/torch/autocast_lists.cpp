// SPDX-License-Identifier: BSD-3-Clause
// The operators of ATen/autocast_mode.h with unboxed kernels. Each version
// of torch brings its own lists.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/boxing/impl/boxing.h>

#include "core/driver.h"
#include "torch/autocast_table.h"

namespace outboard {

namespace {

// Torch's autocast kernel behind a check of the operator's policy. The check is one load, so
// autocast costs the same as on devices with compiled-in policies. Any policy other than the listed
// one goes through the boxed kernel.
template <auto ListedKernel, CastPolicy listed, class Signature>
struct Kernel;
template <auto ListedKernel, CastPolicy listed, class Return, class... Args>
struct Kernel<ListedKernel, listed, Return(Args...)> {
  static inline const AutocastOp* op = nullptr;

  static Return call(c10::DispatchKeySet keys, Args... args) {
    if (C10_LIKELY(op->policy.load(std::memory_order_relaxed) == listed)) {
      return ListedKernel(std::forward<Args>(args)...);
    }
    torch::jit::Stack stack = c10::impl::boxArgs<Args...>(std::forward<Args>(args)...);
    run_cast_policy(*op, keys, &stack);
    return c10::impl::PopResult<Return>::call(stack);
  }

  static torch::CppFunction make(AutocastOp& registered) {
    op = &registered;
    return torch::CppFunction(TORCH_FN(call));
  }
};

constexpr CastPolicy policy_of(at::autocast::CastPolicy policy) {
  switch (policy) {
    case at::autocast::CastPolicy::lower_precision_fp:
      return CastPolicy::LowerPrecisionFp;
    case at::autocast::CastPolicy::fp32:
      return CastPolicy::Fp32;
    case at::autocast::CastPolicy::fp32_set_opt_dtype:
      return CastPolicy::Fp32SetOptDtype;
    case at::autocast::CastPolicy::fp32_append_dtype:
      return CastPolicy::Fp32AppendDtype;
    case at::autocast::CastPolicy::promote:
      return CastPolicy::Promote;
  }
  return CastPolicy::Count;  // if torch has a policy that the table lacks, `listed` fails to compile
}

template <at::autocast::CastPolicy policy, class Signature, class Redispatched, Redispatched* function>
ListedOp listed(const char* name) {
  using Wrapped = typename at::autocast::WrapFunction<policy, kDeviceType, Signature, Redispatched, function>::type;
  constexpr CastPolicy ours = policy_of(policy);
  static_assert(ours != CastPolicy::Count);
  return {name, ours, &Kernel<&Wrapped::call, ours, Signature>::make};
}

// The lists hold (operator) or (operator, overload).
#define OUTBOARD_LISTED1(policy, op)                                                                      \
  result.push_back(listed<at::autocast::CastPolicy::policy, decltype(ATEN_FN(op)), decltype(ATEN_FN(op)), \
                          &ATEN_FN(op)>("aten::" #op));
#define OUTBOARD_LISTED2(policy, op, overload)                                            \
  result.push_back(listed<at::autocast::CastPolicy::policy, decltype(ATEN_FN2(op, overload)), \
                          decltype(ATEN_FN2(op, overload)), &ATEN_FN2(op, overload)>("aten::" #op "." #overload));
#define OUTBOARD_PICK(first, second, picked, ...) picked
#define OUTBOARD_LISTED(policy, ...) \
  OUTBOARD_PICK(__VA_ARGS__, OUTBOARD_LISTED2, OUTBOARD_LISTED1, )(policy, __VA_ARGS__)
#define OUTBOARD_LOWER_PRECISION_FP(...) OUTBOARD_LISTED(lower_precision_fp, __VA_ARGS__)
#define OUTBOARD_FP32(...) OUTBOARD_LISTED(fp32, __VA_ARGS__)
#define OUTBOARD_FP32_SET_OPT_DTYPE(...) OUTBOARD_LISTED(fp32_set_opt_dtype, __VA_ARGS__)
#define OUTBOARD_PROMOTE(...) OUTBOARD_LISTED(promote, __VA_ARGS__)
#define OUTBOARD_DIFFERENT_SIGNATURE(function, name, signature, redispatched, policy) \
  result.push_back(listed<at::autocast::CastPolicy::policy, signature, redispatched, &function>("aten::" name));

at::Tensor banned(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                  int64_t reduction) {
  // Torch bans it on CUDA, in every build, with its own message, which users should see.
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::binary_cross_entropy", "");
  return op.typed<decltype(banned)>().redispatch(c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA), self, target,
                                                 weight, reduction);
}

std::vector<ListedOp> make_list() {
  using namespace at;  // the lists write signatures with its names, which differ between versions
  std::vector<ListedOp> result;
  AT_FORALL_LOWER_PRECISION_FP(OUTBOARD_LOWER_PRECISION_FP)
  AT_FORALL_FP32(OUTBOARD_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(OUTBOARD_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(OUTBOARD_DIFFERENT_SIGNATURE)
  AT_FORALL_PROMOTE(OUTBOARD_PROMOTE)
#if OUTBOARD_TORCH_MINOR >= 14
  OUTBOARD_FP32(linalg_matrix_sqrth)  // only on CUDA's own list, which is in no header
#endif
  result.push_back(
      {"aten::binary_cross_entropy", CastPolicy::Banned, &Kernel<&banned, CastPolicy::Banned, decltype(banned)>::make});
  return result;
}

}  // namespace

const std::vector<ListedOp>& listed_ops() {
  static const std::vector<ListedOp> list = make_list();
  return list;
}

}  // namespace outboard

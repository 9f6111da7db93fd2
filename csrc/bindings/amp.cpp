// SPDX-License-Identifier: BSD-3-Clause
// Autocast: the opt-in, and the table of policies.
#include "bindings/method.h"
#include "torch/autocast.h"

namespace outboard::bindings {

namespace {

std::vector<std::tuple<std::string, const char*, const char*>> policies() {
  std::vector<std::tuple<std::string, const char*, const char*>> rows;
  for (const CastPolicyRow& row : cast_policies()) {
    rows.emplace_back(row.op, cast_policy_name(row.policy), cast_policy_name(row.default_policy));
  }
  return rows;
}

}  // namespace

PyMethodDef amp_methods[] = {
    method<"register_autocast", register_autocast>("Register torch's cast policies, once."),
    method<"has_autocast", has_autocast>("Return whether register_autocast has run."),
    method<"set_cast_policy", set_cast_policy>("Set the policy of an operator: (operator, policy)."),
    method<"check_cast_policy", check_cast_policy>("Raise if set_cast_policy would raise."),
    method<"cast_policies", policies>("Return rows of operator, policy and default policy."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

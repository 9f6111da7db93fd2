// SPDX-License-Identifier: BSD-3-Clause
#include "ops/description.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "core/error.h"
#include "ops/call/argument_checks.h"
#include "ops/native/native.h"
#include "ops/operator/forms.h"
#include "ops/operator/operator.h"
#include "ops/planned/composed.h"

namespace outboard {

namespace {

using Notes = std::vector<OperatorNote>;

const char* meaning_of(const Operator& op) {
  switch (op.kind) {
    case OpKind::Writes:
      return "it writes its arguments and returns no new tensor";
    case OpKind::Makes:
      return "it returns new tensors";
    case OpKind::Views:
      return "it returns a view of an argument, without a kernel";
    case OpKind::Waits:
      break;
  }
  return op.returns_sizes ? "it returns numbers that depend only on sizes"
                          : "its result depends on values, so the caller waits";
}

void describe_dispatch(const Operator& op, Notes& notes) {
  const auto has = [&](c10::DispatchKey key) { return op.handle.hasKernelForDispatchKey(key); };
  const bool is_composed = !has(c10::DispatchKey::PrivateUse1) && !has(c10::DispatchKey::CPU);
  if (is_composed && has(c10::DispatchKey::CompositeImplicitAutograd)) {
    notes.push_back({"operator", "PyTorch composes it from other operators: explain those", ""});
  } else if (is_composed && has(c10::DispatchKey::CompositeExplicitAutograd)) {
    notes.push_back({"operator", "PyTorch's kernel for all devices calls other operators: explain those", ""});
  } else {
    notes.push_back({"operator", meaning_of(op), "csrc/ops/operator/operator.cpp"});
  }
  for (std::string& text : described(op.facts)) {
    notes.push_back({"operator", std::move(text), std::string(op.facts.row)});
  }
}

std::string name_of(const Operator& op, uint8_t place) {
  return op.handle.schema().arguments()[place].name();
}

void describe_checks(const Operator& op, Notes& notes) {
  if (op.checks == nullptr) {
    return;
  }
  for (const BadArgumentRule& rule : op.checks->bad_arguments) {
    notes.push_back(
        {"checks", "arguments that the CPU kernel refuses: " + std::string(rule.args), std::string(rule.row)});
  }
  for (const OverlapRule& rule : op.checks->overlaps) {
    std::string text = "memory overlap of " + name_of(op, rule.written);
    text += rule.refuses_internal ? " among its own elements" : "";
    for (const uint8_t place : rule.disjoint) {
      text += ", with " + name_of(op, place);
    }
    for (const uint8_t place : rule.partly) {
      text += ", partial overlap with " + name_of(op, place);
    }
    notes.push_back({"checks", text, "csrc/ops/call/_generated/overlap_table.h"});
  }
  if (!op.checks->numbers.empty()) {
    notes.push_back({"checks", "numbers that a dtype cannot hold", "csrc/ops/call/argument_checks.cpp"});
  }
  if (op.checks->bad_values) {
    notes.push_back({"checks", "values of tensors, for which the call waits", std::string(op.checks->bad_values->row)});
  }
  if (op.checks->promoted_argument) {
    notes.push_back({"checks", "results that " + name_of(op, *op.checks->promoted_argument) + " cannot hold",
                     "csrc/ops/call/argument_checks.cpp"});
  }
}

void describe_providers(const Operator& op, Notes& notes) {
  const NativeRoute* native = op.native.load(std::memory_order_acquire);
  notes.push_back({"native", native == nullptr ? "no kernel is registered" : "a kernel of " + native->op->name, ""});
  if (is_composed(op)) {
    notes.push_back({"generated", "some calls are composed from other operators", "csrc/ops/planned/composed.cpp"});
  }
  if (op.out_variant) {
    notes.push_back({"host", "the CPU kernel of " + toString(op.out_variant->operator_name()),
                     "csrc/ops/operator/_generated/out_forms.inc"});
  }
}

}  // namespace

std::vector<OperatorNote> describe_operator(const std::string& name) {
  if (const std::string unknown = describe_unknown_operator(name); !unknown.empty()) {
    raise(ErrorKind::InvalidArgument, OB_NOT_FOUND, unknown);
  }
  const auto [base, overload] = split_operator_name(name);
  const Operator& op = operator_named(base, overload.c_str());
  Notes notes;
  describe_dispatch(op, notes);
  describe_checks(op, notes);
  describe_providers(op, notes);
  return notes;
}

}  // namespace outboard

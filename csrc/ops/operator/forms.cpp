// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/forms.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace outboard {

namespace {

struct OutForm {
  std::string_view functional;
  const char* out;
};

constexpr OutForm kOutForms[] = {
#define OUT_FORM(functional, out) {functional, out},
#include "ops/operator/_generated/out_forms.inc"
#undef OUT_FORM
};
constexpr bool by_name(const OutForm& a, const OutForm& b) {
  return a.functional < b.functional;
}
static_assert(std::is_sorted(std::begin(kOutForms), std::end(kOutForms), by_name));

bool is_tensor(const c10::Argument& argument) {
  return argument.type()->kind() == c10::TypeKind::TensorType;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool same_argument(const c10::Argument& a, const c10::Argument& b) {
  return a.name() == b.name() && *a.type() == *b.type();
}

bool makes_tensors(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  return !returns.empty() && std::none_of(arguments.begin(), arguments.end(), is_written) &&
         std::all_of(returns.begin(), returns.end(),
                     [](const c10::Argument& r) { return is_tensor(r) && !r.alias_info(); });
}

// Return true if `out` is `functional` with its returns turned into written arguments at the end.
bool is_out_form(const c10::FunctionSchema& functional, const c10::FunctionSchema& out) {
  const auto& inputs = functional.arguments();
  const auto& arguments = out.arguments();
  const auto outputs = arguments.begin() + static_cast<std::ptrdiff_t>(std::min(inputs.size(), arguments.size()));
  return makes_tensors(functional) && arguments.size() == inputs.size() + functional.returns().size() &&
         out.returns().size() == functional.returns().size() &&
         std::equal(inputs.begin(), inputs.end(), arguments.begin(), outputs, same_argument) &&
         std::none_of(arguments.begin(), outputs, is_written) &&
         std::all_of(outputs, arguments.end(), [](const c10::Argument& a) { return is_written(a) && is_tensor(a); });
}

// Return true if `in_place` is `functional` with its first argument written to.
bool is_in_place_form(const c10::FunctionSchema& functional, const c10::FunctionSchema& in_place) {
  const auto& inputs = functional.arguments();
  const auto& arguments = in_place.arguments();
  return makes_tensors(functional) && functional.returns().size() == 1 && !arguments.empty() &&
         std::equal(inputs.begin(), inputs.end(), arguments.begin(), arguments.end(), same_argument) &&
         is_written(arguments[0]) && is_tensor(arguments[0]) &&
         std::none_of(arguments.begin() + 1, arguments.end(), is_written) && in_place.returns().size() == 1 &&
         in_place.returns()[0].alias_info() && in_place.returns()[0].alias_info()->isWrite();
}

std::vector<c10::OperatorHandle> handles_of(const std::string& base) {
  std::vector<c10::OperatorHandle> handles;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name == base) {
      if (auto op = c10::Dispatcher::singleton().findSchema(name)) {
        handles.push_back(*op);
      }
    }
  }
  return handles;
}

using Relation = bool (*)(const c10::FunctionSchema& functional, const c10::FunctionSchema& other);

std::optional<c10::OperatorHandle> form_of(const c10::OperatorHandle& functional, const std::string& base,
                                           Relation relation) {
  for (const c10::OperatorHandle& op : handles_of(base)) {
    if (relation(functional.schema(), op.schema())) {
      return op;
    }
  }
  return std::nullopt;
}

std::optional<c10::OperatorHandle> functional_of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (makes_tensors(op.schema())) {
    return op;
  }
  for (const c10::OperatorHandle& candidate : handles_of(name)) {
    if (is_out_form(candidate.schema(), op.schema())) {
      return candidate;
    }
  }
  if (name.ends_with('_')) {
    for (const c10::OperatorHandle& candidate : handles_of(name.substr(0, name.size() - 1))) {
      if (is_in_place_form(candidate.schema(), op.schema())) {
        return candidate;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

FormGroup find_forms(const c10::OperatorHandle& op) {
  FormGroup group;
  group.functional = functional_of(op);
  if (group.functional) {
    const std::string& base = group.functional->operator_name().name;
    group.out = form_of(*group.functional, base, is_out_form);
    group.in_place = form_of(*group.functional, base + "_", is_in_place_form);
  }
  return group;
}

std::pair<std::string, std::string> split_operator_name(const std::string& name) {
  const size_t space = name.find("::");
  const size_t dot = name.find('.', space == std::string::npos ? 0 : space);
  return dot == std::string::npos ? std::pair(name, std::string())
                                  : std::pair(name.substr(0, dot), name.substr(dot + 1));
}

std::vector<std::string> overloads_of(const std::string& base) {
  std::vector<std::string> names;
  for (const c10::OperatorHandle& op : handles_of(base)) {
    names.push_back(toString(op.operator_name()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<c10::OperatorHandle> find_out_form(const c10::OperatorHandle& functional) {
  const std::string name = toString(functional.operator_name());
  const auto* row = std::lower_bound(std::begin(kOutForms), std::end(kOutForms), OutForm{name, nullptr}, by_name);
  if (row == std::end(kOutForms) || row->functional != name) {
    return std::nullopt;
  }
  // Another version of torch may lack this overload, or have it with other arguments.
  const auto [base, overload] = split_operator_name(row->out);
  auto out = c10::Dispatcher::singleton().findSchema({base, overload});
  if (!out || !is_out_form(functional.schema(), out->schema()) ||
      !out->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return std::nullopt;
  }
  return out;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/facts.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "ops/operator/shape_corrections.h"

namespace outboard {

namespace {

// The book's rows, sorted by name: "aten::div" stands for all overloads of this form,
// "aten::add_.Tensor" or "aten::cat.default" for one.
struct FactsRow {
  std::string_view op;
  Facts facts;
};

constexpr FactsRow kRows[] = {
#define OB_FACTS(op, ...) FactsRow{op, Facts{__VA_ARGS__}},
#include <built/book.inc>
#undef OB_FACTS
};

constexpr bool row_before(const FactsRow& a, const FactsRow& b) {
  return a.op < b.op;
}
static_assert(std::is_sorted(std::begin(kRows), std::end(kRows), row_before));

const FactsRow* row_of(std::string_view name) {
  const FactsRow* row = std::lower_bound(std::begin(kRows), std::end(kRows), FactsRow{name, {}}, row_before);
  return row != std::end(kRows) && row->op == name ? row : nullptr;
}

// Return the facts of one overload, completed by those of all.
Facts completed(Facts facts, const Facts& general) {
  const Facts none;
  const auto complete = [&](auto field) {
    if (facts.*field == none.*field) {
      facts.*field = general.*field;
    }
  };
  complete(&Facts::has_misleading_meta);
  complete(&Facts::keeps_shapes);
  complete(&Facts::has_shape_of_scalars);
  complete(&Facts::checks_all_in_meta);
  complete(&Facts::is_given_samples);
  complete(&Facts::has_bounds);
  complete(&Facts::has_shape_of_masks);
  complete(&Facts::is_composed_first);
  complete(&Facts::misreads_expanded);
  complete(&Facts::raises_at_call);
  complete(&Facts::accepts);
  complete(&Facts::checked_values);
  complete(&Facts::known_warning);
  complete(&Facts::layout);
  complete(&Facts::like);
  complete(&Facts::layout_count);
  complete(&Facts::dropout_argument);
  complete(&Facts::correct);
  complete(&Facts::undeclared_writes);
  complete(&Facts::cpu_operator);
  return facts;
}

constexpr std::pair<std::string_view, std::string_view> kKernelTraits[] = {
#define OB_KERNEL_TRAIT(trait, op) {trait, op},
#include <built/book.inc>
#undef OB_KERNEL_TRAIT
};

}  // namespace

std::span<const std::pair<std::string_view, std::string_view>> kernel_traits() {
  return kKernelTraits;
}

Facts facts_of(const c10::OperatorName& name) {
  const std::string& base = name.name;
  Facts facts;
  if (const FactsRow* row = row_of(base)) {
    facts = row->facts;
    facts.row = row->op;
  }
  if (const FactsRow* row = row_of(base + '.' + (name.overload_name.empty() ? "default" : name.overload_name))) {
    facts = completed(row->facts, facts);
    facts.row = row->op;
  }
  if (base.ends_with('_') && !base.ends_with("__")) {
    if (const FactsRow* row = row_of(std::string_view(base).substr(0, base.size() - 1))) {
      facts.accepts = row->facts.accepts;
      facts.checked_values = row->facts.checked_values;
      facts.row = facts.row.empty() ? row->op : facts.row;
    }
  }
  return facts;
}

std::vector<std::string> described(const Facts& facts) {
  std::vector<std::string> words;
  const auto add = [&](bool holds, std::string text) {
    if (holds) {
      words.push_back(std::move(text));
    }
  };
  add(facts.has_misleading_meta, "its meta kernel returns wrong shapes, so the caller waits for the kernel");
  add(facts.keeps_shapes, "it writes in place and needs no meta kernel");
  add(facts.has_shape_of_scalars, "its scalar arguments decide the result's shape");
  add(facts.checks_all_in_meta, "the meta kernel performs all checks of the CPU kernel");
  add(facts.is_given_samples, "it draws no random numbers itself: an argument contains them");
  add(facts.has_shape_of_masks, "if an index is a mask, its values decide the result's shape");
  add(facts.is_composed_first, "a composition of other operators is tried before a plan");
  add(facts.misreads_expanded, "the CPU kernel reads past the end of expanded tensors, so it gets a copy");
  add(facts.raises_at_call, "it checks values and raises at the call, so the caller waits");
  add(facts.accepts == Elements::Ones,
      "shapes are inferred by running the CPU kernel on ones, because it refuses zeros");
  add(facts.accepts == Elements::Identities,
      "shapes are inferred by running the CPU kernel on identity matrices, because it needs matrices of full rank");
  add(facts.checked_values != CheckedValues::Nothing,
      "the CPU kernel checks values, so shapes are not inferred by running it on stand-ins");
  add(facts.known_warning != KnownWarning::None, "it warns at the call: csrc/ops/call/known_warnings.cpp");
  add(facts.layout == Layout::Contiguous, "its results are contiguous, whatever the meta kernel returns");
  add(facts.layout == Layout::Like, "its results have the layout of an argument");
  add(facts.layout == Layout::Suggested, "its results follow the memory format of an argument");
  add(facts.dropout_argument != 0, "only the provider of the forward operator knows which elements were dropped");
  add(facts.correct != nullptr, "its results' shapes are corrected: csrc/ops/operator/shape_corrections.cpp");
  add(!facts.undeclared_writes.empty(),
      "it writes " + std::string(facts.undeclared_writes) + ", which its schema does not declare");
  add(!facts.cpu_operator.empty(), "on the CPU, " + std::string(facts.cpu_operator) + " computes it");
  return words;
}

bool is_undeclared_write(const Facts& facts, std::string_view argument) {
  for (std::string_view rest = facts.undeclared_writes; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    if (name == argument) {
      return true;
    }
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return false;
}

}  // namespace outboard

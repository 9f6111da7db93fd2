// SPDX-License-Identifier: BSD-3-Clause
// The provider chain's data about an operator: read from its schema once, then counted and cached.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/operator/api.h"
#include "ops/operator/facts.h"
#include "ops/operator/shape_classes.h"
#include "ops/operator/signatures.h"

namespace outboard {

enum class ArgKind : uint8_t { Other, Tensor, TensorList, OptionalTensorList, Generator, Device };

// How a constant argument enters a call's signature.
enum class Decides : uint8_t {
  Value,     // may affect a result's shape
  Category,  // only its category matters for type promotion: bool, int, float or complex
  Presence   // only its presence matters: a learning rate, a probability
};

struct ArgInfo {
  ArgKind kind = ArgKind::Other;
  bool is_written = false;
  // Torch allows the indices of index and index_put on the CPU, of any size.
  bool may_be_on_cpu = false;
  Decides decides = Decides::Value;
  bool is_output = false;  // an `out=` tensor of torch's own: never read, and may be resized
};

enum class OpKind : uint8_t {
  Writes,  // every return is a written argument (or there is none)
  Makes,   // every other return is a fresh tensor or list of tensors
  Views,   // a return is a view of an argument that is not written
  Waits    // returns a value that the host must see: a number, a bool
};

struct ArgumentChecks;
struct NativeRoute;

// A provider's cache for an operator, which owns it.
struct ProviderMemory {
  virtual ~ProviderMemory() = default;
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& operator_handle);
  ~Operator();

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  bool is_torch_operator;  // whether it is in the namespace aten
  Facts facts;     // beyond its schema
  OpKind kind;
  c10::SmallVector<ArgInfo, 8> args;
  // The kind of each return, from the schema: a written argument, a view of an argument, or fresh.
  // Indices; -1 for none.
  c10::SmallVector<int8_t, 4> returned_arg;  // the written argument that the return is
  c10::SmallVector<int8_t, 4> viewed_arg;    // the argument whose memory the return views
  bool is_random = false;          // draws random numbers
  bool has_generator_arg = false;
  std::optional<int> check_errors;  // the argument of that name
  bool returns_sizes = false;        // for OpKind::Waits: it returns sizes, not values

  // The `out=` overload that replaces the operator on the host and writes to its outputs; only for
  // OpKind::Makes. Without it, the operator itself runs, and its results are copied to the outputs.
  // ops/operator/forms.h explains which operators have one.
  std::optional<c10::OperatorHandle> out_variant;

  // Return the functional form of an out= overload, looked up on first use; null if there is none.
  const Operator* functional_form() const;

  // Return the operator whose CPU kernel computes this operator: usually the operator itself.
  const c10::OperatorHandle& cpu_handle() const {
    return C10_LIKELY(facts.cpu_operator.empty()) ? handle : find_cpu_handle();
  }

  // The meta kernel in C++. If null, use the dispatcher's, which may be in Python.
  const c10::KernelFunction* meta_kernel = nullptr;
  bool is_structured = false;  // the CPU kernel checks shapes with this same function
  std::atomic<bool> is_deregistered{false};
  std::string deregistered_schema;
  SignatureCache signatures;
  ShapeClasses shape_classes;
  std::atomic<const NativeRoute*> native{nullptr};  // ops/native/native.h
  void (*issue_known_warning)(const Call& call) =
      nullptr;  // ops/call/known_warnings.h; null if no warning of it is known
  std::shared_ptr<const ArgumentChecks> checks;  // ops/call/argument_checks.h; null if there are none
  std::atomic<ProviderMemory*> recipes{
      nullptr};  // ops/planned/recipes.h; made at the first call; owned by the operator
  std::atomic<uint64_t> native_calls{0};
  std::atomic<uint64_t> planned_calls{0};
  std::atomic<uint64_t> queued_calls{0};
  std::atomic<uint64_t> waited_calls{0};
  std::atomic<uint64_t> fallback_calls{0};

 private:
  const c10::OperatorHandle& find_cpu_handle() const;

  mutable std::once_flag functional_once_;
  mutable const Operator* functional_ = nullptr;
  mutable std::once_flag cpu_handle_once_;
  mutable std::optional<c10::OperatorHandle> cpu_handle_;
};

// Return the operator of a handle. Created on first use; lives as long as the process. If an
// operator is redefined, it gets a new object; the old one is deregistered but not freed, because
// calls may hold it.
Operator& operator_for(const c10::OperatorHandle& handle);
// Return the operator by name ("aten::add", "Tensor"). Raise torch's error if there is none.
Operator& operator_named(const std::string& name, const char* overload = "");

// Set the function that adds checks and warnings, which belong to a higher layer, to each new
// operator. Call it once, before the first operator is created.
void complete_operators_with(void (*complete)(Operator& op));

// Return true if a driver's own kernel may serve the operator.
bool has_native(const Operator& op);

// Visit all operators made so far.
void for_each_operator(const std::function<void(Operator&)>& visit);

// Count a wait of an operator outside the chain, such as .item() or a blocking copy.
void count_wait(const char* op);

}  // namespace outboard

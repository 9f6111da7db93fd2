// SPDX-License-Identifier: BSD-3-Clause
// What the provider chain knows of an operator: read from its schema once, then counted and cached.
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
#include "ops/operator/shape_classes.h"
#include "ops/operator/signatures.h"

namespace outboard {

enum class ArgKind : uint8_t { Other, Tensor, TensorList, OptionalTensorList, Generator, Device };

// How a constant argument enters a call's signature.
enum class Decides : uint8_t {
  Value,     // may decide the shape of a result
  Category,  // only whether it is a bool, an int, a float or complex, by which dtypes are promoted
  Presence   // nothing but whether it is there: a learning rate, a probability
};

struct ArgInfo {
  ArgKind kind = ArgKind::Other;
  bool is_written = false;
  // Torch lets the indices of index and index_put be on the CPU, whatever their size.
  bool may_be_on_cpu = false;
  Decides decides = Decides::Value;
  bool is_output = false;  // an `out=` tensor of torch's own: nothing of it is read, and it may be resized
};

enum class OpKind : uint8_t {
  Writes,  // every return is a written argument (or there is none)
  Makes,   // every other return is a fresh tensor or list of tensors
  Views,   // a return is a view of an argument that isn't written
  Waits    // returns something that the host must see: a number, a bool
};

struct ArgumentChecks;
struct NativeRoute;

// What a provider remembers of an operator, which owns it.
struct ProviderMemory {
  virtual ~ProviderMemory() = default;
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& given);
  ~Operator();

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  bool is_torchs;  // of the namespace aten
  OpKind kind;
  c10::SmallVector<ArgInfo, 8> args;
  // What each return is, by the schema: a written argument, a view of an argument, or fresh. Indices, -1 for none.
  c10::SmallVector<int8_t, 4> returned_arg;  // the written argument that the return is
  c10::SmallVector<int8_t, 4> viewed_arg;    // the argument whose memory the return shows
  bool is_random = false;          // draws random numbers
  bool has_generator_arg = false;
  bool masks_decide = false;       // where an index is a mask, its values decide the result's shape
  bool joins_list = false;         // cat: of many tensors its plans would be a launch each
  bool tells_sizes = false;        // of OpKind::Waits: sizes tell the numbers that it returns, no values do

  // The `out=` overload that runs in the operator's place on the host, writing to its outputs; only of OpKind::Makes.
  // Without one the operator itself runs, and its results are copied there. ops/operator/forms.h says who has one.
  std::optional<c10::OperatorHandle> out_variant;

  // The functional form of an out= overload, looked for when it is first asked for; null if there is none.
  const Operator* functional_form() const;

  // The meta kernel in C++; null: the dispatcher's, which may be Python's.
  const c10::KernelFunction* meta_kernel = nullptr;
  bool is_structured = false;  // it is the very function by which the CPU kernel checks shapes
  std::atomic<bool> is_retired{false};
  std::string retired_schema;
  SignatureCache signatures;
  ShapeClasses shape_classes;
  std::atomic<const NativeRoute*> native{nullptr};  // ops/native/native.h
  void (*warns)(const Call& call) = nullptr;  // ops/call/known_warnings.h; null if it warns of nothing that is known
  std::shared_ptr<const ArgumentChecks> checks;  // ops/call/argument_checks.h; null if there are none
  std::atomic<ProviderMemory*> compiled{
      nullptr};  // ops/generated/recipes.h; made at the first call, and the operator's
  std::atomic<uint64_t> native_calls{0};
  std::atomic<uint64_t> compiled_calls{0};
  std::atomic<uint64_t> queued_calls{0};
  std::atomic<uint64_t> waited_calls{0};
  std::atomic<uint64_t> fallback_calls{0};

 private:
  mutable std::once_flag looked_for_functional_;
  mutable const Operator* functional_ = nullptr;
};

// The operator of a handle, made on first use; it lives as long as the process. For an operator that is defined again
// there is another one: the old is retired, for the calls that hold it.
Operator& operator_for(const c10::OperatorHandle& handle);
// The same by name ("aten::add", "Tensor"); raises torch's error if there is no such operator.
Operator& operator_named(const std::string& name, const char* overload = "");

// Sets what completes each operator when it is made: its checks and warnings, which are of a room above. To be called
// once, before the first operator is made.
void complete_operators_with(void (*complete)(Operator& op));

// Whether the driver has a kernel of its own that may serve the operator.
bool has_native(const Operator& op);

// Visits all operators made so far.
void for_each_operator(const std::function<void(Operator&)>& visit);

// Counts a wait of an operator that the chain doesn't run, such as .item() or a blocking copy.
void count_wait(const char* op);

}  // namespace outboard

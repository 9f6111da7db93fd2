// SPDX-License-Identifier: BSD-3-Clause
// What the provider chain knows of an operator: read from its schema once, then counted and remembered.
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

#include "ops/api.h"

namespace outboard {

enum class ArgKind : uint8_t { Other, Tensor, TensorList, OptionalTensorList, Generator, Device };

struct ArgInfo {
  ArgKind kind = ArgKind::Other;
  bool is_written = false;
  // Torch lets the indices of index and index_put be on the CPU, whatever their size.
  bool may_be_on_cpu = false;
};

enum class OpKind : uint8_t {
  Writes,  // every return is a written argument (or there is none)
  Makes,   // every other return is a fresh tensor or list of tensors
  Views,   // a return is a view of an argument that isn't written
  Waits    // returns something that the host must see: a number, a bool
};

// One output of a call whose shape is known before it runs.
struct OutputShape {
  bool is_defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  size_t nbytes = 0;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
};

// What the meta kernel says of a call.
struct CallShape {
  bool must_wait = false;  // no meta kernel, or it cannot know: the caller has to wait for the result
  std::vector<OutputShape> outputs;  // of the fresh returns, lists flattened
  std::vector<int32_t> list_sizes;   // a fresh return: -1 for a tensor, else how many outputs its list takes
  // Written arguments that take another shape (an `out=` of the wrong size): index among the arguments, and shape.
  std::vector<std::pair<uint32_t, OutputShape>> resized;
};

// A call's dtypes, sizes, strides and constants, as words: what its CallShape depends on.
using SignatureWords = c10::SmallVector<uint64_t, 64>;

class SignatureCache {
 public:
  std::shared_ptr<const CallShape> find(uint64_t hash, const SignatureWords& words);
  void insert(uint64_t hash, const SignatureWords& words, std::shared_ptr<const CallShape> shape);

 private:
  struct Entry {
    std::vector<uint64_t> words;
    std::shared_ptr<const CallShape> shape;
  };
  static constexpr size_t kMaxEntries = 1024;  // a training run has tens; a loop over sizes must not grow for ever
  std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_;
};

struct ArgumentChecks;

struct OpPlan {
  explicit OpPlan(const c10::OperatorHandle& handle);
  ~OpPlan();

  c10::OperatorHandle op;
  std::string name;  // "aten::add.Tensor"
  OpKind kind;
  c10::SmallVector<ArgInfo, 8> args;
  // What each return is, by the schema: a written argument, a view of an argument, or fresh. Indices, -1 for none.
  c10::SmallVector<int8_t, 4> returned_arg;  // the written argument that the return is
  c10::SmallVector<int8_t, 4> viewed_arg;    // the argument whose memory the return shows
  bool is_random = false;          // draws random numbers
  bool is_factory = false;         // no tensor but those it writes: constants alone decide its shape
  bool has_generator_arg = false;

  // The `out=` overload with a CPU kernel of its own, which fills given outputs; only of OpKind::Makes.
  std::optional<c10::OperatorHandle> out_variant;

  SignatureCache signatures;
  std::atomic<const NativeKernel*> native{nullptr};
  std::unique_ptr<const ArgumentChecks> checks;  // ops/argument_checks.h; null if there are none
  std::atomic<bool> fallback_warned{false};
  std::atomic<uint64_t> native_calls{0};
  std::atomic<uint64_t> queued_calls{0};
  std::atomic<uint64_t> waited_calls{0};
  std::atomic<uint64_t> fallback_calls{0};
};

// The operator's plan, made on first use; it lives as long as the process.
OpPlan& plan_for(const c10::OperatorHandle& op);

// Visits all plans made so far.
void for_each_plan(const std::function<void(OpPlan&)>& visit);

// Counts a wait of an operator that the chain doesn't run, such as .item() or a blocking copy.
void count_wait(const char* op);

}  // namespace outboard

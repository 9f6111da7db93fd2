// SPDX-License-Identifier: BSD-3-Clause
// The functions of the operators that the bindings need.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/export.h"

namespace c10 {
class OperatorHandle;
}

namespace outboard {

enum class Provider : uint8_t { Native, Generated, Host, Fallback, Count };
OUTBOARD_API const char* provider_name(Provider provider);

// How often each provider ran an operator, since the start or the last reset. An operator's row
// names a provider only if that provider ran it. Counts are per operator, and exact across threads.
struct CoverageRow {
  std::string op;  // "aten::add.Tensor"
  Provider provider;
  uint64_t calls;
};
OUTBOARD_API std::vector<CoverageRow> coverage();
OUTBOARD_API void reset_coverage();

// How host calls ran since the start or the last reset_coverage.
struct HostCounters {
  uint64_t queued = 0;  // the caller continued
  uint64_t waited = 0;  // the caller waited for the call
};
OUTBOARD_API HostCounters host_counters();
// Return the operators whose host calls waited, with counts. A training
// step must keep this list empty.
OUTBOARD_API std::vector<std::pair<std::string, uint64_t>> waited_operators();

// Return how often a meta kernel computed a call's shapes since the start. The shapes
// of a known signature are cached.
OUTBOARD_API uint64_t inferred_shapes();

// Return true if a meta kernel runs on this thread, to find the shapes of a call's
// results before the CPU's kernel runs.
OUTBOARD_API bool infers_shapes();

// The meaning of a meta kernel's exception.
enum class MetaFailure : uint8_t {
  Refusal,    // the call is wrong, or the meta kernel is
  NoKernel,   // NotImplementedError: there is none, or it does not cover the call
  Interrupt,  // Python's KeyboardInterrupt or SystemExit: meant for the program, and raised
};

// Classify an exception that Python raised in a meta kernel. Without
// a classifier, all are refusals.
using MetaFailureClassifier = MetaFailure (*)(const std::exception& error);
OUTBOARD_API void set_meta_failure_classifier(MetaFailureClassifier classifier);

// The action if an operator runs through the copy fallback: one UserWarning per process, an error,
// or none.
enum class FallbackMode : uint8_t { Warn, Error, Silent };
OUTBOARD_API void set_fallback_mode(FallbackMode mode);

// A driver's own kernel. The call's arguments are the last values of the stack; the results replace
// them. It returns false, with the stack untouched, to pass the call to the next provider.
class Call;
using NativeKernel = std::function<bool(const Call& call, torch::jit::Stack* stack)>;

}  // namespace outboard

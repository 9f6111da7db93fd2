// SPDX-License-Identifier: BSD-3-Clause
// What the bindings need of the operators.
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

enum class Provider : uint8_t { Native, Compiled, Host, Fallback, Count };
OUTBOARD_API const char* provider_name(Provider provider);

// Which provider ran which operator how often, since the start or the last reset. An operator's row names a provider
// only if it was called through it. Counting is per operator, exact across threads.
struct CoverageRow {
  std::string op;  // "aten::add.Tensor"
  Provider provider;
  uint64_t calls;
};
OUTBOARD_API std::vector<CoverageRow> coverage();
OUTBOARD_API void reset_coverage();

// How host calls ran since the start or the last reset_coverage.
struct HostCounters {
  uint64_t queued = 0;  // the caller went on
  uint64_t waited = 0;  // the caller waited for the call
};
OUTBOARD_API HostCounters host_counters();
// The operators whose host calls waited, with counts: what a training step must keep empty.
OUTBOARD_API std::vector<std::pair<std::string, uint64_t>> waited_operators();

// How often a meta kernel was asked for a call's shapes since the start: those of a known signature are remembered.
OUTBOARD_API uint64_t inferred_shapes();

// Whether a meta kernel runs on this thread, to tell the shapes of a call's results before the CPU's kernel runs.
OUTBOARD_API bool infers_shapes();

// What an exception of a meta kernel means.
enum class MetaFailure : uint8_t {
  Refusal,    // the call is wrong, or the meta kernel is
  NoKernel,   // NotImplementedError: there is none, or it does not cover such calls
  Interrupt,  // Python's KeyboardInterrupt or SystemExit: meant for the program, and raised
};

// Classifies an exception of a meta kernel that Python raised. Without a classifier, all are refusals.
using MetaFailureClassifier = MetaFailure (*)(const std::exception& error);
OUTBOARD_API void set_meta_failure_classifier(MetaFailureClassifier classifier);

// What happens when an operator runs through the copy fallback: one UserWarning an operator, an error, or nothing.
enum class FallbackMode : uint8_t { Warn, Error, Silent };
OUTBOARD_API void set_fallback_mode(FallbackMode mode);

// A kernel that the driver brought. It is given the call, whose arguments are the last values of the stack, on which
// its results take their place; it returns false, with the stack untouched, to hand the call to the next provider.
class Call;
using NativeKernel = std::function<bool(const Call& call, torch::jit::Stack* stack)>;

}  // namespace outboard

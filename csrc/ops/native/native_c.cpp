// SPDX-License-Identifier: BSD-3-Clause
#include "ops/native/native_c.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/activity.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "memory/caching_allocator.h"
#include "ops/call/call.h"
#include "ops/call/random.h"
#include "ops/call/results.h"
#include "ops/native/driver_scratch.h"
#include "ops/native/driver_values.h"
#include "ops/native/native.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

struct Outputs {
  const ob_tensor* tensors;
  size_t count;
};

ob_kernel_call describe(const Operator& op, c10::DeviceIndex device, const DriverValues& values, Outputs outputs) {
  ob_kernel_call call{};
  call.struct_size = sizeof(call);
  call.op = op.name.c_str();
  call.device = device;
  call.arg_count = values.values().size();
  call.arg_stride = sizeof(ob_value);
  call.args = values.values().data();
  call.output_count = outputs.count;
  call.output_stride = sizeof(ob_tensor);
  call.outputs = outputs.tensors;
  call.flags = values.flags();
  return call;
}

ob_status call_kernel(ob_operator_fn fn, void* user, const Operator& op, Stream& stream, const DriverValues& values,
                      Outputs outputs, Scratch& scratch) {
  ob_kernel_call call = describe(op, stream.device, values, outputs);
  call.stream = stream_handle(stream);
  call.scratch_context = &scratch;
  call.scratch = Scratch::take;
  call.draw = Scratch::draw;
  return fn(user, &call);
}

// A call in a graph.
class KernelCommand final : public DriverCommand {
 public:
  KernelCommand(ob_operator_fn fn, void* user, const Operator& op, DriverValues values, Outputs outputs,
                std::vector<Reserved> scratch, const RandomDraw& drawn)
      : fn_(fn),
        user_(user),
        op_(op),
        values_(std::move(values)),
        outputs_(outputs),
        scratch_(std::move(scratch)),
        drawn_(drawn) {}
  void queue(Stream& stream) override {
    ActivityScope activity(stream, {ActivityKind::Kernel, "native kernel", op_.name.c_str()});
    ReservedScratch scratch(stream, op_, scratch_, drawn_);
    scratch.check(call_kernel(fn_, user_, op_, stream, values_, outputs_, scratch));
    activity.finish();
  }
  std::string describe() const override { return op_.name; }

 private:
  ob_operator_fn fn_;
  void* user_;
  const Operator& op_;
  DriverValues values_;
  Outputs outputs_;
  std::vector<Reserved> scratch_;
  RandomDraw drawn_;
};

// Whether a kernel took a call, and the memory that it requested then.
struct KernelAnswer {
  bool is_accepted = false;
  std::vector<uint64_t> scratch;
};

// A kernel's answers, by the properties that it saw of each call. The table is bounded, because a
// loop over sizes must not grow it forever.
class KernelAnswers {
 public:
  void add(uint64_t key, KernelAnswer answer) {
    const std::lock_guard lock(mutex_);
    if (answers_.size() >= kMaxAnswers) {
      answers_.clear();
    }
    answers_[key] = std::make_shared<const KernelAnswer>(std::move(answer));
  }
  // Return null if the kernel was not asked.
  std::shared_ptr<const KernelAnswer> find(uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto entry = answers_.find(key);
    return entry == answers_.end() ? nullptr : entry->second;
  }

 private:
  static constexpr size_t kMaxAnswers = 1024;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const KernelAnswer>> answers_;
};

class DriverKernel {
 public:
  DriverKernel(ob_operator_fn fn, ob_operator_fn query_fn, void* user) : fn_(fn), query_fn_(query_fn), user_(user) {}

  bool can_query() const { return query_fn_ != nullptr; }

  NativeAnswer answer(const Call& call, c10::ArrayRef<c10::IValue> arguments, uint64_t* out_kept) const {
    if (query_fn_ == nullptr) {
      return NativeAnswer::Unknown;
    }
    const Operator& op = call.op();
    const std::shared_ptr<const CallShape> shape = shape_of(call);
    if (!serves(op) || !shape->is_known()) {
      return NativeAnswer::Declines;
    }
    DriverValues values(Memory::None, call.device());
    for (size_t i = 0; i < op.args.size(); ++i) {
      values.add(op.args[i], arguments[i]);
    }
    if (!values.is_complete()) {
      return NativeAnswer::Declines;
    }
    const uint64_t key = values.key(op.name);
    std::shared_ptr<const KernelAnswer> known = query_answers_->find(key);
    if (known == nullptr) {
      ensure_open(call.device());
      ob_kernel_call native_call =
          describe(op, call.device(), values, {values.add_shapes(shape->outputs), shape->outputs.size()});
      known = query(call, &native_call, out_kept != nullptr);
      query_answers_->add(key, *known);
    }
    if (out_kept != nullptr) {
      *out_kept = known->scratch.empty() ? 0 : known->scratch.front();
    }
    return known->is_accepted ? NativeAnswer::Accepts : NativeAnswer::Declines;
  }

  bool operator()(const Call& call, torch::jit::Stack* stack) const {
    const Operator& op = call.op();
    if (!serves(op)) {
      return false;
    }
    const std::shared_ptr<const CallShape> shape = shape_of(call);
    if (!shape->is_known()) {
      return false;
    }
    ensure_open(call.device());
    Stream& stream = current_stream(call.device());
    Capture* capture = capture_of(stream);
    const bool is_core_capture = capture && !capture->is_native();
    DriverValues values(is_core_capture ? Memory::Kept : Memory::Used, call.device());
    for (size_t i = 0; i < op.args.size(); ++i) {
      values.add(op.args[i], call.arg(i));
    }
    if (!values.is_complete()) {
      return false;
    }
    const uint64_t key = values.key(op.name);
    const std::shared_ptr<const KernelAnswer> known = answers_->find(key);
    // While the core records a graph nothing may run, so the kernel cannot be asked. A
    // call that it is not known to take goes to the next provider, because a graph that
    // fails in its replay would be useless.
    if (known == nullptr ? is_core_capture : !known->is_accepted) {
      return false;
    }
    if (C10_UNLIKELY(capture != nullptr)) {
      capture->check(stream);
    }
    const std::vector<at::Tensor> outputs = make_outputs(call, *shape);
    const Outputs described{values.add_tensors(outputs), outputs.size()};
    if (C10_UNLIKELY(is_core_capture)) {
      const RandomDraw drawn = op.is_random ? captured_draw(call, *capture) : RandomDraw{};
      capture->add(stream, std::make_unique<KernelCommand>(fn_, user_, op, std::move(values), described,
                                                           reserve(stream, known->scratch), drawn));
    } else if (!run(call, stream, values, described, known ? std::nullopt : std::optional(key))) {
      return false;
    } else {
      finish_call(stream);
    }
    return_results(call, *shape, outputs, stack);
    return true;
  }

 private:
  // Record how much memory a question requests, without allocating any.
  static ob_status note(void* context, uint64_t bytes, uint64_t* out_address) {
    static_cast<std::vector<uint64_t>*>(context)->push_back(bytes);
    *out_address = 0;
    return OB_OK;
  }

  std::shared_ptr<const KernelAnswer> query(const Call& call, ob_kernel_call* native_call, bool keeps) const {
    KernelAnswer answer;
    if (keeps) {
      native_call->scratch_context = &answer.scratch;
      native_call->scratch = note;
    }
    const ob_status status = query_fn_(user_, native_call);
    if (!is_unimplemented(status)) {
      check(status, call.op().name.c_str(), call.device());
    }
    answer.is_accepted = status == OB_OK;
    return std::make_shared<const KernelAnswer>(std::move(answer));
  }

  // Reserve memory in the pool of the graph that the stream captures. It is released at once:
  // later captured work may use it.
  static std::vector<Reserved> reserve(Stream& stream, const std::vector<uint64_t>& sizes) {
    std::vector<c10::DataPtr> memory;
    std::vector<Reserved> result;
    for (const uint64_t bytes : sizes) {
      memory.push_back(allocate(stream, bytes));
      result.push_back({reinterpret_cast<uint64_t>(memory.back().get()), bytes});
    }
    return result;
  }

  // Return true if the results of an operator are tensors, or numbers that sizes determine.
  static bool serves(const Operator& op) {
    return op.kind == OpKind::Makes || op.kind == OpKind::Writes || op.returns_sizes;
  }

  // Queue the call; `new_key` is the key of an answer that is not known yet.
  bool run(const Call& call, Stream& stream, const DriverValues& values, Outputs outputs,
           std::optional<uint64_t> new_key) const {
    const Operator& op = call.op();
    Scratch scratch(stream, op, &call);
    const ob_status status = call_kernel(fn_, user_, op, stream, values, outputs, scratch);
    // An answer given for lack of memory does not apply to the next call.
    if (is_unimplemented(status)) {
      if (new_key && !scratch.has_failed()) {  // otherwise it accepted an identical call before, against the contract
        answers_->add(*new_key, {});
      }
      return false;
    }
    scratch.check(status);
    if (new_key && !scratch.has_failed()) {
      answers_->add(*new_key, {true, scratch.sizes()});
    }
    return true;
  }

  ob_operator_fn fn_;
  ob_operator_fn query_fn_;  // may be null
  void* user_;
  std::shared_ptr<KernelAnswers> answers_ = std::make_shared<KernelAnswers>();
  std::shared_ptr<KernelAnswers> query_answers_ = std::make_shared<KernelAnswers>();  // beforehand
};

}  // namespace

NativeKernel driver_kernel(ob_operator_fn fn, ob_operator_fn query_fn, void* user) {
  return DriverKernel(fn, query_fn, user);
}

namespace {

const DriverKernel* kernel_of(const Operator& op) {
  const NativeRoute* route = op.native.load(std::memory_order_acquire);
  return route == nullptr || route->called_form != route->kernel_form ? nullptr : route->kernel->target<DriverKernel>();
}

}  // namespace

bool can_query_native(const Operator& op) {
  const DriverKernel* kernel = kernel_of(op);
  return kernel != nullptr && kernel->can_query();
}

NativeAnswer query_native(const Call& call, c10::ArrayRef<c10::IValue> arguments, uint64_t* out_kept) {
  const DriverKernel* kernel = kernel_of(call.op());
  return kernel == nullptr ? NativeAnswer::Unknown : kernel->answer(call, arguments, out_kept);
}

std::vector<std::string> native_operators() {
  std::vector<std::string> names;
  for_each_operator([&](Operator& op) {
    // Operators that a kernel of another form serves are not the driver's.
    if (const NativeRoute* route = op.native.load(); route != nullptr && route->op == &op) {
      names.push_back(op.name);
    }
  });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace outboard

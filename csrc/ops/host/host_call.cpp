// SPDX-License-Identifier: BSD-3-Clause
#include "ops/host/host_call.h"

#include <ATen/native/SparseTensorUtils.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/capture.h"
#include "core/device.h"
#include "core/error.h"
#include "core/late_warnings.h"
#include "ops/call/arguments.h"
#include "ops/call/call_context.h"
#include "ops/call/random.h"
#include "ops/call/results.h"
#include "ops/call/run_error.h"
#include "ops/providers.h"
#include "ops/tensors/shell.h"
#include "ops/tensors/sparse.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Copies of CPU scalars that a queued call needs are stored in the call.
constexpr size_t kScalarSlots = 8;
constexpr size_t kScalarBytes = 16;  // of a complex double, the largest element

struct QueuedCall {
  Operator* op = nullptr;
  const c10::OperatorHandle* target = nullptr;
  WorkPlace place;
  CallContext context;
  torch::jit::Stack stack;  // arguments as shells; after the run, results
  c10::SmallVector<at::Tensor, 4> outputs;  // shells of fresh outputs
  // The written shells of a call with several results. Torch's boxing holds such results by
  // reference while it drops the arguments, so the stack must not be their only owner.
  c10::SmallVector<at::Tensor, 4> held;
  uint64_t shape_class = 0;
  bool target_fills_outputs = false;  // an out= kernel was given them; else the results are copied there
  std::vector<std::unique_ptr<std::byte[]>> copies;  // of larger CPU operands
  size_t scalars = 0;
  alignas(kScalarBytes) std::byte scalar_data[kScalarSlots][kScalarBytes];

  bool is_waited = false;  // the caller's thread runs it, once the stream is drained
  bool has_warned = false;  // all warnings of its kernel were issued when it was queued
  bool is_dispatched_by_arguments = false;  // an argument is a sparse tensor
  bool has_lazy_output = false;  // a written argument is lazily conjugated or negated
  std::exception_ptr error;

  // The outputs of the out= overload follow the operator's own arguments.
  void hold_written() {
    if (op->returned_arg.size() < 2) {
      return;
    }
    for (size_t i = 0; i < stack.size(); ++i) {
      if ((i >= op->args.size() || op->args[i].is_written) && stack[i].isTensor()) {
        held.push_back(stack[i].toTensor());
      }
    }
  }

  void clear() {
    stack.clear();
    outputs.clear();
    held.clear();
    copies.clear();
    scalars = 0;
    is_waited = false;
    has_warned = false;
    is_dispatched_by_arguments = false;
    has_lazy_output = false;
    target_fills_outputs = false;
    error = nullptr;
  }
};

// A pool of calls. Calls are mostly made and finished on different threads, so the pool is shared.
// Each thread keeps one call, which suffices for a driver that runs host work at once. A pooled
// call owns no memory of torch's.
class CallPool {
 public:
  std::unique_ptr<QueuedCall> take() {
    if (spare_) {
      return std::move(spare_);
    }
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<QueuedCall>();
    }
    auto call = std::move(free_.back());
    free_.pop_back();
    return call;
  }
  void give(std::unique_ptr<QueuedCall> call) {
    call->clear();
    if (!spare_) {
      spare_ = std::move(call);
      return;
    }
    std::lock_guard lock(mutex_);
    if (free_.size() < kMaxFree) {
      free_.push_back(std::move(call));
    }
  }

 private:
  static constexpr size_t kMaxFree = 1024;
  static thread_local std::unique_ptr<QueuedCall> spare_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<QueuedCall>> free_;
};
thread_local std::unique_ptr<QueuedCall> CallPool::spare_;

CallPool& pool() {
  static auto* calls = new CallPool();  // workers may finish calls until the end of the process
  return *calls;
}

void release(QueuedCall* call) {
  pool().give(std::unique_ptr<QueuedCall>(call));
}

void zero(const at::Tensor& output) {
  if (output.defined() && output.storage().nbytes() > 0) {
    std::memset(output.storage().mutable_data(), 0, output.storage().nbytes());
  }
}

// Move one result into its output, which was made with the meta kernel's shape. If the CPU kernel
// returned another shape, the call fails, and the next calls of its class wait for their results. A
// result that the kernel left undefined, because it was not requested, becomes zeros. An out=
// kernel has written the output's memory already, unless it gave its tensor other strides.
void settle_output(const QueuedCall& call, const at::Tensor& output, const at::Tensor& result) {
  if (!output.defined()) {
    return;
  }
  if (C10_UNLIKELY(!result.defined() || result.sizes() != output.sizes() ||
                   result.scalar_type() != output.scalar_type())) {
    const std::string difference = shape_difference(output.scalar_type(), output.sizes(), result);
    call.op->shape_classes.disbelieve(call.shape_class, difference);
    if (!result.defined()) {
      return zero(output);
    }
    TORCH_CHECK(false, difference,
                ". This call's result has the meta kernel's shape, and is filled with zeros."
                " Correct the meta kernel of ",
                call.op->name, "; until then such calls wait for the CPU kernel");
  }
  const bool is_in_place = call.target_fills_outputs;
  if (!is_in_place) {
    output.copy_(result);
  } else if (C10_UNLIKELY(result.strides() != output.strides())) {
    output.copy_(result.clone());
  }
}

void settle_outputs(QueuedCall& call) {
  size_t next = 0;
  for (size_t i = 0; i < call.op->returned_arg.size(); ++i) {
    if (call.op->returned_arg[i] >= 0) {
      continue;
    }
    const c10::IValue& returned = call.stack[i];
    if (returned.isTensorList()) {
      for (const at::Tensor& tensor : returned.toTensorList()) {
        settle_output(call, call.outputs[next++], tensor);
      }
    } else {
      settle_output(call, call.outputs[next++], returned.isTensor() ? returned.toTensor() : at::Tensor());
    }
  }
}

// Zero the outputs of a failed call. Later work in the stream still runs, and must not meet
// stale memory, such as wild indices.
void zero_outputs(const QueuedCall& call) {
  for (const at::Tensor& output : call.outputs) {
    zero(output);
  }
}

// Resolve lazy outputs. Some kernels finish a result by setting its conjugate bit. A shell's bit
// would be lost: its memory must hold the value.
void resolve_lazy_outputs(QueuedCall& call) {
  if (call.has_lazy_output) {
    return;
  }
  for (const c10::IValue& returned : call.stack) {
    if (!returned.isTensor() || !returned.toTensor().defined()) {
      continue;
    }
    const at::Tensor& tensor = returned.toTensor();
    if (C10_UNLIKELY(tensor.is_conj())) {
      tensor._set_conj(false);
      tensor.conj_physical_();
    }
    if (C10_UNLIKELY(tensor.is_neg())) {
      tensor._set_neg(false);
      tensor.neg_();
    }
  }
}

// The call that this thread is passing to its driver. If the driver runs it at once, the
// caller's context is already set.
thread_local const QueuedCall* handed_over = nullptr;

void run_call(QueuedCall* call) {
  try {
    std::optional<CallContext::Scope> in_context;
    if (!call->is_waited && call != handed_over) {
      in_context.emplace(call->context);
    }
    std::optional<KeepWarnings> keep_warnings;
    std::optional<NoWarnings> no_warnings;
    if (C10_UNLIKELY(call->has_warned)) {
      no_warnings.emplace();
    } else if (!call->is_waited) {  // the errors of a waited call go to its caller, on whose thread it runs
      keep_warnings.emplace(*call->place.stream, call->op->name);
    }
    call->hold_written();
    const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
    if (C10_LIKELY(!call->is_dispatched_by_arguments)) {
      call->target->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call->stack);
    } else {
      call->target->callBoxed(&call->stack);
    }
    if (!call->is_waited) {
      resolve_lazy_outputs(*call);
      settle_outputs(*call);
    }
  } catch (...) {
    std::exception_ptr error = with_name_of("operator " + call->op->name, !call->is_waited);
    if (call->is_waited) {
      call->error = std::move(error);
    } else {
      zero_outputs(*call);
      report_failure(call->place, std::move(error));
    }
  }
}

void run_queued_call(void* user) {
  auto* call = static_cast<QueuedCall*>(user);
  run_call(call);
  release(call);
}

void run_waited_call(void* user) {
  run_call(static_cast<QueuedCall*>(user));
}

// A call of a graph. Each replay runs a copy of it, with its own shells and new random numbers.
class CapturedCall final : public HostCommand {
 public:
  CapturedCall(std::unique_ptr<QueuedCall> call, std::vector<std::pair<size_t, RandomDraw>> draws)
      : call_(std::move(call)), draws_(std::move(draws)) {}

  void run(const WorkPlace& place) noexcept override {
    QueuedCall copy;
    copy.op = call_->op;
    copy.target = call_->target;
    copy.place = place;
    copy.context = call_->context;
    copy.shape_class = call_->shape_class;
    copy.has_warned = call_->has_warned;
    copy.target_fills_outputs = call_->target_fills_outputs;
    copy.has_lazy_output = call_->has_lazy_output;
    copy.outputs = call_->outputs;
    copy.stack.reserve(call_->stack.size());
    for (size_t i = 0; i < call_->stack.size(); ++i) {
      copy.stack.push_back(copy_argument(i));
    }
    for (const auto& [index, draw] : draws_) {
      copy.stack[index] = cpu_generator(draw);
    }
    run_call(&copy);
  }
  std::string describe() const override { return call_->op->name; }

 private:
  c10::IValue copy_argument(size_t index) const {
    static const ArgInfo output{ArgKind::Tensor, true, false};
    const auto& args = call_->op->args;
    return map_tensors(index < args.size() ? args[index] : output, call_->stack[index], copy_shell);
  }

  std::unique_ptr<QueuedCall> call_;
  std::vector<std::pair<size_t, RandomDraw>> draws_;  // by argument
};

// Replaces the device's arguments by those that the CPU kernel takes.
class ArgumentMaker {
 public:
  ArgumentMaker(const Call& call, QueuedCall& queued, Capture* capture = nullptr)
      : call_(call), queued_(queued), capture_(capture), shells_(queued.is_waited) {}

  bool is_reachable() const { return shells_.is_reachable(); }

  c10::IValue make(size_t index) {
    const ArgInfo& info = call_.op().args[index];
    const c10::IValue& value = call_.arg(index);
    switch (info.kind) {
      case ArgKind::Generator:
        if (C10_UNLIKELY(capture_ != nullptr)) {
          draws_.emplace_back(index, captured_draw(call_, *capture_));
          return {};
        }
        return cpu_generator_for(call_);
      case ArgKind::Device:
        return map_device(value, c10::DeviceType::CPU);
      default:
        return map_tensors(info, value, [this](const at::Tensor& tensor) { return shell(tensor); });
    }
  }

  // Return the random arguments of a captured call, which `make` leaves out.
  std::vector<std::pair<size_t, RandomDraw>> take_draws() { return std::move(draws_); }

  at::Tensor shell(const at::Tensor& tensor) {
    return C10_LIKELY(!queued_.is_waited) ? make_shell(tensor)
                                          : seen_.find_or_make(tensor, [&] { return make_shell(tensor); });
  }

 private:
  at::Tensor make_shell(const at::Tensor& tensor) {
    if (C10_UNLIKELY(is_sparse_coo(tensor))) {
      queued_.is_dispatched_by_arguments = true;
      if (tensor.is_cpu()) {
        return tensor;
      }
      // Empty indices are reachable on any device; the values beside them may not be.
      const at::SparseTensorImpl* sparse = at::sparse::get_sparse_impl(tensor);
      for (const at::Tensor& part : {sparse->indices(), sparse->values()}) {
        if (at::Tensor shell_of_part = shell(part); !is_reachable()) {
          return shell_of_part;
        }
      }
      return convert_sparse(tensor, [this](const at::Tensor& part) { return shell(part); });
    }
    return C10_LIKELY(is_ours(*tensor.unsafeGetTensorImpl())) ? shells_.make(tensor) : copy_of(tensor);
  }

  // Read CPU operands now: the caller may change them before the call runs.
  at::Tensor copy_of(const at::Tensor& tensor) {
    if (queued_.is_waited) {
      return tensor;
    }
    if (C10_UNLIKELY(capture_ != nullptr && tensor.dim() > 0)) {
      // A replay would always see the values of the capture. That may be intended for a
      // number, but hardly for a tensor.
      capture_->refuse(call_.op().name + " with a CPU tensor as an argument");
    }
    const at::Tensor source = tensor.contiguous();
    const size_t nbytes = source.nbytes();
    void* data;
    if (nbytes <= kScalarBytes && queued_.scalars < kScalarSlots) {
      data = queued_.scalar_data[queued_.scalars++];
    } else {
      queued_.copies.push_back(std::make_unique<std::byte[]>(nbytes));
      data = queued_.copies.back().get();
    }
    if (nbytes > 0) {
      std::memcpy(data, source.const_data_ptr(), nbytes);
    }
    return make_cpu_view(data, nbytes, *source.unsafeGetTensorImpl());
  }

  const Call& call_;
  QueuedCall& queued_;
  Capture* capture_;
  std::vector<std::pair<size_t, RandomDraw>> draws_;
  ShellMaker shells_;
  SeenTensors seen_;
};

std::unique_ptr<QueuedCall> start(const Call& call, Stream& stream) {
  auto queued = pool().take();
  queued->op = &call.op();
  queued->target = &call.op().on_cpu();
  queued->place = next_place(stream);
  queued->context = CallContext::capture();
  return queued;
}

bool fill_arguments(const Call& call, QueuedCall& queued, ArgumentMaker& maker) {
  queued.stack.reserve(call.op().args.size() + 4);
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    queued.stack.push_back(maker.make(i));
    if (call.op().args[i].is_written && call.arg(i).isTensor()) {
      queued.has_lazy_output |= call.arg(i).toTensor().is_conj() || call.arg(i).toTensor().is_neg();
    }
  }
  return maker.is_reachable();
}

bool run_queued(const Call& call, const CallShape& shape, torch::jit::Stack* stack) {
  Operator& op = call.op();
  Stream& stream = current_stream(call.device());
  resize_written(call, shape);
  std::unique_ptr<QueuedCall> queued = start(call, stream);
  Capture* capture = capture_of(stream);
  std::optional<ArgumentMaker> maker(std::in_place, call, *queued, capture);
  if (!fill_arguments(call, *queued, *maker)) {
    return false;
  }
  queued->shape_class = shape.shape_class;
  c10::SmallVector<at::Tensor, 4> outputs;
  for (const OutputShape& output : shape.outputs) {
    outputs.push_back(output.is_defined
                          ? make_device_tensor(stream, output.dtype, output.sizes, output.strides, output.nbytes)
                          : at::Tensor());
    queued->outputs.push_back(outputs.back().defined() ? maker->shell(outputs.back()) : at::Tensor());
  }
  if (op.out_variant.has_value()) {
    queued->target = &*op.out_variant;
    queued->target_fills_outputs = true;
    for (const at::Tensor& output : outputs) {
      queued->stack.emplace_back(maker->shell(output));  // another shell: a kernel may change its strides
    }
  }
  if (!maker->is_reachable()) {
    return false;
  }
  if (C10_UNLIKELY(op.warns != nullptr)) {
    op.warns(call);
    queued->has_warned = true;
  }
  if (C10_UNLIKELY(capture != nullptr)) {
    capture->add(stream, std::make_unique<CapturedCall>(std::move(queued), maker->take_draws()));
    return_results(call, shape, outputs, stack);
    return true;
  }
  // Release the maker before the call goes to another thread: only that thread
  // then uses and frees the shells.
  maker.reset();
  QueuedCall* raw = queued.release();
  bool is_queued = false;
  const QueuedCall*& here = handed_over;
  here = raw;
  try {
    is_queued = queue_host_work(stream, run_queued_call, raw, op.name.c_str());
  } catch (...) {
    here = nullptr;
    release(raw);  // it never ran, and never will
    throw;
  }
  here = nullptr;
  finish_call(stream, is_queued);
  op.queued_calls.fetch_add(1, std::memory_order_relaxed);
  return_results(call, shape, outputs, stack);
  return true;
}

bool run_waited(const Call& call, torch::jit::Stack* stack) {
  Operator& op = call.op();
  Stream& stream = current_stream(call.device());
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    capture->refuse(op.name + (is_deterministic() ? ", for which the caller waits in deterministic mode,"
                                                  : ", for whose result the caller waits,"));
  }
  std::unique_ptr<QueuedCall> queued = start(call, stream);
  queued->is_waited = true;
  ArgumentMaker maker(call, *queued);
  if (!fill_arguments(call, *queued, maker)) {
    return false;
  }
  const ArgumentPairs arguments(call, queued->stack);
  const std::unique_ptr<QueuedCall, void (*)(QueuedCall*)> waited(queued.release(), release);
  op.waited_calls.fetch_add(1, std::memory_order_relaxed);
  wait_and_run(stream, run_waited_call, waited.get(), op.name.c_str());
  if (waited->error) {
    std::rethrow_exception(waited->error);
  }
  adopt_results(call, arguments, waited->stack, stack);
  return true;
}

// Run a call whose meta kernel is not trusted, or not yet: the CPU kernel decides the shapes.
bool run_and_compare(const Call& call, const CallShape& shape, torch::jit::Stack* stack) {
  if (!run_waited(call, stack)) {
    return false;
  }
  ShapeClasses& classes = call.op().shape_classes;
  if (classes.state_of(shape.shape_class, shape.is_verified) == ShapeClasses::State::Waits) {
    classes.count_wait(shape.shape_class);
  } else {
    note_results(call, shape, *stack);
  }
  return true;
}

// Return true if the call raises errors of values itself, as on any other device.
bool raises_at_call(const Call& call) {
  const std::optional<int>& place = call.op().check_errors;
  return call.op().facts.raises_at_call || (place.has_value() && call.arg(static_cast<size_t>(*place)).toBool());
}

}  // namespace

bool run_on_host(const Call& call, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(!allows_host())) {
    return false;
  }
  void* address = nullptr;
  if (call.some_dense() && !storage_host_address(call.some_dense()->unsafe_storage(), &address)) {
    return false;
  }
  ensure_open(call.device());
  if (call.op().kind == OpKind::Waits || call.op().kind == OpKind::Views || call.has_sparse() || is_deterministic() ||
      C10_UNLIKELY(call.asks_kernel() || raises_at_call(call))) {
    return run_waited(call, stack);
  }
  const std::shared_ptr<const CallShape> shape = shape_of(call);
  if (!shape->is_known() || C10_UNLIKELY(shape->asks_kernel)) {
    return run_waited(call, stack);
  }
  return C10_LIKELY(is_trusted(call, *shape) || shape->outputs.empty()) ? run_queued(call, *shape, stack)
                                                                        : run_and_compare(call, *shape, stack);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/host/host_call.h"

#include <ATen/native/SparseTensorUtils.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/capture.h"
#include "core/device.h"
#include "core/late_warnings.h"
#include "ops/call/arguments.h"
#include "ops/call/host_work.h"
#include "ops/call/random.h"
#include "ops/call/results.h"
#include "ops/providers.h"
#include "ops/tensors/shell.h"
#include "ops/tensors/sparse.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Copies of CPU scalars that a queued call needs are stored in the call.
constexpr size_t kScalarSlots = 8;
constexpr size_t kScalarBytes = 16;  // of a complex double, the largest element

// The CPU kernel of one call, with its arguments. A caller that waits adopts the results.
class KernelWork final : public HostWork {
 public:
  static Owned<KernelWork> make(const Call& call, Stream& stream);

  Operator* op = nullptr;
  const c10::OperatorHandle* target = nullptr;
  torch::jit::Stack stack;  // arguments as shells; after the run, results
  std::vector<std::pair<size_t, RandomDraw>> draws;  // of a graph, by argument: new numbers for each replay
  c10::SmallVector<at::Tensor, 4> outputs;  // shells of fresh outputs
  uint64_t shape_class = 0;
  bool target_fills_outputs = false;  // an out= kernel was given them; else the results are copied there
  std::vector<std::unique_ptr<std::byte[]>> copies;  // of larger CPU operands
  size_t scalars = 0;
  alignas(kScalarBytes) std::byte scalar_data[kScalarSlots][kScalarBytes];

  bool is_waited = false;  // the caller's thread runs it, once the stream is drained
  bool has_warned = false;  // all warnings of its kernel were issued when it was queued
  bool is_dispatched_by_arguments = false;  // an argument is a sparse tensor
  bool has_lazy_output = false;  // a written argument is lazily conjugated or negated

  void clear();

 private:
  const std::string& name() const noexcept override { return op->name; }
  const char* kind() const noexcept override { return "operator "; }
  void compute() override;
  void replay() override;
  void end() noexcept override;

  void hold_written();
  void resolve_lazy_outputs();
  void copy_results();
  void copy_result(const at::Tensor& output, const at::Tensor& result) const;

  // The written shells of a call with several results. Torch's boxing holds such results by
  // reference while it drops the arguments, so the stack must not be their only owner.
  c10::SmallVector<at::Tensor, 4> held_;
};

// A pool of works. Works are mostly made and finished on different threads, so the pool is shared.
// Each thread keeps one, which suffices for a driver that runs host work at once. A pooled work
// owns no memory of torch's.
class WorkPool {
 public:
  std::unique_ptr<KernelWork> take() {
    if (spare_) {
      return std::move(spare_);
    }
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<KernelWork>();
    }
    auto work = std::move(free_.back());
    free_.pop_back();
    return work;
  }
  void give(std::unique_ptr<KernelWork> work) {
    work->clear();
    if (!spare_) {
      spare_ = std::move(work);
      return;
    }
    std::lock_guard lock(mutex_);
    if (free_.size() < kMaxFree) {
      free_.push_back(std::move(work));
    }
  }

 private:
  static constexpr size_t kMaxFree = 1024;
  static thread_local std::unique_ptr<KernelWork> spare_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<KernelWork>> free_;
};
thread_local std::unique_ptr<KernelWork> WorkPool::spare_;

WorkPool& pool() {
  static auto* works = new WorkPool();  // workers may finish works until the end of the process
  return *works;
}

HostWork::Owned<KernelWork> KernelWork::make(const Call& call, Stream& stream) {
  Owned<KernelWork> work(pool().take().release());
  work->begin(stream);
  work->op = &call.op();
  work->target = &call.op().cpu_handle();
  return work;
}

void KernelWork::end() noexcept {
  pool().give(std::unique_ptr<KernelWork>(this));
}

void KernelWork::clear() {
  stack.clear();
  draws.clear();
  outputs.clear();
  held_.clear();
  copies.clear();
  scalars = 0;
  is_waited = false;
  has_warned = false;
  is_dispatched_by_arguments = false;
  has_lazy_output = false;
  target_fills_outputs = false;
}

// The outputs of the out= overload follow the operator's own arguments.
void KernelWork::hold_written() {
  if (op->returned_arg.size() < 2) {
    return;
  }
  for (size_t i = 0; i < stack.size(); ++i) {
    if ((i >= op->args.size() || op->args[i].is_written) && stack[i].isTensor()) {
      held_.push_back(stack[i].toTensor());
    }
  }
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
void KernelWork::copy_result(const at::Tensor& output, const at::Tensor& result) const {
  if (!output.defined()) {
    return;
  }
  if (C10_UNLIKELY(!result.defined() || result.sizes() != output.sizes() ||
                   result.scalar_type() != output.scalar_type())) {
    const std::string difference = shape_difference(output.scalar_type(), output.sizes(), result);
    op->shape_classes.mark_different(shape_class, difference);
    if (!result.defined()) {
      return zero(output);
    }
    TORCH_CHECK(false, difference,
                ". This call's result has the meta kernel's shape, and is filled with zeros."
                " Correct the meta kernel of ",
                op->name, "; until then such calls wait for the CPU kernel");
  }
  if (!target_fills_outputs) {
    output.copy_(result);
  } else if (C10_UNLIKELY(result.strides() != output.strides())) {
    output.copy_(result.clone());
  }
}

void KernelWork::copy_results() {
  size_t next = 0;
  for (size_t i = 0; i < op->returned_arg.size(); ++i) {
    if (op->returned_arg[i] >= 0) {
      continue;
    }
    const c10::IValue& returned = stack[i];
    if (returned.isTensorList()) {
      for (const at::Tensor& tensor : returned.toTensorList()) {
        copy_result(outputs[next++], tensor);
      }
    } else {
      copy_result(outputs[next++], returned.isTensor() ? returned.toTensor() : at::Tensor());
    }
  }
}

// Resolve lazy outputs. Some kernels finish a result by setting its conjugate bit. A shell's bit
// would be lost: its memory must hold the value.
void KernelWork::resolve_lazy_outputs() {
  if (has_lazy_output) {
    return;
  }
  for (const c10::IValue& returned : stack) {
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

void KernelWork::compute() {
  std::optional<NoWarnings> no_warnings;
  if (C10_UNLIKELY(has_warned)) {
    no_warnings.emplace();
  }
  try {
    hold_written();
    if (C10_LIKELY(!is_dispatched_by_arguments)) {
      target->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } else {
      target->callBoxed(&stack);
    }
    if (!is_waited) {
      resolve_lazy_outputs();
      copy_results();
    }
  } catch (...) {
    // Later work in the stream still runs, and must not meet stale memory, such as wild indices.
    for (const at::Tensor& output : outputs) {
      zero(output);
    }
    throw;
  }
}

// Each replay runs a copy, with its own shells and new random numbers.
void KernelWork::replay() {
  static const ArgInfo output{ArgKind::Tensor, true, false};
  KernelWork copy;
  copy.op = op;
  copy.target = target;
  copy.shape_class = shape_class;
  copy.has_warned = has_warned;
  copy.target_fills_outputs = target_fills_outputs;
  copy.has_lazy_output = has_lazy_output;
  copy.outputs = outputs;
  copy.stack.reserve(stack.size());
  for (size_t i = 0; i < stack.size(); ++i) {
    copy.stack.push_back(map_tensors(i < op->args.size() ? op->args[i] : output, stack[i], copy_shell));
  }
  for (const auto& [index, draw] : draws) {
    copy.stack[index] = cpu_generator(draw);
  }
  copy.compute();
}

// Replaces the device's arguments by those that the CPU kernel takes.
class ArgumentMaker {
 public:
  ArgumentMaker(const Call& call, KernelWork& work) : call_(call), work_(work), shells_(work.is_waited) {}

  bool is_reachable() const { return shells_.is_reachable(); }

  c10::IValue make(size_t index) {
    const ArgInfo& info = call_.op().args[index];
    const c10::IValue& value = call_.arg(index);
    switch (info.kind) {
      case ArgKind::Generator:
        if (Capture* capture = work_.capture(); C10_UNLIKELY(capture != nullptr)) {
          work_.draws.emplace_back(index, captured_draw(call_, *capture));
          return {};
        }
        return cpu_generator_for(call_);
      case ArgKind::Device:
        return map_device(value, c10::DeviceType::CPU);
      default:
        return map_tensors(info, value, [this](const at::Tensor& tensor) { return shell(tensor); });
    }
  }

  at::Tensor shell(const at::Tensor& tensor) {
    return C10_LIKELY(!work_.is_waited) ? make_shell(tensor)
                                        : seen_.find_or_make(tensor, [&] { return make_shell(tensor); });
  }

 private:
  at::Tensor make_shell(const at::Tensor& tensor) {
    if (C10_UNLIKELY(is_sparse_coo(tensor))) {
      work_.is_dispatched_by_arguments = true;
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
    return C10_LIKELY(is_device_tensor(*tensor.unsafeGetTensorImpl())) ? shells_.make(tensor) : copy_of(tensor);
  }

  // Read CPU operands now: the caller may change them before the call runs.
  at::Tensor copy_of(const at::Tensor& tensor) {
    if (work_.is_waited) {
      return tensor;
    }
    if (Capture* capture = work_.capture(); C10_UNLIKELY(capture != nullptr && tensor.dim() > 0)) {
      // A replay would always see the values of the capture. That may be intended for a
      // number, but hardly for a tensor.
      capture->refuse(call_.op().name + " with a CPU tensor as an argument");
    }
    const at::Tensor source = tensor.contiguous();
    const size_t nbytes = source.nbytes();
    void* data;
    if (nbytes <= kScalarBytes && work_.scalars < kScalarSlots) {
      data = work_.scalar_data[work_.scalars++];
    } else {
      work_.copies.push_back(std::make_unique<std::byte[]>(nbytes));
      data = work_.copies.back().get();
    }
    if (nbytes > 0) {
      std::memcpy(data, source.const_data_ptr(), nbytes);
    }
    return make_cpu_view(data, nbytes, *source.unsafeGetTensorImpl());
  }

  const Call& call_;
  KernelWork& work_;
  ShellMaker shells_;
  SeenTensors seen_;
};

bool fill_arguments(const Call& call, KernelWork& work, ArgumentMaker& maker) {
  work.stack.reserve(call.op().args.size() + 4);
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    work.stack.push_back(maker.make(i));
    if (call.op().args[i].is_written && call.arg(i).isTensor()) {
      work.has_lazy_output |= call.arg(i).toTensor().is_conj() || call.arg(i).toTensor().is_neg();
    }
  }
  return maker.is_reachable();
}

// Fill the work of a queued call, and make its fresh outputs. Return false if the host cannot reach
// an argument.
bool fill_queued(const Call& call, const CallShape& shape, KernelWork& work, c10::SmallVector<at::Tensor, 4>* outputs) {
  ArgumentMaker maker(call, work);
  if (!fill_arguments(call, work, maker)) {
    return false;
  }
  work.shape_class = shape.shape_class;
  for (const OutputShape& output : shape.outputs) {
    outputs->push_back(
        output.is_defined ? make_device_tensor(work.stream(), output.dtype, output.sizes, output.strides, output.nbytes)
                          : at::Tensor());
    work.outputs.push_back(outputs->back().defined() ? maker.shell(outputs->back()) : at::Tensor());
  }
  if (call.op().out_variant.has_value()) {
    work.target = &*call.op().out_variant;
    work.target_fills_outputs = true;
    for (const at::Tensor& output : *outputs) {
      work.stack.emplace_back(maker.shell(output));  // another shell: a kernel may change its strides
    }
  }
  return maker.is_reachable();
}

bool queue_run(const Call& call, const CallShape& shape, torch::jit::Stack* stack) {
  Operator& op = call.op();
  resize_written(call, shape);
  auto work = KernelWork::make(call, current_stream(call.device()));
  c10::SmallVector<at::Tensor, 4> outputs;
  if (!fill_queued(call, shape, *work, &outputs)) {  // only the thread that runs the work uses its shells from here on
    return false;
  }
  if (C10_UNLIKELY(op.issue_known_warning != nullptr)) {
    op.issue_known_warning(call);
    work->has_warned = true;
  }
  if (C10_LIKELY(HostWork::queue(std::move(work), op.name.c_str()))) {
    op.queued_calls.fetch_add(1, std::memory_order_relaxed);
  }
  return_results(call, shape, outputs, stack);
  return true;
}

bool run_and_wait(const Call& call, torch::jit::Stack* stack) {
  Operator& op = call.op();
  const auto work = KernelWork::make(call, current_stream(call.device()));
  if (Capture* capture = work->capture(); C10_UNLIKELY(capture != nullptr)) {
    capture->refuse(op.name + (is_deterministic() ? ", for which the caller waits in deterministic mode,"
                                                  : ", for whose result the caller waits,"));
  }
  work->is_waited = true;
  ArgumentMaker maker(call, *work);
  if (!fill_arguments(call, *work, maker)) {
    return false;
  }
  const ArgumentPairs arguments(call, work->stack);
  op.waited_calls.fetch_add(1, std::memory_order_relaxed);
  work->wait_and_run(op.name.c_str());
  adopt_results(call, arguments, work->stack, stack);
  return true;
}

// Run a call whose meta kernel is not trusted, or not yet: the CPU kernel decides the shapes.
bool run_and_compare(const Call& call, const CallShape& shape, torch::jit::Stack* stack) {
  if (!run_and_wait(call, stack)) {
    return false;
  }
  ShapeClasses& classes = call.op().shape_classes;
  if (classes.state_of(shape.shape_class, shape.is_verified) == ShapeClasses::State::Different) {
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
      C10_UNLIKELY(call.requires_cpu_kernel() || raises_at_call(call))) {
    return run_and_wait(call, stack);
  }
  const std::shared_ptr<const CallShape> shape = shape_of(call);
  if (!shape->is_known() || C10_UNLIKELY(shape->requires_cpu_kernel)) {
    return run_and_wait(call, stack);
  }
  return C10_LIKELY(is_trusted(call, *shape) || shape->outputs.empty()) ? queue_run(call, *shape, stack)
                                                                        : run_and_compare(call, *shape, stack);
}

}  // namespace outboard

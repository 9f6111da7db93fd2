// SPDX-License-Identifier: BSD-3-Clause
#include "ops/native/native_c.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/activity.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/error.h"
#include "memory/caching_allocator.h"
#include "ops/call/call.h"
#include "ops/call/results.h"
#include "ops/native/native.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// An argument list for the driver. It owns the arrays that the values point to. A kept list (for a graph) also owns
// what the tensors would own.
class DriverValues {
 public:
  explicit DriverValues(bool is_kept = false) : is_kept_(is_kept) {}

  void add(const ArgInfo& info, const c10::IValue& value) {
    ob_value result{};
    result.struct_size = sizeof(result);
    if (value.isTensor()) {
      result.kind = OB_VALUE_TENSOR;
      result.count = 1;
      result.tensors = add_tensors({value.toTensor()});
    } else if (info.kind == ArgKind::TensorList || info.kind == ArgKind::OptionalTensorList) {
      if (!value.isNone()) {
        std::vector<at::Tensor> tensors;
        for (const c10::IValue& element : value.toListRef()) {
          tensors.push_back(element.isTensor() ? element.toTensor() : at::Tensor());
        }
        result.kind = OB_VALUE_TENSOR_LIST;
        result.count = tensors.size();
        result.tensors = add_tensors(tensors);
      }
    } else if (value.isInt() || value.isBool()) {
      result.kind = value.isInt() ? OB_VALUE_INT : OB_VALUE_BOOL;
      result.count = 1;
      result.ints = ints_.emplace_back(std::vector<int64_t>{value.isInt() ? value.toInt() : value.toBool()}).data();
    } else if (value.isDouble()) {
      result.kind = OB_VALUE_DOUBLE;
      result.count = 1;
      result.doubles = doubles_.emplace_back(std::vector<double>{value.toDouble()}).data();
    } else if (value.isIntList()) {
      std::vector<int64_t>& list = ints_.emplace_back(value.toIntVector());
      result.kind = OB_VALUE_INT_LIST;
      result.count = list.size();
      result.ints = list.data();
    } else if (value.isBoolList()) {
      const c10::List<bool> flags = value.toBoolList();
      std::vector<int64_t>& list = ints_.emplace_back(flags.begin(), flags.end());
      result.kind = OB_VALUE_INT_LIST;
      result.count = list.size();
      result.ints = list.data();
    } else if (value.isDoubleList()) {
      std::vector<double>& list = doubles_.emplace_back(value.toDoubleVector());
      result.kind = OB_VALUE_DOUBLE_LIST;
      result.count = list.size();
      result.doubles = list.data();
    } else if (value.isString()) {
      result.kind = OB_VALUE_STRING;
      result.count = value.toStringRef().size();
      result.string = is_kept_ ? strings_.emplace_back(value.toStringRef()).c_str() : value.toStringRef().c_str();
    } else if (!value.isNone()) {
      is_complete_ = false;
    }
    values_.push_back(result);
  }

  const ob_tensor* add_tensors(const std::vector<at::Tensor>& tensors) {
    std::vector<ob_tensor>& result = tensors_.emplace_back();
    for (const at::Tensor& tensor : tensors) {
      ob_tensor described{};
      described.struct_size = sizeof(described);
      if (tensor.defined()) {
        described.is_defined = 1;
        described.data = tensor.numel() > 0 ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
        described.dtype = static_cast<ob_dtype>(tensor.scalar_type());
        described.device = tensor.device().is_cpu() ? OB_HOST : tensor.device().index();
        described.ndim = static_cast<int32_t>(tensor.dim());
        described.sizes = is_kept_ ? ints_.emplace_back(tensor.sizes().vec()).data() : tensor.sizes().data();
        described.strides = is_kept_ ? ints_.emplace_back(tensor.strides().vec()).data() : tensor.strides().data();
        if (is_kept_ && tensor.device().is_cpu() && tensor.numel() > 0) {
          // A CPU scalar: take its value now.
          auto& bytes = bytes_.emplace_back(std::make_unique<std::byte[]>(tensor.nbytes()));
          std::memcpy(bytes.get(), tensor.const_data_ptr(), tensor.nbytes());
          described.data = reinterpret_cast<uint64_t>(bytes.get());
        }
        is_complete_ &= !tensor.is_conj() && !tensor.is_neg() && tensor.layout() == c10::kStrided;
      }
      result.push_back(described);
    }
    return result.data();
  }

  const std::vector<ob_value>& values() const { return values_; }

  // Return what a kernel's answer may depend on, as a number: the operator, kinds, dtypes, devices, sizes, strides and
  // constants, but no addresses and no content of memory.
  uint64_t key(const std::string& op) const {
    uint64_t hash = std::hash<std::string_view>{}(op);
    const auto add = [&hash](uint64_t word) { hash = mixed(hash, word); };
    for (const ob_value& value : values_) {
      add(static_cast<uint64_t>(value.kind) << 32 | value.count);
      for (size_t i = 0; value.tensors && i < value.count; ++i) {
        const ob_tensor& tensor = value.tensors[i];
        add(static_cast<uint64_t>(tensor.dtype) << 32 | static_cast<uint64_t>(tensor.device + 1) << 16 |
            static_cast<uint64_t>(tensor.ndim) << 1 | static_cast<uint64_t>(tensor.is_defined));
        for (int32_t dim = 0; dim < tensor.ndim; ++dim) {
          add(static_cast<uint64_t>(tensor.sizes[dim]));
          add(static_cast<uint64_t>(tensor.strides[dim]));
        }
      }
      for (size_t i = 0; value.ints && i < value.count; ++i) {
        add(static_cast<uint64_t>(value.ints[i]));
      }
      for (size_t i = 0; value.doubles && i < value.count; ++i) {
        add(std::bit_cast<uint64_t>(value.doubles[i]));
      }
      if (value.string) {
        add(std::hash<std::string_view>{}(std::string_view(value.string, value.count)));
      }
    }
    return hash;
  }

  // Return false if the contract has no form for an argument: the call goes to the next provider.
  bool is_complete() const { return is_complete_; }

 private:
  bool is_kept_;
  std::vector<ob_value> values_;
  std::deque<std::vector<ob_tensor>> tensors_;
  std::deque<std::vector<int64_t>> ints_;
  std::deque<std::vector<double>> doubles_;
  std::deque<std::string> strings_;
  std::deque<std::unique_ptr<std::byte[]>> bytes_;
  bool is_complete_ = true;
};

struct Outputs {
  const ob_tensor* tensors;
  size_t count;
};

// The memory that a kernel requests during its call, from the stream's pool: the next owner comes behind the call's
// work. In a driver's capture it belongs to the graph.
class Scratch {
 public:
  explicit Scratch(Stream& stream) : stream_(stream) {}
  virtual ~Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Like an entry, throws no exceptions into the driver's code.
  static ob_status take(void* context, uint64_t bytes, uint64_t* out_address) {
    auto& self = *static_cast<Scratch*>(context);
    try {
      *out_address = self.get(bytes);
      self.sizes_.push_back(bytes);
      return OB_OK;
    } catch (const c10::OutOfMemoryError&) {
      self.failure_ = std::current_exception();
      return OB_OUT_OF_MEMORY;
    } catch (...) {
      self.failure_ = std::current_exception();
      return OB_FAILED_PRECONDITION;
    }
  }

  // Raise the error of memory that the kernel could not get, if it failed because of that.
  void check(ob_status status, const Operator& op) const {
    if (C10_LIKELY(status == OB_OK || failure_ == nullptr)) {
      outboard::check(status, op.name.c_str(), stream_.device);
      return;
    }
    try {
      std::rethrow_exception(failure_);
    } catch (c10::Error& error) {
      error.add_context("The driver's kernel for " + op.name + " asked for it, as scratch memory.");
      throw;
    }
  }

  bool has_failed() const { return failure_ != nullptr; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 protected:
  virtual uint64_t get(uint64_t bytes) {
    return reinterpret_cast<uint64_t>(held_.emplace_back(allocate(stream_, bytes)).get());
  }

 private:
  Stream& stream_;
  std::vector<c10::DataPtr> held_;
  std::vector<uint64_t> sizes_;
  std::exception_ptr failure_;
};

// The memory of a replay: what the graph's pool reserved for it when the call was recorded.
struct Reserved {
  uint64_t address;
  uint64_t bytes;
};

class ReservedScratch final : public Scratch {
 public:
  ReservedScratch(Stream& stream, const std::vector<Reserved>& reserved) : Scratch(stream), reserved_(reserved) {}

 private:
  uint64_t get(uint64_t bytes) override {
    const size_t at = sizes().size();
    TORCH_CHECK(at < reserved_.size() && bytes <= reserved_[at].bytes, "In a replay of a graph, ", bytes,
                " bytes are asked for; when it was recorded, calls alike had asked for ",
                at < reserved_.size() ? std::to_string(reserved_[at].bytes) + " bytes there"
                                      : "memory " + std::to_string(reserved_.size()) + " times",
                ". What a kernel asks for must depend on dtypes, sizes, strides and numbers alone.");
    return reserved_[at].address;
  }

  const std::vector<Reserved>& reserved_;
};

ob_status call_kernel(ob_operator_fn fn, void* user, const Operator& op, Stream& stream, const DriverValues& values,
                      Outputs outputs, Scratch& scratch) {
  ob_kernel_call call{};
  call.struct_size = sizeof(call);
  call.op = op.name.c_str();
  call.device = stream.device;
  call.stream = stream_handle(stream);
  call.arg_count = values.values().size();
  call.arg_stride = sizeof(ob_value);
  call.args = values.values().data();
  call.output_count = outputs.count;
  call.output_stride = sizeof(ob_tensor);
  call.outputs = outputs.tensors;
  call.scratch_context = &scratch;
  call.scratch = Scratch::take;
  return fn(user, &call);
}

// A call in a graph.
class KernelCommand final : public DriverCommand {
 public:
  KernelCommand(ob_operator_fn fn, void* user, const Operator& op, DriverValues values, Outputs outputs,
                std::vector<Reserved> scratch)
      : fn_(fn), user_(user), op_(op), values_(std::move(values)), outputs_(outputs), scratch_(std::move(scratch)) {}
  void queue(Stream& stream) override {
    ActivityScope activity(stream, {ActivityKind::Kernel, "native kernel", op_.name.c_str()});
    ReservedScratch scratch(stream, scratch_);
    scratch.check(call_kernel(fn_, user_, op_, stream, values_, outputs_, scratch), op_);
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
};

// Whether a kernel took a call, and the memory that it requested then.
struct Answer {
  bool is_taken = false;
  std::vector<uint64_t> scratch;
};

// A kernel's answers, by what it saw of each call. Bounded: a loop over sizes must not grow it forever.
class Answers {
 public:
  void add(uint64_t key, Answer answer) {
    const std::lock_guard lock(mutex_);
    if (answers_.size() >= kMaxAnswers) {
      answers_.clear();
    }
    answers_[key] = std::make_shared<const Answer>(std::move(answer));
  }
  // Return null if the kernel was not asked.
  std::shared_ptr<const Answer> find(uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find(key);
    return found == answers_.end() ? nullptr : found->second;
  }

 private:
  static constexpr size_t kMaxAnswers = 1024;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const Answer>> answers_;
};

class DriverKernel {
 public:
  DriverKernel(ob_operator_fn fn, void* user) : fn_(fn), user_(user) {}

  bool operator()(const Call& call, torch::jit::Stack* stack) const {
    const Operator& op = call.op();
    if (op.kind != OpKind::Makes && op.kind != OpKind::Writes) {
      return false;
    }
    const std::shared_ptr<const CallShape> shape = shape_of(call);
    if (!shape->is_known()) {
      return false;
    }
    ensure_open(call.device());
    Stream& stream = current_stream(call.device());
    Capture* capture = capture_of(stream);
    const bool is_kept = capture && !capture->is_native();
    DriverValues values(is_kept);
    for (size_t i = 0; i < op.args.size(); ++i) {
      values.add(op.args[i], call.arg(i));
    }
    if (!values.is_complete()) {
      return false;
    }
    const uint64_t key = values.key(op.name);
    const std::shared_ptr<const Answer> known = answers_->find(key);
    // While the core records a graph nothing may run, so the kernel cannot be asked. A call that it is not known to
    // take goes to the next provider, because a graph that fails in its replay would be useless.
    if (known == nullptr ? is_kept : !known->is_taken) {
      return false;
    }
    if (C10_UNLIKELY(capture != nullptr)) {
      capture->check(stream);
    }
    const std::vector<at::Tensor> outputs = make_outputs(call, *shape);
    const Outputs described{values.add_tensors(outputs), outputs.size()};
    if (C10_UNLIKELY(is_kept)) {
      capture->add(stream, std::make_unique<KernelCommand>(fn_, user_, op, std::move(values), described,
                                                           reserve(stream, known->scratch)));
    } else if (!ask(op, stream, values, described, known ? std::nullopt : std::optional(key))) {
      return false;
    } else {
      finish_call(stream);
    }
    return_results(call, *shape, outputs, stack);
    return true;
  }

 private:
  // Reserve memory in the pool of the graph that the stream captures. It is released at once: later captured work may
  // use it.
  static std::vector<Reserved> reserve(Stream& stream, const std::vector<uint64_t>& sizes) {
    std::vector<c10::DataPtr> held;
    std::vector<Reserved> result;
    for (const uint64_t bytes : sizes) {
      held.push_back(allocate(stream, bytes));
      result.push_back({reinterpret_cast<uint64_t>(held.back().get()), bytes});
    }
    return result;
  }

  // Queue the call; `new_key` is the key of an answer that is not known yet.
  bool ask(const Operator& op, Stream& stream, const DriverValues& values, Outputs outputs,
           std::optional<uint64_t> new_key) const {
    Scratch scratch(stream);
    const ob_status status = call_kernel(fn_, user_, op, stream, values, outputs, scratch);
    // An answer given for lack of memory does not apply to the next call.
    if (is_unimplemented(status)) {
      if (new_key && !scratch.has_failed()) {  // else it took an identical call before, against the contract
        answers_->add(*new_key, {});
      }
      return false;
    }
    scratch.check(status, op);
    if (new_key && !scratch.has_failed()) {
      answers_->add(*new_key, {true, scratch.sizes()});
    }
    return true;
  }

  ob_operator_fn fn_;
  void* user_;
  std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
};

}  // namespace

NativeKernel driver_kernel(ob_operator_fn fn, void* user) {
  return DriverKernel(fn, user);
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

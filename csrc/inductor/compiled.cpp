// SPDX-License-Identifier: BSD-3-Clause
#include "inductor/compiled.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch_outboard/compiled.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/driver.h"
#include "core/stream.h"
#include "inductor/compiled_kernel.h"
#include "inductor/compiled_operator.h"
#include "memory/caching_allocator.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using torch::aot_inductor::new_tensor_handle;
using torch_outboard::KernelArgument;
using torch_outboard::Value;

constexpr size_t kInlineArguments = 12;

thread_local CompiledErrors* errors = nullptr;
thread_local CompiledStreams* streams = nullptr;

// Run a function of the table.
template <class Body>
auto keeping_error(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    if (errors != nullptr) {
      errors->keep_current();
    }
    throw;
  }
}

// Make a kernel, which is never freed.
const void* make_kernel(const char* name, torch_outboard::KernelEntry entry, const char* arguments) {
  return keeping_error([&] { return make_compiled(name, entry, arguments).release(); });
}

const void* make_program_kernel(const char* name, const torch_outboard::KernelProgram* program) {
  return keeping_error([&] {
    const kernels::ProgramText text{program->language, {program->code, program->code_size}, program->options};
    const auto& grid = program->grid;
    const auto& block = program->block;
    const kernels::Geometry geometry{{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, program->local_bytes};
    const std::vector<std::string> checks(program->checks, program->checks + program->check_count);
    auto kernel =
        std::make_unique<const kernels::DeviceKernel>(name, text, program->entry, program->arguments, geometry, checks);
    return make_compiled(std::move(kernel)).release();
  });
}

void launch_kernel(const void* kernel, const KernelArgument* arguments, size_t count) {
  keeping_error([&] {
    const auto& compiled = *static_cast<const CompiledKernel*>(kernel);
    c10::SmallVector<CompiledArgument, kInlineArguments> values;
    TORCH_CHECK_VALUE(count == compiled.arguments.size(), "the compiled kernel ", compiled.name, " takes ",
                      compiled.arguments.size(), " arguments, got ", count);
    for (size_t i = 0; i < count; ++i) {
      const bool is_tensor = kernels::takes_tensor(compiled.arguments[i]);
      values.push_back({is_tensor ? &tensor_of(arguments[i].tensor) : nullptr, arguments[i].bits});
    }
    launch_compiled(compiled, values);
  });
}

const void* make_operator(const char* name, const char* overload) {
  return new CompiledOperator{{name, overload}};
}

void call_operator(const void* op, const Value* arguments, size_t count, AtenTensorHandle* const* results,
                   size_t result_count) {
  keeping_error([&] {
    call_compiled(*static_cast<CompiledOperator*>(const_cast<void*>(op)), {arguments, count},
                  {const_cast<AtenTensorHandle**>(results), result_count});
  });
}

AtenTensorHandle empty_strided(size_t dim, const int64_t* allocated, const int64_t* sizes, const int64_t* strides,
                               int32_t dtype, int32_t device_index) {
  return keeping_error([&] {
    const c10::IntArrayRef shape(sizes, dim);
    at::Tensor tensor = empty_compiled(static_cast<c10::DeviceIndex>(device_index), static_cast<c10::ScalarType>(dtype),
                                       {allocated, dim}, {strides, dim});
    if (tensor.sizes() != shape) {
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, {strides, dim});
    }
    return new_tensor_handle(std::move(tensor));
  });
}

void view_dtype(AtenTensorHandle tensor, int32_t dtype, AtenTensorHandle* out_tensor) {
  keeping_error([&] {
    const at::AutoDispatchBelowAutograd below_autograd;
    *out_tensor = new_tensor_handle(tensor_of(tensor).view(static_cast<c10::ScalarType>(dtype)));
  });
}

int32_t device_index(const char* device) {
  return keeping_error([&] {
    const c10::Device named{std::string(device)};
    TORCH_CHECK_VALUE(named.type() == kDeviceType, "expected a device of '", driver_name(), "', got ", named);
    return static_cast<int32_t>(named.has_index() ? named.index() : current_device());
  });
}

void make_constant(const void* data, int64_t dim, const int64_t* sizes, const int64_t* strides, int64_t offset,
                   int32_t dtype, int32_t device_index, AtenTensorHandle* out_tensor) {
  keeping_error([&] {
    const at::AutoDispatchBelowAutograd below_autograd;
    const c10::IntArrayRef shape(sizes, static_cast<size_t>(dim));
    const c10::IntArrayRef steps(strides, static_cast<size_t>(dim));
    const auto type = static_cast<c10::ScalarType>(dtype);
    const size_t span = span_bytes(shape, steps, c10::elementSize(type)) / c10::elementSize(type);
    const int64_t elements = span == 0 ? 0 : offset + static_cast<int64_t>(span);
    const at::Tensor memory = empty_compiled(static_cast<c10::DeviceIndex>(device_index), type, {elements}, {1});
    if (elements > 0) {
      // Clone tensors that the model's library owns: after a failure the library is closed, and a
      // copy may still read them.
      memory.copy_(at::from_blob(const_cast<void*>(data), {elements}, type).clone());
      // A model runs on any stream, and none waits for this one.
      synchronize_stream(current_stream(memory.device().index()));
    }
    *out_tensor = new_tensor_handle(memory.as_strided(shape, steps, elements == 0 ? 0 : offset));
  });
}

void* copy_to_host(AtenTensorHandle tensor) {
  return keeping_error([&]() -> void* {
    thread_local at::Tensor copy;
    const at::AutoDispatchBelowAutograd below_autograd;
    const at::Tensor& input = tensor_of(tensor);
    const auto bytes = static_cast<int64_t>(input.storage().nbytes());
    at::Tensor memory = at::empty({0}, input.options().dtype(c10::kByte));
    memory.set_(input.storage(), 0, {bytes}, {1});
    copy = memory.to(c10::kCPU);
    return copy.data_ptr();
  });
}

Stream& stream_of(const void* stream) {
  return *static_cast<Stream*>(const_cast<void*>(stream));
}

const void* given_stream(size_t place) {
  return keeping_error([&]() -> const void* {
    Stream* const stream = streams == nullptr ? nullptr : streams->at(place);
    TORCH_CHECK(stream != nullptr, "compiled code switches to its stream number ", place,
                ", but the call passed none: call the function that torch.compile returned");
    return stream;
  });
}

const void* current_stream_of(int32_t device_index) {
  return keeping_error([&]() -> const void* {
    check_device_index(static_cast<c10::DeviceIndex>(device_index));
    return &current_stream(static_cast<c10::DeviceIndex>(device_index));
  });
}

const void* exchange_stream(const void* stream) {
  Stream& next = stream_of(stream);
  const void* before = &current_stream(next.device);
  set_current_stream(next);
  return before;
}

void record_on_stream(AtenTensorHandle tensor, const void* stream) {
  keeping_error([&] {
    const at::Tensor& input = tensor_of(tensor);
    if (is_device_tensor(*input.unsafeGetTensorImpl())) {
      record_stream(input.storage().data_ptr(), stream_of(stream));
    }
  });
}

constexpr torch_outboard::CompiledFunctions kFunctions = {
    make_kernel,       launch_kernel,   make_operator,    call_operator,      empty_strided,
    view_dtype,        device_index,    make_constant,    copy_to_host,       given_stream,
    current_stream_of, exchange_stream, record_on_stream, make_program_kernel};

}  // namespace

CompiledErrors::CompiledErrors(void (*secure)()) : secure_(secure), outer_(std::exchange(errors, this)) {}

CompiledErrors::~CompiledErrors() {
  errors = outer_;
}

void CompiledErrors::keep_current() {
  if (secure_ != nullptr) {
    secure_();
  }
  if (first_ == nullptr) {
    first_ = std::current_exception();
  }
}

CompiledStreams::CompiledStreams(std::vector<Stream*> given)
    : streams_(std::move(given)), outer_(std::exchange(streams, this)) {}

CompiledStreams::~CompiledStreams() {
  streams = outer_;
}

}  // namespace outboard

// The symbol that compiled_functions() of torch_outboard/compiled.h looks up. Return null for
// another version of that header.
extern "C" OUTBOARD_API const torch_outboard::CompiledFunctions* outboard_compiled_functions(uint32_t version) {
  return version == torch_outboard::kCompiledVersion ? &outboard::kFunctions : nullptr;
}

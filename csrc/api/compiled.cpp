// SPDX-License-Identifier: BSD-3-Clause
#include "api/compiled.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch_outboard/compiled.h>

#include <memory>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/driver.h"
#include "core/stream.h"
#include "ops/compiled_kernel.h"
#include "ops/compiled_operator.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

using torch::aot_inductor::new_tensor_handle;
using torch_outboard::KernelArgument;
using torch_outboard::Value;

constexpr size_t kInlineArguments = 12;

thread_local CompiledErrors* errors = nullptr;

// Runs a function of the table.
template <class Body>
auto keeping_error(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    if (errors != nullptr) {
      errors->keep(std::current_exception());
    }
    throw;
  }
}

const void* make_kernel(const char* name, torch_outboard::KernelEntry entry, const char* arguments) {
  return new CompiledKernel{name, entry, arguments};
}

void launch_kernel(const void* kernel, const KernelArgument* arguments, size_t count) {
  keeping_error([&] {
    const auto& compiled = *static_cast<const CompiledKernel*>(kernel);
    c10::SmallVector<CompiledArgument, kInlineArguments> values;
    for (size_t i = 0; i < count; ++i) {
      const bool is_tensor = compiled.arguments[i] == 'r' || compiled.arguments[i] == 'w';
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
      memory.copy_(at::from_blob(const_cast<void*>(data), {elements}, type));
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
    const at::Tensor& given = tensor_of(tensor);
    const auto bytes = static_cast<int64_t>(given.storage().nbytes());
    at::Tensor memory = at::empty({0}, given.options().dtype(c10::kByte));
    memory.set_(given.storage(), 0, {bytes}, {1});
    copy = memory.to(c10::kCPU);
    return copy.data_ptr();
  });
}

constexpr torch_outboard::CompiledFunctions kFunctions = {make_kernel,   launch_kernel, make_operator,
                                                          call_operator, empty_strided, view_dtype,
                                                          device_index,  make_constant, copy_to_host};

}  // namespace

CompiledErrors::CompiledErrors() : outer_(std::exchange(errors, this)) {}

CompiledErrors::~CompiledErrors() {
  errors = outer_;
}

void CompiledErrors::keep(std::exception_ptr error) {
  if (first_ == nullptr) {
    first_ = std::move(error);
  }
}

}  // namespace outboard

// What compiled_functions() of torch_outboard/compiled.h looks up; null for another version of that header.
extern "C" OUTBOARD_API const torch_outboard::CompiledFunctions* outboard_compiled_functions(uint32_t version) {
  return version == torch_outboard::kCompiledVersion ? &outboard::kFunctions : nullptr;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "inductor/compiled_kernel.h"

#include <c10/util/SmallVector.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/stream.h"
#include "ops/call/host_work.h"
#include "ops/planned/kernel_launch.h"
#include "ops/tensors/launch_uses.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using kernels::ArgumentKind;

constexpr size_t kInlineWords = 12;

// CPU numbers that a kernel reads through a pointer. They must live as
// long as the launch, and not move.
struct Scalar {
  alignas(kScalarBytes) std::byte data[kScalarBytes];
};

class Launch final : public HostWork {
 public:
  Launch(const CompiledKernel& launched, Stream& stream) : HostWork(stream), kernel(launched) {}

  const CompiledKernel& kernel;
  c10::SmallVector<uint64_t, kInlineWords> words;
  std::unique_ptr<Scalar[]> scalars;

 private:
  const std::string& name() const noexcept override { return kernel.name; }
  const char* kind() const noexcept override { return "the compiled kernel "; }
  void compute() override {
    try {
      kernel.entry(words.data());
    } catch (const std::out_of_range& error) {  // of an index, for which operators raise another type
      C10_THROW_ERROR(IndexError, error.what());
    }
  }
};

c10::DeviceIndex device_of(const CompiledKernel& kernel, c10::ArrayRef<CompiledArgument> arguments) {
  c10::DeviceIndex device = -1;
  for (const CompiledArgument& argument : arguments) {
    if (argument.tensor == nullptr || !is_device_tensor(*argument.tensor->unsafeGetTensorImpl())) {
      continue;
    }
    const c10::DeviceIndex index = argument.tensor->unsafeGetTensorImpl()->device().index();
    TORCH_CHECK_VALUE(device < 0 || device == index, "the compiled kernel ", kernel.name, " got tensors on devices ",
                      static_cast<int>(device), " and ", static_cast<int>(index),
                      ": recompile it for tensors of one device");
    device = index;
  }
  TORCH_CHECK_VALUE(device >= 0, "the compiled kernel ", kernel.name, " was given no tensor of '", driver_name(),
                    "', so it has no device to run on");
  return device;
}

uint64_t host_word(const CompiledKernel& kernel, const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  void* base = nullptr;
  if (C10_UNLIKELY(!storage_host_address(impl.unsafe_storage(), &base))) {
    raise_not_supported("host_address", "running the compiled kernel " + kernel.name +
                                            ", which the cpp code generator made for memory that the host can reach,");
  }
  // Without memory there are no elements, so the kernel touches nothing.
  return base == nullptr ? 0 : reinterpret_cast<uint64_t>(base) + offset_bytes(impl);
}

void fill_words(Launch& launch, c10::ArrayRef<CompiledArgument> arguments, LaunchUses& uses) {
  const CompiledKernel& kernel = launch.kernel;
  size_t scalars = 0;
  launch.words.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor* tensor = arguments[i].tensor;
    if (tensor == nullptr) {
      launch.words.push_back(arguments[i].bits);
    } else if (C10_LIKELY(is_device_tensor(*tensor->unsafeGetTensorImpl()))) {
      launch.words.push_back(host_word(kernel, *tensor));
      uses.add(*tensor, kernel.arguments[i] == ArgumentKind::Written);
    } else {
      if (!launch.scalars) {
        launch.scalars = std::make_unique<Scalar[]>(arguments.size());
      }
      Scalar* scalar = &launch.scalars[scalars++];
      copy_scalar(kernel.name, kernel.arguments[i], *tensor, scalar->data);
      launch.words.push_back(reinterpret_cast<uint64_t>(scalar->data));
    }
  }
}

void launch_on_host(const CompiledKernel& kernel, Stream& stream, c10::ArrayRef<CompiledArgument> arguments) {
  HostWork::Owned<Launch> launch(new Launch(kernel, stream));
  LaunchUses uses(stream);
  fill_words(*launch, arguments, uses);
  if (C10_LIKELY(launch->capture() == nullptr)) {
    uses.report(kernel.name.c_str());
  }
  HostWork::queue(std::move(launch), kernel.name.c_str());
}

void check_kinds(const CompiledKernel& kernel, c10::ArrayRef<CompiledArgument> arguments) {
  TORCH_CHECK_VALUE(arguments.size() == kernel.arguments.size(), "the compiled kernel ", kernel.name, " takes ",
                    kernel.arguments.size(), " arguments, got ", arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    TORCH_CHECK_VALUE(kernels::takes_tensor(kernel.arguments[i]) == (arguments[i].tensor != nullptr), "argument ", i,
                      " of the compiled kernel ", kernel.name, " has the wrong kind");
  }
}

void launch_on_device(const kernels::DeviceKernel& kernel, Stream& stream, c10::ArrayRef<CompiledArgument> arguments) {
  KernelLaunch launch(kernel, stream);
  for (const CompiledArgument& argument : arguments) {
    if (argument.tensor != nullptr) {
      launch.add(*argument.tensor);
    } else {
      launch.add(argument.bits);
    }
  }
  launch.queue();
}

}  // namespace

std::unique_ptr<CompiledKernel> make_compiled(std::string name, CompiledEntry entry, std::string_view arguments) {
  auto kernel = std::make_unique<CompiledKernel>();
  kernel->name = std::move(name);
  kernel->arguments = kernels::read_kinds(kernel->name, arguments, /*is_on_host=*/true);
  kernel->entry = entry;
  return kernel;
}

std::unique_ptr<CompiledKernel> make_compiled(std::unique_ptr<const kernels::DeviceKernel> program) {
  auto kernel = std::make_unique<CompiledKernel>();
  kernel->name = program->name();
  kernel->arguments = program->passed();
  kernel->program = std::move(program);
  return kernel;
}

void launch_compiled(const CompiledKernel& kernel, c10::ArrayRef<CompiledArgument> arguments) {
  check_kinds(kernel, arguments);
  const c10::DeviceIndex device = device_of(kernel, arguments);
  ensure_open(device);
  Stream& stream = current_stream(device);
  if (kernel.program != nullptr) {
    launch_on_device(*kernel.program, stream, arguments);
  } else {
    launch_on_host(kernel, stream, arguments);
  }
}

at::Tensor empty_compiled(c10::DeviceIndex device, c10::ScalarType dtype, c10::IntArrayRef sizes,
                          c10::IntArrayRef strides) {
  check_device_index(device);
  return make_device_tensor(current_stream(device), dtype, sizes, strides);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "api/typed_kernel.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/queue.h"
#include "ops/tensors/launch_uses.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

constexpr size_t kInlineParameters = 12;

void check_declared(const TypedKernel& kernel, size_t index, const at::Tensor& tensor) {
  const KernelParameter& parameter = kernel.parameters[index];
  const std::string& name = kernel.program.name();
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TORCH_CHECK_VALUE(!impl.is_python_dispatch(), "argument ", index, " of the kernel ", name,
                    " has no memory (it is a tensor of a trace): wrap the launch in torch.library.custom_op, which "
                    "torch.compile does not trace");
  TORCH_CHECK_VALUE(is_device_tensor(impl), "argument ", index, " of the kernel ", name, " must be a tensor on '",
                    driver_name(), "', got one on ", tensor.device(), ": move it there");
  TORCH_CHECK_VALUE(has_plain_elements(tensor), "argument ", index, " of the kernel ", name,
                    " must be a dense tensor, neither conjugated nor negated lazily: pass x.resolve_conj(),"
                    " x.resolve_neg() or x.to_dense()");
  TORCH_CHECK_VALUE(parameter.dtype == c10::ScalarType::Undefined || tensor.scalar_type() == parameter.dtype,
                    "argument ", index, " of the kernel ", name, " must be of ", parameter.dtype, ", got ",
                    tensor.scalar_type(), ": convert it, or declare another dtype");
  TORCH_CHECK_VALUE(parameter.is_strided || tensor.is_contiguous(), "argument ", index, " of the kernel ", name,
                    " must be contiguous, got strides ", tensor.strides(), " for sizes ", tensor.sizes(),
                    ": pass x.contiguous(), or declare the parameter 'strided' and pass the strides as numbers");
}

// Check the arguments and return the device of the launch.
c10::DeviceIndex device_of_launch(const TypedKernel& kernel, c10::ArrayRef<TypedArgument> arguments,
                                  const Stream* stream) {
  c10::DeviceIndex device = -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].tensor == nullptr) {
      continue;
    }
    check_declared(kernel, i, *arguments[i].tensor);
    const c10::DeviceIndex index = arguments[i].tensor->device().index();
    TORCH_CHECK(device < 0 || device == index,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                c10::Device(kDeviceType, device), " and ", c10::Device(kDeviceType, index), "! (in the kernel ",
                kernel.program.name(), ")");
    device = index;
  }
  if (device < 0) {
    return stream != nullptr ? stream->device : current_device();
  }
  TORCH_CHECK_VALUE(stream == nullptr || stream->device == device, "the kernel ", kernel.program.name(),
                    " got tensors on device ", static_cast<int>(device), " and a stream of device ",
                    stream != nullptr ? static_cast<int>(stream->device) : -1,
                    ". Pass a stream of the tensors' device");
  return device;
}

void check_launch_options(const TypedKernel& kernel, const LaunchOptions& options, c10::DeviceIndex device) {
  TORCH_CHECK_VALUE(std::ranges::all_of(options.block, [](uint32_t size) { return size > 0; }),
                    "a block of the kernel ", kernel.program.name(),
                    " must have at least one thread in each dimension, got (", options.block[0], ", ", options.block[1],
                    ", ", options.block[2], ")");
  if (options.follows_addresses && device_properties(device).follows_addresses == 0) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          "launching the kernel " + kernel.program.name() +
              " with follows_addresses is not supported: the properties of " + driver_name() + ":" +
              std::to_string(static_cast<int>(device)) +
              " do not declare that kernels can follow addresses stored in memory. Pass each tensor as an argument.");
  }
}

ob_kernel_arg to_kernel_arg(const KernelParameter& parameter, const TypedArgument& argument) {
  ob_kernel_arg arg{};
  arg.struct_size = sizeof(arg);
  switch (parameter.kind) {
    case KernelParameter::Kind::Tensor:
      arg.kind = OB_ARG_POINTER;
      arg.pointer = argument.tensor->numel() > 0 ? device_address(*argument.tensor) : 0;
      break;
    case KernelParameter::Kind::Number:
      arg.kind = OB_ARG_VALUE;
      arg.size = static_cast<uint32_t>(c10::elementSize(parameter.dtype));
      arg.value = &argument.bits;
      break;
    case KernelParameter::Kind::Local:
      arg.kind = OB_ARG_LOCAL;
      arg.size = static_cast<uint32_t>(argument.bits);
      break;
  }
  return arg;
}

// Report the launch's use of its tensors to the allocator, autograd and the sanitizer.
void note_launch(const TypedKernel& kernel, c10::ArrayRef<TypedArgument> arguments, Stream& stream) {
  LaunchUses uses(stream);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].tensor == nullptr) {
      continue;
    }
    const bool is_written = kernel.parameters[i].is_written;
    if (is_written) {
      arguments[i].tensor->unsafeGetTensorImpl()->bump_version();  // a gradient that needs the earlier content raises
    }
    uses.add(*arguments[i].tensor, is_written);
  }
  uses.report(kernel.program.name().c_str());
}

}  // namespace

void launch_typed(const TypedKernel& kernel, c10::ArrayRef<TypedArgument> arguments, const LaunchOptions& options) {
  const c10::DeviceIndex device = device_of_launch(kernel, arguments, options.stream);
  check_device_index(device);
  check_launch_options(kernel, options, device);
  if (std::ranges::any_of(options.grid, [](uint32_t size) { return size == 0; })) {
    return;
  }
  c10::SmallVector<ob_kernel_arg, kInlineParameters> args;
  for (size_t i = 0; i < arguments.size(); ++i) {
    args.push_back(to_kernel_arg(kernel.parameters[i], arguments[i]));
  }
  ob_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.kernel = kernel.program.handle(device);
  std::ranges::copy(options.grid, launch.grid);
  std::ranges::copy(options.block, launch.block);
  std::ranges::copy(options.cluster, launch.cluster);
  launch.is_cooperative = options.is_cooperative ? 1 : 0;
  launch.shared_memory = options.shared_memory;
  launch.arg_count = args.size();
  launch.arg_stride = sizeof(ob_kernel_arg);
  launch.args = args.data();
  launch.follows_addresses = options.follows_addresses ? 1 : 0;
  Stream& stream = options.stream != nullptr ? *options.stream : current_stream(device);
  note_launch(kernel, arguments, stream);
  queue_launch(stream, launch, kernel.program.name().c_str());
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include <torch_outboard/runtime.h>

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "core/activity.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/queue.h"
#include "core/stream.h"
#include "kernels/program.h"
#include "ops/call/call_context.h"
#include "ops/call/host_work.h"
#include "ops/host/copy.h"
#include "ops/tensors/shell.h"
#include "ops/tensors/tensor_utils.h"

namespace torch_outboard {

using outboard::Stream;

namespace {

c10::DeviceIndex index_of(c10::DeviceIndex device) {
  const c10::DeviceIndex index = device < 0 ? outboard::current_device() : device;
  outboard::check_device_index(index);
  return index;
}

Stream& to_core_stream(c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == kDeviceType, "expected a stream of ", c10::Device(kDeviceType), ", got ",
                    stream);
  return outboard::from_c10(stream);
}

using Tensors = std::vector<at::Tensor>;

// One launch: shells, which own no device memory, and the body that uses them.
class HostLaunch final : public outboard::HostWork {
 public:
  HostLaunch(Stream& stream, const char* name, Body body, Tensors outputs, Tensors inputs)
      : HostWork(stream),
        name_(name),
        body_(std::move(body)),
        outputs_(std::move(outputs)),
        inputs_(std::move(inputs)) {}

 private:
  const std::string& name() const noexcept override { return name_; }
  // Each run has its own shells: the body may change their sizes.
  void compute() override { body_(copies_of(outputs_), copies_of(inputs_)); }

  static Tensors copies_of(const Tensors& shells) {
    Tensors copies;
    for (const at::Tensor& shell : shells) {
      copies.push_back(outboard::copy_shell(shell));
    }
    return copies;
  }

  std::string name_;
  Body body_;
  Tensors outputs_;
  Tensors inputs_;
};

c10::DeviceIndex device_of(const char* name, at::TensorList outputs, at::TensorList inputs) {
  TORCH_CHECK_VALUE(!outputs.empty() || !inputs.empty(), name,
                    ": launch needs at least one tensor, which determines the device");
  const c10::Device device = outputs.empty() ? inputs.front().device() : outputs.front().device();
  for (const at::TensorList list : {outputs, inputs}) {
    for (const at::Tensor& tensor : list) {
      TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == c10::kStrided, name, ": launch takes dense tensors");
      TORCH_CHECK(tensor.device() == device,
                  "Expected all tensors to be on the same device, but found at least two"
                  " devices, ",
                  device, " and ", tensor.device(), "! (in ", name, ")");
    }
  }
  TORCH_CHECK_VALUE(device.type() == kDeviceType, name, ": launch takes tensors of ", c10::Device(kDeviceType),
                    ", got ", device);
  return device.index();
}

// Make shells of a launch's tensors. Return false if the host cannot reach one of them. The shells'
// storages have no other owner once this returns: the thread that runs the body may release them.
bool make_shells(at::TensorList outputs, at::TensorList inputs, Tensors* out_outputs, Tensors* out_inputs) {
  if (!outboard::driver().host_address) {
    return false;
  }
  outboard::ShellMaker maker;
  for (const at::Tensor& tensor : outputs) {
    out_outputs->push_back(maker.make(tensor));
  }
  for (const at::Tensor& tensor : inputs) {
    out_inputs->push_back(maker.make(tensor));
  }
  return maker.is_reachable();
}

void run_on_copies(const char* name, Stream& stream, at::TensorList outputs, at::TensorList inputs, const Body& body) {
  outboard::refuse_in_capture(stream, name);
  const auto copy = [](at::TensorList tensors) {
    Tensors copies;
    for (const at::Tensor& tensor : tensors) {
      copies.push_back(outboard::to_cpu(tensor));
    }
    return copies;
  };
  const Tensors results = copy(outputs);
  {
    const c10::impl::ForceDispatchKeyGuard below_autograd(outboard::below_autograd_keys());
    body(results, copy(inputs));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outboard::copy_from(results[i], outputs[i], /*non_blocking=*/false);
  }
}

}  // namespace

const std::string& device_name() {
  return outboard::driver_name();
}

c10::DeviceIndex device_count() noexcept {
  return static_cast<c10::DeviceIndex>(outboard::device_count());
}

c10::DeviceIndex current_device() noexcept {
  return outboard::current_device();
}

c10::Stream get_stream_from_pool(c10::DeviceIndex device, int priority) {
  return to_c10(outboard::pool_stream(index_of(device), priority));
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return to_c10(outboard::current_stream(index_of(device)));
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return to_c10(outboard::default_stream(index_of(device)));
}

void set_current_stream(c10::Stream stream) {
  outboard::set_current_stream(to_core_stream(stream));
}

uint64_t stream_handle(c10::Stream stream) {
  return outboard::handle_for_caller(to_core_stream(stream));
}

void device_synchronize(c10::DeviceIndex device) {
  outboard::synchronize_device(index_of(device));
}

void launch(const char* name, at::TensorList outputs, at::TensorList inputs, Body body) {
  const c10::DeviceIndex device = device_of(name, outputs, inputs);
  outboard::ensure_open(device);
  Stream& stream = outboard::current_stream(device);
  Tensors output_shells;
  Tensors input_shells;
  if (!make_shells(outputs, inputs, &output_shells, &input_shells)) {
    run_on_copies(name, stream, outputs, inputs, body);
    return;
  }
  outboard::HostWork::Owned<HostLaunch> work(
      new HostLaunch(stream, name, std::move(body), std::move(output_shells), std::move(input_shells)));
  const char* const known_name = outboard::is_recording_activities() ? outboard::intern_name(name) : nullptr;
  outboard::HostWork::queue(std::move(work), known_name);
}

uint64_t build_kernel(c10::DeviceIndex device, const ob_program_source& source, const char* name) {
  const std::string code(static_cast<const char*>(source.code), source.code_size);
  return outboard::kernels::find_kernel(index_of(device), {source.language, code, source.options}, name, name);
}

void launch(c10::Stream stream, const ob_launch& launch) {
  outboard::queue_launch(to_core_stream(stream), launch);
}

}  // namespace torch_outboard

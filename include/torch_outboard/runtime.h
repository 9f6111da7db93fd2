// SPDX-License-Identifier: BSD-3-Clause
// torch_outboard/runtime.h: the attached device for authors of C++ extensions, such as custom
// operators. It is independent of the driver: an extension runs with every driver.
//
// Include and library paths: torch_outboard.include_paths(), torch_outboard.library_paths(); link
// `torch_outboard`. Like every C++ extension of torch, an extension is built for one version of
// torch.
//
// Errors are torch's C++ exceptions, which Python raises with their own types. Every function may
// be called from any thread; streams and the current device belong to the calling thread. The
// device index -1 means the current device.
#ifndef TORCH_OUTBOARD_RUNTIME_H
#define TORCH_OUTBOARD_RUNTIME_H

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch_outboard/driver.h>

#include <cstdint>
#include <functional>
#include <string>

namespace torch_outboard {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// The name of the attached driver's device; "" if no driver is attached.
OB_EXPORT const std::string& device_name();
// This call opens no device.
OB_EXPORT c10::DeviceIndex device_count() noexcept;
OB_EXPORT c10::DeviceIndex current_device() noexcept;

// torch's own guards. When the scope ends, also by an exception, they restore the previous state
// without throwing.
using DeviceGuard = c10::DeviceGuard;
using OptionalDeviceGuard = c10::OptionalDeviceGuard;
using StreamGuard = c10::StreamGuard;
using OptionalStreamGuard = c10::OptionalStreamGuard;
using MultiStreamGuard = c10::MultiStreamGuard;

// ---- Streams
// ----------------------------------------------------------------------------------------------------------

// Returns the next of the device's 32 pooled streams of this priority, in turn; -1 is above 0.
OB_EXPORT c10::Stream get_stream_from_pool(c10::DeviceIndex device = -1, int priority = 0);
OB_EXPORT c10::Stream current_stream(c10::DeviceIndex device = -1);
OB_EXPORT c10::Stream default_stream(c10::DeviceIndex device = -1);
// Makes a stream this thread's current stream of its device. The current device does not change.
OB_EXPORT void set_current_stream(c10::Stream stream);
// Returns the driver's handle, and opens the device. Throws CaptureError while the core records the
// stream in a graph, because work queued through the handle would be missing from the graph.
// Request the handle in each call.
OB_EXPORT uint64_t stream_handle(c10::Stream stream);

// Waits for all work of the device, and raises its first failure.
OB_EXPORT void device_synchronize(c10::DeviceIndex device = -1);

// ---- Events
// -----------------------------------------------------------------------------------------------------------

// torch's own event. It belongs to the device of its first record, and can be moved but not copied.
using Event = c10::Event;

// With timing, for elapsedTime.
inline Event make_event(bool enable_timing = false) {
  return Event(kDeviceType, enable_timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
}

// ---- Work on the device
// -----------------------------------------------------------------------------------------------

using Body = std::function<void(at::TensorList outputs, at::TensorList inputs)>;

// Queues `body` in the current stream of the tensors' device and returns. A thread of the driver
// calls it with CPU tensors over the device's memory instead of the device tensors, with the same
// sizes and strides. `body` calls no function of this header and holds no device tensor; it may
// allocate on the CPU. An exception that it throws is raised at the next wait for the stream, with
// `name`. In a graph it is called at each replay, so it must be callable repeatedly.
//
// Pass at least one tensor. All tensors are dense and on one device; `outputs` are written,
// `inputs` only read. If the host cannot reach the memory, the tensors are copied to the CPU and
// the outputs back, and the caller waits.
OB_EXPORT void launch(const char* name, at::TensorList outputs, at::TensorList inputs, Body body);

// Returns a kernel in the driver's language (driver.h: program_build, kernel_get), valid as long as
// the process. Waits for the compiler. Kernels with the same text share one program per device.
// NotSupportedError if the driver builds no programs.
OB_EXPORT uint64_t build_kernel(c10::DeviceIndex device, const ob_program_source& source, const char* name);

// Queues a launch of such a kernel. Pass device addresses as arguments: tensor.data_ptr().
OB_EXPORT void launch(c10::Stream stream, const ob_launch& launch);

}  // namespace torch_outboard

#endif  // TORCH_OUTBOARD_RUNTIME_H

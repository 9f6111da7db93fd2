// SPDX-License-Identifier: BSD-3-Clause
// torch_outboard/runtime.h: the attached device for authors of C++ extensions, such as custom
// operators. It knows no driver: what is written against it runs on all of them.
//
// Include and library paths: torch_outboard.include_paths(), torch_outboard.library_paths(); link
// `torch_outboard`. An extension is built for one torch, as every C++ extension of torch is.
//
// Errors are exceptions of torch's C++ kind, which Python sees with their own types. Every function
// may be called from any thread; streams and the current device belong to the calling thread. A
// device index of -1 means the current one.
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

// The name under which the driver is attached; "" before.
OB_EXPORT const std::string& device_name();
// Opens no device.
OB_EXPORT c10::DeviceIndex device_count() noexcept;
OB_EXPORT c10::DeviceIndex current_device() noexcept;

// Guards: torch's own. They restore what was current when the scope is left, also by an
// exception, and never throw there.
using DeviceGuard = c10::DeviceGuard;
using OptionalDeviceGuard = c10::OptionalDeviceGuard;
using StreamGuard = c10::StreamGuard;
using OptionalStreamGuard = c10::OptionalStreamGuard;
using MultiStreamGuard = c10::MultiStreamGuard;

// ---- Streams
// ----------------------------------------------------------------------------------------------------------

// The next of the device's 32 pooled streams of that priority, in turn; -1 is above 0.
OB_EXPORT c10::Stream get_stream_from_pool(c10::DeviceIndex device = -1, int priority = 0);
OB_EXPORT c10::Stream current_stream(c10::DeviceIndex device = -1);
OB_EXPORT c10::Stream default_stream(c10::DeviceIndex device = -1);
// Makes it this thread's current stream of its device; the current device stays.
OB_EXPORT void set_current_stream(c10::Stream stream);
// The driver's handle. Opens the device. CaptureError while the core records the stream in a graph,
// which would lack what is queued by the handle; so ask for it in each call.
OB_EXPORT uint64_t stream_handle(c10::Stream stream);

// Waits for all work of the device, and raises the first failure of it.
OB_EXPORT void device_synchronize(c10::DeviceIndex device = -1);

// ---- Events
// -----------------------------------------------------------------------------------------------------------

// torch's own. It belongs to the device of its first record, and may be moved, not copied.
using Event = c10::Event;

// With timing for elapsedTime.
inline Event make_event(bool enable_timing = false) {
  return Event(kDeviceType, enable_timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
}

// ---- Work on the device
// -----------------------------------------------------------------------------------------------

using Body = std::function<void(at::TensorList outputs, at::TensorList inputs)>;

// Queues `body` in the current stream of the tensors' device and returns. It is called on a thread
// of the driver's, with CPU tensors over the device's memory in place of the given ones, with their
// sizes and strides. It calls nothing of this header, holds no device tensor, and may allocate on
// the CPU. What it throws is raised at the next wait for the stream, with `name`. In a graph it is
// called once a replay, so it must be callable again.
//
// All tensors are dense and of one device; at least one is given. `outputs` are written, `inputs`
// only read. Where the host cannot reach the memory, the tensors are copied to the CPU and the
// outputs back, and the caller waits.
OB_EXPORT void launch(const char* name, at::TensorList outputs, at::TensorList inputs, Body body);

// A kernel in the driver's language (driver.h: program_build, kernel_get), valid as long as the
// process. Waits for the compiler; a device's programs of the same text are one. NotSupportedError
// if the driver builds no programs.
OB_EXPORT uint64_t build_kernel(c10::DeviceIndex device, const ob_program_source& source, const char* name);

// Queues a launch of such a kernel. Arguments are device addresses: tensor.data_ptr().
OB_EXPORT void launch(c10::Stream stream, const ob_launch& launch);

}  // namespace torch_outboard

#endif  // TORCH_OUTBOARD_RUNTIME_H

// SPDX-License-Identifier: BSD-3-Clause
// Programs in a driver's language, built once for each device and text. They are never destroyed:
// queued launches, graphs and holders of a kernel's handle refer to them.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/driver.h"
#include "core/export.h"

namespace outboard::kernels {

struct ProgramText {
  std::string language;  // a language that the driver builds: "opencl_c", "ptx", …
  std::string code;
  std::string options;
  // Return the program for the device from a pack, in the language OB_LANGUAGE_BINARY; "" if there
  // is none. Null: the text is not from a pack. Called on the thread that builds. The bytes are not
  // part of the program's identity: if the driver does not accept them, the text is built.
  std::function<std::string()> read_binary = {};
};

// The driver refuses a program's text, every time: OB_PROGRAM_REFUSED, an invalid
// request, or a text without the kernel.
class OUTBOARD_API ProgramRefused : public c10::ValueError {
  using c10::ValueError::ValueError;
};

// The compiler did not finish within the limit, so the call goes to the next provider. This is not
// stored, because a later build may finish.
class OUTBOARD_API ProgramHangs final : public ProgramRefused {
  using ProgramRefused::ProgramRefused;
};
// Set the limit; five minutes by default.
OUTBOARD_API void set_build_limit(std::chrono::milliseconds limit) noexcept;

// Return the driver's handle of a program's kernel by name, valid for the life of the process. The
// first call for a device and a text waits for the compiler; concurrent calls wait for the first.
// After a failed build, the next call builds again.
//
// Raise NotSupportedError if the driver builds no programs, ProgramRefused if it refuses this
// program, and ProgramHangs. The error contains the build log and `name`, by which the author
// recognizes the kernel.
OUTBOARD_API uint64_t find_kernel(c10::DeviceIndex device, const ProgramText& program, const std::string& entry,
                                  const std::string& name);

class BackgroundBuild;

// A program's kernel on each device. It is built for a device when its handle there is first
// requested.
class OUTBOARD_API ProgramKernel {
 public:
  ProgramKernel(const std::string& name, ProgramText program, std::string entry);

  const std::string& name() const noexcept { return name_; }  // lives as long as the process
  // See find_kernel.
  uint64_t handle(c10::DeviceIndex device) const;
  // Return the handle, or 0 if the kernel is not built for the device.
  uint64_t known(c10::DeviceIndex device) const noexcept {
    return handles_[static_cast<size_t>(device)].load(std::memory_order_acquire);
  }
  // Return true if the driver is known to refuse the program, in this or an earlier process.
  bool was_refused(c10::DeviceIndex device) const;
  // Note that the driver refused the program, for a caller that waited.
  void note_refused(c10::DeviceIndex device) const;
  // Start a build on the pool, unless the kernel is known or being built; see kernels/builds.h.
  // Return false if there is no pool.
  bool start(c10::DeviceIndex device, const std::function<void()>& on_refusal) const;
  // Return the build that was started, or null if there is none or its failure was raised.
  std::shared_ptr<const BackgroundBuild> find_background_build(c10::DeviceIndex device) const;

 private:
  const std::string& name_;
  ProgramText program_;
  std::string entry_;
  mutable std::array<std::atomic<uint64_t>, kMaxDevices> handles_{};  // 0 until it is built there
  mutable std::mutex mutex_;  // guards the members below
  mutable std::map<c10::DeviceIndex, std::shared_ptr<const BackgroundBuild>> builds_;
};

}  // namespace outboard::kernels

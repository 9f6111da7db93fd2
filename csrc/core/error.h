// SPDX-License-Identifier: BSD-3-Clause
// From a driver's status to a C++ exception, once. The Python classes that the exceptions become are drawn at the top
// of torch_outboard/_errors.py.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <torch_outboard/driver.h>

#include <exception>
#include <string>

#include "core/export.h"
#include "core/wait.h"

namespace outboard {

enum class ErrorKind : int {
  Driver = 0,        // DriverError(code): an entry failed
  NotSupported = 1,  // NotSupportedError: the driver has no such entry
  Registration = 2,  // RegistrationError: a bad description, attach twice
  InvalidArgument = 3,  // ValueError
  OutOfMemory = 4,   // torch.OutOfMemoryError
  DeviceLost = 5,    // torch.AcceleratorError
  BadFork = 6,       // RuntimeError with the advice to use spawn
  Capture = 7,       // CaptureError: a graph capture that cannot be, or what it cannot record
  BadDevice = 8,     // torch.AcceleratorError, as on CUDA: there is no such device
};

// Raises; `code` is an ob_status. The bindings install a raiser that makes the Python exception; without one (a C++
// program) it is the c10::Error class that torch translates to the nearest Python type.
[[noreturn]] OUTBOARD_API void raise(ErrorKind kind, ob_status code, const std::string& message);
using Raiser = void (*)(ErrorKind kind, ob_status code, const std::string& message);
OUTBOARD_API void set_raiser(Raiser raiser);

// A failure that several waits raise is one exception: a Python error can be raised but once, so the bindings install what
// copies it.
using ErrorCopier = std::exception_ptr (*)(const std::exception_ptr& error);
OUTBOARD_API void set_error_copier(ErrorCopier copier);
[[noreturn]] OUTBOARD_API void raise_copy(const std::exception_ptr& error);

// "OUT_OF_MEMORY (8)"
OUTBOARD_API std::string status_name(ob_status status);

// The entry whose failure this thread is asking about or raising; null elsewhere. A Python driver's exception is the
// cause of that failure's error, and of no other.
OUTBOARD_API const char* failed_entry() noexcept;
class OUTBOARD_API FailedEntry {
 public:
  explicit FailedEntry(const char* entry) noexcept;
  ~FailedEntry();
  FailedEntry(const FailedEntry&) = delete;
  FailedEntry& operator=(const FailedEntry&) = delete;

 private:
  const char* outer_;
};

// What `last_error` says on this thread, or "" if the driver has none.
OUTBOARD_API std::string last_driver_error();

// Raises for a status that is not OB_OK: the entry, the device and the driver's own reason go into the message.
// `device` may be OB_HOST for entries that name none.
[[noreturn]] OUTBOARD_API void raise_status(ob_status status, const char* entry, int device);

// Raises NotSupportedError for an entry that the driver lacks; `what` says what the user asked for.
[[noreturn]] OUTBOARD_API void raise_not_supported(const char* entry, const std::string& what);

inline void check(ob_status status, const char* entry, int device) {
  if (C10_UNLIKELY(status != OB_OK)) {
    raise_status(status, entry, device);
  }
}

}  // namespace outboard

// Calls a table entry that names a device and raises on failure: OB_CALL(mem_free, device, address).
#define OB_CALL(entry, device, ...)                                                                                  \
  do {                                                                                                               \
    const ::outboard::NotedCall noted_call(#entry, static_cast<c10::DeviceIndex>(device));                           \
    ::outboard::check(                                                                                               \
        ::outboard::driver().entry(::outboard::driver().self, (device)__VA_OPT__(, ) __VA_ARGS__), #entry, (device)); \
  } while (false)

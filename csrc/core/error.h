// SPDX-License-Identifier: BSD-3-Clause
// Conversion of a driver's status to a C++ exception. The top of
// torch_outboard/_errors.py draws the Python classes.
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
  NotSupported = 1,  // NotSupportedError: the driver lacks the entry
  Registration = 2,  // RegistrationError: a bad description, or a second attach
  InvalidArgument = 3,  // ValueError
  OutOfMemory = 4,   // torch.OutOfMemoryError
  DeviceLost = 5,    // torch.AcceleratorError
  BadFork = 6,       // RuntimeError with the advice to use spawn
  Capture = 7,       // CaptureError: an impossible graph capture, or work that it cannot record
  BadDevice = 8,     // torch.AcceleratorError, as on CUDA: no such device
};

// Raise an error; `code` is an ob_status. The bindings install a raiser that creates the Python
// exception. Without one (in a C++ program) it raises the c10::Error class that torch
// translates to the nearest Python type.
[[noreturn]] OUTBOARD_API void raise(ErrorKind kind, ob_status code, const std::string& message);
using Raiser = void (*)(ErrorKind kind, ob_status code, const std::string& message);
OUTBOARD_API void set_raiser(Raiser raiser);

// A function that copies an exception. Several waits may raise the same failure, but a Python error
// can be raised only once. The bindings install it.
using ErrorCopier = std::exception_ptr (*)(const std::exception_ptr& error);
OUTBOARD_API void set_error_copier(ErrorCopier copier);
[[noreturn]] OUTBOARD_API void raise_copy(const std::exception_ptr& error);

// "OUT_OF_MEMORY (8)"
OUTBOARD_API std::string status_name(ob_status status);

// The entry whose failure a thread is querying or raising, and its device; null and -1 otherwise.
// The bindings copy both into DriverError. A Python driver's exception becomes the cause of this
// failure's error only.
struct Failed {
  const char* entry = nullptr;
  int device = -1;  // below 0 for an entry without a device
};
OUTBOARD_API Failed failed_entry() noexcept;
class OUTBOARD_API FailedEntry {
 public:
  FailedEntry(const char* entry, int device) noexcept;
  ~FailedEntry();
  FailedEntry(const FailedEntry&) = delete;
  FailedEntry& operator=(const FailedEntry&) = delete;

 private:
  Failed outer_;
};

// Return the driver's `last_error` for this thread, or "" if the driver has none.
OUTBOARD_API std::string last_driver_error();

// Raise for a status other than OB_OK. The message contains the entry, the device and the driver's
// own reason. `device` may be OB_HOST for entries that name no device.
[[noreturn]] OUTBOARD_API void raise_status(ob_status status, const char* entry, int device);

// Raise NotSupportedError for an entry that the driver lacks. `what` names the operation that the
// user requested.
[[noreturn]] OUTBOARD_API void raise_not_supported(const char* entry, const std::string& what);

inline void check(ob_status status, const char* entry, int device) {
  if (C10_UNLIKELY(status != OB_OK)) {
    raise_status(status, entry, device);
  }
}

}  // namespace outboard

// Call a table entry that names a device, and raise on failure: OB_CALL(mem_free, device, address).
#define OB_CALL(entry, device, ...)                                                                                  \
  do {                                                                                                               \
    const ::outboard::TrackedCall tracked_call(#entry, static_cast<c10::DeviceIndex>(device));                       \
    ::outboard::check(                                                                                               \
        ::outboard::driver().entry(::outboard::driver().self, (device)__VA_OPT__(, ) __VA_ARGS__), #entry, (device)); \
  } while (false)

// SPDX-License-Identifier: BSD-3-Clause
#include "core/device.h"
#include "distributed/api.h"
#include "kernels/builds.h"

#include "bindings/method.h"

#include <built/contract.inc>

#include <cstring>

#include "core/blocking.h"
#include "core/error.h"
#include "core/late_warnings.h"
#include "core/process.h"
#include "core/sync_debug.h"
#include "torch/autograd_threads.h"

namespace outboard::bindings {

bool to_device(PyObject* object, c10::DeviceIndex* out) {
  int64_t index = 0;
  if (!to_int64(object, &index)) {
    return false;
  }
  if (index < INT8_MIN || index > INT8_MAX) {
    try {
      raise_bad_device(index);
    } catch (...) {
      set_python_error();
      return false;
    }
  }
  *out = static_cast<c10::DeviceIndex>(index);
  return true;
}

bool to_text(PyObject* object, const char* what, std::string* out) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (!text) {
    if (!PyErr_Occurred()) {
      PyErr_Format(PyExc_TypeError, "%s must be a str", what);
    }
    return false;
  }
  if (std::memchr(text, '\0', static_cast<size_t>(size)) != nullptr) {  // C would see only the text before it
    PyErr_Format(PyExc_ValueError, "%s must not contain a null character: %R", what, object);
    return false;
  }
  out->assign(text, static_cast<size_t>(size));
  return true;
}

namespace {

template <class Field>
PyObject* property(const Field& field) {
  return to_python(field);
}
template <size_t kSize>
PyObject* property(const uint8_t (&bytes)[kSize]) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes), kSize);
}

PyObject* properties_dict(const ob_device_properties& p) {
  Object dict(PyDict_New());
#define X(name) &&set_item(dict.get(), #name, property(p.name))
  return dict OB_PROPERTIES(X) ? dict.release() : nullptr;
#undef X
}

// Issue the warnings of work that was not waited for. With an "error" filter there
// is no caller left to raise to.
void issue_last_warnings() {
  const auto issue = [] {
    return Object(guarded([]() -> PyObject* {
      issue_all_late_warnings();
      return none();
    }));
  };
  while (!issue()) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void shut_down_all() {
  {
    // A driver's threads may need the lock to finish queued work.
    const WithoutGil without_gil;
    drain_autograd_threads();
    abort_all_groups();
    kernels::end_builds();
    shut_down();
  }
  issue_last_warnings();
  mark_python_gone();
}

PyObject* set_sync_mode(int64_t mode) {
  if (mode < 0 || mode > static_cast<int64_t>(SyncDebugMode::Error)) {
    PyErr_SetString(PyExc_ValueError, "set_sync_debug_mode takes 0, 1 or 2");
    return nullptr;
  }
  set_sync_debug_mode(static_cast<SyncDebugMode>(mode));
  return none();
}

PyObject* properties_of(c10::DeviceIndex device) {
  return properties_dict(unlocked_call([&]() -> const auto& { return device_properties(device); }));
}

}  // namespace

PyMethodDef device_methods[] = {
    method<"has_autograd_begun", has_autograd_begun>("Return whether torch has counted devices for backward passes."),
    method<"begin_autograd_threads", begin_autograd_threads>(
        "Start autograd's threads for this many devices if it began without them."),
    unlocked<"device_count", device_count>("Return the number of devices; the driver is asked once."),
    unlocked<"probe_error", probe_error>("Return why the device count is 0, or ''."),
    method<"current_device", current_device>("Return the thread's current device."),
    method<"set_device", set_device>("Set the thread's current device without opening it."),
    method<"exchange_device", exchange_device>("Set the current device and return the previous one."),
    method<"maybe_exchange_device", +[](c10::DeviceIndex device) { return device < 0 ? -1 : exchange_device(device); }>(
        "Set the current device and return the previous one; do nothing for indices below 0."),
    method<"device_properties", properties_of>("Return the fields of ob_device_properties."),
    unlocked<"can_access_peer", can_access_peer>("Return whether two devices can copy without the host."),
    method<"open_device",
           +[](c10::DeviceIndex device) {
             check_device_index(device);
             ensure_open(device);
           }>("Open the device if it is closed."),
    method<"is_open",
           +[](c10::DeviceIndex device) {
             check_device_index(device);
             return is_open(device);
           }>("Return whether the device was opened in this process."),
    method<"forbid_opening", forbid_opening>("Make devices refuse to open, with this reason."),
    method<"any_device_opened", any_device_opened>("Return whether any device was opened."),
    method<"in_bad_fork", +[] { return in_bad_fork(); }>("Return whether a device was opened before this fork."),
    method<"drain_all_devices", drain_all_devices>(
        "Wait for all open devices; leave failures to the user's next wait."),
    method<"set_sync_debug_mode", set_sync_mode>(
        "Set what a synchronizing operation does: 0 nothing, 1 warn, 2 raise."),
    method<"get_sync_debug_mode", +[] { return static_cast<int>(sync_debug_mode()); }>(
        "Return what a synchronizing operation does."),
    method<"set_waits_for_calls", +[](bool waits) { set_waits_for_calls(waits); }>(
        "Set whether each call waits for the work that it queues."),
    method<"set_long_wait",
           +[](double seconds) { set_long_wait(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000))); }>(
        "Set the seconds before a long wait is reported (default: 30)."),
    unlocked<"synchronize_device", +[](c10::DeviceIndex device) { synchronize_device(device, Interruptible::Yes); }>(
        "Wait for all work of the device."),
    method<"shut_down", shut_down_all>("Drain the devices at exit; no driver call follows."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

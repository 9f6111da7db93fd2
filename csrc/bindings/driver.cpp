// SPDX-License-Identifier: BSD-3-Clause
// Build the driver table that the core installs from a description.
#include "core/driver.h"
#include "core/collectives.h"
#include "core/touched.h"

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/entries.h"
#include "bindings/method.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/error.h"

namespace outboard::bindings {

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  raise(ErrorKind::Registration, OB_INVALID_ARGUMENT, "driver '" + name + "' cannot be attached: " + why);
}

// Refuse a library whose function returned no table. The library may have filled the whole buffer.
template <size_t size>
[[noreturn]] void refuse_table(const std::string& name, const char* symbol, ob_status status, char (&reason)[size]) {
  reason[size - 1] = '\0';
  refuse(name, *reason ? std::string(reason) : std::string(symbol) + " failed with " + status_name(status));
}

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_) {
      dlclose(handle_);
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* get() const noexcept { return handle_; }
  void keep() noexcept { handle_ = nullptr; }

 private:
  void* handle_;
};

// Options as the C structure. The texts live in the vectors.
class Options {
 public:
  bool fill(PyObject* dict) {
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
      if (!to_text(key, "an option's name", &texts_.emplace_back()) ||
          !to_text(value, "an option's value", &texts_.emplace_back())) {
        return false;
      }
    }
    for (size_t i = 0; i < texts_.size(); i += 2) {
      keys_.push_back(texts_[i].c_str());
      values_.push_back(texts_[i + 1].c_str());
    }
    return true;
  }

  ob_options get() const { return {sizeof(ob_options), keys_.size(), keys_.data(), values_.data()}; }

 private:
  std::vector<std::string> texts_;
  std::vector<const char*> keys_;
  std::vector<const char*> values_;
};

ob_driver empty_table() {
  ob_driver table{};
  table.struct_size = sizeof(table);
  return table;
}

// Ask a library for its table.
ob_driver load_table(const std::string& name, const std::string& path, const Library& library, const Options& options) {
  if (!library.get()) {
    const char* reason = dlerror();
    refuse(name, "its library does not load (" + std::string(reason ? reason : path) + ")");
  }
  dlerror();
  const auto get_table = reinterpret_cast<ob_driver_table_fn>(dlsym(library.get(), OB_DRIVER_TABLE_SYMBOL));
  if (!get_table) {
    refuse(name, path + " does not export " OB_DRIVER_TABLE_SYMBOL
                        ". It is not a driver library, or it hides the symbol (see torch_outboard/driver.h).");
  }
  ob_driver table = empty_table();
  const ob_options pairs = options.get();
  char reason[1024] = "";
  const ob_status status = get_table(&pairs, &table, reason, sizeof(reason));
  if (status != OB_OK) {
    refuse_table(name, OB_DRIVER_TABLE_SYMBOL, status, reason);
  }
  if (table.struct_size > sizeof(table)) {
    refuse(name, "it set struct_size to " + std::to_string(table.struct_size) + ", but the core's table has " +
                     std::to_string(sizeof(table)) + " bytes. Set struct_size to the smaller of the two sizes.");
  }
  return table;
}

// Return a library's collectives; an empty table if it has none.
ob_collectives load_collectives(const std::string& name, const Library& library, const ob_driver& driver) {
  const auto get_table = reinterpret_cast<ob_collectives_table_fn>(dlsym(library.get(), OB_COLLECTIVES_TABLE_SYMBOL));
  if (get_table == nullptr) {
    return {};
  }
  ob_collectives table{};
  table.struct_size = sizeof(table);
  char reason[1024] = "";
  const ob_status status = get_table(&driver, &table, reason, sizeof(reason));
  if (is_unimplemented(status)) {
    return {};
  }
  if (status != OB_OK) {
    refuse_table(name, OB_COLLECTIVES_TABLE_SYMBOL, status, reason);
  }
  return check_collectives(name, table);
}

bool parse_dict(PyObject* object, const char* what) {
  if (!PyDict_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s must be a dict", what);
    return false;
  }
  return true;
}

PyObject* attach_library(const std::string& path, const std::string& name, PyObject* option_values, PyObject* methods) {
  Options options;
  if (!parse_dict(option_values, "the options") || !parse_dict(methods, "the entries") ||
      !options.fill(option_values)) {
    return nullptr;
  }
  Library library(path.c_str());
  // The library's collectives may keep its address, and call the entries that methods replace.
  auto table = std::make_unique<ob_driver>(load_table(name, path, library, options));
  Rebinding rebinding;
  if (PyDict_Size(methods) > 0) {
    // A method may add entries beyond the end of the library's own table.
    table->struct_size = sizeof(*table);
    if (!bind_entries(name.c_str(), methods, table.get())) {
      return nullptr;
    }
  }
  const ob_collectives collectives = load_collectives(name, library, *table);
  install_driver(name, *table);
  install_collectives(collectives);
  rebinding.keep();
  library.keep();
  static_cast<void>(table.release());  // lives as long as the process, as the library does
  return none();
}

PyObject* attach_entries(const std::string& name, PyObject* methods, uint64_t self, int64_t major, int64_t minor,
                         uint64_t flags) {
  ob_driver table = empty_table();
  table.flags = flags;
  Rebinding rebinding;
  if (!parse_dict(methods, "the entries") || !bind_entries(name.c_str(), methods, &table)) {
    return nullptr;
  }
  table.self = reinterpret_cast<void*>(self);
  table.abi_major = static_cast<uint32_t>(major);
  table.abi_minor = static_cast<uint32_t>(minor);
  install_driver(name, table);
  install_collectives({});
  rebinding.keep();
  return none();
}

PyObject* implemented_entries() {
  Object dict(PyDict_New());
  for (size_t i = 0; i < entry_count; ++i) {
    if (!dict || !set_item(dict.get(), entries[i].name, to_python(has_entry(driver(), entries[i])))) {
      return nullptr;
    }
  }
  return dict.release();
}

// For a caller other than the core or the driver that calls the driver's method.
void refuse_outside_call(const std::string& entry, c10::DeviceIndex device, uint64_t handle) {
  if (!is_in_entry()) {
    const std::string what =
        "a call of the driver's " + entry +
        " that bypasses torch-outboard (queue the work with torch_outboard.launch or torch's operators)";
    check_device_index(device);
    refuse_handle_in_capture(device, handle, what.c_str());
  }
}

}  // namespace

PyMethodDef driver_methods[] = {
    method<"attach_library", attach_library>(
        "Load a driver library and install its table: (path, name, options, entries)."),
    method<"attach_entries", attach_entries>(
        "Install a table of methods and addresses: (name, entries, self, ABI's major, minor, flags)."),
    method<"is_any_device_touched", is_any_device_touched>(
        "Return whether the driver has opened a device, or may have."),
    method<"is_attached", is_attached>("Return whether a driver is installed."),
    method<"driver_name", driver_name>("Return the installed driver's name, or ''."),
    method<"refuse_in_capture", refuse_outside_call>(
        "Raise CaptureError for work that a capture would miss: (entry, device, handle of a stream)."),
    method<"entries", implemented_entries>("Return the entries of ob_driver that the driver implements."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

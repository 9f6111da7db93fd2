// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/entries.h"

#include <cstring>
#include <type_traits>

#include "bindings/trampoline.h"

namespace outboard::bindings {

namespace {

using trampoline::Entry;
using trampoline::Methods;
using trampoline::methods;
using trampoline::name_of;
using trampoline::replaced;

void set_entry(ob_driver* table, const EntryInfo& entry, void* function) {
  std::memcpy(reinterpret_cast<char*>(table) + entry.offset, &function, sizeof(function));
}

void set_registration_error(const char* driver, const char* entry, const char* why) {
  const Object errors(PyImport_ImportModule("torch_outboard._errors"));
  const Object type(errors ? PyObject_GetAttrString(errors.get(), "RegistrationError") : nullptr);
  if (type) {
    PyErr_Format(type.get(), "driver '%s' cannot be attached: entry `%s` %s", driver, entry, why);
  }
}

bool bind_entry(const char* driver, size_t index, PyObject* value, ob_driver* table) {
  const EntryInfo& entry = entries[index];
  if (PyLong_Check(value)) {
    uint64_t address = 0;
    const bool is_address = to_uint64(value, &address) && address != 0;
    PyErr_Clear();
    if (!is_address) {
      set_registration_error(driver, entry.name, "is an int, but not the address of a C function");
      return false;
    }
    set_entry(table, entry, reinterpret_cast<void*>(address));
    return true;
  }
  if (!PyCallable_Check(value)) {
    set_registration_error(driver, entry.name, "must be a method, or the address of a C function as an int");
    return false;
  }
  if (!entry.trampoline) {
    set_registration_error(driver, entry.name, "cannot be a Python method: bind the address of a C function");
    return false;
  }
  methods.of[index] = Py_NewRef(value);
  set_entry(table, entry, entry.trampoline);
  return true;
}

// The function that calls an entry's method: plain(), unless there is one of its own.
template <Entry>
constexpr auto written = nullptr;
#define X(name) \
  template <>   \
  constexpr auto written<Entry::name> = trampoline::on_##name;
OB_WRITTEN_TRAMPOLINES(X)
#undef X

template <Entry entry>
constexpr bool is_written = !std::is_null_pointer_v<std::remove_cv_t<decltype(written<entry>)>>;

template <Entry entry, class Function>
void* trampoline_of(Function*) {
  if constexpr (is_written<entry>) {
    return reinterpret_cast<void*>(written<entry>);
  } else {
    return nullptr;  // last_error: a Python driver's failures are exceptions
  }
}

template <Entry entry, class... Values>
void* trampoline_of(ob_status (*)(void*, Values...)) {
  if constexpr (is_written<entry>) {
    return reinterpret_cast<void*>(written<entry>);
  } else if constexpr (entry == Entry::kernel_register) {
    return nullptr;  // a Python driver's kernels are `Driver.kernels`
  } else {
    return reinterpret_cast<void*>(trampoline::plain<entry, Values...>);
  }
}

}  // namespace

const EntryInfo entries[] = {
#define X(name) {#name, offsetof(ob_driver, name), trampoline_of<Entry::name>(decltype(ob_driver::name){})},
    OB_ENTRIES(X)
#undef X
};
const size_t entry_count = sizeof(entries) / sizeof(entries[0]);

bool has_entry(const ob_driver& table, const EntryInfo& entry) {
  void* function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&table) + entry.offset, sizeof(function));
  return function != nullptr;
}

bool bind_entries(const char* driver, PyObject* dict, ob_driver* table) {
  Py_ssize_t bound = 0;
  bool has_method = false;
  for (size_t i = 0; i < entry_count; ++i) {
    PyObject* value = PyDict_GetItemString(dict, entries[i].name);  // borrowed
    if (!value) {
      continue;
    }
    if (!bind_entry(driver, i, value, table)) {
      return false;
    }
    has_method |= !PyLong_Check(value);
    ++bound;
  }
  if (bound != PyDict_Size(dict)) {
    PyErr_SetString(PyExc_ValueError, "the entries name something that ob_driver does not have");
    return false;
  }
  if (has_method) {
    methods.library_last_error = table->last_error;
    table->last_error = trampoline::on_last_error;
  }
  return true;
}

bool is_in_entry() noexcept {
  return trampoline::is_in_method();
}

bool is_python_method(const char* entry) noexcept {
  for (const Entry candidate :
       {Entry::stream_synchronize, Entry::event_synchronize, Entry::device_synchronize, Entry::program_build}) {
    if (methods.of[static_cast<int>(candidate)] != nullptr && std::strcmp(name_of(candidate), entry) == 0) {
      return true;
    }
  }
  return false;
}

struct Rebinding::Before {
  Methods methods;
};

Rebinding::Rebinding() : before_(std::make_unique<Before>(Before{methods})) {
  replaced = &before_->methods;
}

Rebinding::~Rebinding() {
  replaced = nullptr;
  // The references of released methods are kept: a thread may be about to call one.
  if (!is_kept_) {
    methods = before_->methods;
  }
}

Object take_trampoline_exception() {
  return trampoline::take_exception();
}

}  // namespace outboard::bindings

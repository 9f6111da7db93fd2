// SPDX-License-Identifier: BSD-3-Clause
// Files kept on disk and their folders, by the core's rules.
#include "core/private_files.h"

#include <unistd.h>

#include <cerrno>

#include "bindings/method.h"

namespace outboard::bindings {

namespace {

bool to_path(PyObject* object, std::string* out) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(object, &converted) == 0) {
    return false;
  }
  const Object bytes(converted);
  char* text = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.get(), &text, &size) < 0) {
    return false;
  }
  out->assign(text, static_cast<size_t>(size));
  return true;
}

PyObject* from_path(const std::string& path) {
  return PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
}

// Raise the class that belongs to the number: PermissionError, NotADirectoryError and so on.
PyObject* raise_os_error(int number, const std::string& message) {
  const Object text(from_text(message));
  const Object error(text ? PyObject_CallFunction(PyExc_OSError, "iO", number, text.get()) : nullptr);
  if (error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  }
  return nullptr;
}

template <PrivateFile (*read)(const std::string&, uid_t)>
PyObject* call_with_path(PyObject* object, int64_t trusted) {
  std::string path;
  if (!to_path(object, &path)) {
    return nullptr;
  }
  const PrivateFile file =
      unlocked_call([&] { return read(path, trusted < 0 ? geteuid() : static_cast<uid_t>(trusted)); });
  if (!file.reason.empty()) {
    return raise_os_error(file.error, file.reason);
  }
  return file.content ? PyBytes_FromStringAndSize(file.content->data(), static_cast<Py_ssize_t>(file.content->size()))
                      : none();
}

PyObject* make_folder(PyObject* object) {
  std::string path;
  if (!to_path(object, &path)) {
    return nullptr;
  }
  const std::string why = unlocked_call([&] { return make_private_folder(path); });
  return why.empty() ? none() : raise_os_error(EPERM, why);
}

PyObject* make_absolute(PyObject* object) {
  std::string path;
  return to_path(object, &path) ? from_path(absolute_path(path)) : nullptr;
}

}  // namespace

PyMethodDef private_file_methods[] = {
    method<"read_private", call_with_path<read_private>>(
        "Return a file's bytes, or None without a file: (path, trusted user or -1)."),
    method<"check_private", call_with_path<check_private>>(
        "Return b'' if read_private would read the file, None without a file: (path, trusted user or -1)."),
    method<"make_private_folder", make_folder>(
        "Create a folder that only its user may write, or return why it cannot be used."),
    method<"kernel_cache_folder", +[] { return from_path(kernel_cache_folder()); }>(
        "Return the folder of stored plans, programs and schedules, or ''."),
    method<"absolute_path", make_absolute>("Return a path as absolute, from the working directory at load time."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
// Files kept on disk and their folders, by the core's rules.
#include "core/private_files.h"

#include <unistd.h>

#include <cerrno>

#include "bindings/python.h"

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

PyObject* ask_about(const char* name, PrivateFile (*ask)(const std::string&, uid_t), PyObject* const* arguments,
                    Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    std::string path;
    int64_t trusted = 0;
    if (!has_arguments(name, count, 2) || !to_path(arguments[0], &path) || !to_int64(arguments[1], &trusted)) {
      return nullptr;
    }
    PrivateFile file;
    {
      const WithoutGil without_gil;
      file = ask(path, trusted < 0 ? geteuid() : static_cast<uid_t>(trusted));
    }
    if (!file.obstacle.empty()) {
      return raise_os_error(file.error, file.obstacle);
    }
    return file.content ? PyBytes_FromStringAndSize(file.content->data(), static_cast<Py_ssize_t>(file.content->size()))
                        : none();
  });
}

PyObject* py_read_private(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return ask_about("read_private", read_private, arguments, count);
}

PyObject* py_check_private(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return ask_about("check_private", check_private, arguments, count);
}

PyObject* py_make_private_folder(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    std::string path;
    if (!to_path(argument, &path)) {
      return nullptr;
    }
    std::string why;
    {
      const WithoutGil without_gil;
      why = make_private_folder(path);
    }
    return why.empty() ? none() : raise_os_error(EPERM, why);
  });
}

PyObject* py_kernel_cache_folder(PyObject*, PyObject*) {
  return guarded([] { return from_path(kernel_cache_folder()); });
}

PyObject* py_absolute_path(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    std::string path;
    return to_path(argument, &path) ? from_path(absolute_path(path)) : nullptr;
  });
}

}  // namespace

PyMethodDef private_file_methods[] = {
    OUTBOARD_FASTCALL("read_private", py_read_private,
                      "Return a file's bytes, or None without a file: (path, trusted user or -1)."),
    OUTBOARD_FASTCALL(
        "check_private", py_check_private,
        "Return b'' if read_private would read the file, None without a file: (path, trusted user or -1)."),
    {"make_private_folder", py_make_private_folder, METH_O,
     PyDoc_STR("Create a folder that only its user may write, or return why it cannot be used.")},
    {"kernel_cache_folder", py_kernel_cache_folder, METH_NOARGS,
     PyDoc_STR("Return the folder of stored plans, programs and schedules, or ''.")},
    {"absolute_path", py_absolute_path, METH_O,
     PyDoc_STR("Return a path as absolute, from the working directory at load time.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/records.h"

#include <c10/util/Exception.h>

namespace outboard::bindings {

namespace {

std::string type_of(PyObject* object) {
  const Object name(PyType_GetName(Py_TYPE(object)));
  std::string text;
  if (!name || !to_text(name.get(), "a type's name", &text)) {
    throw_python_error();
  }
  return text;
}

std::string content_of(PyObject* bytes) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes, &data, &size) != 0) {
    throw_python_error();
  }
  return {data, static_cast<size_t>(size)};
}

}  // namespace

Object Record::field(const char* name) const {
  Object value(PyObject_GetAttrString(object_, name));
  if (!value) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
      throw_python_error();
    }
    PyErr_Clear();
    TORCH_CHECK_TYPE(false, "a ", kind_, " needs the field '", name, "', but got a ", type_of(object_), " without it");
  }
  return value;
}

std::string Record::text(const char* name) const {
  return text_of(name, "str", field(name).get());
}

std::string Record::bytes(const char* name) const {
  const Object value = field(name);
  if (!PyBytes_Check(value.get())) {
    refuse(name, "bytes", value.get());
  }
  return content_of(value.get());
}

std::function<std::string()> Record::reader(const char* name) const {
  Object value = field(name);
  if (value.get() == Py_None) {
    return {};
  }
  if (PyCallable_Check(value.get()) == 0) {
    refuse(name, "None or a callable", value.get());
  }
  const std::shared_ptr<PyObject> function(value.release(), [](PyObject* owned) {
    if (!python_is_gone()) {
      const WithGil gil;
      Py_DECREF(owned);
    }
  });
  return [function, kind = kind_, name]() -> std::string {
    if (python_is_gone()) {
      return {};
    }
    const WithGil gil;
    const Object read(PyObject_CallNoArgs(function.get()));
    if (!read) {
      throw_python_error();
    }
    TORCH_CHECK_TYPE(PyBytes_Check(read.get()), "the function '", name, "' of a ", kind, " must return bytes, not ",
                     type_of(read.get()));
    return content_of(read.get());
  };
}

bool Record::flag(const char* name) const {
  const Object value = field(name);
  if (!PyBool_Check(value.get())) {
    refuse(name, "bool", value.get());
  }
  return value.get() == Py_True;
}

std::vector<Object> Record::items(const char* name) const {
  const Object value = field(name);
  const bool is_tuple = PyTuple_Check(value.get());
  if (!is_tuple && !PyList_Check(value.get())) {
    refuse(name, "tuple or list", value.get());
  }
  std::vector<Object> result;
  const Py_ssize_t size = PySequence_Size(value.get());
  for (Py_ssize_t i = 0; i < size; ++i) {
    result.emplace_back(PySequence_GetItem(value.get(), i));
    if (!result.back()) {
      throw_python_error();
    }
  }
  return result;
}

std::vector<std::string> Record::texts(const char* name) const {
  std::vector<std::string> result;
  for (const Object& item : items(name)) {
    result.push_back(text_of(name, "tuple or list of str", item.get()));
  }
  return result;
}

void Record::refuse(const char* name, const char* wanted, PyObject* value) const {
  TORCH_CHECK_TYPE(false, "the field '", name, "' of a ", kind_, " must be ", wanted, ", not ", type_of(value));
}

// Half of a surrogate pair, which JSON may contain, is not valid text.
std::string Record::text_of(const char* name, const char* wanted, PyObject* value) const {
  if (!PyUnicode_Check(value)) {
    refuse(name, wanted, value);
  }
  std::string result;
  if (!to_text(value, name, &result)) {
    PyErr_Clear();
    TORCH_CHECK_TYPE(false, "the field '", name, "' of a ", kind_, " has text that UTF-8 cannot encode");
  }
  return result;
}

kernels::ProgramText program_text_of(const Record& record) {
  return {record.text("language"), record.bytes("code"), record.text("options")};
}

std::unique_ptr<const kernels::DeviceKernel> device_kernel_of(PyObject* object) {
  const Record record(object, "KernelRecord");
  const std::vector<std::string> formulas = record.texts("geometry");
  TORCH_CHECK_VALUE(formulas.size() == 7,
                    "the field 'geometry' of a KernelRecord needs seven formulas (grid, block, local memory), not ",
                    formulas.size());
  const kernels::Geometry geometry{
      {formulas[0], formulas[1], formulas[2]}, {formulas[3], formulas[4], formulas[5]}, formulas[6]};
  kernels::ProgramText program = program_text_of(record);
  program.read_binary = record.reader("read_binary");
  return std::make_unique<const kernels::DeviceKernel>(record.text("name"), std::move(program), record.text("entry"),
                                                       record.text("letters"), geometry, record.texts("checks"));
}

}  // namespace outboard::bindings

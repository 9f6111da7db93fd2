// SPDX-License-Identifier: BSD-3-Clause
// Trampolines of programs, graphs and the profiler.
#include <algorithm>
#include <cstring>

#include "bindings/trampoline.h"

namespace outboard::bindings::trampoline {

ob_status on_program_build(void*, int32_t device, const ob_program_source* source, uint64_t* out_program) {
  return call(
      Entry::program_build,
      [&] { return arguments(device, source->language, to_bytes(source->code, source->code_size), source->options); },
      into(out_program));
}

ob_status on_program_binary(void*, int32_t device, uint64_t program, void* context, ob_take_fn take) {
  return call(
      Entry::program_binary, [&] { return arguments(device, program); },
      [&](PyObject* result) {
        char* data = nullptr;
        Py_ssize_t size = 0;
        if (result == Py_None) {
          return OB_UNIMPLEMENTED;
        }
        if (PyBytes_AsStringAndSize(result, &data, &size) < 0) {
          return OB_INTERNAL;
        }
        take(context, data, static_cast<size_t>(size));
        return OB_OK;
      });
}

namespace {

// Pairs of kind and address, bytes or size.
Object kernel_arguments(const ob_launch& launch) {
  Object tuple(PyTuple_New(static_cast<Py_ssize_t>(launch.arg_count)));
  for (size_t i = 0; tuple && i < launch.arg_count; ++i) {
    const auto* arg =
        reinterpret_cast<const ob_kernel_arg*>(reinterpret_cast<const char*>(launch.args) + i * launch.arg_stride);
    Object pair = arg->kind == OB_ARG_POINTER ? arguments(arg->kind, arg->pointer)
                  : arg->kind == OB_ARG_VALUE ? arguments(arg->kind, to_bytes(arg->value, arg->size))
                                              : arguments(arg->kind, arg->size);
    if (!pair) {
      return pair;
    }
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), pair.release());
  }
  return tuple;
}

}  // namespace

ob_status on_kernel_launch(void*, int32_t device, uint64_t stream, const ob_launch* launch) {
  return call(
      Entry::kernel_launch,
      [&] {
        return arguments(device, stream, launch->kernel, to_tuple(launch->grid, 3), to_tuple(launch->block, 3),
                         kernel_arguments(*launch), launch->shared_memory, to_tuple(launch->cluster, 3),
                         Object(PyBool_FromLong(static_cast<long>(launch->is_cooperative))),
                         Object(PyBool_FromLong(static_cast<long>(launch->follows_addresses))));
      },
      nothing);
}

namespace {

// (kind, device, stream, correlation, start, end, bytes, src_device, dst_device, name)
bool fill_activity(PyObject* item, size_t stride, ob_activity* out) {
  unsigned int kind = 0;
  int device = 0;
  int src_device = 0;
  int dst_device = 0;
  unsigned long long stream = 0;
  unsigned long long correlation = 0;
  unsigned long long bytes = 0;
  long long start = 0;
  long long end = 0;
  const char* name = nullptr;
  if (!PyTuple_Check(item)) {
    PyErr_SetString(PyExc_TypeError, "activity_read must return a list of tuples");
    return false;
  }
  if (!PyArg_ParseTuple(item, "IiKKLLKiis", &kind, &device, &stream, &correlation, &start, &end, &bytes, &src_device,
                        &dst_device, &name)) {
    return false;
  }
  ob_activity record{};
  record.struct_size = std::min(stride, sizeof(record));
  record.kind = kind;
  record.device = device;
  record.stream = stream;
  record.correlation = correlation;
  record.start = start;
  record.end = end;
  record.bytes = bytes;
  record.src_device = src_device;
  record.dst_device = dst_device;
  std::memcpy(record.name, name, std::min(std::strlen(name), sizeof(record.name) - 1));
  std::memcpy(out, &record, record.struct_size);
  return true;
}

}  // namespace

ob_status on_activity_read(void*, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count) {
  *out_count = 0;
  return call(
      Entry::activity_read, [&] { return arguments(static_cast<uint64_t>(capacity)); },
      [&](PyObject* result) {
        if (!PyList_Check(result) || static_cast<size_t>(PyList_Size(result)) > capacity) {
          PyErr_SetString(PyExc_TypeError, "activity_read must return a list of at most `capacity` tuples");
          return OB_INTERNAL;
        }
        const auto count = static_cast<size_t>(PyList_Size(result));
        for (size_t i = 0; i < count; ++i) {
          auto* record = reinterpret_cast<ob_activity*>(reinterpret_cast<char*>(out_records) + i * stride);
          if (!fill_activity(PyList_GetItem(result, static_cast<Py_ssize_t>(i)), stride, record)) {
            return OB_INTERNAL;
          }
        }
        *out_count = count;
        return OB_OK;
      });
}

}  // namespace outboard::bindings::trampoline

// SPDX-License-Identifier: BSD-3-Clause
// Storages over foreign memory, memory shared with other processes, registered host memory.
#include <ATen/Context.h>
#include <c10/core/Storage.h>

#include "bindings/tensors.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "memory/host_allocator.h"
#include "memory/sharing.h"

namespace outboard::bindings {

namespace {

// Return the device as from_blob finds it.
PyObject* py_device_of_address(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    uint64_t address = 0;
    if (!to_uint64(argument, &address)) {
      return nullptr;
    }
    const c10::Device device =
        at::globalContext().getDeviceFromPtr(reinterpret_cast<void*>(address), c10::DeviceType::PrivateUse1);
    return PyLong_FromLong(device.index());
  });
}

void drop_owner(void* owner) {
  if (!python_is_gone()) {
    const WithGil gil;
    Py_DECREF(static_cast<PyObject*>(owner));
  }
}

// (device, address, bytes, owner): keep the owner as long as the
// storage lives. It cannot be resized.
PyObject* py_storage_at(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    if (!has_arguments("storage_at", count, 4) || !to_device(arguments[0], &device) ||
        !to_uint64(arguments[1], &address) || !to_uint64(arguments[2], &bytes)) {
      return nullptr;
    }
    check_device_index(device);
    if (address == 0 && bytes != 0) {
      raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, "there is no memory at the address 0");
    }
    c10::DataPtr data(reinterpret_cast<void*>(address), Py_NewRef(arguments[3]), drop_owner,
                      c10::Device(kDeviceType, device));
    return from_storage(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                                     /*allocator=*/nullptr, /*resizable=*/false));
  });
}

// (handle, bytes of the segment, offset in it)
PyObject* py_share_storage(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::Storage storage;
    if (!to_storage(argument, &storage)) {
      PyErr_SetString(PyExc_TypeError, "expected a torch.UntypedStorage");
      return nullptr;
    }
    SharedMemory shared;
    {
      const WithoutGil without_gil;
      shared = share_memory(storage.data_ptr());
    }
    Object handle(PyBytes_FromStringAndSize(shared.handle.data(), static_cast<Py_ssize_t>(shared.handle.size())));
    if (!handle) {
      return nullptr;
    }
    return Py_BuildValue("(NKK)", handle.release(), static_cast<unsigned long long>(shared.segment_bytes),
                         static_cast<unsigned long long>(shared.offset));
  });
}

PyObject* py_open_shared(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!has_arguments("open_shared", count, 2) || !to_device(arguments[0], &device)) {
      return nullptr;
    }
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(arguments[1], &bytes, &size) != 0) {
      return nullptr;
    }
    const std::string handle(bytes, static_cast<size_t>(size));
    uint64_t address = 0;
    {
      const WithoutGil without_gil;
      address = open_shared_memory(device, handle);
    }
    return PyLong_FromUnsignedLongLong(address);
  });
}

PyObject* py_close_shared(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    uint64_t address = 0;
    if (!has_arguments("close_shared", count, 2) || !to_device(arguments[0], &device) ||
        !to_uint64(arguments[1], &address)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      close_shared_memory(device, address);
    }
    return none();
  });
}

PyObject* py_host_register(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    uint64_t address = 0;
    uint64_t bytes = 0;
    if (!has_arguments("host_register", count, 2) || !to_uint64(arguments[0], &address) ||
        !to_uint64(arguments[1], &bytes)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      register_host_memory(reinterpret_cast<void*>(address), static_cast<size_t>(bytes));
    }
    return none();
  });
}

PyObject* py_host_unregister(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    uint64_t address = 0;
    if (!to_uint64(argument, &address)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      unregister_host_memory(reinterpret_cast<void*>(address));
    }
    return none();
  });
}

}  // namespace

PyMethodDef storage_methods[] = {
    {"device_of_address", py_device_of_address, METH_O,
     PyDoc_STR("Return the device whose allocation contains an address.")},
    OUTBOARD_FASTCALL("storage_at", py_storage_at,
                      "Return a storage over foreign memory: (device, address, bytes, owner)."),
    {"share_storage", py_share_storage, METH_O,
     PyDoc_STR("Export a storage to other processes: (handle, bytes of the segment, offset in it).")},
    OUTBOARD_FASTCALL("open_shared", py_open_shared,
                      "Return the address of memory that another process shared: (device, handle)."),
    OUTBOARD_FASTCALL("close_shared", py_close_shared, "Close memory from open_shared: (device, address)."),
    OUTBOARD_FASTCALL("host_register", py_host_register, "Pin existing memory: (address, bytes)."),
    {"host_unregister", py_host_unregister, METH_O, PyDoc_STR("Undo host_register.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

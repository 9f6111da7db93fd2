// SPDX-License-Identifier: BSD-3-Clause
// Storages over foreign memory, memory shared with other processes, registered host memory.
#include <ATen/Context.h>
#include <c10/core/Storage.h>

#include "bindings/method.h"
#include "bindings/tensors.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "memory/host_allocator.h"
#include "memory/sharing.h"

namespace outboard::bindings {

namespace {

void drop_owner(void* owner) {
  if (!python_is_gone()) {
    const WithGil gil;
    Py_DECREF(static_cast<PyObject*>(owner));
  }
}

// Keep the owner as long as the storage lives. It cannot be resized.
PyObject* storage_at(c10::DeviceIndex device, uint64_t address, uint64_t bytes, PyObject* owner) {
  check_device_index(device);
  if (address == 0 && bytes != 0) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, "there is no memory at the address 0");
  }
  c10::DataPtr data(reinterpret_cast<void*>(address), Py_NewRef(owner), drop_owner, c10::Device(kDeviceType, device));
  return from_storage(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                                   /*allocator=*/nullptr, /*resizable=*/false));
}

PyObject* share_storage(PyObject* object) {
  c10::Storage storage;
  if (!to_storage(object, &storage)) {
    PyErr_SetString(PyExc_TypeError, "expected a torch.UntypedStorage");
    return nullptr;
  }
  const SharedMemory shared = unlocked_call([&] { return share_memory(storage.data_ptr()); });
  PyObject* handle = PyBytes_FromStringAndSize(shared.handle.data(), static_cast<Py_ssize_t>(shared.handle.size()));
  return to_python(std::tuple(handle, shared.segment_bytes, shared.offset));
}

PyObject* open_shared(c10::DeviceIndex device, Bytes handle) {
  return to_python(unlocked_call([&] { return open_shared_memory(device, handle.content); }));
}

}  // namespace

PyMethodDef storage_methods[] = {
    // As from_blob finds it.
    method<"device_of_address",
           +[](uint64_t address) {
             return at::globalContext()
                 .getDeviceFromPtr(reinterpret_cast<void*>(address), c10::DeviceType::PrivateUse1)
                 .index();
           }>("Return the device whose allocation contains an address."),
    method<"storage_at", storage_at>("Return a storage over foreign memory: (device, address, bytes, owner)."),
    method<"share_storage", share_storage>(
        "Export a storage to other processes: (handle, bytes of the segment, offset in it)."),
    method<"open_shared", open_shared>("Return the address of memory that another process shared: (device, handle)."),
    unlocked<"close_shared", close_shared_memory>("Close memory from open_shared: (device, address)."),
    unlocked<"host_register",
             +[](uint64_t address, uint64_t bytes) {
               register_host_memory(reinterpret_cast<void*>(address), static_cast<size_t>(bytes));
             }>("Pin existing memory: (address, bytes)."),
    unlocked<"host_unregister", +[](uint64_t address) { unregister_host_memory(reinterpret_cast<void*>(address)); }>(
        "Undo host_register."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

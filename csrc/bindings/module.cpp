// SPDX-License-Identifier: BSD-3-Clause
// The module torch_outboard._C. Its stub, _C.pyi, lists its contents.
#include "bindings/python.h"

namespace {

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "torch_outboard._C",
    "The core of torch-outboard.",
    -1,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  using namespace outboard::bindings;
  Object module(PyModule_Create(&definition));
  if (!module) {
    return nullptr;
  }
  for (PyMethodDef* methods : {driver_methods, device_methods, stream_methods, memory_methods, memory_pool_methods,
                               memory_history_methods, storage_methods, ops_methods, amp_methods, generator_methods,
                               graph_methods, host_view_methods, observer_methods, compile_methods, kernels_methods,
                               launch_methods, private_file_methods, distributed_methods}) {
    if (PyModule_AddFunctions(module.get(), methods) < 0) {
      return nullptr;
    }
  }
  install_raiser();
  install_plan_builder();
  if (!install_blocking_hooks()) {
    return nullptr;
  }
  return module.release();
}

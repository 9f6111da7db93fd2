// SPDX-License-Identifier: BSD-3-Clause
#include "cuda.h"

#include <dlfcn.h>

#include "torch_outboard/support/error.h"

namespace nv {

bool Api::load(const std::string& library, std::string* out_error) {
  // Never closed: the driver leaves threads and exit handlers behind.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    *out_error = "the CUDA driver cannot be loaded (" + std::string(reason != nullptr ? reason : library) +
                 "). Install NVIDIA's driver. In a container, use a runtime that exposes the driver's libraries.";
    return false;
  }
#define OB_CU_LOAD(name, symbol, parameters) name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, symbol));
#define OB_CU_LOAD_NEEDED(name, symbol, parameters)                                                  \
  OB_CU_LOAD(name, symbol, parameters)                                                               \
  if (name == nullptr) {                                                                             \
    *out_error = library + " lacks " symbol ": the driver is older than CUDA 11.4. Install a newer one."; \
    return false;                                                                                    \
  }
  OB_CU_FUNCTIONS(OB_CU_LOAD_NEEDED)
  OB_CU_NEWER_FUNCTIONS(OB_CU_LOAD)
#undef OB_CU_LOAD_NEEDED
#undef OB_CU_LOAD
  return true;
}

ob_status status_of(CUresult code) {
  switch (code) {
    case CUDA_SUCCESS:
      return OB_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return OB_OUT_OF_MEMORY;
    case CUDA_ERROR_NOT_READY:
      return OB_NOT_READY;
    case 100:  // no device
      return OB_UNAVAILABLE;
    case CUDA_ERROR_INVALID_VALUE:
    case 101:  // invalid device
    case 200:  // invalid image
    case 209:  // no binary for this GPU
    case 218:  // invalid PTX
    case 222:  // unsupported PTX version
    case 400:  // invalid handle
    case 701:  // launch out of resources
    case 720:  // cooperative launch too large
      return OB_INVALID_ARGUMENT;
    case 500:
    case 713:  // host memory not registered
      return OB_NOT_FOUND;
    case 712:  // host memory already registered
      return OB_ALREADY_EXISTS;
    case 801:
      return OB_UNIMPLEMENTED;
    case CUDA_ERROR_NOT_INITIALIZED:
    case 4:  // the driver shuts down
    case 708:  // primary context active
    case 900:  // to 908: calls that a capturing stream does not allow
    case 901:
    case 902:
    case 903:
    case 904:
    case 905:
    case 906:
    case 907:
    case 908:
      return OB_FAILED_PRECONDITION;
    case 46:   // device unavailable
    case 214:  // uncorrectable memory error
    case 220:  // uncorrectable NVLink error
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context destroyed
    case 710:  // assertion in a kernel
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
      return OB_DEVICE_LOST;
    default:
      return OB_INTERNAL;
  }
}

ob_status cuda_fail(const Api& api, CUresult code, const char* function, const std::string& what) {
  const char* name = nullptr;
  const char* sentence = nullptr;
  if (api.GetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  if (api.GetErrorString(code, &sentence) != CUDA_SUCCESS || sentence == nullptr) sentence = "";
  return support::fail(status_of(code), "%s: %s returned %s (%d)%s%s", what.c_str(), function, name, code,
                       *sentence != '\0' ? ": " : "", sentence);
}

}  // namespace nv

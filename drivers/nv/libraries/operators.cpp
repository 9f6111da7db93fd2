// SPDX-License-Identifier: BSD-3-Clause
// The operators that NVIDIA's libraries run.
#include "../driver.h"
#include "call.h"

namespace nv {
namespace {

ob_status kernel_register(void* self, const ob_registrar* registrar) {
  const ob_status status = register_products(self, registrar);
  return status == OB_OK ? register_convolutions(self, registrar) : status;
}

}  // namespace

void fill_operator_entries(ob_driver* table) {
  table->kernel_register = kernel_register;
}

}  // namespace nv

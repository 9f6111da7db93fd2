// SPDX-License-Identifier: BSD-3-Clause
// The operators that NVIDIA's libraries run.
#include "../driver.h"
#include "call.h"

namespace nv {
namespace {

ob_status kernel_register(void* self, const ob_registrar* registrar) {
  Driver& driver = *static_cast<Driver*>(self);
  driver.keep = registrar->keep;
  driver.recall = registrar->recall;
  driver.build_in_background = registrar->build_in_background;
  for (const auto add : {register_products, register_convolutions, register_attention, register_recurrent}) {
    if (const ob_status status = add(self, registrar); status != OB_OK) return status;
  }
  return OB_OK;
}

}  // namespace

void fill_operator_entries(ob_driver* table) {
  table->kernel_register = kernel_register;
}

}  // namespace nv

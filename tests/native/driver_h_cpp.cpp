// SPDX-License-Identifier: BSD-3-Clause
// driver.h must compile alone, as C++, without a warning.
#include "torch_outboard/driver.h"

static_assert(sizeof(ob_status) == 4);
static_assert(offsetof(ob_driver, struct_size) == 0);

int driver_h_cpp(ob_driver_table_fn table);

int driver_h_cpp(ob_driver_table_fn table) {
  const ob_options options = {sizeof(ob_options), 0, nullptr, nullptr};
  ob_driver driver = {};
  char error[64];
  driver.struct_size = sizeof driver;
  return table(&options, &driver, error, sizeof error) == OB_OK ? 0 : 1;
}

/* SPDX-License-Identifier: BSD-3-Clause
 * driver.h must compile alone, as C, without a warning. */
#include "torch_outboard/driver.h"

_Static_assert(sizeof(ob_status) == 4, "ob_status is 32 bits wide");
_Static_assert(offsetof(ob_driver, struct_size) == 0, "the table begins with its size");
_Static_assert(offsetof(ob_copy, struct_size) == 0 && offsetof(ob_copy_nd, struct_size) == 0 &&
                   offsetof(ob_options, struct_size) == 0 && offsetof(ob_device_properties, struct_size) == 0 &&
                   offsetof(ob_program_source, struct_size) == 0 && offsetof(ob_kernel_arg, struct_size) == 0 &&
                   offsetof(ob_launch, struct_size) == 0 && offsetof(ob_tensor, struct_size) == 0 &&
                   offsetof(ob_value, struct_size) == 0 && offsetof(ob_kernel_call, struct_size) == 0 &&
                   offsetof(ob_registrar, struct_size) == 0 && offsetof(ob_activity, struct_size) == 0,
               "every struct that crosses the boundary begins with its size");

int driver_h_c(ob_driver_table_fn table);

int driver_h_c(ob_driver_table_fn table) {
  ob_options options = {sizeof(ob_options), 0, NULL, NULL};
  ob_driver driver = {0};
  char error[64];
  driver.struct_size = sizeof driver;
  return table(&options, &driver, error, sizeof error) == OB_OK ? 0 : 1;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The null driver as one that was compiled with an earlier version of driver.h: its table ends where that version's does,
   and so does what it reads and writes of structs. It has programs and an operator kernel too, whose structs have grown.
   OLD_MINOR, OLD_TABLE, OLD_PROPERTIES, OLD_LAUNCH and OLD_CALL are the version and its sizes. */

#define ob_driver_table null_driver_table
#include "null.c"
#undef ob_driver_table

static ob_status old_properties(void* self, int32_t device, ob_device_properties* out) {
  if (out->struct_size < OLD_PROPERTIES) return OB_INTERNAL;
  ob_device_properties own;
  memset(&own, 0, sizeof own);
  own.struct_size = OLD_PROPERTIES;
  const ob_status status = device_properties(self, device, &own);
  own.struct_size = OLD_PROPERTIES;
  memcpy(out, &own, OLD_PROPERTIES);
  return status;
}

static ob_status old_build(void* self, int32_t device, const ob_program_source* source, uint64_t* out_program) {
  (void)self, (void)device;
  /* No such version handed out a binary, so none comes back. */
  if (strcmp(source->language, "text") != 0) return OB_INVALID_ARGUMENT;
  *out_program = 1;
  return OB_OK;
}

static ob_status old_destroy(void* self, int32_t device, uint64_t program) {
  (void)self, (void)device, (void)program;
  return OB_OK;
}

static ob_status old_kernel_get(void* self, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel) {
  (void)self, (void)device, (void)program, (void)name;
  *out_kernel = 2;
  return OB_OK;
}

static ob_status old_launch(void* self, int32_t device, uint64_t stream, const ob_launch* launch) {
  (void)self, (void)device, (void)stream;
  if (launch->struct_size < OLD_LAUNCH || launch->kernel != 2 || launch->arg_count != 1) return OB_INTERNAL;
  *(float*)(uintptr_t)launch->args[0].pointer = (float)launch->grid[0];
  return OB_OK;
}

static ob_status sevens(void* user, const ob_kernel_call* call) {
  (void)user;
  if (call->struct_size < OLD_CALL || call->outputs[0].dtype != OB_FLOAT32) return OB_UNIMPLEMENTED;
  for (int64_t i = 0; i < call->outputs[0].sizes[0]; ++i) ((float*)(uintptr_t)call->outputs[0].data)[i] = 7;
  return OB_OK;
}

static ob_status old_register(void* self, const ob_registrar* registrar) {
  (void)self;
  return registrar->add(registrar->context, "aten::cos", sevens, NULL);
}

OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error, size_t error_size) {
  ob_driver table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  const ob_status status = null_driver_table(options, &table, error, error_size);
  if (status != OB_OK) return status;
  table.abi_minor = OLD_MINOR;
  table.device_properties = old_properties;
  table.program_build = old_build;
  table.program_destroy = old_destroy;
  table.kernel_get = old_kernel_get;
  table.kernel_launch = old_launch;
  table.kernel_register = old_register;
  table.struct_size = out_driver->struct_size < OLD_TABLE ? out_driver->struct_size : OLD_TABLE;
  memcpy(out_driver, &table, table.struct_size);
  return OB_OK;
}

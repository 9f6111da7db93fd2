/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A driver in C for the common chip: asynchronous, memory out of the host's reach, kernels in a language of its own.
 *
 * Each entry of driver.h calls the vendor's runtime, for which chip.h stands. Mistakes fail in the call that makes them:
 * the runtime checks handles and ranges of memory, and what yours doesn't check is checked here.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chip.h"
#include "torch_outboard/driver.h"

/* Each entry names its device, which the runtime knows by the handle. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define LANGUAGE "own_kernels_c"
enum { GROUP = 1024, ARGUMENTS = 1024 }; /* at most, of a launch */

typedef struct driver {
  int32_t devices;
  uint64_t memory; /* bytes of each */
  pthread_mutex_t mutex;
  chip* chip; /* null until something is opened */
} driver;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static _Thread_local char reason[4096];

static ob_status fail(ob_status status, const char* text) {
  snprintf(reason, sizeof reason, "%s", text);
  return status;
}

static void last_error(void* self, char* buffer, size_t size) {
  if (size > 0) snprintf(buffer, size, "%s", reason);
}

/* What the core makes of each of the runtime's results. */
static ob_status status_of(chip_result result) {
  /* clang-format off */
  static const ob_status statuses[] = {
      [CHIP_OK] = OB_OK, [CHIP_NOT_READY] = OB_NOT_READY, [CHIP_INVALID] = OB_INVALID_ARGUMENT,
      [CHIP_OUT_OF_MEMORY] = OB_OUT_OF_MEMORY, [CHIP_NOT_FOUND] = OB_NOT_FOUND, [CHIP_REFUSED] = OB_PROGRAM_REFUSED,
      [CHIP_UNAVAILABLE] = OB_UNAVAILABLE, [CHIP_FAILED] = OB_INTERNAL, [CHIP_LOST] = OB_DEVICE_LOST};
  /* clang-format on */
  return result <= CHIP_NOT_READY ? statuses[result] : fail(statuses[result], chip_reason());
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static chip* chip_of(void* self) {
  return ((driver*)self)->chip;
}

static int32_t device_count(void* self) {
  return ((driver*)self)->devices;
}

static ob_status device_properties(void* self, int32_t device, ob_device_properties* out) {
  const driver* d = self;
  if (device < 0 || device >= d->devices) return fail(OB_INVALID_ARGUMENT, "there is no such device");
  ob_device_properties p = {.struct_size = out->struct_size};
  snprintf(p.name, sizeof p.name, "Own chip %d", device);
  /* Programs on disk are for devices that say the same of themselves. */
  snprintf(p.architecture, sizeof p.architecture, "own_chip");
  p.total_memory = d->memory;
  p.max_threads_per_block = GROUP;
  p.machine = OB_MACHINE_CPU; /* kernels are best an item after the other, with vectors. For a GPU items share rows */
  p.addresses_host_memory = 1;
  memcpy(out, &p, out->struct_size < sizeof p ? out->struct_size : sizeof p);
  return OB_OK;
}

static ob_status device_open(void* self, int32_t device) {
  driver* d = self;
  ob_status status = OB_OK;
  pthread_mutex_lock(&d->mutex);
  if (d->chip == NULL) status = status_of(chip_start(d->devices, d->memory, &d->chip));
  pthread_mutex_unlock(&d->mutex);
  return status;
}

static void destroy(void* self) {
  chip_stop(chip_of(self));
  free(self);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static ob_status mem_alloc(void* self, int32_t device, uint64_t bytes, uint64_t* out_address) {
  return status_of(chip_memory_create(chip_of(self), device, bytes, out_address));
}

static ob_status mem_free(void* self, int32_t device, uint64_t address) {
  return status_of(chip_memory_destroy(chip_of(self), device, address));
}

static ob_status mem_info(void* self, int32_t device, uint64_t* out_free, uint64_t* out_total) {
  *out_total = ((driver*)self)->memory;
  return status_of(chip_memory_left(chip_of(self), device, out_free));
}

static ob_status host_alloc(void* self, uint64_t bytes, void** out_pointer) {
  const ob_status status = device_open(self, 0); /* memory is pinned before a device is opened, too */
  return status == OB_OK ? status_of(chip_host_create(chip_of(self), bytes, out_pointer)) : status;
}

static ob_status host_free(void* self, void* pointer) {
  return status_of(chip_host_destroy(chip_of(self), pointer));
}

static ob_status copy_async(void* self, int32_t device, uint64_t stream, const ob_copy* copy) {
  chip* c = chip_of(self);
  void* dst = (void*)(uintptr_t)copy->dst;
  const void* src = (const void*)(uintptr_t)copy->src;
  if (copy->src_device == OB_HOST) return status_of(chip_copy_to(c, stream, copy->dst, src, copy->bytes));
  if (copy->dst_device == OB_HOST) return status_of(chip_copy_from(c, stream, dst, copy->src, copy->bytes));
  return status_of(chip_copy(c, stream, copy->dst, copy->src, copy->bytes));
}

static ob_status fill_async(void* self, int32_t device, uint64_t stream, uint64_t dst, const void* pattern,
                            uint32_t size, uint64_t count) {
  return status_of(chip_fill(chip_of(self), stream, dst, pattern, size, count));
}

/* ---- Streams and events. No query waits, and a wait is bound to the event's latest record. ------------------------ */

static ob_status stream_create(void* self, int32_t device, int32_t priority, uint64_t* out_stream) {
  return status_of(chip_stream_create(chip_of(self), device, out_stream));
}

static ob_status stream_destroy(void* self, int32_t device, uint64_t stream) {
  return status_of(chip_stream_destroy(chip_of(self), stream));
}

static ob_status stream_synchronize(void* self, int32_t device, uint64_t stream) {
  return status_of(chip_stream_wait(chip_of(self), stream));
}

static ob_status stream_query(void* self, int32_t device, uint64_t stream) {
  return status_of(chip_stream_query(chip_of(self), stream));
}

static ob_status stream_wait_event(void* self, int32_t device, uint64_t stream, int32_t event_device, uint64_t event) {
  return status_of(chip_stream_wait_event(chip_of(self), stream, event));
}

static ob_status event_create(void* self, int32_t device, uint32_t flags, uint64_t* out_event) {
  return status_of(chip_event_create(chip_of(self), device, out_event));
}

static ob_status event_destroy(void* self, int32_t device, uint64_t event) {
  return status_of(chip_event_destroy(chip_of(self), event));
}

static ob_status event_record(void* self, int32_t device, uint64_t stream, uint64_t event) {
  return status_of(chip_event_record(chip_of(self), stream, event));
}

static ob_status event_query(void* self, int32_t device, uint64_t event) {
  return status_of(chip_event_query(chip_of(self), event));
}

static ob_status event_synchronize(void* self, int32_t device, uint64_t event) {
  return status_of(chip_event_wait(chip_of(self), event));
}

static ob_status event_timestamp(void* self, int32_t device, uint64_t event, int64_t* out_nanoseconds) {
  return status_of(chip_event_time(chip_of(self), event, out_nanoseconds));
}

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

static ob_status program_build(void* self, int32_t device, const ob_program_source* source, uint64_t* out_program) {
  if (strcmp(source->language, LANGUAGE) == 0)
    return status_of(chip_program_build(chip_of(self), source->code, out_program));
  if (strcmp(source->language, OB_LANGUAGE_BINARY) != 0) return fail(OB_INVALID_ARGUMENT, "programs are in " LANGUAGE);
  return status_of(chip_program_load(chip_of(self), source->code, source->code_size, out_program));
}

static ob_status program_binary(void* self, int32_t device, uint64_t program, void* context, ob_take_fn take) {
  void* binary = NULL;
  size_t size = 0;
  const ob_status status = status_of(chip_program_binary(chip_of(self), program, &binary, &size));
  if (status != OB_OK) return status;
  if (binary == NULL) return fail(OB_UNIMPLEMENTED, "the program was not built from text");
  take(context, binary, size);
  free(binary);
  return OB_OK;
}

static ob_status program_destroy(void* self, int32_t device, uint64_t program) {
  return status_of(chip_program_destroy(chip_of(self), program));
}

static ob_status kernel_get(void* self, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel) {
  return status_of(chip_kernel_find(chip_of(self), program, name, out_kernel));
}

static ob_status kernel_launch(void* self, int32_t device, uint64_t stream, const ob_launch* launch) {
  const uint32_t *grid = launch->grid, *block = launch->block;
  if (grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1 || launch->shared_memory != 0) {
    return fail(OB_INVALID_ARGUMENT, "a launch has one dimension and no group memory");
  }
  if (block[0] > GROUP || launch->arg_count > ARGUMENTS) {
    return fail(OB_INVALID_ARGUMENT, "a group has at most 1024 items, a launch at most 1024 arguments");
  }
  chip_argument arguments[ARGUMENTS];
  const char* at = (const char*)launch->args; /* a newer core has longer structs */
  for (size_t i = 0; i < launch->arg_count; ++i, at += launch->arg_stride) {
    const ob_kernel_arg* argument = (const ob_kernel_arg*)at;
    if (argument->kind == OB_ARG_LOCAL) return fail(OB_INVALID_ARGUMENT, "group memory is not supported");
    const int is_address = argument->kind == OB_ARG_POINTER;
    arguments[i].is_address = is_address;
    arguments[i].value = is_address ? (const void*)&argument->pointer : argument->value;
    arguments[i].size = is_address ? sizeof argument->pointer : argument->size;
  }
  return status_of(
      chip_launch(chip_of(self), stream, launch->kernel, (uint64_t)grid[0] * block[0], arguments, launch->arg_count));
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* Reads the options devices and memory. */
static ob_status read_options(const ob_options* options, driver* d, char* error, size_t error_size) {
  for (size_t i = 0; i < options->count; ++i) {
    const char *key = options->keys[i], *value = options->values[i];
    char* end = NULL;
    const unsigned long long number = strtoull(value, &end, 10);
    if (strcmp(key, "devices") == 0 && *value != 0 && *end == 0 && number <= 64) {
      d->devices = (int32_t)number;
    } else if (strcmp(key, "memory") == 0 && *value != 0 && *end == 0) {
      d->memory = number;
    } else {
      snprintf(error, error_size, "invalid option %s=%s: devices is a number up to 64, memory a number of bytes", key,
               value);
      return OB_INVALID_ARGUMENT;
    }
  }
  return OB_OK;
}

OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error, size_t error_size) {
  driver* d = calloc(1, sizeof *d);
  if (d == NULL) return OB_OUT_OF_MEMORY;
  d->devices = 2;
  d->memory = 1u << 30;
  pthread_mutex_init(&d->mutex, NULL);
  const ob_status status = read_options(options, d, error, error_size);
  if (status != OB_OK) {
    free(d);
    return status;
  }
  /* What the chip will never have is left out: expandable segments, sharing. */
  /* clang-format off */
  const ob_driver table = {
      .abi_major = OB_ABI_MAJOR, .abi_minor = OB_ABI_MINOR, .self = d, .last_error = last_error, .destroy = destroy,
      .device_count = device_count, .device_properties = device_properties, .device_open = device_open,
      .mem_alloc = mem_alloc, .mem_free = mem_free, .mem_info = mem_info, .host_alloc = host_alloc,
      .host_free = host_free, .copy_async = copy_async, .fill_async = fill_async, .stream_create = stream_create,
      .stream_destroy = stream_destroy, .stream_query = stream_query, .stream_synchronize = stream_synchronize,
      .stream_wait_event = stream_wait_event, .event_create = event_create, .event_destroy = event_destroy,
      .event_record = event_record, .event_query = event_query, .event_synchronize = event_synchronize,
      .event_timestamp = event_timestamp, .program_build = program_build, .program_binary = program_binary,
      .program_destroy = program_destroy, .kernel_get = kernel_get, .kernel_launch = kernel_launch};
  /* clang-format on */
  /* A core that is older than this header has a shorter table: it gets the part that it knows. */
  const size_t size = out_driver->struct_size < sizeof table ? out_driver->struct_size : sizeof table;
  memcpy(out_driver, &table, size);
  out_driver->struct_size = size;
  return OB_OK;
}

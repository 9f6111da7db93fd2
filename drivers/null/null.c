/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The null driver: the smallest complete driver, to be read beside driver.h and copied.
 *
 * The thirteen required entries work, on ordinary host memory and at once: an entry that "queues" has done its work
 * when it returns. That is correct, because a driver may always be earlier than the contract requires. Every other
 * entry is here too and returns OB_UNIMPLEMENTED. For that call the core treats the entry as if it were null: it uses
 * its default, or reports that the driver does not support the call. Fill in what your device can do. At the end,
 * delete the entries that it cannot do, with their lines in ob_driver_table.
 *
 * Device memory is the host's, but host_address is not implemented: for the core this is a device whose memory the host
 * cannot reach.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "torch_outboard/driver.h"

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* One text for each thread: the core asks on the thread that got the error. */
static _Thread_local char error_text[256];

__attribute__((format(printf, 2, 3))) static ob_status fail(ob_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  return code;
}

static void last_error(void* self, char* buffer, size_t size) {
  (void)self;
  if (size > 0) snprintf(buffer, size, "%s", error_text);
}

#define UNIMPLEMENTED() fail(OB_UNIMPLEMENTED, "the null driver has no %s", __func__)

/* ---- The driver and its objects ---------------------------------------------------------------------------------- */

enum { KIND_MEMORY = 1, KIND_STREAM = 2, KIND_EVENT = 3 };

/* An object that an entry returned. `value` is what the caller knows: the address of memory, the handle of a stream or
   an event. A list of them suffices for a skeleton; a driver with many objects needs a table. */
typedef struct object {
  struct object* next;
  int kind;
  int32_t device;
  uint64_t value;
  uint64_t bytes;
} object;

typedef struct driver {
  pthread_mutex_t mutex; /* entries come from any thread, several at once */
  int32_t device_count;
  uint64_t last_handle; /* handles are numbers that never repeat, so a destroyed one is detected */
  object* objects;
} driver;

static ob_status check_device(const driver* d, int32_t device) {
  if (device >= 0 && device < d->device_count) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "there is no device %d; the number of devices is %d", device, d->device_count);
}

static void add_object(driver* d, object* added) {
  pthread_mutex_lock(&d->mutex);
  if (added->value == 0) added->value = ++d->last_handle;
  added->next = d->objects;
  d->objects = added;
  pthread_mutex_unlock(&d->mutex);
}

/* Make a stream or an event. */
static ob_status create_handle(driver* d, int kind, int32_t device, uint64_t* out_handle) {
  const ob_status status = check_device(d, device);
  if (status != OB_OK) return status;
  object* created = calloc(1, sizeof *created);
  if (created == NULL) return fail(OB_OUT_OF_MEMORY, "device %d: the host is out of memory", device);
  created->kind = kind;
  created->device = device;
  add_object(d, created);
  *out_handle = created->value;
  return OB_OK;
}

/* Return the link that leads to an object; null, with the last error set, if there is none. Hold the mutex. */
static object** find(driver* d, int kind, int32_t device, uint64_t value) {
  static const char* const names[] = {"", "memory at", "stream", "event"};
  for (object** link = &d->objects; *link != NULL; link = &(*link)->next) {
    if ((*link)->kind == kind && (*link)->device == device && (*link)->value == value) return link;
  }
  fail(OB_INVALID_ARGUMENT,
       "device %d has no %s 0x%llx: it was never created, was destroyed, or belongs to another device", device,
       names[kind], (unsigned long long)value);
  return NULL;
}

static ob_status check_handle(driver* d, int kind, int32_t device, uint64_t handle) {
  pthread_mutex_lock(&d->mutex);
  const ob_status status = find(d, kind, device, handle) != NULL ? OB_OK : OB_INVALID_ARGUMENT;
  pthread_mutex_unlock(&d->mutex);
  return status;
}

static ob_status destroy_object(driver* d, int kind, int32_t device, uint64_t value) {
  object* found = NULL;
  pthread_mutex_lock(&d->mutex);
  object** link = find(d, kind, device, value);
  if (link != NULL) {
    found = *link;
    *link = found->next;
  }
  pthread_mutex_unlock(&d->mutex);
  if (found == NULL) return OB_INVALID_ARGUMENT;
  if (kind == KIND_MEMORY) free((void*)(uintptr_t)found->value);
  free(found);
  return OB_OK;
}

/* Fail unless [address, address + bytes) lies in memory of the device. */
static ob_status check_range(driver* d, int32_t device, uint64_t address, uint64_t bytes) {
  int is_inside = 0;
  pthread_mutex_lock(&d->mutex);
  for (const object* o = d->objects; o != NULL && !is_inside; o = o->next) {
    is_inside = o->kind == KIND_MEMORY && o->device == device && address >= o->value && bytes <= o->bytes &&
                address - o->value <= o->bytes - bytes;
  }
  pthread_mutex_unlock(&d->mutex);
  if (is_inside) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "device %d: the %llu bytes at 0x%llx are not memory of the device", device,
              (unsigned long long)bytes, (unsigned long long)address);
}

/* ---- Required: devices ------------------------------------------------------------------------------------------- */

static int32_t device_count(void* self) {
  return ((driver*)self)->device_count;
}

static ob_status device_properties(void* self, int32_t device, ob_device_properties* out_properties) {
  const ob_status status = check_device(self, device);
  if (status != OB_OK) return status;
  /* The core zeroed the struct; fields that stay 0 are unknown. */
  snprintf(out_properties->name, sizeof out_properties->name, "Null device");
  snprintf(out_properties->vendor, sizeof out_properties->vendor, "torch-outboard");
  snprintf(out_properties->architecture, sizeof out_properties->architecture, "null");
  out_properties->total_memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
  return OB_OK;
}

/* ---- Required: memory -------------------------------------------------------------------------------------------- */

static ob_status mem_alloc(void* self, int32_t device, uint64_t bytes, uint64_t* out_address) {
  driver* d = self;
  const ob_status status = check_device(d, device);
  if (status != OB_OK) return status;
  if (bytes == 0) return fail(OB_INVALID_ARGUMENT, "device %d: mem_alloc of 0 bytes", device);
  void* memory = bytes <= SIZE_MAX - 511 ? aligned_alloc(512, (bytes + 511) / 512 * 512) : NULL;
  object* created = calloc(1, sizeof *created);
  if (created == NULL || memory == NULL) {
    free(created);
    free(memory);
    return fail(OB_OUT_OF_MEMORY, "device %d: cannot allocate %llu bytes", device, (unsigned long long)bytes);
  }
  created->kind = KIND_MEMORY;
  created->device = device;
  created->value = (uint64_t)(uintptr_t)memory;
  created->bytes = bytes;
  add_object(d, created);
  *out_address = created->value;
  return OB_OK;
}

static ob_status mem_free(void* self, int32_t device, uint64_t address) {
  return destroy_object(self, KIND_MEMORY, device, address);
}

static ob_status copy_async(void* self, int32_t device, uint64_t stream, const ob_copy* copy) {
  driver* d = self;
  ob_status status = check_handle(d, KIND_STREAM, device, stream);
  if (status == OB_OK && copy->dst_device != device && copy->src_device != device) {
    status = fail(OB_INVALID_ARGUMENT, "device %d cannot copy from device %d to device %d", device, copy->src_device,
                  copy->dst_device);
  }
  if (status == OB_OK && copy->dst_device != OB_HOST) status = check_range(d, copy->dst_device, copy->dst, copy->bytes);
  if (status == OB_OK && copy->src_device != OB_HOST) status = check_range(d, copy->src_device, copy->src, copy->bytes);
  if (status != OB_OK) return status;
  memcpy((void*)(uintptr_t)copy->dst, (const void*)(uintptr_t)copy->src, copy->bytes);
  return OB_OK;
}

/* ---- Required: streams and events -------------------------------------------------------------------------------- */

static ob_status stream_create(void* self, int32_t device, int32_t priority, uint64_t* out_stream) {
  if (priority != 0)
    return fail(OB_INVALID_ARGUMENT, "device %d: a stream's priority must be 0, not %d", device, priority);
  return create_handle(self, KIND_STREAM, device, out_stream);
}

static ob_status stream_destroy(void* self, int32_t device, uint64_t stream) {
  return destroy_object(self, KIND_STREAM, device, stream);
}

/* Here and below, all queued work is already done. */
static ob_status stream_synchronize(void* self, int32_t device, uint64_t stream) {
  return check_handle(self, KIND_STREAM, device, stream);
}

static ob_status event_create(void* self, int32_t device, uint32_t flags, uint64_t* out_event) {
  /* Timing is requested only if event_elapsed or event_timestamp exists, but torch.Event may want the flag set. */
  (void)flags;
  return create_handle(self, KIND_EVENT, device, out_event);
}

static ob_status event_destroy(void* self, int32_t device, uint64_t event) {
  return destroy_object(self, KIND_EVENT, device, event);
}

static ob_status event_record(void* self, int32_t device, uint64_t stream, uint64_t event) {
  const ob_status status = check_handle(self, KIND_STREAM, device, stream);
  return status == OB_OK ? check_handle(self, KIND_EVENT, device, event) : status;
}

static ob_status event_query(void* self, int32_t device, uint64_t event) {
  return check_handle(self, KIND_EVENT, device, event);
}

static ob_status stream_wait_event(void* self, int32_t device, uint64_t stream, int32_t event_device, uint64_t event) {
  const ob_status status = check_handle(self, KIND_STREAM, device, stream);
  return status == OB_OK ? check_handle(self, KIND_EVENT, event_device, event) : status;
}

/* ---- Optional ---------------------------------------------------------------------------------------------------- */

/* Arguments that a skeleton ignores. Delete this line once the entries below use them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Opening and closing do nothing here. A real driver makes its context and its threads in device_open. */
static ob_status device_open(void* self, int32_t device) {
  return check_device(self, device);
}
static ob_status device_close(void* self, int32_t device) {
  return check_device(self, device);
}

static void destroy(void* self) {
  driver* d = self;
  while (d->objects != NULL) { /* the core has destroyed them all; a test may not have */
    object* next = d->objects->next;
    if (d->objects->kind == KIND_MEMORY) free((void*)(uintptr_t)d->objects->value);
    free(d->objects);
    d->objects = next;
  }
  pthread_mutex_destroy(&d->mutex);
  free(d);
}

/* Waiting and work: the core's defaults synchronize, copy through the host and fill from it. */
static ob_status device_synchronize(void* self, int32_t device) {
  return UNIMPLEMENTED();
}

static ob_status fill_async(void* self, int32_t device, uint64_t stream, uint64_t dst, const void* pattern,
                            uint32_t pattern_size, uint64_t count) {
  return UNIMPLEMENTED();
}

static ob_status copy_nd_async(void* self, int32_t device, uint64_t stream, const ob_copy_nd* copy) {
  return UNIMPLEMENTED();
}

/* Memory: the defaults are the properties' total_memory, ordinary host memory, and no view from the host. */
static ob_status mem_info(void* self, int32_t device, uint64_t* out_free, uint64_t* out_total) {
  return UNIMPLEMENTED();
}

static ob_status host_alloc(void* self, uint64_t bytes, void** out_pointer) {
  return UNIMPLEMENTED();
}

static ob_status host_free(void* self, void* pointer) {
  return UNIMPLEMENTED();
}

static ob_status host_register(void* self, void* pointer, uint64_t bytes) {
  return UNIMPLEMENTED();
}

static ob_status host_unregister(void* self, void* pointer) {
  return UNIMPLEMENTED();
}

static ob_status host_address(void* self, int32_t device, uint64_t address, uint64_t bytes, uint64_t* out_address) {
  return UNIMPLEMENTED();
}

/* Streams and events: queries go through event_query; elapsed times are unsupported. */
static ob_status stream_query(void* self, int32_t device, uint64_t stream) {
  return UNIMPLEMENTED();
}

static ob_status event_synchronize(void* self, int32_t device, uint64_t event) {
  return UNIMPLEMENTED();
}

static ob_status event_elapsed(void* self, int32_t device, uint64_t start, uint64_t end, double* out_milliseconds) {
  return UNIMPLEMENTED();
}

static ob_status event_timestamp(void* self, int32_t device, uint64_t event, int64_t* out_nanoseconds) {
  return UNIMPLEMENTED();
}

/* No stream waits for the host: work runs as it is queued, so the wait would block the caller. */
static ob_status event_signal(void* self, int32_t device, uint64_t event) {
  return UNIMPLEMENTED();
}

/* Between devices: 0, though copy_async between devices works. */
static ob_status peer_access(void* self, int32_t device, int32_t peer, int32_t* out_can_access) {
  return UNIMPLEMENTED();
}

/* Expandable segments, and sharing between processes: unsupported. */
static ob_status mem_reserve(void* self, int32_t device, uint64_t bytes, uint64_t* out_address) {
  return UNIMPLEMENTED();
}

static ob_status mem_release(void* self, int32_t device, uint64_t address, uint64_t bytes) {
  return UNIMPLEMENTED();
}

static ob_status mem_map(void* self, int32_t device, uint64_t address, uint64_t bytes) {
  return UNIMPLEMENTED();
}

static ob_status mem_unmap(void* self, int32_t device, uint64_t address, uint64_t bytes) {
  return UNIMPLEMENTED();
}

static ob_status ipc_export(void* self, int32_t device, uint64_t address, void* out_handle, size_t* inout_size) {
  return UNIMPLEMENTED();
}

static ob_status ipc_open(void* self, int32_t device, const void* handle, size_t size, uint64_t* out_address) {
  return UNIMPLEMENTED();
}

static ob_status ipc_close(void* self, int32_t device, uint64_t address) {
  return UNIMPLEMENTED();
}

/* Host work in a stream: the core waits for the stream and runs the work itself. */
static ob_status host_callback(void* self, int32_t device, uint64_t stream, ob_host_fn fn, void* user) {
  return UNIMPLEMENTED();
}

/* Programs and kernels: unsupported, and operators run on the CPU. */
static ob_status program_build(void* self, int32_t device, const ob_program_source* source, uint64_t* out_program) {
  return UNIMPLEMENTED();
}

static ob_status program_destroy(void* self, int32_t device, uint64_t program) {
  return UNIMPLEMENTED();
}

static ob_status kernel_get(void* self, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel) {
  return UNIMPLEMENTED();
}

static ob_status kernel_launch(void* self, int32_t device, uint64_t stream, const ob_launch* launch) {
  return UNIMPLEMENTED();
}

/* Built programs are not kept on disk. */
static ob_status program_binary(void* self, int32_t device, uint64_t program, void* context, ob_take_fn take) {
  return UNIMPLEMENTED();
}

static ob_status kernel_register(void* self, const ob_registrar* registrar) {
  return UNIMPLEMENTED();
}

/* The core captures graphs, and makes the profiler's records with events. */
static ob_status graph_capture_begin(void* self, int32_t device, uint64_t stream) {
  return UNIMPLEMENTED();
}

static ob_status graph_capture_end(void* self, int32_t device, uint64_t stream, uint64_t* out_graph) {
  return UNIMPLEMENTED();
}

static ob_status graph_instantiate(void* self, int32_t device, uint64_t graph, uint64_t* out_executable) {
  return UNIMPLEMENTED();
}

static ob_status graph_launch(void* self, int32_t device, uint64_t stream, uint64_t executable) {
  return UNIMPLEMENTED();
}

static ob_status graph_destroy(void* self, int32_t device, uint64_t graph) {
  return UNIMPLEMENTED();
}

static ob_status graph_executable_destroy(void* self, int32_t device, uint64_t executable) {
  return UNIMPLEMENTED();
}

static ob_status activity_enable(void* self, uint32_t kinds) {
  return UNIMPLEMENTED();
}

static ob_status activity_correlate(void* self, uint64_t correlation) {
  return UNIMPLEMENTED();
}

static ob_status activity_read(void* self, size_t capacity, size_t stride, ob_activity* out_records,
                               size_t* out_count) {
  return UNIMPLEMENTED();
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* Read `devices`, the only option: a number from 0 to 64; the default is 1. */
static ob_status read_options(const ob_options* options, int32_t* out_devices, char* error, size_t error_size) {
  *out_devices = 1;
  for (size_t i = 0; i < options->count; ++i) {
    if (strcmp(options->keys[i], "devices") != 0) {
      snprintf(error, error_size, "the null driver has no option '%s'; its only option is devices", options->keys[i]);
      return OB_INVALID_ARGUMENT;
    }
    char* end = NULL;
    const long devices = strtol(options->values[i], &end, 10);
    if (end == options->values[i] || *end != 0 || devices < 0 || devices > 64) {
      snprintf(error, error_size, "devices must be a number from 0 to 64, not '%s'", options->values[i]);
      return OB_INVALID_ARGUMENT;
    }
    *out_devices = (int32_t)devices;
  }
  return OB_OK;
}

OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error, size_t error_size) {
  int32_t devices = 0;
  const ob_status status = read_options(options, &devices, error, error_size);
  if (status != OB_OK) return status;
  driver* d = calloc(1, sizeof *d);
  if (d == NULL) {
    snprintf(error, error_size, "the host is out of memory");
    return OB_OUT_OF_MEMORY;
  }
  pthread_mutex_init(&d->mutex, NULL);
  d->device_count = devices;

  const ob_driver table = {
      .struct_size = sizeof table,
      .abi_major = OB_ABI_MAJOR,
      .abi_minor = OB_ABI_MINOR,
      .self = d,
      .device_count = device_count,
      .device_properties = device_properties,
      .mem_alloc = mem_alloc,
      .mem_free = mem_free,
      .copy_async = copy_async,
      .stream_create = stream_create,
      .stream_destroy = stream_destroy,
      .stream_synchronize = stream_synchronize,
      .event_create = event_create,
      .event_destroy = event_destroy,
      .event_record = event_record,
      .event_query = event_query,
      .stream_wait_event = stream_wait_event,
      .last_error = last_error,
      .destroy = destroy,
      .device_open = device_open,
      .device_close = device_close,
      .device_synchronize = device_synchronize,
      .fill_async = fill_async,
      .copy_nd_async = copy_nd_async,
      .mem_info = mem_info,
      .host_alloc = host_alloc,
      .host_free = host_free,
      .host_register = host_register,
      .host_unregister = host_unregister,
      .host_address = host_address,
      .stream_query = stream_query,
      .event_synchronize = event_synchronize,
      .event_elapsed = event_elapsed,
      .event_timestamp = event_timestamp,
      .event_signal = event_signal,
      .peer_access = peer_access,
      .mem_reserve = mem_reserve,
      .mem_release = mem_release,
      .mem_map = mem_map,
      .mem_unmap = mem_unmap,
      .ipc_export = ipc_export,
      .ipc_open = ipc_open,
      .ipc_close = ipc_close,
      .host_callback = host_callback,
      .program_build = program_build,
      .program_destroy = program_destroy,
      .kernel_get = kernel_get,
      .kernel_launch = kernel_launch,
      .program_binary = program_binary,
      .kernel_register = kernel_register,
      .graph_capture_begin = graph_capture_begin,
      .graph_capture_end = graph_capture_end,
      .graph_instantiate = graph_instantiate,
      .graph_launch = graph_launch,
      .graph_destroy = graph_destroy,
      .graph_executable_destroy = graph_executable_destroy,
      .activity_enable = activity_enable,
      .activity_correlate = activity_correlate,
      .activity_read = activity_read,
  };
  /* A core older than this header has a shorter table: it gets the part that it knows. */
  const size_t size = out_driver->struct_size < sizeof table ? out_driver->struct_size : sizeof table;
  memcpy(out_driver, &table, size);
  out_driver->struct_size = size;
  return OB_OK;
}

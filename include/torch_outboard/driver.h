/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch_outboard/driver.h: the contract between torch-outboard and a device driver.
 *
 * This is the only file that a driver author must read. It is plain C11 and includes nothing of torch.
 *
 * A driver is a table of functions, `ob_driver`. Thirteen entries are required. Every other entry may be null; its
 * comment states the consequence after "Null:". "Unsupported" means that users get a `NotSupportedError` that names the
 * entry. A shared library exports `ob_driver_table`, which fills the table.
 *
 * Versions. `OB_ABI_MAJOR` changes when an old driver would misbehave; the core refuses a different major version.
 * Additions go to the end of the table (an entry) or of a struct (a field). The first addition after a release
 * increases `OB_ABI_MINOR`. Every struct that crosses the boundary begins with `struct_size`, which the struct's owner
 * sets to the size that it was compiled with. The other side reads and writes only fields that lie entirely within
 * that size.
 *
 * Rules for every entry, unless its comment says otherwise:
 *  - It returns OB_OK or an error code. After an error, `last_error` on the same thread returns the reason.
 *  - Invalid calls fail at once. OB_INVALID_ARGUMENT: a device index out of range, a handle that the driver did not
 *    return or that was destroyed, or an address to free that is not an allocation's. A copy that exceeds the
 *    allocation on its device side returns an error.
 *  - If the driver's own queued work fails (a copy, a fill, a launch), a later wait on its stream or device returns the
 *    error, once. The driver does not pass failures between streams, and still runs work queued after a failure. Work
 *    queued by `host_callback` cannot fail for the driver: the core stores such failures, and raises them at each wait
 *    on a stream that depends on the failed work.
 *  - It may be called from any thread, by several threads at once, and takes its own locks. The core holds none of its
 *    own or torch's locks during a call, and calls no entry from code that must not throw.
 *  - Every call names its device and stream. The core relies on no "current" device or stream in the driver.
 *  - "Queues" means that the entry returns without waiting for the work. Work of one stream runs in the order in which
 *    it was queued. Only `stream_wait_event` orders work of different streams. "Waits" means that the entry may block;
 *    the core has released Python's interpreter lock. An entry whose comment has neither word returns promptly.
 *  - Handles are opaque. 0 may be the handle of a stream, but not of an event, a program, a kernel or a graph. Device
 *    memory is named by address. Every entry that takes an address accepts interior addresses.
 *  - `in` arguments come before `out_` arguments. Pointers to structs and arrays are valid during the call only, and
 *    never null unless the comment says "may be null".
 *  - A device is opened (`device_open`) before it is passed to any entry except `device_properties`.
 *  - The core calls nothing in a forked child, nor once the process has begun to exit. Tensors may live until then, and
 *    so may their streams, events, programs and memory. At exit, the core waits for the open devices and leaves
 *    everything else to the operating system. It never calls `device_close` or `event_destroy`. It calls
 *    `stream_destroy` only for a stream that two threads created at once, `program_destroy` only for a program that
 *    lacks the requested kernel, and `destroy` only if no device was ever opened. These entries serve programs that
 *    close a driver before their process ends, such as the native tests. A device that outlives the process must itself
 *    notice the end of the process.
 */
#ifndef TORCH_OUTBOARD_DRIVER_H
#define TORCH_OUTBOARD_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OB_ABI_MAJOR 1u
#define OB_ABI_MINOR 0u

#if defined(_WIN32)
#define OB_EXPORT __declspec(dllexport)
#else
#define OB_EXPORT __attribute__((visibility("default")))
#endif

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/* Codes 0 to 16 are the canonical codes of absl and gRPC; the rest are ours. A comment names the exception that
   Python raises for a code, unless it is DriverError. A code that the core does not know counts as OB_UNKNOWN. */
typedef int32_t ob_status;

enum {
  OB_OK = 0,
  OB_CANCELLED = 1,
  OB_UNKNOWN = 2,
  OB_INVALID_ARGUMENT = 3, /* ValueError, like OB_OUT_OF_RANGE */
  OB_DEADLINE_EXCEEDED = 4,
  OB_NOT_FOUND = 5,
  OB_ALREADY_EXISTS = 6,
  OB_PERMISSION_DENIED = 7,
  OB_OUT_OF_MEMORY = 8, /* absl's RESOURCE_EXHAUSTED; torch.OutOfMemoryError from an allocation */
  OB_FAILED_PRECONDITION = 9,
  OB_ABORTED = 10,
  OB_OUT_OF_RANGE = 11,
  OB_UNIMPLEMENTED = 12, /* NotSupportedError */
  OB_INTERNAL = 13,
  OB_UNAVAILABLE = 14, /* the hardware or its runtime is absent */
  OB_DATA_LOSS = 15,
  OB_UNAUTHENTICATED = 16,
  OB_NOT_READY = 32,  /* the result of a query, not an error: the work is still under way */
  OB_DEVICE_LOST = 33, /* sticky: every later use of that device raises torch.AcceleratorError with the first cause,
                          before the driver is asked */
  OB_PROGRAM_REFUSED = 34 /* ValueError, only from program_build: the compiler always refuses this text */
};

/* ---- Element types ----------------------------------------------------------------------------------------------- */

typedef int32_t ob_dtype;

/* Values are stable. `1ull << OB_FLOAT32` is the type's bit in `ob_device_properties.dtypes`. */
enum {
  OB_UINT8 = 0,
  OB_INT8 = 1,
  OB_INT16 = 2,
  OB_INT32 = 3,
  OB_INT64 = 4,
  OB_FLOAT16 = 5,
  OB_FLOAT32 = 6,
  OB_FLOAT64 = 7,
  OB_COMPLEX32 = 8,
  OB_COMPLEX64 = 9,
  OB_COMPLEX128 = 10,
  OB_BOOL = 11,
  OB_BFLOAT16 = 15,
  OB_FLOAT8_E5M2 = 23,
  OB_FLOAT8_E4M3FN = 24,
  OB_UINT16 = 27,
  OB_UINT32 = 28,
  OB_UINT64 = 29
};

/* ---- Options and properties -------------------------------------------------------------------------------------- */

/* Options of `torch_outboard.attach(name, **options)`, as text. `values[i]` is the value of `keys[i]`. */
typedef struct ob_options {
  size_t struct_size;
  size_t count;
  const char* const* keys;   /* may be null if count is 0 */
  const char* const* values; /* may be null if count is 0 */
} ob_options;

/* The kind of machine that kernels should be written for. */
enum {
  OB_MACHINE_UNKNOWN = 0,
  OB_MACHINE_CPU = 1, /* few threads, each with caches and vectors: an item computes many elements, in loops */
  OB_MACHINE_GPU = 2  /* thousands of threads in lockstep: neighbouring threads read neighbouring memory */
};

/* The result of `torch.<name>.get_device_properties`. The core zeroes it first; 0 and "" mean unknown.
   `addresses_host_memory` is 1 if kernels use host_alloc's memory by the host's addresses, including 32-bit atomics,
   and the host sees the results after it has waited for the kernels.
   `follows_addresses` is 1 if a launch with ob_launch.follows_addresses may use addresses that the kernel reads from
   memory, for all memory from mem_alloc and mem_map on its device. An operator over a list of tensors is then one
   launch, with a table of the tensors' addresses. */
typedef struct ob_device_properties {
  size_t struct_size;
  char name[256];           /* UTF-8 that ends with a zero byte, like all text here */
  char vendor[64];
  char architecture[64];    /* part of compile cache keys: chips that need different code must differ here */
  char driver_version[64];  /* part of compile cache keys */
  uint8_t uuid[16];
  uint64_t total_memory;    /* bytes */
  uint64_t dtypes;          /* bits of the element types that kernels may use; 0: all types */
  int32_t major;            /* compute capability, or the driver's own numbering */
  int32_t minor;
  int32_t multi_processor_count;
  int32_t warp_size;
  int32_t max_threads_per_block;
  int32_t max_threads_per_multi_processor;
  int32_t regs_per_multiprocessor;
  int32_t clock_rate;                  /* kHz */
  uint64_t shared_memory_per_block;    /* bytes */
  uint64_t l2_cache_size;              /* bytes */
  int32_t is_integrated;               /* 1: shares its memory with the host */
  int32_t stream_priority_least;       /* 0 and 0: only one priority */
  int32_t stream_priority_greatest;    /* the lowest number, as in CUDA: -1 is above 0 */
  int32_t reserved;
  uint64_t mem_granularity;            /* bytes; mem_map's sizes and offsets are multiples of it. 0: no mem_map */
  uint64_t max_allocation;             /* the largest mem_alloc, in bytes; 0: total_memory */
  int32_t machine;                     /* OB_MACHINE_ */
  int32_t addresses_host_memory;       /* 1: kernels use host_alloc's memory by its host addresses */
  int32_t follows_addresses;           /* 1: kernels use addresses that they read from memory */
  int32_t shared_memory_per_multiprocessor; /* bytes */
  char matrix_units[256];              /* "float16 16x16x16, ...": type, rows x columns x steps; sums in float32 */
} ob_device_properties;

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

#define OB_HOST (-1) /* instead of a device index: host memory */

/* A linear copy. At least one side is a device. */
typedef struct ob_copy {
  size_t struct_size;
  uint64_t dst; /* address: device memory, or a host pointer if the side's device is OB_HOST */
  uint64_t src;
  uint64_t bytes; /* > 0; the ranges do not overlap */
  int32_t dst_device;
  int32_t src_device;
} ob_copy;

/* A strided copy between device memories. Sizes and strides count elements; a source stride may be 0. */
typedef struct ob_copy_nd {
  size_t struct_size;
  uint64_t dst;
  uint64_t src;
  int32_t dst_device;
  int32_t src_device;
  uint32_t element_size; /* bytes: 1, 2, 4, 8 or 16 */
  uint32_t ndim;         /* 1 to 64 */
  const int64_t* sizes;
  const int64_t* dst_strides;
  const int64_t* src_strides;
} ob_copy_nd;

/* ---- Events ------------------------------------------------------------------------------------------------------ */

enum {
  OB_EVENT_TIMING = 1u,       /* event_elapsed and event_timestamp may be called */
  OB_EVENT_BLOCKING = 2u,     /* event_synchronize should sleep rather than spin */
  OB_EVENT_INTERPROCESS = 4u, /* only if the driver has ipc_export */
  OB_EVENT_HOST = 8u          /* alone, and only if the driver has event_signal, which completes the event */
};

/* ---- Host work --------------------------------------------------------------------------------------------------- */

typedef void (*ob_host_fn)(void* user);

/* ---- Programs and kernels ---------------------------------------------------------------------------------------- */

typedef struct ob_program_source {
  size_t struct_size;
  const char* language; /* a language that the driver builds: "opencl_c", "ptx", "cubin", "cpp", … */
  const void* code;     /* text (ends with a zero byte, not counted) or binary */
  uint64_t code_size;   /* bytes */
  const char* options;  /* compiler options; "" for none */
} ob_program_source;

/* The language of the bytes from program_binary. */
#define OB_LANGUAGE_BINARY "binary"

/* Receives bytes from a driver, and copies them before it returns. */
typedef void (*ob_take_fn)(void* context, const void* bytes, size_t size);

enum {
  OB_ARG_POINTER = 0, /* `pointer`: a device address, or 0 */
  OB_ARG_VALUE = 1,   /* `size` bytes at `value`, copied during the call */
  OB_ARG_LOCAL = 2    /* `size` bytes of local (shared) memory */
};

typedef struct ob_kernel_arg {
  size_t struct_size;
  int32_t kind;
  uint32_t size;
  uint64_t pointer;
  const void* value; /* null unless kind is OB_ARG_VALUE */
} ob_kernel_arg;

typedef struct ob_launch {
  size_t struct_size;
  uint64_t kernel;
  uint32_t grid[3];  /* blocks (work-groups) in each dimension */
  uint32_t block[3]; /* threads (work-items) per block in each dimension */
  uint32_t cluster[3]; /* blocks per cluster; 0: no clusters */
  uint32_t is_cooperative;
  uint64_t shared_memory; /* dynamic shared memory per block, bytes */
  size_t arg_count;
  size_t arg_stride; /* bytes from one argument to the next: the core's sizeof(ob_kernel_arg) */
  const ob_kernel_arg* args; /* may be null if arg_count is 0 */
  uint32_t follows_addresses; /* 1: the kernel uses addresses that it reads from memory, if the properties allow it */
  uint32_t reserved;
} ob_launch;

/* ---- Operator kernels that a driver brings ----------------------------------------------------------------------- */

/* A tensor argument of an operator kernel: device memory, not owned, valid during the call. */
typedef struct ob_tensor {
  size_t struct_size;
  uint64_t data; /* address of the element at index 0; 0 if there are no elements */
  ob_dtype dtype;
  int32_t device; /* index, or OB_HOST for a CPU scalar, whose `data` is a host pointer */
  int32_t ndim;
  int32_t is_defined; /* 0: an optional tensor that was not passed; the other fields are 0 */
  const int64_t* sizes;
  const int64_t* strides; /* in elements */
} ob_tensor;

enum {
  OB_VALUE_NONE = 0,
  OB_VALUE_TENSOR = 1,      /* tensors[0] */
  OB_VALUE_TENSOR_LIST = 2, /* tensors[0 .. count) */
  OB_VALUE_INT = 3,         /* ints[0]; also a dtype (as ob_dtype), a layout or a memory format */
  OB_VALUE_INT_LIST = 4,    /* ints[0 .. count); also a list of booleans, as 0 and 1 */
  OB_VALUE_DOUBLE = 5,      /* doubles[0] */
  OB_VALUE_DOUBLE_LIST = 6, /* doubles[0 .. count) */
  OB_VALUE_BOOL = 7,        /* ints[0]: 0 or 1 */
  OB_VALUE_STRING = 8       /* string, `count` bytes long */
};

typedef struct ob_value {
  size_t struct_size;
  int32_t kind;
  int32_t reserved;
  size_t count;
  const ob_tensor* tensors;
  const int64_t* ints;
  const double* doubles;
  const char* string;
} ob_value;

/* Requirements that torch's switches set for a call; the torch.backends.cudnn switches apply to convolutions. */
enum {
  OB_CALL_REPEATS = 1u,               /* the same results in every run: torch.use_deterministic_algorithms */
  OB_CALL_REPEATS_CONVOLUTIONS = 2u,  /* cudnn.deterministic, or the switch above */
  OB_CALL_MEASURES_CONVOLUTIONS = 4u, /* cudnn.benchmark */
  OB_CALL_ROUNDS_PRODUCTS = 8u,       /* float32 factors may be rounded to TF32: cuda.matmul.fp32_precision */
  OB_CALL_ROUNDS_CONVOLUTIONS = 16u,  /* cudnn.conv.fp32_precision */
  OB_CALL_ROUNDS_RECURRENT = 32u      /* cudnn.rnn.fp32_precision */
};

/* One call of an operator. `op` is the form that the kernel was registered for, whichever form was called, and the
   arguments are in the order of its schema. Outputs are already allocated, with the sizes, strides and dtypes of the
   operator's meta kernel. An operator that only writes its arguments has no outputs, and an `out` argument has the
   result's size. Tensors are strided: calls with sparse, quantized, nested, conjugated or negated tensors skip the
   kernel, and so do calls whose result shapes depend on values.

   `scratch(scratch_context, bytes, &address)` returns temporary device memory from the core's allocator, aligned to
   512 bytes. Only work that the kernel queues on `stream` may use this memory, and the kernel does not free it. 0
   bytes return the address 0. The calling thread calls it, before the kernel returns. On OB_OUT_OF_MEMORY the kernel
   may return this status, which raises an error with the sizes and the operator's name, or decline, or do without the
   memory. Similar calls (see ob_operator_fn) must request the same bytes in the same order. In a graph that the core
   records, the memory of each replay comes from the graph's pool, and is as large as an earlier similar call
   requested; a larger request returns OB_FAILED_PRECONDITION.
   `draw(scratch_context, address)` queues a write of a seed, an int64, to device memory: the next draw of the
   device's generator, and a new draw at each replay. It is for operators that torch tags as random, is called at most
   once per call, and otherwise follows the rules of `scratch`. */
typedef struct ob_kernel_call {
  size_t struct_size;
  const char* op; /* "aten::relu", "aten::add.out" */
  int32_t device;
  int32_t reserved;
  uint64_t stream; /* the current stream: queue the work here */
  size_t arg_count;
  size_t arg_stride; /* bytes from one argument to the next */
  const ob_value* args;
  size_t output_count;
  size_t output_stride;
  const ob_tensor* outputs;
  void* scratch_context; /* passed to `scratch` and `draw` */
  ob_status (*scratch)(void* scratch_context, uint64_t bytes, uint64_t* out_address);
  uint64_t flags; /* OB_CALL_ bits */
  ob_status (*draw)(void* scratch_context, uint64_t address);
} ob_kernel_call;

/* Queues. OB_UNIMPLEMENTED, before anything is queued or written, declines: the call goes to the next provider, and
   the core may send similar calls there without asking again. Similar calls have the same dtypes, devices, sizes,
   strides, numbers, strings and flags. The decision must depend on nothing else: not on addresses, on memory content
   (including the value of a CPU scalar) or on state. Any other failure is raised to the caller. While the core
   records a graph, nothing may run, so the core does not ask the kernel: it uses the kernel only if the kernel has
   accepted a similar call before, and otherwise the next provider. */
typedef ob_status (*ob_operator_fn)(void* user, const ob_kernel_call* call);

/* Passed to kernel_register. `add` registers `fn` for `op`; `user` is passed to each call. A second `add` for the
   same operator replaces the first. A kernel for the functional, the out= or the in-place form of an operator
   (aten::add.Tensor, aten::add.out, aten::add_.Tensor) serves all three. The core prefers the kernel of the called
   form, then of the out= form, the functional form and the in-place form. The out= form is best, because it needs no
   copy; for a call in place, its `out` is `self`. An unknown operator returns OB_NOT_FOUND. If kernel_register
   returns this status, attach raises an error with the operator's name and its existing overloads. `add_with_query`
   is for operators that torch chooses before the call, such as attention. `query` is called without addresses,
   queues nothing, and returns OB_UNIMPLEMENTED if `fn` would decline. For an outboard::recurrent_net with gradients,
   it calls `scratch` once, for the bytes that are kept for the backward pass; this `scratch` returns no address.
   `keep` writes to disk data that a library takes long to find or to compile. `recall` passes these bytes to `take`,
   once, for a device with the same name, vendor, architecture and driver_version, or the bytes that an open pack has
   for the key (`own_programs` of torch_outboard.Driver), and otherwise returns OB_NOT_FOUND. The key must contain everything else that the bytes depend on. `build_in_background` calls
   `fn(user)` once, on a thread that builds programs, when no program is waiting: for work that makes later calls
   faster. Nothing waits for this call, and it may never happen if the process ends. OB_UNAVAILABLE: there are no
   such threads (OUTBOARD_BUILD_THREADS=0), or the process is ending. */
typedef struct ob_registrar {
  size_t struct_size;
  void* context;
  ob_status (*add)(void* context, const char* op, ob_operator_fn fn, void* user);
  ob_status (*add_with_query)(void* context, const char* op, ob_operator_fn fn, ob_operator_fn query, void* user);
  void (*keep)(int32_t device, const void* key, size_t key_size, const void* bytes, size_t size);
  ob_status (*recall)(int32_t device, const void* key, size_t key_size, void* context, ob_take_fn take);
  ob_status (*build_in_background)(ob_host_fn fn, void* user);
} ob_registrar;

/* ---- Profiler records -------------------------------------------------------------------------------------------- */

enum { OB_ACTIVITY_KERNEL = 1u, OB_ACTIVITY_COPY = 2u, OB_ACTIVITY_FILL = 4u, OB_ACTIVITY_HOST = 8u };

typedef struct ob_activity {
  size_t struct_size;
  uint32_t kind; /* one of the bits above */
  int32_t device;
  uint64_t stream;
  uint64_t correlation; /* the number from activity_correlate when the work was queued */
  int64_t start;        /* nanoseconds of CLOCK_MONOTONIC */
  int64_t end;
  uint64_t bytes; /* of a copy or fill */
  int32_t src_device; /* of a copy; OB_HOST for host memory */
  int32_t dst_device;
  char name[128]; /* of a kernel */
} ob_activity;

/* ---- The table --------------------------------------------------------------------------------------------------- */

enum {
  OB_DRIVER_PROBE_OPENS = 1u, /* device_count opens the runtime and does not survive a fork: the core counts it as the
                                 first use, and a child that forks after it is refused */
  OB_DRIVER_POISONS = 2u /* the core fills memory that changes hands, so that stale data cannot look right */
};

typedef struct ob_driver {
  size_t struct_size; /* in: the core's sizeof(ob_driver); out: the driver's, never more than the core's */
  uint32_t abi_major; /* OB_ABI_MAJOR of the header that the driver was compiled with */
  uint32_t abi_minor;
  uint64_t flags;
  void* self; /* passed unchanged to every entry; may be null */

  /* == Required, all thirteen ===================================================================================== */

  /* Number of devices, or 0 if there are none. A cheap probe that opens no context and is safe before a fork and in a
     forked child. A negative number is a negated error code. The core calls it once and caches the result. */
  int32_t (*device_count)(void* self);

  /* Fills `out_properties`. May open the runtime, so the core counts the call as a use: a child that is forked
     afterwards cannot use the driver. Called before device_open if needed, and at most once per device, unless
     several threads ask at the same time. */
  ob_status (*device_properties)(void* self, int32_t device, ob_device_properties* out_properties);

  /* Allocates device memory, aligned to 512 bytes; never null. `bytes` > 0. The core's caching allocator calls this
     for segments (2 MiB and more), so it may be slow. OB_OUT_OF_MEMORY makes the core free its cache and try again. */
  ob_status (*mem_alloc)(void* self, int32_t device, uint64_t bytes, uint64_t* out_address);

  /* Frees a whole allocation of mem_alloc, which no queued work uses any more. Waits if necessary. */
  ob_status (*mem_free)(void* self, int32_t device, uint64_t address);

  /* Queues a copy on `stream`, which belongs to `device`, one of the two sides. The core keeps host memory from
     host_alloc or host_register valid until the copy is done. For other host memory, the core waits for the stream
     immediately, so the driver need not wait. The driver may also copy before it returns, once earlier work of the
     stream is done. */
  ob_status (*copy_async)(void* self, int32_t device, uint64_t stream, const ob_copy* copy);

  /* Creates a stream: an in-order queue. `priority` is in the range of the device's properties. The core also
     creates a device's default stream with this entry, with priority 0. */
  ob_status (*stream_create)(void* self, int32_t device, int32_t priority, uint64_t* out_stream);

  /* Destroys a stream, whose handle is an OB_INVALID_ARGUMENT from then on. Work still queued on it completes. */
  ob_status (*stream_destroy)(void* self, int32_t device, uint64_t stream);

  /* Waits until all work queued on the stream before this call is done, and returns its first failure, once. */
  ob_status (*stream_synchronize)(void* self, int32_t device, uint64_t stream);

  /* Creates an event; never 0. `flags` are OB_EVENT_ bits. */
  ob_status (*event_create)(void* self, int32_t device, uint32_t flags, uint64_t* out_event);

  /* Destroys an event, at any time: waits queued on it remain bound to its last record. The core reuses events
     instead of destroying them. */
  ob_status (*event_destroy)(void* self, int32_t device, uint64_t event);

  /* Queues a mark on the stream. An event may be recorded again even while its last record is pending. */
  ob_status (*event_record)(void* self, int32_t device, uint64_t stream, uint64_t event);

  /* OB_OK if the latest record is done or there was none, OB_NOT_READY otherwise. Never blocks. */
  ob_status (*event_query)(void* self, int32_t device, uint64_t event);

  /* Queues a wait on `stream` for the record that is the event's latest at the time of this call; does nothing if
     there is no record. The event may belong to `event_device`, another device of this driver. The wait orders all
     kinds of work, including host_callback's. Blocks only if the driver runs work when it is queued. */
  ob_status (*stream_wait_event)(void* self, int32_t device, uint64_t stream, int32_t event_device, uint64_t event);

  /* == Optional ==================================================================================================== */

  /* Writes the reason for this thread's last error to `buffer` as text, cut to `size` bytes including the final zero.
     Null: messages contain only the status code. */
  void (*last_error)(void* self, char* buffer, size_t size);

  /* Called once, after all devices were closed; no other entry is called afterwards. Null: nothing to do. */
  void (*destroy)(void* self);

  /* Opens a device: contexts, threads, memory. Called once, before its first use. Waits. Null: nothing to do. */
  ob_status (*device_open)(void* self, int32_t device);

  /* Closes a device whose memory, streams and events were all destroyed. Not called at the end of a process, where
     they still exist. Waits. Null: nothing to do. */
  ob_status (*device_close)(void* self, int32_t device);

  /* Waits for all work of the device and returns one failure; later waits return the others. Null: the core
     synchronises every stream that it created, and external ones. */
  ob_status (*device_synchronize)(void* self, int32_t device);

  /* Queues `count` repetitions of a pattern of `pattern_size` bytes (1, 2, 4, 8 or 16). Null: the core copies from
     the host, or fills through host_address. */
  ob_status (*fill_async)(void* self, int32_t device, uint64_t stream, uint64_t dst, const void* pattern,
                          uint32_t pattern_size, uint64_t count);

  /* Queues a strided copy. OB_UNIMPLEMENTED, before anything is queued, for shapes that the driver does not support.
     Null: the core copies through host_address in the stream, or else through host memory. */
  ob_status (*copy_nd_async)(void* self, int32_t device, uint64_t stream, const ob_copy_nd* copy);

  /* Free and total bytes of the device. Null: the total comes from the properties; the free bytes are the total minus
     this process's use. */
  ob_status (*mem_info)(void* self, int32_t device, uint64_t* out_free, uint64_t* out_total);

  /* Host memory that copy_async accesses directly, aligned to 64 bytes. Null, for both: `pin_memory` returns ordinary
     host memory, and its copies wait as for any host memory. */
  ob_status (*host_alloc)(void* self, uint64_t bytes, void** out_pointer);
  ob_status (*host_free)(void* self, void* pointer);

  /* Pins existing host memory, so that it can be used like memory from host_alloc, and undoes this. OB_ALREADY_EXISTS
     if any part of the memory is already pinned. Null, for both: unsupported. */
  ob_status (*host_register)(void* self, void* pointer, uint64_t bytes);
  ob_status (*host_unregister)(void* self, void* pointer);

  /* An address through which the host may access [address, address + bytes) once the stream that uses this memory is
     drained, or 0 if there is none. The difference between host and device addresses is constant within one mem_alloc
     or one whole mem_reserve until it is freed. The core therefore asks once per segment, and for a reserved range
     once it is mapped. CPU kernels run on device memory through this address. Null: none. */
  ob_status (*host_address)(void* self, int32_t device, uint64_t address, uint64_t bytes, uint64_t* out_address);

  /* OB_OK if all work of the stream is done, OB_NOT_READY otherwise. Never blocks. If a user waits for a stream or
     device on Python's main thread, the core polls this entry until the work is done, and then calls the entry that
     waits: Ctrl-C can therefore interrupt the wait. Null: the core queries an event of its own, and Ctrl-C cannot
     interrupt the wait. */
  ob_status (*stream_query)(void* self, int32_t device, uint64_t stream);

  /* Waits for the event's latest record. Null: the core polls event_query. */
  ob_status (*event_synchronize)(void* self, int32_t device, uint64_t event);

  /* Milliseconds between two recorded timing events of one device. Null: unsupported without event_timestamp. */
  ob_status (*event_elapsed)(void* self, int32_t device, uint64_t start, uint64_t end, double* out_milliseconds);

  /* The time at which a timing event was reached, in nanoseconds of CLOCK_MONOTONIC. Null: unsupported. */
  ob_status (*event_timestamp)(void* self, int32_t device, uint64_t event, int64_t* out_nanoseconds);

  /* Completes an event created with OB_EVENT_HOST: streams that wait for it continue, and later waits pass. Called
     once, before or after stream_wait_event, from any thread. A second call returns OB_FAILED_PRECONDITION, a call
     for another kind of event OB_INVALID_ARGUMENT. Never blocks. The event carries no failure: the core stores
     failures of the host's work.
     Before that, event_query returns OB_NOT_READY and event_synchronize waits. event_record of such an event returns
     OB_INVALID_ARGUMENT. stream_wait_event for it never blocks the caller, and does not hold up queued work of other
     streams; while the driver captures, it returns OB_UNIMPLEMENTED. event_destroy completes an event that is not
     complete.
     Null: unsupported; the host then waits for an exchange with other processes before it queues work that needs the
     result. */
  ob_status (*event_signal)(void* self, int32_t device, uint64_t event);

  /* 1 if `device` accesses `peer`'s memory without the host. Called before the first copy between the two, so that
     the driver can enable the access. Null: 0; copy_async between devices must still work. */
  ob_status (*peer_access)(void* self, int32_t device, int32_t peer, int32_t* out_can_access);

  /* Expandable segments: reserving address space without memory, mapping memory into a part of it, and undoing both.
     Sizes and offsets are multiples of the device's mem_granularity. mem_unmap and mem_release are called only when
     no queued work uses the range. mem_map may return OB_OUT_OF_MEMORY. Within one mem_reserve, host_address either
     differs from the device address by one constant, mapped or not, or is 0 everywhere: a block may span parts that
     were mapped separately. Null, for all four: unsupported. */
  ob_status (*mem_reserve)(void* self, int32_t device, uint64_t bytes, uint64_t* out_address);
  ob_status (*mem_release)(void* self, int32_t device, uint64_t address, uint64_t bytes);
  ob_status (*mem_map)(void* self, int32_t device, uint64_t address, uint64_t bytes);
  ob_status (*mem_unmap)(void* self, int32_t device, uint64_t address, uint64_t bytes);

  /* Sharing one mem_alloc with another process. ipc_export writes a handle of at most `*inout_size` bytes and sets
     `*inout_size` to the handle's size; OB_OUT_OF_RANGE, with the size needed, if the buffer is too small. ipc_open
     returns an address in this process, and ipc_close ends the use of this address. Null, for all three: unsupported.
     */
  ob_status (*ipc_export)(void* self, int32_t device, uint64_t address, void* out_handle, size_t* inout_size);
  ob_status (*ipc_open)(void* self, int32_t device, const void* handle, size_t size, uint64_t* out_address);
  ob_status (*ipc_close)(void* self, int32_t device, uint64_t address);

  /* Queues a call of `fn(user)` on any thread of the driver, ordered like other work: it begins when earlier work of
     the stream is done, and later work begins when it returns. `fn` calls no entry of the driver and does not throw.
     If this entry returned OB_OK, `fn` is called exactly once, also on a stream with a failure, or once per launch if
     it was captured into a graph. Null: the core waits for the stream and runs `fn` itself. */
  ob_status (*host_callback)(void* self, int32_t device, uint64_t stream, ob_host_fn fn, void* user);

  /* Builds a program; never 0. The last_error of a failure is the build log. Waits. program_destroy is called when no
     queued launch uses the program. OB_PROGRAM_REFUSED if the compiler refuses the text: the core remembers this
     status (and OB_INVALID_ARGUMENT) for the life of the process, and runs the operator elsewhere. Any other failure,
     such as a full disk or a lack of memory, is raised where the program was needed, and the core tries again, at
     most once a second. Null, for all four: unsupported. */
  ob_status (*program_build)(void* self, int32_t device, const ob_program_source* source, uint64_t* out_program);
  ob_status (*program_destroy)(void* self, int32_t device, uint64_t program);

  /* Returns a kernel of a program by name; never 0, valid as long as the program. OB_NOT_FOUND if the program has no
     such kernel. */
  ob_status (*kernel_get)(void* self, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel);

  /* Queues a launch. OB_INVALID_ARGUMENT for sizes above the device's limits. */
  ob_status (*kernel_launch)(void* self, int32_t device, uint64_t stream, const ob_launch* launch);

  /* Calls `take(context, bytes, size)` once with the compiler's output for a program, which the core stores on disk.
     A later process passes these bytes to program_build, in the language OB_LANGUAGE_BINARY with the options of the
     text, on a device with the same name, vendor, architecture and driver_version. If that fails for any reason, the
     core builds the text. If the bytes depend on anything else, the driver includes it in the bytes and checks it.
     Called once, right after program_build and before kernel_get. OB_UNIMPLEMENTED for a program that was not built
     from text. Null: nothing is stored. */
  ob_status (*program_binary)(void* self, int32_t device, uint64_t program, void* context, ob_take_fn take);

  /* Called once at attach, so that the driver registers kernels for operators. Opens nothing. Null: none. */
  ob_status (*kernel_register)(void* self, const ob_registrar* registrar);

  /* Capture of a stream's queued work into a graph, and its replay. Nothing runs between begin and end. A graph is
     instantiated into an executable, which is launched any number of times and destroyed when no launch is under way.
     Null, for all six: the core captures in software. */
  ob_status (*graph_capture_begin)(void* self, int32_t device, uint64_t stream);
  ob_status (*graph_capture_end)(void* self, int32_t device, uint64_t stream, uint64_t* out_graph);
  ob_status (*graph_instantiate)(void* self, int32_t device, uint64_t graph, uint64_t* out_executable);
  ob_status (*graph_launch)(void* self, int32_t device, uint64_t stream, uint64_t executable);
  ob_status (*graph_destroy)(void* self, int32_t device, uint64_t graph);
  ob_status (*graph_executable_destroy)(void* self, int32_t device, uint64_t executable);

  /* Profiler records. activity_enable starts records of the kinds in `kinds`; 0 stops all. activity_correlate sets
     the correlation number of work that this thread queues from now on. activity_read moves at most `capacity`
     finished records, `stride` bytes apart, into `out_records`, oldest first. Null, for all three: the core times
     host work and copies with events. */
  ob_status (*activity_enable)(void* self, uint32_t kinds);
  ob_status (*activity_correlate)(void* self, uint64_t correlation);
  ob_status (*activity_read)(void* self, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count);
} ob_driver;

/* The function that a driver library exports under the name "ob_driver_table"; the library may also export the
   function of collectives.h. It opens no device. On entry, `out_driver->struct_size` is the size of the core's table,
   and all other fields are 0. The library sets the entries that it has, and sets `struct_size` to the smaller of the
   two sizes. On failure it writes the reason to `error` as text, cut to `error_size` bytes including the final zero.
   An unknown or malformed option returns OB_INVALID_ARGUMENT. */
typedef ob_status (*ob_driver_table_fn)(const ob_options* options, ob_driver* out_driver, char* error,
                                        size_t error_size);
#define OB_DRIVER_TABLE_SYMBOL "ob_driver_table"

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TORCH_OUTBOARD_DRIVER_H */

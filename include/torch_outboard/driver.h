/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch_outboard/driver.h: the contract between torch-outboard and a device driver.
 *
 * This is the one file that a driver author must read. It is plain C11 and includes nothing of torch.
 *
 * A driver is a table of functions, `ob_driver`. Thirteen entries are required; every other entry may be null,
 * and its comment says what happens then: a stated default, or "unsupported", which users see as a
 * `NotSupportedError` that names the entry. A shared library exports `ob_driver_table`, which fills the table.
 *
 * Versions. `OB_ABI_MAJOR` changes when an old driver would misbehave; the core refuses another major. Additions
 * go to the end of the table (an entry) or of a struct (a field); the first addition after a release increases
 * `OB_ABI_MINOR`. Every struct that crosses the boundary begins with `struct_size`, set by the struct's owner to the
 * size that it was compiled with; the other side reads and writes only the fields that lie within it, whole: a size
 * that ends within a field ends before it.
 *
 * Rules that hold for every entry, unless its comment says otherwise:
 *  - It returns OB_OK or an error code. After an error, `last_error` on the same thread gives the reason.
 *  - Mistakes fail at once, in the call that makes them: OB_INVALID_ARGUMENT for a device index that is none, for a
 *    handle that the driver did not give or that was destroyed, and for an address to free that is no allocation's; an
 *    error for a copy that reaches beyond the allocation of its device side.
 *  - A failure of the driver's own queued work (a copy, a fill, a launch) surfaces at a later wait on its stream or
 *    device, once. A driver orders streams and hands no failure from one to another: work behind a failure runs. What
 *    is queued by `host_callback` cannot fail for the driver; the core keeps such failures, and tells them at each wait
 *    on a stream that lies behind, through whichever events.
 *  - It may be called from any thread, several at once, and takes its own locks. The core holds no lock of its own
 *    or of torch's while it calls, and never calls from a path that must not throw.
 *  - Every call names its device and stream: a driver keeps no "current" device or stream that the core depends on.
 *  - "Queues" means: returns without waiting for the work; work of one stream runs in the order in which it was
 *    queued, work of different streams in any order but for `stream_wait_event`. "Waits" means: may block; the core has
 *    released Python's interpreter lock. An entry whose comment says neither returns promptly.
 *  - Handles are opaque. 0 may be a stream's handle, never an event's, a program's, a kernel's or a graph's.
 *    Device memory is named by address; interior addresses are legal wherever an address is taken.
 *  - `in` arguments come before `out_` arguments. Pointers to structs and arrays are valid during the call only, and
 *    never null unless the comment says "may be null".
 *  - A device is opened (`device_open`) before any other entry but the probe and `device_properties` names it.
 *  - In a forked child, and once the process has begun to exit, the core calls nothing. Streams, events, programs and
 *    memory in use last as long as the process, since tensors may: at its end the core waits for the open devices and
 *    leaves the rest to the system. So it calls neither `device_close` nor `event_destroy`, `stream_destroy` only for a
 *    stream that two threads made at once, `program_destroy` only for a program that lacks the kernel asked for, and
 *    `destroy` only if no device was ever opened. All of them are for programs that end before their process does, such
 *    as the native tests. A device that outlives the process has to notice its end by itself.
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

/* 0 to 16 are the canonical codes of absl and gRPC; the rest are ours. What Python raises for each stands behind it.
   A code that the core does not know counts as OB_UNKNOWN. */
typedef int32_t ob_status;

enum {
  OB_OK = 0,
  OB_CANCELLED = 1,
  OB_UNKNOWN = 2,
  OB_INVALID_ARGUMENT = 3, /* ValueError, as OB_OUT_OF_RANGE */
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
  OB_NOT_READY = 32,  /* a query's answer, no error: the work is still under way */
  OB_DEVICE_LOST = 33, /* sticky: every later use of that device raises torch.AcceleratorError with the first cause,
                          before the driver is asked */
  OB_PROGRAM_REFUSED = 34 /* ValueError, from program_build alone: the compiler refuses the text each time */
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

/* Options of `torch_outboard.attach(name, **options)`, as text; `keys[i]` belongs to `values[i]`. */
typedef struct ob_options {
  size_t struct_size;
  size_t count;
  const char* const* keys;   /* may be null if count is 0 */
  const char* const* values; /* may be null if count is 0 */
} ob_options;

/* How kernels for a device are best written. */
enum {
  OB_MACHINE_UNKNOWN = 0,
  OB_MACHINE_CPU = 1, /* few threads with caches and vectors of their own: an item does much, in loops */
  OB_MACHINE_GPU = 2  /* thousands of threads that run in step: neighbours read neighbouring memory */
};

/* What `torch.<name>.get_device_properties` shows. The core zeroes it first; 0 and "" mean unknown.
   `addresses_host_memory` is 1 if kernels use memory of host_alloc by the host's addresses, with atomics of 32 bits too,
   and the host finds what they wrote there once it has waited for them. `follows_addresses` is 1 if a launch that says
   so (ob_launch.follows_addresses) reaches all memory of mem_alloc and of mem_map on its device by addresses that the
   kernel finds in memory: then operators over lists of tensors are one launch, with a table of the tensors' addresses. */
typedef struct ob_device_properties {
  size_t struct_size;
  char name[256];           /* UTF-8, ends with a zero byte, like all text here */
  char vendor[64];
  char architecture[64];    /* enters compile cache keys: two chips that need different code must differ here */
  char driver_version[64];  /* enters compile cache keys */
  uint8_t uuid[16];
  uint64_t total_memory;    /* bytes */
  uint64_t dtypes;          /* bits of the element types that kernels may use; 0: all */
  int32_t major;            /* compute capability, or the driver's own counting */
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
  int32_t stream_priority_least;       /* 0 and 0: one priority */
  int32_t stream_priority_greatest;    /* numerically lowest, as in CUDA: -1 is above 0 */
  int32_t reserved;
  uint64_t mem_granularity;            /* bytes; what mem_map's sizes and offsets are multiples of. 0: no mem_map */
  uint64_t max_allocation;             /* bytes of one mem_alloc; 0: total_memory */
  int32_t machine;                     /* OB_MACHINE_ */
  int32_t addresses_host_memory;       /* 1: kernels use memory of host_alloc as their own */
  int32_t follows_addresses;           /* 1: kernels use addresses that they find in memory */
  int32_t shared_memory_per_multiprocessor; /* bytes */
  char matrix_units[256];              /* "float16 16x16x16, ...": type, rows x columns x steps; sums in float32 */
} ob_device_properties;

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

#define OB_HOST (-1) /* in place of a device index: host memory */

/* One linear copy. At least one side is a device. */
typedef struct ob_copy {
  size_t struct_size;
  uint64_t dst; /* address: device memory, or a host pointer if the side's device is OB_HOST */
  uint64_t src;
  uint64_t bytes; /* > 0; the ranges don't overlap */
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
  OB_EVENT_TIMING = 1u,       /* event_elapsed and event_timestamp will be asked */
  OB_EVENT_BLOCKING = 2u,     /* event_synchronize should sleep rather than spin */
  OB_EVENT_INTERPROCESS = 4u, /* only if ipc_export is there */
  OB_EVENT_HOST = 8u          /* alone, and only if event_signal is there, which completes it */
};

/* ---- Host work --------------------------------------------------------------------------------------------------- */

typedef void (*ob_host_fn)(void* user);

/* ---- Programs and kernels ---------------------------------------------------------------------------------------- */

typedef struct ob_program_source {
  size_t struct_size;
  const char* language; /* "opencl_c", "ptx", "cubin", "cpp", …: what the driver says it builds */
  const void* code;     /* text (ends with a zero byte, not counted) or binary */
  uint64_t code_size;   /* bytes */
  const char* options;  /* compiler options; "" for none */
} ob_program_source;

/* The language of what program_binary handed out. */
#define OB_LANGUAGE_BINARY "binary"

/* Takes bytes that a driver hands out; they are copied before it returns. */
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
  uint32_t block[3]; /* threads (work-items) of a block in each dimension */
  uint32_t cluster[3]; /* blocks of a cluster; 0: none */
  uint32_t is_cooperative;
  uint64_t shared_memory; /* dynamic shared memory of a block, bytes */
  size_t arg_count;
  size_t arg_stride; /* bytes from one argument to the next: the core's sizeof(ob_kernel_arg) */
  const ob_kernel_arg* args; /* may be null if arg_count is 0 */
  uint32_t follows_addresses; /* 1: uses addresses that it finds in memory, if the properties say so */
  uint32_t reserved;
} ob_launch;

/* ---- Operator kernels that a driver brings ----------------------------------------------------------------------- */

/* A tensor as an operator kernel sees it: device memory, no ownership, valid during the call. */
typedef struct ob_tensor {
  size_t struct_size;
  uint64_t data; /* address of the element at index 0; 0 if there are no elements */
  ob_dtype dtype;
  int32_t device; /* index, or OB_HOST for a CPU scalar, whose `data` is then a host pointer */
  int32_t ndim;
  int32_t is_defined; /* 0: an optional tensor that was not given; the other fields are 0 */
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

/* What torch's switches ask of a call; those of torch.backends.cudnn are for convolutions. */
enum {
  OB_CALL_REPEATS = 1u,               /* the same results in each run: torch.use_deterministic_algorithms */
  OB_CALL_REPEATS_CONVOLUTIONS = 2u,  /* cudnn.deterministic, or the above */
  OB_CALL_MEASURES_CONVOLUTIONS = 4u, /* cudnn.benchmark */
  OB_CALL_ROUNDS_PRODUCTS = 8u,       /* factors of float32 may be rounded to TF32: cuda.matmul.fp32_precision */
  OB_CALL_ROUNDS_CONVOLUTIONS = 16u,  /* cudnn.conv.fp32_precision */
  OB_CALL_ROUNDS_RECURRENT = 32u      /* cudnn.rnn.fp32_precision */
};

/* One call of an operator. `op` is the form that the kernel was registered for, whichever was called, and the arguments
   stand in the order of its schema. Outputs are allocated, with the sizes, strides and dtypes of the operator's meta
   kernel; an operator that only writes its arguments has none, and an `out` argument has the result's size. Tensors are
   strided: calls with sparse, quantized, nested, conjugated or negated ones pass by, as do those whose shapes depend on
   data.

   `scratch(scratch_context, bytes, &address)` gives device memory for the call alone, from the core's allocator, aligned
   to 512 bytes: work that the kernel queues on `stream` may use it, and nothing else, and there is nothing to free. 0
   bytes give the address 0. It is called by the thread of the call, before the kernel returns. OB_OUT_OF_MEMORY: return
   it, and the caller gets an error with the numbers and the operator's name; or decline, or do without. Calls that are
   alike ask for the same bytes in the same order: a graph that the core records has the memory of each replay from its
   own pool, as much as a call alike asked for before, and more than that is OB_FAILED_PRECONDITION.
   `draw(scratch_context, address)` queues the writing of a seed, an int64, to device memory: the next draw of the device's
   generator, a new one at each replay. For operators that torch tags as random, once a call, as `scratch` is called. */
typedef struct ob_kernel_call {
  size_t struct_size;
  const char* op; /* "aten::relu", "aten::add.out" */
  int32_t device;
  int32_t reserved;
  uint64_t stream; /* the current stream: queue the work here */
  size_t arg_count;
  size_t arg_stride; /* bytes from one to the next */
  const ob_value* args;
  size_t output_count;
  size_t output_stride;
  const ob_tensor* outputs;
  void* scratch_context; /* passed to the next two functions */
  ob_status (*scratch)(void* scratch_context, uint64_t bytes, uint64_t* out_address);
  uint64_t flags; /* OB_CALL_ bits */
  ob_status (*draw)(void* scratch_context, uint64_t address);
} ob_kernel_call;

/* Queues. OB_UNIMPLEMENTED, before anything is queued or written, declines: the call goes to the next provider, and calls
   alike may go there without being asked about again. Alike are calls with the same dtypes, devices, sizes, strides,
   numbers, strings and flags, so an answer must depend on nothing else: on no address, on nothing that memory holds (the value
   of a CPU scalar included), on no state. Any other failure is raised to the caller. While the core records a graph
   nothing may run, so a kernel is not asked: it gets the calls of which one alike was taken before, the others go to the
   next provider. */
typedef ob_status (*ob_operator_fn)(void* user, const ob_kernel_call* call);

/* Given to kernel_register: `add` registers `fn` for `op`; `user` is passed to each call. A second `add` for the same
   operator replaces the first. A kernel for any of the functional, the out= and the in-place form of an operator
   (aten::add.Tensor, aten::add.out, aten::add_.Tensor) serves all three: the called form's own comes first, then that of
   the out= form, then of the functional, then of the in-place form. The out= form serves best, without a copy; for a
   call in place its `out` is `self`. Unknown operators are OB_NOT_FOUND; attach then raises with the operator's name and
   the overloads that there are, if kernel_register returns the status.
   `add_with_query` is for a kernel that answers beforehand, where torch chooses among operators, as for attention:
   `query` gets a call without addresses, queues nothing, and returns OB_UNIMPLEMENTED for what `fn` would decline. For an
   outboard::recurrent_net with gradients, it calls `scratch`, which gives no address, once for the bytes that are kept.
   `keep` writes to disk what a library takes long to find or to compile; `recall` gives it to `take`, once, for a device
   of equal name, vendor, architecture and driver_version, else OB_NOT_FOUND. All else belongs into the key.
   `build_in_background` calls `fn(user)` once on a thread that builds programs, when no program waits: for what makes
   later calls faster. Nothing waits for it, and at the end of the process it may not be called. OB_UNAVAILABLE: there are
   no such threads (OUTBOARD_BUILD_THREADS=0), or the process ends. */
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
  uint64_t correlation; /* what activity_correlate gave when the work was queued */
  int64_t start;        /* nanoseconds of CLOCK_MONOTONIC */
  int64_t end;
  uint64_t bytes; /* of a copy or a fill */
  int32_t src_device; /* of a copy, OB_HOST for host memory */
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
  void* self; /* passed to every entry as it is; may be null */

  /* == Required, all thirteen ===================================================================================== */

  /* Number of devices, 0 if there are none. The only probe: cheap, opens no context, safe to call before a fork and in
     a forked child. A negative number is the negated error code. The core calls it once and keeps the answer. */
  int32_t (*device_count)(void* self);

  /* Fills `out_properties`. May open the runtime, so the core counts it as a use: a child that forks afterwards is
     refused. Called at most once a device, unless threads ask at the same time, and before device_open if asked for. */
  ob_status (*device_properties)(void* self, int32_t device, ob_device_properties* out_properties);

  /* Allocates device memory, aligned to 512 bytes; never null. `bytes` > 0. The core's caching allocator calls this
     for segments (2 MiB and more), so it may be slow. OB_OUT_OF_MEMORY makes the core free its cache and try again. */
  ob_status (*mem_alloc)(void* self, int32_t device, uint64_t bytes, uint64_t* out_address);

  /* Frees what mem_alloc gave, whole. No queued work uses it any more. Waits if it must. */
  ob_status (*mem_free)(void* self, int32_t device, uint64_t address);

  /* Queues a copy on `stream`, which belongs to `device`, one of the two sides. Host memory that came from host_alloc
     or was given to host_register stays valid until the copy is done (the core sees to it). For other host memory the
     core waits for the stream at once, so a driver may simply queue. A driver may also copy before it returns, once
     the work queued before is done. */
  ob_status (*copy_async)(void* self, int32_t device, uint64_t stream, const ob_copy* copy);

  /* Makes a stream: an in-order queue. `priority` lies between the device's greatest and least. The core makes the
     default stream of a device in the same way, with priority 0. */
  ob_status (*stream_create)(void* self, int32_t device, int32_t priority, uint64_t* out_stream);

  /* Destroys a stream; OB_INVALID_ARGUMENT wherever it is named from then on. Work still queued on it completes. */
  ob_status (*stream_destroy)(void* self, int32_t device, uint64_t stream);

  /* Waits until all that was queued on the stream before this call is done, and gives the first failure of it, once. */
  ob_status (*stream_synchronize)(void* self, int32_t device, uint64_t stream);

  /* Makes an event; never 0. `flags` are OB_EVENT_ bits. */
  ob_status (*event_create)(void* self, int32_t device, uint32_t flags, uint64_t* out_event);

  /* Destroys an event. Legal at any time: waits that were queued on it stay bound to its last record. The core keeps
     events and uses them again. */
  ob_status (*event_destroy)(void* self, int32_t device, uint64_t event);

  /* Queues a mark on the stream. Recording again is legal, also while the last record is under way. */
  ob_status (*event_record)(void* self, int32_t device, uint64_t stream, uint64_t event);

  /* OB_OK if the latest record is done (or there was none), OB_NOT_READY if not. Never blocks. */
  ob_status (*event_query)(void* self, int32_t device, uint64_t event);

  /* Queues a wait on `stream` for the event's latest record at the time of this call; nothing if there was none. The
     event may belong to `event_device`, another device of this driver. It orders all kinds of work, host_callback's too.
     Blocks only where queuing runs the work. */
  ob_status (*stream_wait_event)(void* self, int32_t device, uint64_t stream, int32_t event_device, uint64_t event);

  /* == Optional ==================================================================================================== */

  /* Writes the reason of this thread's last error to `buffer` as text, cut to `size` bytes with the final zero.
     Null: messages say the status code only. */
  void (*last_error)(void* self, char* buffer, size_t size);

  /* Called once, after whoever opened devices has closed them; nothing is called any more. Null: nothing to do. */
  void (*destroy)(void* self);

  /* Opens a device: contexts, threads, memory. Called once, before the device's first use. Waits. Null: nothing to do. */
  ob_status (*device_open)(void* self, int32_t device);

  /* Closes a device; all its memory, streams and events were destroyed. Not called at the end of a process, where they
     are not. Waits. Null: nothing to do. */
  ob_status (*device_close)(void* self, int32_t device);

  /* Waits for all work of the device and gives one failure of it; others come at later waits. Null: the core
     synchronises every stream that it made, and external ones. */
  ob_status (*device_synchronize)(void* self, int32_t device);

  /* Queues `count` repetitions of a pattern of `pattern_size` bytes (1, 2, 4, 8 or 16). Null: the core copies from
     the host, or fills through host_address. */
  ob_status (*fill_async)(void* self, int32_t device, uint64_t stream, uint64_t dst, const void* pattern,
                          uint32_t pattern_size, uint64_t count);

  /* Queues a strided copy. OB_UNIMPLEMENTED, before anything is queued, for shapes that the driver does not do. Null:
     through host_address in the stream, else through host memory. */
  ob_status (*copy_nd_async)(void* self, int32_t device, uint64_t stream, const ob_copy_nd* copy);

  /* Free and total bytes of the device. Null: total from the properties, free as total less what this process has. */
  ob_status (*mem_info)(void* self, int32_t device, uint64_t* out_free, uint64_t* out_total);

  /* Host memory that copy_async reaches without a detour, aligned to 64 bytes. Null, for the pair: ordinary host
     memory; `pin_memory` then works and copies wait as for any host memory. */
  ob_status (*host_alloc)(void* self, uint64_t bytes, void** out_pointer);
  ob_status (*host_free)(void* self, void* pointer);

  /* Makes existing host memory as good as host_alloc's, and undoes it. OB_ALREADY_EXISTS for memory of which a part is
     pinned already, by whomever. Null, for the pair: unsupported. */
  ob_status (*host_register)(void* self, void* pointer, uint64_t bytes);
  ob_status (*host_unregister)(void* self, void* pointer);

  /* An address through which the host may touch [address, address + bytes) once the stream that uses it is drained, or
     0 if there is none. Host minus device is constant over one mem_alloc or one whole mem_reserve until it is freed: the
     core asks once a segment, and of a reserved range once it is mapped. It is what lets CPU kernels run on device
     memory. Null: none. */
  ob_status (*host_address)(void* self, int32_t device, uint64_t address, uint64_t bytes, uint64_t* out_address);

  /* OB_OK if all work of the stream is done, OB_NOT_READY if not. Never blocks. While Python's main thread waits for a
     stream or the device because the user asked for it, the core asks this until the work is done, and then calls the
     entry that waits: so Ctrl-C ends the wait. Null: through an event of the core, and Ctrl-C waits too. */
  ob_status (*stream_query)(void* self, int32_t device, uint64_t stream);

  /* Waits for the event's latest record. Null: the core polls event_query. */
  ob_status (*event_synchronize)(void* self, int32_t device, uint64_t event);

  /* Milliseconds between two recorded timing events of one device. Null: unsupported, unless event_timestamp is there. */
  ob_status (*event_elapsed)(void* self, int32_t device, uint64_t start, uint64_t end, double* out_milliseconds);

  /* When a timing event was reached, in nanoseconds of CLOCK_MONOTONIC. Null: unsupported. */
  ob_status (*event_timestamp)(void* self, int32_t device, uint64_t event, int64_t* out_nanoseconds);

  /* Completes an event that was made with OB_EVENT_HOST: the streams that wait for it go on, and later waits pass. It
     comes once, before or after stream_wait_event, from any thread; the second time is OB_FAILED_PRECONDITION, another
     kind of event OB_INVALID_ARGUMENT. Never blocks. It only releases: the core keeps the failures of what the host did.
     Until then event_query says OB_NOT_READY and event_synchronize waits. event_record of such an event is
     OB_INVALID_ARGUMENT. stream_wait_event for it never blocks the caller, and queued work of other streams goes on;
     while the driver captures it is OB_UNIMPLEMENTED. event_destroy of an event that was not completed completes it.
     Null: unsupported; the host then waits for an exchange with other processes before it queues what needs the result. */
  ob_status (*event_signal)(void* self, int32_t device, uint64_t event);

  /* 1 if `device` reaches `peer`'s memory without passing through the host; called before the first copy between the
     two, so that a driver may enable it. Null: 0; copy_async between devices must work all the same. */
  ob_status (*peer_access)(void* self, int32_t device, int32_t peer, int32_t* out_can_access);

  /* Address space without memory, memory mapped into a part of it, and back: expandable segments. Sizes and offsets are
     multiples of the device's mem_granularity. mem_unmap and mem_release come only when no queued work uses the range.
     mem_map may give OB_OUT_OF_MEMORY. host_address is one constant apart over the whole of a mem_reserve, mapped or
     not, or 0 throughout: blocks lie across what was mapped separately. Null, for all four: unsupported. */
  ob_status (*mem_reserve)(void* self, int32_t device, uint64_t bytes, uint64_t* out_address);
  ob_status (*mem_release)(void* self, int32_t device, uint64_t address, uint64_t bytes);
  ob_status (*mem_map)(void* self, int32_t device, uint64_t address, uint64_t bytes);
  ob_status (*mem_unmap)(void* self, int32_t device, uint64_t address, uint64_t bytes);

  /* Sharing one mem_alloc with another process. ipc_export writes at most `*inout_size` bytes of handle and sets
     `*inout_size` to what it wrote (OB_OUT_OF_RANGE, with the size needed, if it is too small). ipc_open gives an
     address in this process, ipc_close ends its use. Null, for all three: unsupported. */
  ob_status (*ipc_export)(void* self, int32_t device, uint64_t address, void* out_handle, size_t* inout_size);
  ob_status (*ipc_open)(void* self, int32_t device, const void* handle, size_t size, uint64_t* out_address);
  ob_status (*ipc_close)(void* self, int32_t device, uint64_t address);

  /* Queues a call of `fn(user)` on a thread of the driver's choice, like any work: it begins when the work before it
     is done, and the work after it begins when it returns. It calls no entry of the driver and does not throw. Once
     this entry returned OB_OK, `fn` is called exactly once, also on a stream with a failure; if it was captured into a
     graph, once each launch. Null: the core waits for the stream and runs `fn` itself. */
  ob_status (*host_callback)(void* self, int32_t device, uint64_t stream, ob_host_fn fn, void* user);

  /* Builds a program; never 0. A failure's last_error is the build log. Waits. program_destroy comes when no queued
     launch uses it. OB_PROGRAM_REFUSED if the compiler refuses the text: the core remembers that for as long as the
     process lives, as it does OB_INVALID_ARGUMENT, and runs the operator elsewhere. Any other failure, as of a full
     disk or of memory, is raised where the program was needed, and the core asks again, at most once a second. Null, for
     all four: unsupported. */
  ob_status (*program_build)(void* self, int32_t device, const ob_program_source* source, uint64_t* out_program);
  ob_status (*program_destroy)(void* self, int32_t device, uint64_t program);

  /* A kernel of a program, by name; never 0, valid as long as the program. OB_NOT_FOUND if there is none. */
  ob_status (*kernel_get)(void* self, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel);

  /* Queues a launch. OB_INVALID_ARGUMENT for sizes above the device's limits. */
  ob_status (*kernel_launch)(void* self, int32_t device, uint64_t stream, const ob_launch* launch);

  /* Calls `take(context, bytes, size)` once with what a compiler made of a program, so that the core keeps it on disk.
     program_build gets it again in a later process, in the language OB_LANGUAGE_BINARY with the options of the text, on a
     device of the same name, vendor, architecture and driver_version; where it fails, for whatever reason, the core
     builds the text. What else the bytes depend on, the driver puts into them and compares. Asked once, right after
     program_build and before kernel_get. OB_UNIMPLEMENTED for a program that was no text. Null: nothing is kept. */
  ob_status (*program_binary)(void* self, int32_t device, uint64_t program, void* context, ob_take_fn take);

  /* Called once at attach, so that the driver registers kernels for operators. Opens nothing. Null: none. */
  ob_status (*kernel_register)(void* self, const ob_registrar* registrar);

  /* Capture of what is queued on a stream into a graph, and its replay. Between begin and end nothing runs. A graph is
     instantiated into an executable, launched any number of times and destroyed when no launch is under way. Null, for
     all six: the core captures in software. */
  ob_status (*graph_capture_begin)(void* self, int32_t device, uint64_t stream);
  ob_status (*graph_capture_end)(void* self, int32_t device, uint64_t stream, uint64_t* out_graph);
  ob_status (*graph_instantiate)(void* self, int32_t device, uint64_t graph, uint64_t* out_executable);
  ob_status (*graph_launch)(void* self, int32_t device, uint64_t stream, uint64_t executable);
  ob_status (*graph_destroy)(void* self, int32_t device, uint64_t graph);
  ob_status (*graph_executable_destroy)(void* self, int32_t device, uint64_t executable);

  /* Records of what ran. activity_enable starts (or with 0 stops) records of the kinds in `kinds`; activity_correlate
     sets the number that the work queued by this thread gets from now on; activity_read moves at most `capacity` done
     records, `stride` bytes apart, into `out_records`, oldest first. Null, for all three: the core times host work and
     copies with events. */
  ob_status (*activity_enable)(void* self, uint32_t kinds);
  ob_status (*activity_correlate)(void* self, uint64_t correlation);
  ob_status (*activity_read)(void* self, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count);
} ob_driver;

/* What a driver library exports, under the name "ob_driver_table"; beside it at most collectives.h's. It opens no device. On entry
   `out_driver->struct_size` is the size of the core's table, and all else is 0; the library fills in what it has and
   sets `struct_size` to the smaller of the two sizes. On failure it writes the reason to `error` as text, cut to
   `error_size` bytes with the final zero; an unknown or ill-formed option is OB_INVALID_ARGUMENT. */
typedef ob_status (*ob_driver_table_fn)(const ob_options* options, ob_driver* out_driver, char* error,
                                        size_t error_size);
#define OB_DRIVER_TABLE_SYMBOL "ob_driver_table"

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TORCH_OUTBOARD_DRIVER_H */

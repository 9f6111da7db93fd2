/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch_outboard/collectives.h: the collectives of a device driver. Optional: without them, exchanges go through the
 * host.
 *
 * A driver's library that has collectives exports `ob_collectives_table` in addition to `ob_driver_table`. The rules
 * of driver.h hold here too: status codes, struct_size, threads, and "queues". A communicator is one rank's end of a
 * group of ranks. Calls on one communicator come one at a time, in the same order on every rank; `comm_status` and
 * `comm_abort` come from any thread, at any time before `comm_destroy`.
 *
 * All ranks must make the same decisions, so entries decide only by their arguments: whether a kind with a reduction
 * and a type is OB_UNIMPLEMENTED must not depend on the rank, on addresses or on the state of a device.
 */
#ifndef TORCH_OUTBOARD_COLLECTIVES_H
#define TORCH_OUTBOARD_COLLECTIVES_H

#include "driver.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OB_COLLECTIVES_MAJOR 1u
#define OB_COLLECTIVES_MINOR 0u

/* Size of the id by which the ranks of a group find each other. */
#define OB_COMM_ID_BYTES 128

typedef struct ob_comm_config {
  size_t struct_size;
  int32_t device; /* already open */
  int32_t rank;   /* 0 to size - 1 */
  int32_t size;
  int32_t reserved;
  const void* id;   /* OB_COMM_ID_BYTES bytes, from make_id on one of the ranks */
  const char* name; /* the group's name, for messages */
} ob_comm_config;

enum {
  OB_ALL_REDUCE = 0,     /* count elements of src and dst, which may be the same memory */
  OB_BROADCAST = 1,      /* count elements from root's src to every dst; root's may be the same memory */
  OB_REDUCE = 2,         /* like OB_ALL_REDUCE, but only root's dst is written; dst may be 0 on other ranks */
  OB_ALL_GATHER = 3,     /* count elements of src; size * count of dst, by rank */
  OB_REDUCE_SCATTER = 4, /* size * count elements of src; count of dst */
  OB_SEND = 5,           /* count elements of src to the rank `root` */
  OB_RECV = 6            /* count elements of dst from the rank `root` */
};

enum {
  OB_REDUCE_SUM = 0,
  OB_REDUCE_PRODUCT = 1,
  OB_REDUCE_MIN = 2,
  OB_REDUCE_MAX = 3,
  OB_REDUCE_AVG = 4,
  OB_REDUCE_PREMUL_SUM = 5 /* each rank's elements are multiplied by its `scale` first */
};

typedef struct ob_collective {
  size_t struct_size;
  int32_t kind;
  int32_t reduce; /* OB_REDUCE_, for kinds that reduce */
  ob_dtype dtype; /* OB_UINT8 if elements are only moved */
  int32_t root;   /* a rank, for kinds that have a root or a peer */
  uint64_t src;   /* addresses of device memory, which stays valid until the work is done */
  uint64_t dst;
  uint64_t count; /* > 0 */
  double scale;
} ob_collective;

typedef struct ob_collectives {
  size_t struct_size; /* as in ob_driver */
  uint32_t abi_major; /* OB_COLLECTIVES_MAJOR */
  uint32_t abi_minor;
  void* self; /* passed to every entry; may be null */

  /* == Required ==================================================================================================== */

  /* Writes an id that no other group has, by which the ranks of a group find each other. OB_UNAVAILABLE if the
     collectives' library is absent: exchanges then go through the host. */
  ob_status (*make_id)(void* self, void* out_id);

  /* Begins to join a group and returns immediately; comm_status reports when all ranks have joined. Never 0. */
  ob_status (*comm_create)(void* self, const ob_comm_config* config, uint64_t* out_comm);

  /* OB_NOT_READY while the group is being joined or a call is being queued, then OB_OK; after a failure of the
     communicator or of a peer, that failure. A failed call blocks its stream until comm_abort, so that the failure is
     known before later work of the stream runs. Never blocks, even while `queue` is waiting. */
  ob_status (*comm_status)(void* self, uint64_t comm);

  /* Queues a call on a stream of the communicator's device. It may wait for the peers' matching call, for instance to
     connect to them; comm_abort ends the wait with a failure. OB_UNIMPLEMENTED, before anything is queued, for a call
     that is not supported. OB_NOT_READY if the call is still being queued on return: nothing else is queued on the
     stream or the communicator until comm_status returns OB_OK. */
  ob_status (*queue)(void* self, uint64_t comm, uint64_t stream, const ob_collective* call);

  /* Fails all calls that are under way, here and soon on the other ranks: queued calls end, and streams continue.
     Never blocks for long. */
  ob_status (*comm_abort)(void* self, uint64_t comm);

  /* Destroys a communicator that has no call under way. May wait for the other ranks, so all ranks destroy their
     communicators in the same order. */
  ob_status (*comm_destroy)(void* self, uint64_t comm);

  /* == Optional ==================================================================================================== */

  /* Calls that a thread queues between group_begin and group_end form one call: its sends and receives wait for their
     peers together, in any order. group_end returns the status that `queue` would return. Null, for both: sends,
     receives, and collectives composed of them go through the host. */
  ob_status (*group_begin)(void* self);
  ob_status (*group_end)(void* self);

  /* As in ob_driver. Null: messages contain only the status code. */
  void (*last_error)(void* self, char* buffer, size_t size);
} ob_collectives;

/* Called once at attach, after ob_driver_table. `driver` is the table that ob_driver_table filled in, including the
   methods of the driver's Python class. It opens nothing. On entry, `out_collectives->struct_size` is the size of the
   core's table; the library sets it to the smaller of the two sizes. OB_UNIMPLEMENTED if there are no collectives
   with these options. `driver` outlives all use of the collectives. `error` is as in ob_driver_table. */
typedef ob_status (*ob_collectives_table_fn)(const ob_driver* driver, ob_collectives* out_collectives, char* error,
                                             size_t error_size);
#define OB_COLLECTIVES_TABLE_SYMBOL "ob_collectives_table"

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TORCH_OUTBOARD_COLLECTIVES_H */

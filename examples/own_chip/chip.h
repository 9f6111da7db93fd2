/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What stands for your vendor's runtime: a chip, its memory, streams, events, a compiler, programs. It knows nothing of
 * torch. The chip is a process of its own (chip_process.cpp), which the runtime (chip.cpp) starts and sends requests.
 *
 * Functions may be called from any thread. Those that say "queues" return at once, and nothing here waits but what says
 * so. Handles are never 0 and never come twice, so one that was destroyed is noticed.
 */
#ifndef CHIP_H
#define CHIP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum chip_result {
  CHIP_OK = 0,
  CHIP_NOT_READY,     /* of a query: there is work to do */
  CHIP_INVALID,       /* no such device or handle, memory that isn't the chip's, a launch that it doesn't do */
  CHIP_OUT_OF_MEMORY,
  CHIP_NOT_FOUND,     /* a program has no such kernel */
  CHIP_REFUSED,       /* the compiler has read the text and refuses it */
  CHIP_UNAVAILABLE,   /* the chip can't be started, or the compiler can't be run */
  CHIP_FAILED,        /* queued work has failed */
  CHIP_LOST           /* the chip's process has ended */
} chip_result;

typedef struct chip chip;

/* Why the last function of this thread failed. */
const char* chip_reason(void);

/* Starts the chip: `devices` devices with `memory` bytes each. Waits. */
chip_result chip_start(int devices, uint64_t memory, chip** out_chip);
/* Ends it, if it was started. Waits. */
void chip_stop(chip* c);

chip_result chip_memory_create(chip* c, int device, uint64_t bytes, uint64_t* out_address); /* waits */
chip_result chip_memory_destroy(chip* c, int device, uint64_t address);
chip_result chip_memory_left(chip* c, int device, uint64_t* out_bytes); /* waits */
/* Memory of the host that the chip reaches by its address here. Waits. */
chip_result chip_host_create(chip* c, uint64_t bytes, void** out_pointer);
chip_result chip_host_destroy(chip* c, void* pointer);

chip_result chip_stream_create(chip* c, int device, uint64_t* out_stream);
chip_result chip_stream_destroy(chip* c, uint64_t stream);
chip_result chip_stream_query(chip* c, uint64_t stream);
chip_result chip_stream_wait(chip* c, uint64_t stream); /* waits, and gives the first failure, once */
chip_result chip_stream_wait_event(chip* c, uint64_t stream, uint64_t event); /* queues */

/* All three queue. Host memory that chip_host_create didn't give is read in the call, and written before the next wait
   for the stream returns. */
chip_result chip_copy_to(chip* c, uint64_t stream, uint64_t dst, const void* src, uint64_t bytes);
chip_result chip_copy_from(chip* c, uint64_t stream, void* dst, uint64_t src, uint64_t bytes);
chip_result chip_copy(chip* c, uint64_t stream, uint64_t dst, uint64_t src, uint64_t bytes);
/* Queues `count` repetitions of a pattern. */
chip_result chip_fill(chip* c, uint64_t stream, uint64_t dst, const void* pattern, size_t size, uint64_t count);

/* An event stands for its latest record; one that was never recorded is done. */
chip_result chip_event_create(chip* c, int device, uint64_t* out_event);
chip_result chip_event_destroy(chip* c, uint64_t event);
chip_result chip_event_record(chip* c, uint64_t stream, uint64_t event); /* queues */
chip_result chip_event_query(chip* c, uint64_t event);
chip_result chip_event_wait(chip* c, uint64_t event); /* waits */
/* Nanoseconds of CLOCK_MONOTONIC; CHIP_INVALID before the record is reached. */
chip_result chip_event_time(chip* c, uint64_t event, int64_t* out_nanoseconds);

/* Compiles a text, or takes what was compiled before. CHIP_REFUSED with what the compiler says, if it refuses the text.
   Both wait. */
chip_result chip_program_build(chip* c, const char* text, uint64_t* out_program);
chip_result chip_program_load(chip* c, const void* binary, size_t size, uint64_t* out_program);
/* What the compiler made of a program that was built of a text, to be freed with free(); null and 0 for any other. */
chip_result chip_program_binary(chip* c, uint64_t program, void** out_binary, size_t* out_size);
chip_result chip_program_destroy(chip* c, uint64_t program);
chip_result chip_kernel_find(chip* c, uint64_t program, const char* name, uint64_t* out_kernel); /* waits */

typedef struct chip_argument {
  const void* value; /* of an address, its 8 bytes */
  uint32_t size;
  uint32_t is_address;
} chip_argument;

/* Queues `items` items of a kernel. */
chip_result chip_launch(chip* c, uint64_t stream, uint64_t kernel, uint64_t items, const chip_argument* arguments,
                        size_t count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CHIP_H */

/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The words of the language, for the host's C compiler, which stands for a vendor's. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <tgmath.h>
#undef I
typedef int8_t tiny;
typedef int16_t small;
typedef int32_t word;
typedef int64_t wide;
typedef uint8_t unsigned_tiny;
typedef uint16_t unsigned_small;
typedef uint32_t unsigned_word;
typedef uint64_t unsigned_wide;
#define helper static inline __attribute__((always_inline, unused))
#define kernel static
#define in_memory
#define constant static const
#define infinity INFINITY
#define not_a_number NAN
#define item_number() (number_of_this_item)
#define AS(To, From, name) helper To name(From from) { To to; memcpy(&to, &from, sizeof to); return to; }
AS(float, uint32_t, bits_to_float)
AS(uint32_t, float, float_to_bits)
AS(double, uint64_t, bits_to_double)
AS(uint64_t, double, double_to_bits)
#undef AS
helper int take(in_memory uint32_t* place, uint32_t count) {
  const int is_first = *place == count;
  *place += is_first;
  return is_first;
}
typedef float vector_of_float __attribute__((vector_size(32)));
typedef double vector_of_double __attribute__((vector_size(32)));
typedef uint32_t vector_of_unsigned_word __attribute__((vector_size(32)));
typedef uint64_t vector_of_unsigned_wide __attribute__((vector_size(32)));
#define vector_load(vector, place) memcpy(&(vector), place, sizeof(vector))
#define vector_store(vector, place) memcpy(place, &(vector), sizeof(vector))
static wide number_of_this_item;

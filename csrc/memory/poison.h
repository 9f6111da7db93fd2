// SPDX-License-Identifier: BSD-3-Clause
// The fill pattern for freed and newly allocated memory, if the driver requests it
// (OB_DRIVER_POISONS): stale data then cannot look right.
//
// The pattern consists of 16-bit words, each 0x7FF0 plus four bits of the fill's number. The words
// are NaN in every floating type of 16 bits or more, and huge as signed integers, so invalid as
// indices. No byte is 0 or 1, so none is a valid bool. Eight words hold the number, from which a
// report identifies the memory that was read. Memory that no owner has written since the driver
// allocated it has the number 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/driver.h"

namespace outboard::memory {

using PoisonPattern = std::array<uint16_t, 8>;

inline bool poisons() noexcept {
  return (driver().flags & OB_DRIVER_POISONS) != 0;
}

// Return a number for the next fill, from 1.
uint64_t next_poison() noexcept;

PoisonPattern poison_pattern(uint64_t number) noexcept;

// Fill unused memory that the host can access.
void poison_host_memory(void* memory, size_t bytes, uint64_t number) noexcept;

}  // namespace outboard::memory

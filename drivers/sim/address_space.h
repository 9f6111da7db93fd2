// SPDX-License-Identifier: BSD-3-Clause
// The free addresses of a range. Knows nothing of memory.
#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace sim {

// A best-fit allocator of addresses; free neighbours are joined. Not thread-safe.
class AddressSpace {
 public:
  void add(uint64_t base, uint64_t bytes) { give(base, bytes); }

  // Return an aligned range; 0 if there is none.
  uint64_t take(uint64_t bytes, uint64_t alignment);

  // Return a whole range of `take`.
  void give(uint64_t address, uint64_t bytes);

 private:
  void insert(uint64_t address, uint64_t bytes);
  void erase(std::map<uint64_t, uint64_t>::iterator range);

  std::map<uint64_t, uint64_t> by_address_;             // address to bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;     // (bytes, address)
};

}  // namespace sim

// SPDX-License-Identifier: BSD-3-Clause
#include "address_space.h"

#include <iterator>

namespace sim {

void AddressSpace::insert(uint64_t address, uint64_t bytes) {
  if (bytes == 0) return;
  by_address_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
}

void AddressSpace::erase(std::map<uint64_t, uint64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  by_address_.erase(range);
}

uint64_t AddressSpace::take(uint64_t bytes, uint64_t alignment) {
  for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end(); ++it) {
    const uint64_t begin = it->second;
    const uint64_t end = begin + it->first;
    const uint64_t aligned = (begin + alignment - 1) / alignment * alignment;
    if (aligned > end || end - aligned < bytes) continue;
    erase(by_address_.find(begin));
    insert(begin, aligned - begin);
    insert(aligned + bytes, end - aligned - bytes);
    return aligned;
  }
  return 0;
}

void AddressSpace::give(uint64_t address, uint64_t bytes) {
  auto after = by_address_.lower_bound(address);
  if (after != by_address_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == address) {
      address = before->first;
      bytes += before->second;
      erase(before);
    }
  }
  after = by_address_.lower_bound(address);
  if (after != by_address_.end() && address + bytes == after->first) {
    bytes += after->second;
    erase(after);
  }
  insert(address, bytes);
}

}  // namespace sim

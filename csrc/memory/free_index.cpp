// SPDX-License-Identifier: BSD-3-Clause
#include <bit>

#include "memory/block.h"

namespace outboard::memory {

namespace {

// Blocks of one size in a tree form a ring, one of which is the node. In a bin they
// form a list. The most frequent operations, taking the first and inserting in front,
// then touch only one other block.
void make_ring(Block* block) noexcept {
  block->ring_next = block->ring_prev = block;
}

void add_to_ring(Block* first, Block* block) noexcept {
  block->ring_prev = first;
  block->ring_next = first->ring_next;
  first->ring_next->ring_prev = block;
  first->ring_next = block;
}

void leave_ring(Block* block) noexcept {
  block->ring_prev->ring_next = block->ring_next;
  block->ring_next->ring_prev = block->ring_prev;
}

int highest_bit(size_t units) noexcept {
  return std::bit_width(units) - 1;
}

}  // namespace

void FreeIndex::insert(Block* block) noexcept {
  const size_t units = block->units;
  if (C10_UNLIKELY(units > kBins)) {
    insert_in_tree(block);
    return;
  }
  const size_t bin = units - 1;
  // Insert in front: the most recently used block is the likeliest to be in the cache.
  Block* first = bins_[bin];
  block->ring_prev = nullptr;
  block->ring_next = first;
  if (first) {
    first->ring_prev = block;
  } else {
    bin_words_[bin / 64] |= uint64_t{1} << (bin % 64);
    bin_summary_ |= uint32_t{1} << (bin / 64);
  }
  bins_[bin] = block;
}

void FreeIndex::erase(Block* block) noexcept {
  const size_t units = block->units;
  if (C10_UNLIKELY(units > kBins)) {
    erase_from_tree(block);
    return;
  }
  const size_t bin = units - 1;
  Block* next = block->ring_next;
  if (next) {
    next->ring_prev = block->ring_prev;
  }
  if (block->ring_prev) {
    block->ring_prev->ring_next = next;
    return;
  }
  bins_[bin] = next;
  if (!next) {
    bin_words_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    if (bin_words_[bin / 64] == 0) {
      bin_summary_ &= ~(uint32_t{1} << (bin / 64));
    }
  }
}

Block* FreeIndex::best_fit(size_t size) const noexcept {
  const size_t units = size >> kUnitShift;
  if (C10_LIKELY(units <= kBins)) {
    if (Block* block = first_bin_from(units - 1)) {
      return block;
    }
  }
  return tree_summary_ == 0 ? nullptr : best_fit_in_tree(units);
}

Block* FreeIndex::first_bin_from(size_t bin) const noexcept {
  const size_t word = bin / 64;
  if (const uint64_t bits = bin_words_[word] >> (bin % 64)) {
    return bins_[bin + static_cast<size_t>(std::countr_zero(bits))];
  }
  if (word + 1 == kWords) {
    return nullptr;
  }
  const uint32_t words = bin_summary_ >> (word + 1);
  if (words == 0) {
    return nullptr;
  }
  const size_t next = word + 1 + static_cast<size_t>(std::countr_zero(words));
  return bins_[next * 64 + static_cast<size_t>(std::countr_zero(bin_words_[next]))];
}

// A tree holds the sizes with the same highest bit. A node may have any size of its
// subtree; its children differ in the next lower bit. So the depth is at most the number of
// bits, and nothing is rebalanced.
void FreeIndex::insert_in_tree(Block* block) noexcept {
  const size_t units = block->units;
  const int top = highest_bit(units);
  block->child[0] = block->child[1] = block->parent = nullptr;
  block->in_tree = true;
  make_ring(block);
  Block* node = trees_[top];
  if (!node) {
    trees_[top] = block;
    tree_summary_ |= uint64_t{1} << top;
    return;
  }
  for (int bit = top - 1;; --bit) {
    if (node->units == block->units) {
      block->in_tree = false;
      add_to_ring(node, block);
      return;
    }
    // Two different sizes with the same bits above `bit` exist only while there is a bit left.
    Block*& child = node->child[(units >> bit) & 1];
    if (!child) {
      child = block;
      block->parent = node;
      return;
    }
    node = child;
  }
}

void FreeIndex::erase_from_tree(Block* block) noexcept {
  if (!block->in_tree) {
    leave_ring(block);
    return;
  }
  // The node's replacement: another block of its size, else any leaf below it.
  Block* heir = nullptr;
  if (block->ring_next != block) {
    heir = block->ring_next;
    leave_ring(block);
    heir->in_tree = true;
  } else if (block->child[0] || block->child[1]) {
    heir = block;
    while (heir->child[0] || heir->child[1]) {
      heir = heir->child[1] ? heir->child[1] : heir->child[0];
    }
    heir->parent->child[heir->parent->child[1] == heir] = nullptr;
  }
  if (heir) {
    heir->parent = block->parent;
    for (int i = 0; i < 2; ++i) {
      heir->child[i] = block->child[i];
      if (heir->child[i]) {
        heir->child[i]->parent = heir;
      }
    }
  }
  if (block->parent) {
    block->parent->child[block->parent->child[1] == block] = heir;
  } else {
    const int top = highest_bit(block->units);
    trees_[top] = heir;
    if (!heir) {
      tree_summary_ &= ~(uint64_t{1} << top);
    }
  }
}

Block* FreeIndex::best_fit_in_tree(size_t units) const noexcept {
  const int top = highest_bit(units);
  Block* best = nullptr;
  // The subtree with the smallest sizes that are all larger than `units`.
  const Block* larger = nullptr;
  const auto consider = [&](Block* node) {
    if (node->units >= units && (!best || node->units < best->units)) {
      best = node;
    }
  };

  int bit = top - 1;
  for (Block* node = trees_[top]; node && !(best && best->units == units); --bit) {
    consider(node);
    if (bit < 0) {
      break;
    }
    const bool is_set = (units >> bit) & 1;
    if (!is_set && node->child[1]) {
      larger = node->child[1];
    }
    node = node->child[is_set];
  }
  if (best && best->units == units) {
    return best->ring_next;
  }
  if (!larger && !best) {
    const uint64_t above = tree_summary_ & ~(((uint64_t{1} << top) << 1) - 1);
    if (above == 0) {
      return nullptr;
    }
    larger = trees_[std::countr_zero(above)];
  }
  // The smallest of a subtree lies on the path of its leftmost children.
  for (Block* node = const_cast<Block*>(larger); node; node = node->child[0] ? node->child[0] : node->child[1]) {
    consider(node);
  }
  // Another block of the ring, if there is one, leaves the tree as it is.
  return best ? best->ring_next : nullptr;
}

}  // namespace outboard::memory

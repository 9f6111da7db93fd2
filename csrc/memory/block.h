// SPDX-License-Identifier: BSD-3-Clause
// The objects of the device allocator. A segment is the result of one mem_alloc, divided into
// blocks in address order. A free block is in the free index of its segment's size pool. The lock
// of the device's heap guards all of these objects.
#pragma once

#include <c10/core/Allocator.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/export.h"
#include "core/stream.h"
#include "memory/stream_uses.h"

namespace outboard::memory {

struct Block;
struct Segment;
struct SizePool;
class DeviceHeap;

enum class BlockState : uint8_t {
  Unused,     // in the slab, no memory
  Free,       // in a free index, or its segment is being released
  Allocated,  // a DataPtr owns it
  Parked,     // freed, but work on recorded streams may still use it
  Unmapped,   // a range of an expandable segment that has no memory
  Transit,    // a range without memory, while the driver maps or unmaps it
};

// A stream that uses a block besides the block's own stream, from record_stream until the work
// queued there is done.
struct BlockUse : StreamUse {
  Block* block = nullptr;
};

constexpr int kUnitShift = 9;  // block sizes are multiples of 512 bytes

// The context of a DataPtr. Everything that an allocation or a free accesses is in the first cache
// line, because with many live blocks, cache misses dominate the cost.
struct alignas(64) Block {
  Segment* segment;  // never null while the block is in use
  SizePool* pool;    // the segment's
  uint64_t address;
  uint64_t units : 40;    // bytes / 512
  uint64_t pending : 16;  // only while Parked: uses whose work may not be done
  uint64_t state_bits : 4;
  uint64_t is_oversize : 1;  // counted in the oversize statistics
  uint64_t in_tree : 1;      // a node of the free index's tree; false for a member of a node's ring
  uint64_t is_expandable : 1;  // the segment's; kept here so that the segment's cache line is not touched
  Block* prev;               // neighbours in the segment, null at its ends
  Block* next;
  union {
    size_t requested;  // Allocated, Parked: bytes that the caller requested
    Block*
        ring_next;  // Free: blocks of the same size, null at the end of a bin's list, a ring in a tree. Unmapped: the
    // others of the size pool. Transit: a list
  };
  union {
    BlockUse* uses;  // Allocated: a list, of `next`
    Block* ring_prev;  // Free, Unmapped
  };

  // Only for free blocks above 1 MiB. In the list of blocks to be poisoned, child[0] is the next
  // block.
  Block* child[2];
  Block* parent;
  // Only for blocks that are a whole free segment: the size pool's `searches` when the block was
  // freed.
  uint64_t free_since;

  size_t size() const { return units << kUnitShift; }
  void set_size(size_t size) { units = size >> kUnitShift; }
  BlockState state() const { return static_cast<BlockState>(state_bits); }
  void set_state(BlockState state) { state_bits = static_cast<uint64_t>(state); }
  bool is_split() const { return prev != nullptr || next != nullptr; }
};
constexpr size_t kMaxUses = (1 << 16) - 1;  // the largest count that `pending` can hold
static_assert(offsetof(Block, child) == 64, "what is hot fills one cache line");

// The free blocks by size. Finds the smallest block that is large enough. Sizes up to 1 MiB have
// exact bins; above, each power of two has a bitwise trie. The cost of each operation is bounded by
// the number of bits in a size, whatever the number of blocks.
class OUTBOARD_API FreeIndex {
 public:
  void insert(Block* block) noexcept;
  void erase(Block* block) noexcept;
  // Return the block, or null if there is none. Does not erase it.
  Block* best_fit(size_t size) const noexcept;

 private:
  static constexpr size_t kBins = 2048;  // bins for sizes of 1 to 2048 units
  static constexpr size_t kWords = kBins / 64;

  Block* first_bin_from(size_t bin) const noexcept;
  void insert_in_tree(Block* block) noexcept;
  void erase_from_tree(Block* block) noexcept;
  Block* best_fit_in_tree(size_t units) const noexcept;

  Block* bins_[kBins] = {};
  uint64_t bin_words_[kWords] = {};
  uint32_t bin_summary_ = 0;  // bit i: bin_words_[i] is not 0
  uint64_t tree_summary_ = 0;  // bit i: trees_[i] is not null
  Block* trees_[64] = {};  // indexed by the position of the highest bit of a size in units
};

// The memory pool for allocations with caching disabled. Its segments are
// exactly as large as the request.
constexpr c10::MempoolId_t kUncachedPool{std::numeric_limits<c10::CaptureId_t>::max(), 0};

// The functions that allocate a memory pool's segments instead of the driver, with torch's
// signatures for pluggable allocators.
struct SegmentSource {
  void* (*alloc)(ptrdiff_t size, int device, void* stream);  // null: out of memory
  void (*free)(void* pointer, ptrdiff_t size, int device, void* stream);
};

struct StreamPools;

// The small or the large blocks of one stream in one memory pool; {0, 0} is the common memory pool.
struct SizePool {
  DeviceHeap* heap;
  Stream* stream;
  c10::MempoolId_t mempool;
  bool is_small;
  StreamPools* owner = nullptr;
  const SegmentSource* source = nullptr;  // null: the driver
  bool is_exact = false;  // each segment has the size of one block
  bool is_whole = false;  // segments are never split
  uint64_t searches = 0;
  Block* unmapped = nullptr;  // ranges of its expandable segments
  FreeIndex index{};

  size_t stat_type() const {
    using c10::CachingAllocator::StatType;
    return static_cast<size_t>(is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL);
  }
};

struct StreamPools {
  StreamPools() = default;
  StreamPools(const StreamPools&) = delete;
  StreamPools& operator=(const StreamPools&) = delete;
  SizePool small{};
  SizePool large{};
  size_t holders = 0;  // segments, and threads that are allocating one
  StreamPools* next_idle = nullptr;
};

struct Segment {
  Segment* prev = nullptr;  // the heap's list of segments, or a list of segments that are being released
  Segment* next = nullptr;
  SizePool* pool = nullptr;
  const SegmentSource* source = nullptr;  // the pool's source when the segment was made
  uint64_t address = 0;
  size_t size = 0;  // the mapped bytes of an expandable segment
  size_t span = 0;  // bytes of address space; an expandable segment's blocks cover all of it
  Block* first = nullptr;
  uint64_t host_delta = 0;  // host address minus device address, modulo 2^64
  bool has_host = false;
  bool is_expandable = false;
  bool is_oversize = false;  // counted in the oversize statistics
  bool is_counted = false;  // counted in the statistics at all
  enum class Release : uint8_t { NotYet, Drained, DrainFailed, Freed, FreeFailed } release = Release::NotYet;

  bool is_free() const { return !is_expandable && first->state() == BlockState::Free && !first->is_split(); }
  // Return true for an expandable segment that may be released.
  bool is_unmapped() const { return first->state() == BlockState::Unmapped && !first->is_split(); }
};

// Ask for huge pages. This is a hint: the system may have none.
inline void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) noexcept {
#ifdef MADV_HUGEPAGE
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
#endif
}

// A recycler of objects. It never returns memory to the system, so pointers to objects stay
// readable. If the system has huge pages, many objects share one: otherwise, blocks freed in random
// order cost a TLB miss each.
template <typename T>
class Slab {
 public:
  // May throw std::bad_alloc.
  T* take() {
    if (C10_UNLIKELY(free_.empty())) {
      grow();
    }
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  void give(T* object) noexcept { free_.push_back(object); }  // the capacity was reserved when it was made

  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

 private:
  static constexpr size_t kChunk = 64;
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kHugePageThreshold = 2048;

  struct Chunk {
    T* objects = nullptr;
    size_t count = 0;
    Chunk(size_t bytes, size_t alignment)
        : objects(static_cast<T*>(::operator new(bytes, std::align_val_t{alignment}))),
          count(bytes / sizeof(T)),
          alignment_(alignment) {}
    Chunk(Chunk&& other) noexcept
        : objects(std::exchange(other.objects, nullptr)), count(other.count), alignment_(other.alignment_) {}
    Chunk& operator=(Chunk&&) = delete;
    ~Chunk() {
      if (objects) {
        std::destroy_n(objects, count);
        ::operator delete(objects, std::align_val_t{alignment_});
      }
    }

   private:
    size_t alignment_;
  };

  void grow() {
    const bool is_huge = object_count_ >= kHugePageThreshold;
    const size_t bytes = is_huge ? kHugePage : kChunk * sizeof(T);
    const size_t count = bytes / sizeof(T);
    if (free_.capacity() < object_count_ + count) {
      free_.reserve(2 * (object_count_ + count));
    }
    chunks_.reserve(chunks_.size() + 1);
    Chunk chunk(bytes, is_huge ? kHugePage : alignof(T));
    if (is_huge) {
      advise_huge_pages(chunk.objects, bytes);
    }
    std::uninitialized_value_construct_n(chunk.objects, count);
    chunks_.push_back(std::move(chunk));
    object_count_ += count;
    for (size_t i = count; i-- > 0;) {
      free_.push_back(&chunks_.back().objects[i]);
    }
  }
  std::vector<Chunk> chunks_;
  std::vector<T*> free_;
  size_t object_count_ = 0;
};

}  // namespace outboard::memory

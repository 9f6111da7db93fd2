// SPDX-License-Identifier: BSD-3-Clause
// Enough of CUDA C++ for generated kernels with matrix units to run on a CPU, one group of items
// after the other: an item is a fiber, and 32 of them are a warp. Instructions of PTX are
// functions here, named after the instruction, written from the PTX manual: warp_drivers.py
// replaces inline assembly by calls of them. They know nothing of the generator's own description
// of the units, which they prove.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

struct float4 {
  float x, y, z, w;
};

namespace warps {
void ask_for_alignment(const void* place);
}  // namespace warps

// A GPU ends the kernel that moves 16 bytes from or to another place.
struct alignas(16) uint4 {
  unsigned x = 0, y = 0, z = 0, w = 0;
  uint4() = default;
  uint4(unsigned x, unsigned y, unsigned z, unsigned w) : x(x), y(y), z(z), w(w) {}
  uint4(const uint4& from) { *this = from; }
  uint4& operator=(const uint4& from) {
    warps::ask_for_alignment(this);
    warps::ask_for_alignment(&from);
    x = from.x, y = from.y, z = from.z, w = from.w;
    return *this;
  }
};

namespace warps {

struct Three {
  int x = 0;
};
Three thread, group;
const char* failure = nullptr;

// Addresses of shared memory have 32 bits: the others are those of this object, which is near.
char window;
uint32_t low(const void* place) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place));
}
char* shared_place(uint32_t address) {
  return &window + static_cast<int32_t>(address - low(&window));
}

void fail(const char* why) {
  if (failure == nullptr) failure = why;
}

void ask_for_alignment(const void* place) {
  asm volatile("" : "+r"(place));  // the compiler takes the type's alignment for granted
  if (reinterpret_cast<uintptr_t>(place) % 16 != 0) fail("16 bytes are moved that are not aligned to 16 bytes");
}

// What items that wait for each other bring.
struct Meeting {
  int expected = 0, here = 0;
  unsigned turn = 0;
};
struct Words {
  uint32_t at[10];
};
struct Warp {
  Meeting begin, end;
  Words given[32];
};
struct Copy {
  void* to;
  const void* from;
  uint32_t bytes;
};
struct Fiber {
  ucontext_t context;  // for the first time alone: later jumps ask the system for nothing
  jmp_buf place;
  bool has_begun = false;
  std::unique_ptr<char[]> stack;
  bool is_done = false;
  std::vector<std::vector<Copy>> copies;  // begun and not waited for, by batches; the last one is open
};

jmp_buf scheduler;
std::vector<Fiber> fibers;
std::vector<Warp> all;
Meeting barrier;
constexpr unsigned char kPoison = 0xa5;
alignas(16) unsigned char dynamic[256 << 10];
void (*kernel)(void* const*);
void* const* arguments;

Fiber& fiber() {
  return fibers[thread.x];
}
Warp& warp() {
  return all[thread.x / 32];
}

// Give the turn back to the scheduler.
void wait() {
  if (_setjmp(fiber().place) == 0) _longjmp(scheduler, 1);
}

// Run an item until it waits or ends.
void resume() {
  Fiber& next = fiber();
  if (_setjmp(scheduler) != 0) return;
  if (next.has_begun) _longjmp(next.place, 1);
  next.has_begun = true;
  setcontext(&next.context);
}

void meet(Meeting& meeting) {
  const unsigned turn = meeting.turn;
  if (++meeting.here == meeting.expected) {
    meeting.here = 0;
    ++meeting.turn;
    return;
  }
  while (meeting.turn == turn) wait();
}

// Bring an item's words, and return the words of all lanes. The caller meets
// at `end` when it has read them.
const Words* exchange(const Words& own) {
  warp().given[thread.x % 32] = own;
  meet(warp().begin);
  return warp().given;
}

void begin() {
  kernel(arguments);
  for (const auto& batch : fiber().copies)
    if (!batch.empty()) fail("a kernel ends before its copies are done");
  fiber().is_done = true;
  _longjmp(scheduler, 1);
}

bool run_group(int items) {
  fibers.resize(items);
  all.assign((items + 31) / 32, {});
  for (int i = 0; i < static_cast<int>(all.size()); ++i) all[i].begin.expected = all[i].end.expected = 32;
  barrier = {};
  barrier.expected = items;
  for (Fiber& each : fibers) {
    if (!each.stack) each.stack.reset(new char[1 << 17]);
    each.is_done = each.has_begun = false;
    each.copies.assign(1, {});
    getcontext(&each.context);
    each.context.uc_stack.ss_sp = each.stack.get();
    each.context.uc_stack.ss_size = 1 << 17;
    each.context.uc_link = nullptr;
    makecontext(&each.context, begin, 0);
  }
  for (int left = items, turns = 0; left > 0; ++turns) {
    if (turns > 1000000) return false;
    left = 0;
    for (int i = 0; i < items; ++i) {
      // The last item comes first in every other turn, so that none relies on the order.
      thread.x = turns % 2 == 0 ? i : items - 1 - i;
      if (fiber().is_done) continue;
      resume();
      left += fiber().is_done ? 0 : 1;
    }
  }
  return true;
}

const char* run(void (*given)(void* const*), void* const* values, int groups, int items, int dynamic_bytes) {
  kernel = given, arguments = values, failure = nullptr;
  std::memset(dynamic, kPoison, sizeof dynamic);
  for (group.x = 0; group.x < groups && failure == nullptr; ++group.x) {
    if (!run_group(items)) return "items wait for each other and don't meet";
  }
  for (size_t i = dynamic_bytes; i < sizeof dynamic; ++i)
    if (dynamic[i] != kPoison) return "a kernel writes behind its dynamic memory";
  return failure;
}

float of_f16(uint32_t bits) {
  _Float16 value;
  const auto half = static_cast<uint16_t>(bits);
  std::memcpy(&value, &half, 2);
  return static_cast<float>(value);
}
float of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
float of_bf16(uint32_t bits) {
  return of_bits(bits << 16);
}

// mma.m16n8k16. The manual gives, for each element of a fragment, its row and its column:
//   A  row = groupID for a0, a1, a4 and a5, else groupID + 8
//      column = threadID_in_group * 2 + (i & 1) for i < 4, else 8 more
//   B  row = threadID_in_group * 2 + (i & 1) for i < 2, else 8 more; column = groupID
//   C  row = groupID for c0 and c1, else 8 more; column = threadID_in_group * 2 + (i & 1)
template <typename Element>
void multiply(float& c0, float& c1, float& c2, float& c3, const Words& own, Element element) {
  const Words* words = exchange(own);
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int group_id = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = i < 2 || (4 <= i && i < 6) ? group_id : group_id + 8;
      const int column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      a[row][column] = element(words[lane].at[i / 2] >> 16 * (i % 2) & 0xffffu);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      b[row][group_id] = element(words[lane].at[4 + i / 2] >> 16 * (i % 2) & 0xffffu);
    }
  }
  const int lane = thread.x % 32;
  float* c[4] = {&c0, &c1, &c2, &c3};
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = lane % 4 * 2 + (i & 1);
    for (int step = 0; step < 16; ++step) *c[i] += a[row][step] * b[step][column];
  }
  meet(warp().end);
}

// mma.m16n8k8 of TF32, which reads the upper 19 bits of a register:
//   A  row = groupID for a0 and a2, else groupID + 8; column = threadID_in_group for a0 and a1, else 4 more
//   B  row = threadID_in_group for b0, else 4 more; column = groupID
//   C  as above
inline void multiply_tf32(float& c0, float& c1, float& c2, float& c3, const Words& own) {
  const Words* words = exchange(own);
  float a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int group_id = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = i == 0 || i == 2 ? group_id : group_id + 8, column = i < 2 ? in_group : in_group + 4;
      a[row][column] = of_bits(words[lane].at[i] & 0xffffe000u);
    }
    for (int i = 0; i < 2; ++i)
      b[i == 0 ? in_group : in_group + 4][group_id] = of_bits(words[lane].at[4 + i] & 0xffffe000u);
  }
  const int lane = thread.x % 32;
  float* c[4] = {&c0, &c1, &c2, &c3};
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = lane % 4 * 2 + (i & 1);
    for (int step = 0; step < 8; ++step) *c[i] += a[row][step] * b[step][column];
  }
  meet(warp().end);
}

// ldmatrix: lanes 8 * j to 8 * j + 7 give the addresses of the rows of matrix j, of eight elements
// of 16 bits. A lane gets of matrix j the elements 2 * (lane % 4) and the next one of row lane / 4,
// or of column lane / 4 with .trans.
inline void load_matrices(uint32_t* into, int count, uint32_t address, bool is_transposed) {
  if (address % 16 != 0) fail("ldmatrix reads a row that is not aligned to 16 bytes");
  const Words* words = exchange({{address}});
  const int lane = thread.x % 32;
  for (int j = 0; j < count; ++j) {
    uint32_t word = 0;
    for (int i = 0; i < 2; ++i) {
      const int other = lane / 4, one = 2 * (lane % 4) + i;
      const int row = is_transposed ? one : other, column = is_transposed ? other : one;
      uint16_t element;
      std::memcpy(&element, shared_place(words[8 * j + row].at[0]) + 2 * column, 2);
      word |= static_cast<uint32_t>(element) << 16 * i;
    }
    into[j] = word;
  }
  meet(warp().end);
}

}  // namespace warps

#ifdef WARPS_CUDA
#define __device__
#define __constant__
#define __forceinline__ inline
#define __global__
#define __shared__
#define __CUDA_ARCH__ 900
#define threadIdx ::warps::thread
#define blockIdx ::warps::group
#define blockDim (::warps::Three{static_cast<int>(::warps::fibers.size())})
inline void __syncthreads() {
  warps::meet(warps::barrier);
}
inline uint32_t __cvta_generic_to_shared(const void* place) {
  return warps::low(place);
}
inline float __uint_as_float(unsigned bits) {
  return warps::of_bits(bits);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline float __int_as_float(int bits) {
  return warps::of_bits(static_cast<unsigned>(bits));
}
inline unsigned __float_as_uint(float value) {
  return warps::bits_of(value);
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}
// One item runs at a time.
template <typename T>
T atomicAdd(T* place, T value) {
  const T before = *place;
  *place += value;
  return before;
}
inline unsigned atomicCAS(unsigned* place, unsigned seen, unsigned next) {
  const unsigned before = *place;
  if (before == seen) *place = next;
  return before;
}
#endif

#ifdef WARPS_OPENCL_C
#define __NV_CL_C_VERSION 120
#define __kernel
#define __global
#define __constant static const
#define __local
#define restrict __restrict__
#define CLK_LOCAL_MEM_FENCE 0
using uchar = unsigned char;
using ushort = unsigned short;
inline void barrier(int) {
  warps::meet(warps::barrier);
}
inline unsigned get_work_dim() {
  return 1;
}
inline long get_local_id(int) {
  return warps::thread.x;
}
inline long get_group_id(int) {
  return warps::group.x;
}
inline long get_global_id(int) {
  return warps::group.x * static_cast<long>(warps::fibers.size()) + warps::thread.x;
}
inline unsigned as_uint(float value) {
  return warps::bits_of(value);
}
inline float as_float(unsigned bits) {
  return warps::of_bits(bits);
}
inline unsigned atomic_cmpxchg(volatile unsigned* place, unsigned seen, unsigned next) {
  const unsigned before = *place;
  if (before == seen) *place = next;
  return before;
}
inline unsigned long atom_cmpxchg(volatile unsigned long* place, unsigned long seen, unsigned long next) {
  const unsigned long before = *place;
  if (before == seen) *place = next;
  return before;
}
inline void atomic_add(volatile int* place, int value) {
  *place = *place + value;
}
inline void atom_add(volatile long* place, long value) {
  *place = *place + value;
}
inline double as_double(unsigned long bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline unsigned long as_ulong(double value) {
  unsigned long bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}
#endif

// The instructions.
inline void ptx_cvt_f32_f16(float& to, uint16_t from) {
  to = warps::of_f16(from);
}
inline void ptx_cvt_rn_f16_f32(uint16_t& to, float from) {
  const auto half = static_cast<_Float16>(from);
  std::memcpy(&to, &half, 2);
}
inline void ptx_cvt_rn_bf16_f32(uint16_t& to, float from) {
  const uint32_t bits = warps::bits_of(from);
  to = from != from ? 0x7fff : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline void ptx_cvt_rn_f16x2_f32(uint32_t& to, float high, float low) {
  uint16_t halves[2];
  ptx_cvt_rn_f16_f32(halves[0], low);
  ptx_cvt_rn_f16_f32(halves[1], high);
  to = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}
inline void ptx_cvt_rn_bf16x2_f32(uint32_t& to, float high, float low) {
  uint16_t halves[2];
  ptx_cvt_rn_bf16_f32(halves[0], low);
  ptx_cvt_rn_bf16_f32(halves[1], high);
  to = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}
// Halves are rounded away from zero.
inline void ptx_cvt_rna_tf32_f32(uint32_t& to, float from) {
  to = from != from ? 0x7fffffff : (warps::bits_of(from) + 0x1000u) & 0xffffe000u;
}
// Nothing is there before the wait.
inline void ptx_cp_async_cg_shared_global_l2__128b(uint32_t to, const void* from, uint32_t bytes) {
  char* place = warps::shared_place(to);
  const uintptr_t source = bytes != 0 ? reinterpret_cast<uintptr_t>(from) : 0;
  if (((reinterpret_cast<uintptr_t>(place) | source) & 15) != 0)
    warps::fail("cp.async copies what is not aligned to 16 bytes");
  warps::fiber().copies.back().push_back({place, from, bytes});
}
inline void ptx_cp_async_ca_shared_global_l2__128b(uint32_t to, const void* from, uint32_t bytes) {
  ptx_cp_async_cg_shared_global_l2__128b(to, from, bytes);
}
inline void ptx_cp_async_commit_group() {
  warps::fiber().copies.emplace_back();
}
// What is not copied is filled with zeros.
inline void ptx_cp_async_wait_group(int later) {
  auto& batches = warps::fiber().copies;
  while (static_cast<int>(batches.size()) > later + 1) {
    for (const warps::Copy& copy : batches.front()) {
      std::memset(copy.to, 0, 16);
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    batches.erase(batches.begin());
  }
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d,
                                                         uint32_t from) {
  uint32_t into[4];
  warps::load_matrices(into, 4, from, false);
  a = into[0], b = into[1], c = into[2], d = into[3];
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d,
                                                               uint32_t from) {
  uint32_t into[4];
  warps::load_matrices(into, 4, from, true);
  a = into[0], b = into[1], c = into[2], d = into[3];
}
inline void ptx_shfl_sync_bfly_b32(float& to, float value, uint32_t bit) {
  const warps::Words* words = warps::exchange({{warps::bits_of(value)}});
  to = warps::of_bits(words[(warps::thread.x % 32) ^ bit].at[0]);
  warps::meet(warps::warp().end);
}
inline void ptx_ex2_approx_ftz_f32(float& to, float from) {
  to = std::exp2(from);
}
#define WARPS_MMA(KIND)                                                                                       \
  inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_##KIND##_##KIND##_f32(                                \
      float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, \
      uint32_t b1) {                                                                                          \
    warps::multiply(c0, c1, c2, c3, {{a0, a1, a2, a3, b0, b1}}, warps::of_##KIND);                            \
  }
WARPS_MMA(f16)
WARPS_MMA(bf16)
inline void ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float& c0, float& c1, float& c2, float& c3,
                                                                   uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                                   uint32_t b0, uint32_t b1) {
  warps::multiply_tf32(c0, c1, c2, c3, {{a0, a1, a2, a3, b0, b1}});
}

// SPDX-License-Identifier: BSD-3-Clause
// Collectives on host memory, built from transfers, for simulated devices.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_outboard/collectives.h"
#include "torch_outboard/support/exchange.h"

namespace support {

inline uint64_t size_of(ob_dtype dtype) {
  switch (dtype) {
    case OB_UINT8:
    case OB_INT8:
      return 1;
    case OB_FLOAT16:
    case OB_BFLOAT16:
      return 2;
    case OB_INT32:
    case OB_UINT32:
    case OB_FLOAT32:
      return 4;
    case OB_INT64:
    case OB_UINT64:
    case OB_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

inline const char* name_of(ob_dtype dtype) {
  switch (dtype) {
    case OB_INT8:
      return "int8";
    case OB_FLOAT16:
      return "float16";
    case OB_BFLOAT16:
      return "bfloat16";
    case OB_INT32:
      return "int32";
    case OB_UINT32:
      return "uint32";
    case OB_FLOAT32:
      return "float32";
    case OB_INT64:
      return "int64";
    case OB_UINT64:
      return "uint64";
    case OB_FLOAT64:
      return "float64";
    default:
      return "uint8";
  }
}

inline const char* name_of_kind(int32_t kind) {
  static const char* const names[] = {"all_reduce",     "broadcast", "reduce", "all_gather",
                                      "reduce_scatter", "send",      "recv"};
  return names[kind];
}

inline bool reduces(const ob_collective& call) {
  return call.kind == OB_ALL_REDUCE || call.kind == OB_REDUCE || call.kind == OB_REDUCE_SCATTER;
}

// Describe what all ranks of a call, or the two ranks of a send and a receive, must agree on.
inline std::string describe(const ob_collective& call) {
  static const char* const reductions[] = {"SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM"};
  const bool is_pair = call.kind == OB_SEND || call.kind == OB_RECV;
  std::string text = is_pair ? "send and recv" : name_of_kind(call.kind);
  if (reduces(call)) text += std::string(" ") + reductions[call.reduce];
  if (call.kind == OB_BROADCAST || call.kind == OB_REDUCE) text += " (root " + std::to_string(call.root) + ")";
  return text + " of " + std::to_string(call.count) + " " + name_of(call.dtype);
}

// The upper half of a float's bits: bfloat16.
struct BFloat16 {
  uint16_t bits;
  explicit BFloat16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    bits = static_cast<uint16_t>((wide + 0x7FFFu + (wide >> 16 & 1u)) >> 16);
  }
  explicit operator float() const {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

template <class T, class Wide>
void reduce_one(const ob_collective& call, const char* parts, int size, char* out) {
  const T* from = reinterpret_cast<const T*>(parts);
  T* to = reinterpret_cast<T*>(out);
  for (uint64_t i = 0; i < call.count; ++i) {
    Wide value = static_cast<Wide>(from[i]);
    for (int rank = 1; rank < size; ++rank) {
      const Wide other = static_cast<Wide>(from[static_cast<uint64_t>(rank) * call.count + i]);
      switch (call.reduce) {
        case OB_REDUCE_PRODUCT:
          value = static_cast<Wide>(value * other);
          break;
        case OB_REDUCE_MIN:
          value = other < value ? other : value;
          break;
        case OB_REDUCE_MAX:
          value = value < other ? other : value;
          break;
        default:
          value = static_cast<Wide>(value + other);
      }
    }
    if (call.reduce == OB_REDUCE_AVG) value = static_cast<Wide>(value / static_cast<Wide>(size));
    to[i] = static_cast<T>(value);
  }
}

// Multiply the elements of this rank by its factor.
template <class T, class Wide>
void multiply(char* data, uint64_t count, double scale) {
  T* values = reinterpret_cast<T*>(data);
  for (uint64_t i = 0; i < count; ++i)
    values[i] = static_cast<T>(static_cast<Wide>(values[i]) * static_cast<Wide>(scale));
}

// A call's transfers, and the function that computes the result from them.
struct Plan {
  std::vector<Transfer> transfers;
  std::function<void()> finish;  // may be empty
  std::vector<std::shared_ptr<std::vector<char>>> kept;
};

// Reduce the parts of all ranks, in the order of ranks.
inline void reduce_parts(const ob_collective& call, const char* parts, int size, char* out) {
  switch (call.dtype) {
    case OB_INT8:
      return reduce_one<int8_t, int64_t>(call, parts, size, out);
    case OB_UINT8:
      return reduce_one<uint8_t, uint64_t>(call, parts, size, out);
    case OB_INT32:
      return reduce_one<int32_t, int64_t>(call, parts, size, out);
    case OB_UINT32:
      return reduce_one<uint32_t, uint64_t>(call, parts, size, out);
    case OB_INT64:
      return reduce_one<int64_t, int64_t>(call, parts, size, out);
    case OB_UINT64:
      return reduce_one<uint64_t, uint64_t>(call, parts, size, out);
    case OB_FLOAT16:
      return reduce_one<_Float16, float>(call, parts, size, out);
    case OB_BFLOAT16:
      return reduce_one<BFloat16, float>(call, parts, size, out);
    case OB_FLOAT64:
      return reduce_one<double, double>(call, parts, size, out);
    default:
      return reduce_one<float, float>(call, parts, size, out);
  }
}

inline void premultiply(const ob_collective& call, char* data, uint64_t count) {
  switch (call.dtype) {
    case OB_FLOAT16:
      return multiply<_Float16, float>(data, count, call.scale);
    case OB_BFLOAT16:
      return multiply<BFloat16, float>(data, count, call.scale);
    case OB_FLOAT64:
      return multiply<double, double>(data, count, call.scale);
    default:
      return multiply<float, float>(data, count, call.scale);
  }
}

// Return true if the call's type and reduction are supported, which every rank decides alike.
inline bool has_collective(const ob_collective& call) {
  const bool is_float =
      call.dtype == OB_FLOAT16 || call.dtype == OB_BFLOAT16 || call.dtype == OB_FLOAT32 || call.dtype == OB_FLOAT64;
  if (call.kind < OB_ALL_REDUCE || call.kind > OB_RECV || size_of(call.dtype) == 0) return false;
  return !reduces(call) || (call.reduce >= OB_REDUCE_SUM && call.reduce <= OB_REDUCE_PREMUL_SUM &&
                            (call.reduce != OB_REDUCE_PREMUL_SUM || is_float));
}

namespace detail {

inline void add_reduction(const ob_collective& call, char* src, char* dst, int rank, int size, Plan* out_plan) {
  const bool scatters = call.kind == OB_REDUCE_SCATTER;
  const uint64_t bytes = call.count * size_of(call.dtype);
  if (call.reduce == OB_REDUCE_PREMUL_SUM) {
    const uint64_t all = bytes * static_cast<uint64_t>(scatters ? size : 1);
    const auto own = std::make_shared<std::vector<char>>(src, src + all);
    premultiply(call, own->data(), call.count * static_cast<uint64_t>(scatters ? size : 1));
    out_plan->kept.push_back(own);
    src = own->data();
  }
  const auto part_of = [=](int of) { return src + (scatters ? static_cast<uint64_t>(of) * bytes : 0); };
  const bool receives = call.kind != OB_REDUCE || call.root == rank;
  const auto parts = std::make_shared<std::vector<char>>(receives ? bytes * static_cast<uint64_t>(size) : 0);
  for (int peer = 0; peer < size; ++peer) {
    char* const at = parts->data() + static_cast<uint64_t>(peer) * bytes;
    if (peer == rank) {
      if (receives) std::memcpy(at, part_of(rank), bytes);
      continue;
    }
    if (call.kind != OB_REDUCE || call.root == peer) out_plan->transfers.push_back({true, peer, part_of(peer), bytes});
    if (receives) out_plan->transfers.push_back({false, peer, at, bytes});
  }
  if (receives) out_plan->finish = [=] { reduce_parts(call, parts->data(), size, dst); };
}

}  // namespace detail

// Add a call's transfers. Addresses are host addresses.
inline void add_to_plan(const ob_collective& call, char* src, char* dst, int rank, int size, Plan* out_plan) {
  const uint64_t bytes = call.count * size_of(call.dtype);
  std::vector<Transfer>& transfers = out_plan->transfers;
  const size_t first = transfers.size();
  switch (call.kind) {
    case OB_SEND:
      transfers.push_back({true, call.root, src, bytes});
      break;
    case OB_RECV:
      transfers.push_back({false, call.root, dst, bytes});
      break;
    case OB_BROADCAST:
      if (call.root != rank) {
        transfers.push_back({false, call.root, dst, bytes});
        break;
      }
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) transfers.push_back({true, peer, src, bytes});
      }
      if (dst != src) out_plan->finish = [=] { std::memmove(dst, src, bytes); };
      break;
    case OB_ALL_GATHER:
      std::memmove(dst + static_cast<uint64_t>(rank) * bytes, src, bytes);
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        transfers.push_back({true, peer, dst + static_cast<uint64_t>(rank) * bytes, bytes});
        transfers.push_back({false, peer, dst + static_cast<uint64_t>(peer) * bytes, bytes});
      }
      break;
    default:
      detail::add_reduction(call, src, dst, rank, size, out_plan);
  }
  for (size_t i = first; i < transfers.size(); ++i) transfers[i].call = describe(call);
}

}  // namespace support

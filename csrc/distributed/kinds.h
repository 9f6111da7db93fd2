// SPDX-License-Identifier: BSD-3-Clause
// The collectives and point-to-point operations: their names, and how
// often each provider has run them.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <cstdint>

namespace outboard {

// How Gloo, which supports only CPU memory, accesses the tensors of a call.
enum class Transport : uint8_t {
  Cpu,     // CPU tensors
  Host,    // the host can access the device's memory: no copies
  Staged,  // through pinned memory, copied in a stream
  Native,  // without Gloo: the driver's own collectives exchange in a stream
};

struct Kind {
  c10d::OpType type;
  const char* name;   // "all_reduce", for messages
  const char* op;     // "c10d::allreduce_", for coverage()
  const char* title;  // for profilers and reports of long waits
  const char* record;  // the name that torch's own backends use in profiles
  mutable std::atomic<uint64_t> host{0};
  mutable std::atomic<uint64_t> staged{0};
  mutable std::atomic<uint64_t> native{0};

  void count(Transport transport) const noexcept {
    if (transport != Transport::Cpu) {
      (transport == Transport::Host     ? host
       : transport == Transport::Staged ? staged
                                        : native)
          .fetch_add(1, std::memory_order_relaxed);
    }
  }
};

namespace kinds {
extern const Kind all_reduce, all_reduce_coalesced, broadcast, reduce, all_gather, all_gather_base,
    all_gather_coalesced, all_gather_lists, gather, scatter, reduce_scatter, reduce_scatter_base,
    reduce_scatter_coalesced, all_to_all_base, all_to_all, send, recv, recv_any_source, barrier;
}  // namespace kinds

}  // namespace outboard

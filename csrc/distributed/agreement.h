// SPDX-License-Identifier: BSD-3-Clause
// Whether the ranks of a group are about to exchange the same. Gloo ends the process of a rank
// that receives more than it expects, from a thread of Gloo's where nothing can catch the error.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace outboard {

// What a rank says of its call.
struct Claim {
  std::string text;  // equal on ranks that agree, and readable
  // Of an all-to-all, the bytes for each rank, then the bytes from each rank.
  std::vector<int64_t> parts;
};

// Compare the claims of all ranks, and raise on each of them if they differ, with an error that
// names two ranks and their calls. `gloo_mutex` is held while Gloo is called, not while it runs.
void check_agreement(c10d::Backend& gloo, std::mutex& gloo_mutex, const Claim& claim,
                     std::chrono::milliseconds timeout);

}  // namespace outboard

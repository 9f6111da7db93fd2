// SPDX-License-Identifier: BSD-3-Clause
// Checks whether the ranks of a group agree on an exchange. If a rank receives more than it
// expects, Gloo terminates its process, from a Gloo thread where nothing can catch the error.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace outboard {

// A rank's description of its call.
struct CallFingerprint {
  std::string text;  // equal on ranks that agree, and readable
  // Of an all-to-all, the bytes for each rank, then the bytes from each rank.
  std::vector<int64_t> parts;
};

// Compare the fingerprints of all ranks, and raise on each of them if they differ, with an error
// that names two ranks and their calls. `gloo_mutex` is held during calls to Gloo, not while Gloo
// runs.
void check_agreement(c10d::Backend& gloo, std::mutex& gloo_mutex, const CallFingerprint& fingerprint,
                     std::chrono::milliseconds timeout);

}  // namespace outboard

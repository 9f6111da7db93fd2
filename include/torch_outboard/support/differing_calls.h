// SPDX-License-Identifier: BSD-3-Clause
// The sentence about ranks that do not make the same call.
#pragma once

#include <string>
#include <string_view>

namespace support {

// Return the sentence, without a full stop: two ranks, and the call of each in words.
inline std::string differing_calls(int rank, std::string_view call, int other, std::string_view others_call) {
  std::string text = "the ranks' calls differ: rank " + std::to_string(rank) + " calls ";
  text.append(call).append(", and rank ").append(std::to_string(other)).append(" calls ").append(others_call);
  return text + ". Every rank has to make the same calls in the same order";
}

}  // namespace support

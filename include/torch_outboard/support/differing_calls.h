// SPDX-License-Identifier: BSD-3-Clause
// The error message for ranks that make different calls.
#pragma once

#include <string>
#include <string_view>

namespace support {

// Return a sentence, without a full stop, that names two ranks and describes their calls.
inline std::string differing_calls(int rank, std::string_view call, int other, std::string_view others_call) {
  std::string text = "the ranks' calls differ: rank " + std::to_string(rank) + " calls ";
  text.append(call).append(", and rank ").append(std::to_string(other)).append(" calls ").append(others_call);
  return text + ". Every rank has to make the same calls in the same order";
}

}  // namespace support

// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <torch_outboard/support/differing_calls.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

namespace outboard {

namespace {

// A fingerprint's hash, then as much of its text as fits.
constexpr size_t kHeaderBytes = 128;
constexpr size_t kHashBytes = sizeof(uint64_t);

// Return the tensors of all ranks, one after the other.
at::Tensor gather(c10d::Backend& gloo, std::mutex& gloo_mutex, at::Tensor own, std::chrono::milliseconds timeout) {
  at::Tensor all = at::empty({gloo.getSize() * own.numel()}, own.options());
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  c10::intrusive_ptr<c10d::Work> work;
  {
    const std::lock_guard lock(gloo_mutex);
    work = gloo._allgather_base(all, own, options);
  }
  work->wait();
  return all;
}

std::string_view text_of(const char* header) {
  const char* const text = header + kHashBytes;
  return {text, strnlen(text, kHeaderBytes - kHashBytes)};
}

void check_texts(const char* headers, int size) {
  for (int rank = 1; rank < size; ++rank) {
    const char* const header = headers + rank * kHeaderBytes;
    TORCH_CHECK(std::memcmp(headers, header, kHeaderBytes) == 0,
                support::differing_calls(0, text_of(headers), rank, text_of(header)), ".");
  }
}

void check_parts(const int64_t* parts, int size) {
  const auto row = [&](int rank) { return parts + static_cast<ptrdiff_t>(2 * size) * rank; };
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const int64_t sent = row(from)[to], expected = row(to)[size + from];
      TORCH_CHECK(sent == expected, "the ranks' splits differ: rank ", from, " sends ", sent, " bytes to rank ", to,
                  ", which expects ", expected, ". Pass split sizes that match on all ranks");
    }
  }
}

}  // namespace

void check_agreement(c10d::Backend& gloo, std::mutex& gloo_mutex, const CallFingerprint& fingerprint,
                     std::chrono::milliseconds timeout) {
  const at::Tensor header = at::zeros({static_cast<int64_t>(kHeaderBytes)}, at::kByte);
  char* const bytes = static_cast<char*>(header.mutable_data_ptr());
  const uint64_t hash = std::hash<std::string>{}(fingerprint.text);
  std::memcpy(bytes, &hash, kHashBytes);
  std::memcpy(bytes + kHashBytes, fingerprint.text.data(),
              std::min(fingerprint.text.size(), kHeaderBytes - kHashBytes));
  const at::Tensor headers = gather(gloo, gloo_mutex, header, timeout);
  check_texts(static_cast<const char*>(headers.const_data_ptr()), gloo.getSize());
  if (!fingerprint.parts.empty()) {
    const at::Tensor own = at::empty({static_cast<int64_t>(fingerprint.parts.size())}, at::kLong);
    std::copy(fingerprint.parts.begin(), fingerprint.parts.end(), own.mutable_data_ptr<int64_t>());
    check_parts(gather(gloo, gloo_mutex, own, timeout).const_data_ptr<int64_t>(), gloo.getSize());
  }
}

}  // namespace outboard

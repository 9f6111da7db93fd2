// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/argument_kind.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>

namespace outboard::kernels {

namespace {

// "r (the address of a tensor that is read), w (…"
std::string list_of_letters(bool is_on_host) {
  std::string list;
  for (const ArgumentKindInfo& info : kArgumentKinds) {
    if (info.is_on_host || !is_on_host) {
      list += (list.empty() ? "" : ", ") + std::string(1, static_cast<char>(info.kind)) + " (" + info.meaning + ")";
    }
  }
  return list;
}

}  // namespace

ArgumentKinds read_kinds(const std::string& kernel, std::string_view letters, bool is_on_host) {
  ArgumentKinds kinds;
  for (const char letter : letters) {
    const auto* info = std::ranges::find_if(
        kArgumentKinds, [letter](const ArgumentKindInfo& info) { return static_cast<char>(info.kind) == letter; });
    TORCH_CHECK_VALUE(info != kArgumentKinds.end() && (info->is_on_host || !is_on_host), "argument ", kinds.size(),
                      " of the kernel ", kernel, " has the unknown letter '", std::string(1, letter), "' in '",
                      std::string(letters), "'. The letters", is_on_host ? " of a kernel on the host" : "",
                      " are: ", list_of_letters(is_on_host));
    kinds.push_back(info->kind);
  }
  return kinds;
}

std::string letters_of(c10::ArrayRef<ArgumentKind> kinds) {
  std::string letters;
  for (const ArgumentKind kind : kinds) {
    letters.push_back(static_cast<char>(kind));
  }
  return letters;
}

ArgumentKinds passed(c10::ArrayRef<ArgumentKind> kinds) {
  ArgumentKinds result;
  std::ranges::copy_if(kinds, std::back_inserter(result), [](ArgumentKind kind) { return info_of(kind).is_passed; });
  return result;
}

}  // namespace outboard::kernels

// SPDX-License-Identifier: BSD-3-Clause
#include "core/collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.h"

namespace outboard {

namespace {

ob_collectives installed{};

[[noreturn]] void refuse_collectives(const std::string& name, const std::string& why) {
  raise(ErrorKind::Registration, OB_INVALID_ARGUMENT,
        "the collectives table of driver '" + name + "' cannot be used: " + why);
}

}  // namespace

ob_collectives check_collectives(const std::string& name, const ob_collectives& table) {
  if (table.abi_major != OB_COLLECTIVES_MAJOR) {
    refuse_collectives(name, "it was built for version " + std::to_string(table.abi_major) + ", but this is version " +
                                 std::to_string(OB_COLLECTIVES_MAJOR) +
                                 ". Rebuild the driver with the installed torch_outboard/collectives.h.");
  }
  constexpr size_t kLeastSize = offsetof(ob_collectives, comm_destroy) + sizeof(ob_collectives::comm_destroy);
  if (table.struct_size < kLeastSize || table.struct_size > sizeof(table)) {
    refuse_collectives(name, "struct_size is " + std::to_string(table.struct_size) +
                                 " bytes; the required entries need " + std::to_string(kLeastSize) +
                                 ", and the core's table has " + std::to_string(sizeof(table)) +
                                 ". Set struct_size to sizeof(ob_collectives).");
  }
  ob_collectives copy{};
  std::memcpy(&copy, &table, table.struct_size);
  const std::pair<const char*, bool> required[] = {
      {"make_id", copy.make_id != nullptr},         {"comm_create", copy.comm_create != nullptr},
      {"comm_status", copy.comm_status != nullptr}, {"queue", copy.queue != nullptr},
      {"comm_abort", copy.comm_abort != nullptr},   {"comm_destroy", copy.comm_destroy != nullptr},
  };
  for (const auto& [entry, is_present] : required) {
    if (!is_present) {
      refuse_collectives(name, std::string("the required entry `") + entry + "` is missing");
    }
  }
  if ((copy.group_begin == nullptr) != (copy.group_end == nullptr)) {
    refuse_collectives(name, "it must have both group_begin and group_end, or neither");
  }
  return copy;
}

void install_collectives(const ob_collectives& table) noexcept {
  installed = table;
}

const ob_collectives* collectives() noexcept {
  return installed.queue != nullptr ? &installed : nullptr;
}

std::string last_collectives_error() {
  char text[2048] = "";
  if (installed.last_error != nullptr) {
    installed.last_error(installed.self, text, sizeof text);
    text[sizeof text - 1] = '\0';
  }
  return text;
}

}  // namespace outboard

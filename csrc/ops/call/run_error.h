// SPDX-License-Identifier: BSD-3-Clause
// Add to a failure of queued work where it came from: it is raised at a later wait, far from the call.
#pragma once

#include <exception>
#include <string>

namespace outboard {

// The exception being handled, of its own type, with the name of what ran ("operator aten::add.out") and, if it is not
// raised by the call itself, how to have it there. To be called in a catch block.
std::exception_ptr with_name_of(const std::string& what, bool is_late = true);

}  // namespace outboard

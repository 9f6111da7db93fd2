// SPDX-License-Identifier: BSD-3-Clause
// Adds the origin to a failure of queued work, because the failure is raised at a later wait, far
// from the call.
#pragma once

#include <exception>
#include <string>

namespace outboard {

// Return the exception being handled, plus the name of what ran ("operator aten::add.out"). If the
// failure is raised after the call, the message also explains how to raise it at the call. A
// c10::Error keeps its type; any other exception becomes a c10::Error. Call it in a catch block.
std::exception_ptr with_name_of(const std::string& what, bool is_late = true);

}  // namespace outboard

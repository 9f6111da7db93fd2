// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/run_error.h"

#include <c10/util/Exception.h>

#include "core/blocking.h"

namespace outboard {

std::exception_ptr with_name_of(const std::string& what, bool is_late) {
  std::string where = "in " + what + ", which ran on the device's stream";
  if (is_late && !waits_for_calls()) {
    where += "; OUTBOARD_BLOCKING=1 raises it at the call";
  }
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(where);
    return std::current_exception();
  } catch (const std::exception& error) {
    return std::make_exception_ptr(c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                              std::string(error.what()) + " (" + where + ")"));
  } catch (...) {
    return std::make_exception_ptr(
        c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "an unknown exception " + where));
  }
}

}  // namespace outboard

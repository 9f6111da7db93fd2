// SPDX-License-Identifier: BSD-3-Clause
// Work that several processes of a user need at once, such as the build of a program that all of
// them keep on disk: the first does it, and the others wait and read its result. A lock on a file
// marks the work. The system releases it when a process ends, however that happens. `turn` in
// torch_outboard/_sealed.py does the same for the builder of plans.
#pragma once

#include <string>

#include "core/export.h"

namespace outboard {

// A scope in which this process does the work that the file stands for, or has waited until
// another one has ended it. Waits for a minute at most. Never raises: where no file can be locked,
// each process works for itself. So does a process that has waited and finds no result.
class OUTBOARD_API Turn {
 public:
  // The file is created, in a folder that exists, and removed at the end.
  explicit Turn(std::string path);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Return true if another process did the work meanwhile, or failed to.
  bool has_waited() const noexcept { return has_waited_; }

 private:
  std::string path_;
  int file_ = -1;  // while it is locked
  bool has_waited_ = false;
};

// End the waits, at the end of the process.
OUTBOARD_API void end_turns() noexcept;

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Work that several processes of a user need at the same time, such as building a program that all
// of them store on disk: the first process does it, and the others wait and read the result. A lock
// on a file marks the work. The system releases it when a process ends, however that happens.
// `build_lock` in torch_outboard/_private_files.py does the same for the plan builder.
#pragma once

#include <string>

#include "core/export.h"

namespace outboard {

// A scope in which this process does the work that the file represents, or has waited until another
// process has done it. Waits at most a minute. Never raises: if files cannot be locked, each
// process does the work itself. So does a process that waited but finds no result.
class OUTBOARD_API BuildLock {
 public:
  // Create the file, in an existing folder. It is removed at the end of the scope.
  explicit BuildLock(std::string path);
  ~BuildLock();
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

  // Return true if another process did the work meanwhile, or failed to.
  bool has_waited() const noexcept { return has_waited_; }

 private:
  std::string path_;
  int file_ = -1;  // while it is locked
  bool has_waited_ = false;
};

// End the waits when the process exits.
OUTBOARD_API void end_lock_waits() noexcept;

}  // namespace outboard

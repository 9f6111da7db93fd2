// SPDX-License-Identifier: BSD-3-Clause
// Files that are kept for later processes, which run their content: only what nobody else may have written is read.
//
// A file is trusted if it is a regular file, no link, of at most 64 MiB. It and its folder belong to the user of this
// process or to root, and nobody else may write them. The folder above them follows the same rule, except that everybody
// may write a sticky one, as /tmp, and the user's group the user's own. Thread-safe; nothing is remembered.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "core/export.h"

namespace outboard {

struct PrivateFile {
  std::optional<std::string> content;
  // Why there is no content, with the path and what to do; "" if there is no file.
  std::string obstacle;
  // The system's number for it; EPERM if the file isn't trusted.
  int error = 0;
};

// Return what a file has. Its owner may be `trusted` too, whose code runs in this process anyway.
OUTBOARD_API PrivateFile read_private(const std::string& path, uid_t trusted);
OUTBOARD_API PrivateFile read_private(const std::string& path);

// Make a folder that only its user may write, and the folders above that are missing: mode 0700, whatever the umask. The
// mode of a folder of the user's own is repaired; root's is taken as it is. Return why it can't be used, "" if it can.
OUTBOARD_API std::string make_private_folder(const std::string& path);

// Return the folder of plans, programs and schedules: OUTBOARD_KERNEL_CACHE_DIR, else one in the user's cache; "" for
// none. A relative path begins where the process was when this library was loaded.
OUTBOARD_API std::string kernel_cache_folder();

// Return a path that begins where the process was when this library was loaded, if it is relative.
OUTBOARD_API std::string absolute_path(const std::string& path);

// Return a path as text for a message: what is no printable UTF-8 becomes \xNN.
OUTBOARD_API std::string printable_path(const std::string& path);

}  // namespace outboard

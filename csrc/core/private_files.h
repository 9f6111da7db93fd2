// SPDX-License-Identifier: BSD-3-Clause
// Files kept for later processes, which may run their content. Only files that no other user can
// have written are read.
//
// A file is trusted if it is a regular file of at most 64 MiB, not a link. The file and its folder
// belong to this process's user or to root, and no other user may write them. The folder above
// follows the same rule with two exceptions: a sticky folder, such as /tmp, may be writable by
// everybody, and the user's own folder by the user's group. Thread-safe; nothing is cached.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "core/export.h"

namespace outboard {

struct PrivateFile {
  std::optional<std::string> content;
  // The reason why there is no content, with the path and what to do. "" if there is no file.
  std::string reason;
  // The system's error number; EPERM if the file is not trusted.
  int error = 0;
};

// Return whether a file of any size is trusted, without reading it: the same reason as
// read_private, or a content of "".
OUTBOARD_API PrivateFile check_private(const std::string& path, uid_t trusted);

// Return the content of a file. The owner may also be `trusted`, whose
// code runs in this process anyway.
OUTBOARD_API PrivateFile read_private(const std::string& path, uid_t trusted);
OUTBOARD_API PrivateFile read_private(const std::string& path);

// Create a folder that only its user may write, with its missing parents: mode 0700, whatever the
// umask. The mode of the user's own folder is repaired; a folder of root is accepted as it is.
// Return why the folder cannot be used, or "".
OUTBOARD_API std::string make_private_folder(const std::string& path);

// Return the folder of plans, programs and schedules: OUTBOARD_KERNEL_CACHE_DIR, else
// a folder in the user's cache, or "". A relative path starts at the working
// directory when this library was loaded.
OUTBOARD_API std::string kernel_cache_folder();

// Return the path as an absolute path. A relative path starts at the working
// directory when this library was loaded.
OUTBOARD_API std::string absolute_path(const std::string& path);

// Return a path as text for a message. Bytes that are not printable UTF-8 become \xNN.
OUTBOARD_API std::string printable_path(const std::string& path);

}  // namespace outboard

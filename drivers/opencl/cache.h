// SPDX-License-Identifier: BSD-3-Clause
// Compiled programs on disk, under the user's cache folder.
#pragma once

#include <string>

namespace opencl {

// The SHA-256 of `data`, 32 bytes.
std::string sha256(const std::string& data);

// What was stored under `key`, which is any text; "" if there is nothing, or nothing that can be trusted: a file that is
// not the user's own, that others may write, or that is not as it was stored.
std::string cache_read(const std::string& key);

// Stores an entry whole or not at all. A folder that is full, read-only or somebody else's only costs a compilation
// next time.
void cache_write(const std::string& key, const std::string& data);

}  // namespace opencl

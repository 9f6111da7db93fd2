// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/program_store.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/driver.h"
#include "kernels/sha256.h"

namespace outboard::kernels {

namespace {

namespace fs = std::filesystem;

constexpr size_t kDigestBytes = 32;
constexpr size_t kMostFiles = 8192;  // as many as there are plans

// Whether only this user may write it. A folder that is anybody's could be swapped under our feet.
bool is_private(const struct stat& about) {
  return about.st_uid == geteuid() && (about.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Why there can be no such folder of this user's alone, which is made if it isn't there; "" if there is.
std::string obstacle(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return path + ": " + std::strerror(errno);
  }
  struct stat about = {};
  if (lstat(path.c_str(), &about) != 0 || !S_ISDIR(about.st_mode) || !is_private(about)) {
    return path + " is no folder that its user alone may write";
  }
  return "";
}

std::string absolute(const char* variable) {
  const char* given = std::getenv(variable);
  return given != nullptr && *given == '/' ? given : "";
}

// The folders from the one of plans on, outermost first; none if nothing is to be kept.
std::vector<std::string> folders() {
  std::string plans;
  std::vector<std::string> result;
  if (const char* given = std::getenv("OUTBOARD_KERNEL_CACHE_DIR")) {
    if (*given == '\0') {
      return {};
    }
    plans = fs::absolute(given).string();
  } else {
    std::string root = absolute("XDG_CACHE_HOME");
    if (root.empty()) {
      const std::string home = absolute("HOME");
      if (home.empty()) {
        return {};
      }
      root = home + "/.cache";
    }
    result.push_back(root + "/torch_outboard");
    plans = result[0] + "/kernels";
  }
  result.push_back(plans);
  result.push_back(plans + "/programs");
  return result;
}

std::atomic<bool> has_failed{false};

void give_up(const std::string& why) {
  if (!has_failed.exchange(true)) {
    TORCH_WARN("compiled programs are not kept: ", why);
  }
}

std::string make_folder() {
  const std::vector<std::string> wanted = folders();
  if (wanted.empty()) {
    return "";
  }
  std::error_code error;
  fs::create_directories(fs::path(wanted[0]).parent_path(), error);  // whose they are is the user's affair
  for (const std::string& path : wanted) {
    if (const std::string why = obstacle(path); !why.empty()) {
      give_up(why);
      return "";
    }
  }
  return wanted.back();
}

// "" if there is none.
const std::string& folder() {
  static const auto* const made = new std::string(make_folder());  // threads may outlive static destruction
  return *made;
}

std::string path_of(const std::string& key) {
  return folder() + "/" + hex(sha256(key));
}

bool write_all(int file, const std::string& data) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t count = write(file, data.data() + done, data.size() - done);
    if (count < 0 && errno != EINTR) {
      return false;
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
  return true;
}

std::string read_all(int file, size_t size) {
  std::string data(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t count = read(file, data.data() + done, size - done);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      return "";
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
  return data;
}

// Removes the oldest, if there are more than are kept.
void prune() {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;  // another process prunes too
  for (auto at = fs::directory_iterator(folder(), error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    files.emplace_back(at->last_write_time(error), at->path());
  }
  if (files.size() > kMostFiles) {
    std::sort(files.begin(), files.end());
    for (size_t i = 0; i < files.size() - kMostFiles; ++i) {
      fs::remove(files[i].second, error);
    }
  }
}

}  // namespace

std::string program_key(c10::DeviceIndex device, const ProgramText& text) {
  if (driver().program_binary == nullptr || has_failed || folder().empty()) {
    return "";
  }
  const ob_device_properties& properties = device_properties(device);
  std::string key = "program 1";
  for (const std::string& part : {driver_name(), std::string(properties.name), std::string(properties.vendor),
                                  std::string(properties.architecture), std::string(properties.driver_version),
                                  text.language, text.options, text.code}) {
    key += '\0' + std::to_string(part.size()) + '\0' + part;
  }
  return key;
}

std::string read_program(const std::string& key) {
  const std::string path = path_of(key);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    return "";
  }
  struct stat about = {};
  std::string entry;
  if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && is_private(about)) {
    entry = read_all(file, static_cast<size_t>(about.st_size));
  }
  close(file);
  // The key is part of what is hashed, so that a file that was copied to another name is not taken either.
  if (entry.size() > kDigestBytes) {
    std::string bytes = entry.substr(kDigestBytes);
    if (sha256(key + bytes) == entry.substr(0, kDigestBytes)) {
      return bytes;
    }
  }
  TORCH_WARN("the compiled program in ", path, " is damaged, or others may write it; it is built again");
  return "";
}

void write_program(const std::string& key, const std::string& bytes) {
  const std::string path = path_of(key);
  std::string temporary = path + ".XXXXXX";
  const int file = mkostemp(temporary.data(), O_CLOEXEC);  // mode 0600
  if (file < 0) {
    give_up(temporary + ": " + std::strerror(errno));
    return;
  }
  const bool is_written = write_all(file, sha256(key + bytes) + bytes);
  if (close(file) != 0 || !is_written || rename(temporary.c_str(), path.c_str()) != 0) {
    give_up(temporary + ": " + std::strerror(errno));
    unlink(temporary.c_str());
    return;
  }
  static std::once_flag is_pruned;
  std::call_once(is_pruned, prune);
}

}  // namespace outboard::kernels

// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/program_store.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/driver.h"
#include "core/private_files.h"
#include "kernels/sha256.h"

namespace outboard::kernels {

namespace {

namespace fs = std::filesystem;

constexpr size_t kDigestBytes = 32;
constexpr size_t kMaxFiles = 8192;  // as many as there are plans
constexpr size_t kNameBytes = 2 * kDigestBytes;
constexpr std::chrono::hours kAbandoned{1};  // an incomplete file is written at once

// Warn of each reason once.
void report(const std::string& what, const std::string& why) {
  static std::mutex mutex;
  static auto* const reported = new std::set<std::string>;  // threads may outlive static destruction
  {
    const std::lock_guard lock(mutex);
    if (!reported->insert(why).second) {
      return;
    }
  }
  TORCH_WARN(what, why);
}

void report_unkept(const std::string& why) {
  report("compiled programs are not cached: ", why);
}

// Return the folder, which is made if it is missing; "" if nothing can be kept. It is checked each
// time: it may have been removed and made again.
std::string open_folder() {
  const std::string plans = kernel_cache_folder();
  if (plans.empty()) {
    return "";
  }
  const std::string programs = plans + "/programs";
  for (const std::string& path : {plans, programs}) {
    if (const std::string why = make_private_folder(path); !why.empty()) {
      report_unkept(why);
      return "";
    }
  }
  return programs;
}

std::string path_in(const std::string& folder, const std::string& key) {
  return folder + "/" + hex(sha256(key));
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

// Return true for names that write_program gives its files: a digest, and while they are
// incomplete a point and six letters.
bool is_stored_name(const std::string& name) {
  const std::string digits = "0123456789abcdef";
  const bool has_length = name.size() == kNameBytes || (name.size() == kNameBytes + 7 && name[kNameBytes] == '.');
  return has_length && name.find_first_not_of(digits) >= kNameBytes;
}

// Remove the oldest files, if there are more than the limit. Other files,
// and links, belong to the user.
void prune(const std::string& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;  // another process prunes too
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    const std::string name = at->path().filename().string();
    if (!is_stored_name(name) || at->symlink_status(gone).type() != fs::file_type::regular) {
      continue;
    }
    const fs::file_time_type written = at->last_write_time(gone);
    if (name.size() > kNameBytes) {
      if (fs::file_time_type::clock::now() - written > kAbandoned) {
        fs::remove(at->path(), gone);  // its writer was killed
      }
    } else {
      files.emplace_back(written, at->path());
    }
  }
  if (files.size() > kMaxFiles) {
    std::sort(files.begin(), files.end());
    for (size_t i = 0; i < files.size() - kMaxFiles; ++i) {
      fs::remove(files[i].second, error);
    }
  }
}

// Return a key of what depends on the device and on these parts.
std::string key_of(const char* kind, c10::DeviceIndex device, std::initializer_list<std::string_view> parts) {
  const ob_device_properties& properties = device_properties(device);
  const std::string name = driver_name();
  std::string key = kind;
  const auto add = [&key](std::string_view part) {
    key += '\0' + std::to_string(part.size()) + '\0';
    key += part;
  };
  for (const std::string_view part :
       {std::string_view(name), std::string_view(properties.name), std::string_view(properties.vendor),
        std::string_view(properties.architecture), std::string_view(properties.driver_version)}) {
    add(part);
  }
  std::for_each(parts.begin(), parts.end(), add);
  return key;
}

std::string refusal_key(c10::DeviceIndex device, const ProgramText& text) {
  return key_of("refused 1", device, {text.language, text.options, text.code});
}

}  // namespace

std::string program_key(c10::DeviceIndex device, const ProgramText& text) {
  if (driver().program_binary == nullptr || open_folder().empty()) {
    return "";
  }
  return key_of("program 1", device, {text.language, text.options, text.code});
}

std::string store_key(c10::DeviceIndex device, std::string_view key) {
  return open_folder().empty() ? "" : key_of("kept 1", device, {key});
}

std::string read_program(const std::string& key) {
  const std::string folder = open_folder();
  if (folder.empty()) {
    return "";
  }
  const std::string path = path_in(folder, key);
  PrivateFile file = read_private(path);
  if (!file.reason.empty()) {
    report("a cached program is not trusted and is built again: ", file.reason);
    return "";
  }
  if (!file.content) {
    return "";
  }
  // The key is part of the hash, so a file that was copied to another name is refused too.
  if (file.content->size() > kDigestBytes) {
    std::string bytes = file.content->substr(kDigestBytes);
    if (sha256(key + bytes) == file.content->substr(0, kDigestBytes)) {
      return bytes;
    }
  }
  report("a cached program is damaged and is built again: ", printable_path(path));
  return "";
}

bool write_program(const std::string& key, const std::string& bytes) {
  const std::string folder = open_folder();
  if (folder.empty()) {
    return false;
  }
  const std::string path = path_in(folder, key);
  std::string temporary = path + ".XXXXXX";
  const int file = mkostemp(temporary.data(), O_CLOEXEC);  // mode 0600
  if (file < 0) {
    report_unkept(printable_path(folder) + ": " + std::strerror(errno));
    return false;
  }
  const bool is_written = write_all(file, sha256(key + bytes) + bytes);
  const int error = is_written ? 0 : errno;
  if (close(file) != 0 || !is_written || rename(temporary.c_str(), path.c_str()) != 0) {
    report_unkept(printable_path(path) + ": " + std::strerror(error != 0 ? error : errno));
    unlink(temporary.c_str());
    return false;
  }
  static std::once_flag is_pruned;
  std::call_once(is_pruned, prune, folder);
  return true;
}

std::string lock_path_of(const std::string& key) {
  return path_in(open_folder(), key) + ".locked";  // a name of an incomplete file, which is removed if it is left
}

bool is_known_refusal(c10::DeviceIndex device, const ProgramText& text) {
  return !open_folder().empty() && !read_program(refusal_key(device, text)).empty();
}

bool store_refusal(c10::DeviceIndex device, const ProgramText& text) {
  return !open_folder().empty() && write_program(refusal_key(device, text), "refused");
}

}  // namespace outboard::kernels

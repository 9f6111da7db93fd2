// SPDX-License-Identifier: BSD-3-Clause
#include "core/private_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace outboard {

namespace {

constexpr off_t kMaxFileBytes = off_t{64} << 20;
constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

std::string failure_of(const std::string& path, int error) {
  return printable_path(path) + ": " + std::strerror(error);
}

std::string describe_not_a_folder(const std::string& path) {
  return printable_path(path) + " is a link or not a folder: name a folder that you own";
}

PrivateFile refuse_file(const std::string& why, int error = EPERM) {
  return {std::nullopt, why, error};
}

// Return the folder that contains the path.
std::string parent_of(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const size_t slash = end == std::string::npos ? end : path.rfind('/', end);
  if (slash == std::string::npos) {
    return path.empty() || path.front() != '/' ? "." : "/";
  }
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

// Return why an owner or a mode is not trusted; "" if both are.
std::string check_owner_and_mode(const std::string& path, const struct stat& about, uid_t trusted, mode_t forbidden) {
  if (about.st_uid != geteuid() && about.st_uid != 0 && about.st_uid != trusted) {
    return printable_path(path) + " belongs to another user (" + std::to_string(about.st_uid) +
           "): remove it, or name a folder that you own";
  }
  if ((about.st_mode & forbidden) != 0) {
    const bool is_shared = (about.st_mode & S_ISVTX) != 0;  // such as /tmp, whose mode must stay
    return "other users can write to " + printable_path(path) +
           (is_shared ? ": name a folder that only you can write to"
                      : ": run `chmod go-w` on it, or name a folder that you own");
  }
  return "";
}

// Do the same for a folder that contains another folder, whose name another
// user must not be able to reuse.
std::string check_parent_folder(const std::string& path, uid_t trusted) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) {
    return failure_of(path, errno);
  }
  const mode_t forbidden = (about.st_mode & S_ISVTX) != 0 ? 0 : about.st_uid == geteuid() ? S_IWOTH : kWritableByOthers;
  return check_owner_and_mode(path, about, trusted, forbidden);
}

std::string check_folder(const std::string& path, uid_t trusted) {
  struct stat about = {};
  if (lstat(path.c_str(), &about) != 0) {
    return failure_of(path, errno);
  }
  if (!S_ISDIR(about.st_mode)) {
    return describe_not_a_folder(path);
  }
  return check_owner_and_mode(path, about, trusted, kWritableByOthers);
}

// Read exactly that many bytes. Return false with errno if there are fewer.
bool read_whole(int file, std::string& out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t count = read(file, out.data() + done, out.size() - done);
    if (count == 0) {
      errno = EIO;
      return false;
    }
    if (count < 0 && errno != EINTR) {
      return false;
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
  return true;
}

// Opening must not wait for the other end of a FIFO.
Descriptor open_without_waiting(const std::string& path) {
  return Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
}

// Check a file that open_without_waiting has just opened, or has failed to open.
PrivateFile check_open(const Descriptor& file, const std::string& path, uid_t trusted, struct stat* out_about) {
  if (!file.is_open()) {
    if (errno == ENOENT) {
      return {};
    }
    return errno == ELOOP
               ? refuse_file(printable_path(path) + " is a symbolic link, which is never followed: remove it")
               : refuse_file(failure_of(path, errno), errno);
  }
  if (fstat(file.get(), out_about) != 0) {
    return refuse_file(failure_of(path, errno), errno);
  }
  if (!S_ISREG(out_about->st_mode)) {
    return refuse_file(printable_path(path) + " is not a regular file: remove it");
  }
  const std::string folder = parent_of(path);
  for (const std::string& why : {check_owner_and_mode(path, *out_about, trusted, kWritableByOthers),
                                 check_folder(folder, trusted), check_parent_folder(parent_of(folder), trusted)}) {
    if (!why.empty()) {
      return refuse_file(why);
    }
  }
  return {"", "", 0};
}

// Make the missing folders above a path. A failure shows later, when the folder is missing.
void make_parents(const std::string& path) {
  const std::string parent = parent_of(path);
  struct stat about = {};
  if (parent == path || stat(parent.c_str(), &about) == 0) {
    return;
  }
  make_parents(parent);
  if (mkdir(parent.c_str(), 0700) == 0) {
    chmod(parent.c_str(), 0700);
  }
}

std::string current_folder() {
  char buffer[PATH_MAX];
  return getcwd(buffer, sizeof buffer) != nullptr ? buffer : "";
}

// Return the working directory at loading time: a program may change it later.
const std::string& starting_folder() {
  static const auto* const folder = new std::string(current_folder());  // threads may outlive static destruction
  return *folder;
}
[[maybe_unused]] const std::string& loaded_in = starting_folder();

std::string absolute_from(const char* variable) {
  const char* path = std::getenv(variable);
  return path != nullptr && *path == '/' ? path : "";
}

// Return the folder in the user's cache; "" if there is none.
std::string default_folder() {
  std::string root = absolute_from("XDG_CACHE_HOME");
  if (root.empty()) {
    const std::string home = absolute_from("HOME");
    if (home.empty()) {
      return "";
    }
    root = home + "/.cache";
  }
  return root + "/torch_outboard/kernels";
}

// Return how many bytes here are valid UTF-8 and not a control character; 0 if none.
size_t printable_bytes(const std::string& text, size_t at) {
  const auto byte = [&](size_t place) { return place < text.size() ? static_cast<unsigned char>(text[place]) : 0U; };
  const unsigned first = byte(at);
  if (first < 0x80) {
    return first >= 0x20 && first != 0x7F ? 1 : 0;
  }
  const size_t size = first >= 0xC2 && first <= 0xDF ? 2 : first >= 0xE0 && first <= 0xEF ? 3 : 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  // Refuse overlong forms, surrogates, and control characters of two bytes.
  const bool is_odd = (first == 0xE0 && byte(at + 1) < 0xA0) || (first == 0xED && byte(at + 1) > 0x9F) ||
                      (first == 0xC2 && byte(at + 1) < 0xA0);
  return is_odd ? 0 : size;
}

}  // namespace

PrivateFile read_private(const std::string& path, uid_t trusted) {
  const Descriptor file = open_without_waiting(path);
  struct stat about = {};
  PrivateFile checked = check_open(file, path, trusted, &about);
  if (!checked.content) {
    return checked;
  }
  if (about.st_size > kMaxFileBytes) {
    return refuse_file(printable_path(path) + " has " + std::to_string(about.st_size) +
                       " bytes, more than this package ever writes: remove it");
  }
  PrivateFile result{std::string(static_cast<size_t>(about.st_size), '\0'), "", 0};
  return read_whole(file.get(), *result.content) ? std::move(result) : refuse_file(failure_of(path, errno), errno);
}

PrivateFile check_private(const std::string& path, uid_t trusted) {
  const Descriptor file = open_without_waiting(path);
  struct stat about = {};
  return check_open(file, path, trusted, &about);
}

PrivateFile read_private(const std::string& path) {
  return read_private(path, geteuid());
}

std::string make_private_folder(const std::string& path) {
  if (path.empty() || path.front() != '/') {
    return printable_path(path) +
           " is a relative path, and the working directory no longer exists: name an absolute path";
  }
  if (path == default_folder()) {  // the folder above it is ours too
    if (std::string why = make_private_folder(parent_of(path)); !why.empty()) {
      return why;
    }
  }
  make_parents(path);
  if (std::string why = check_parent_folder(parent_of(path), geteuid()); !why.empty()) {
    return why;
  }
  constexpr int kHow = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int number = open(path.c_str(), kHow);
  if (number < 0 && errno == ENOENT) {
    if (mkdir(path.c_str(), 0700) == 0) {
      chmod(path.c_str(), 0700);  // a umask may have removed the user's own bits
    } else if (errno != EEXIST) {
      return failure_of(path, errno);
    }
    number = open(path.c_str(), kHow);
  }
  const Descriptor folder(number);
  if (!folder.is_open()) {
    return errno == ELOOP || errno == ENOTDIR ? describe_not_a_folder(path) : failure_of(path, errno);
  }
  struct stat about = {};
  if (fstat(folder.get(), &about) != 0) {
    return failure_of(path, errno);
  }
  if (about.st_uid == geteuid() && (about.st_mode & kWritableByOthers) != 0 && fchmod(folder.get(), 0700) == 0) {
    return "";
  }
  return check_owner_and_mode(path, about, geteuid(), kWritableByOthers);
}

std::string absolute_path(const std::string& path) {
  if (path.empty() || path.front() == '/' || starting_folder().empty()) {
    return path;
  }
  return starting_folder() + "/" + path;
}

std::string kernel_cache_folder() {
  const char* folder = std::getenv("OUTBOARD_KERNEL_CACHE_DIR");
  return folder != nullptr ? absolute_path(folder) : default_folder();
}

std::string printable_path(const std::string& path) {
  std::string result;
  for (size_t at = 0; at < path.size();) {
    if (const size_t count = printable_bytes(path, at); count != 0) {
      result.append(path, at, count);
      at += count;
      continue;
    }
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(path[at++]);
    result.append({'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]});
  }
  return result;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Ask a runtime in a child process, because it would not survive a later fork of this process.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

namespace support {

constexpr std::chrono::seconds kChildTime{60};  // the first start of a GPU's runtime takes seconds

inline void write_all(int output, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(output, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) return;  // the parent has gone
    if (count > 0) written += static_cast<size_t>(count);
  }
}

// Read everything until the other end closes. Return false if that takes too long.
inline bool read_all(int input, std::string* out_text) {
  const auto deadline = std::chrono::steady_clock::now() + kChildTime;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd wait = {input, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    char buffer[4096];
    const ssize_t count = read(input, buffer, sizeof buffer);
    if (count == 0) return true;
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) out_text->append(buffer, static_cast<size_t>(count));
  }
}

// Run `work` in a forked child, and return the text that it returns, as lines. If the child crashes
// or hangs, return false, with a clause that states the reason; `out_lines` then has what the child
// wrote before.
template <class Work>
bool query_child(Work&& work, std::vector<std::string>* out_lines, std::string* out_error) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    *out_error = "could not be started: pipe: " + std::string(std::strerror(errno));
    return false;
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    write_all(ends[1], work());
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  const bool is_read = child > 0 && read_all(ends[0], &text);
  close(ends[0]);
  int status = 0;
  if (child < 0) {
    *out_error = "could not be started: fork: " + std::string(std::strerror(errno));
    return false;
  }
  if (!is_read) kill(child, SIGKILL);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    out_lines->push_back(text.substr(begin, end - begin));
  }
  if (!is_read) {
    *out_error = "returned no answer within " + std::to_string(kChildTime.count()) + " seconds";
    return false;
  }
  if (WIFSIGNALED(status)) {
    *out_error = "was ended by signal " + std::to_string(WTERMSIG(status)) + ": a runtime crashed";
    return false;
  }
  return true;
}

}  // namespace support

// SPDX-License-Identifier: BSD-3-Clause
// A stand-in for your vendor's compiler: a small language, which the host's C compiler compiles.
// language.h defines its words.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "failure.h"

extern char** environ;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A C function that runs a kernel's items, with the places of its arguments.
std::string entry(const std::string& name, const std::string& parameters) {
  std::ostringstream values;
  std::istringstream rest(parameters);
  int place = 0;
  for (std::string option; std::getline(rest, option, ','); ++place) {
    const size_t last = option.find_last_not_of(" \n");
    const size_t name_at =
        option.find_last_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", last);
    values << (place == 0 ? "" : ", ") << "*(" << option.substr(0, name_at + 1) << "*)arguments[" << place << "]";
  }
  return "\nvoid run_" + name + "(wide items, void* const* arguments) {\n" +
         "  for (number_of_this_item = 0; number_of_this_item < items; ++number_of_this_item) " + name + "(" +
         values.str() + ");\n}\n";
}

std::string entries(const std::string& text) {
  const std::string begin = "kernel void ";
  std::string found;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const size_t name = at + begin.size(), open = text.find('(', at), close = text.find(')', at);
    if (open == std::string::npos || close == std::string::npos) continue;
    found += entry(text.substr(name, open - name), text.substr(open + 1, close - open - 1));
  }
  return found;
}

// Return true if the C compiler builds a library from the text; `out_messages` gets its messages.
bool compile(const std::string& folder, const std::string& text, std::string* out_messages) {
  const std::string source = folder + "/program.c", library = folder + "/program.so", messages = folder + "/messages";
  std::ofstream(source) << text;
  const char* cc = std::getenv("CC");
  // Optimizations that change results stay off.
  std::vector<std::string> command = {
      cc != nullptr ? cc : "cc", "-include", library_folder() + "language.h", source, "-o", library};
  for (const char* flag :
       {"-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-lm"})
    command.emplace_back(flag);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, messages.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t process = 0;
  int status = posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    *out_messages = command[0] + ": " + std::strerror(status);
    return false;
  }
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  *out_messages = read_file(messages);
  return status == 0;
}

// A temporary folder, removed at the end of the scope.
struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / "chip_XXXXXX") {
    if (mkdtemp(path.data()) == nullptr) throw Failure(CHIP_UNAVAILABLE, path + ": " + std::strerror(errno));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

std::string compile_program(const std::string& text) {
  const Folder folder;
  std::string messages, why;
  if (compile(folder.path, text + entries(text), &messages)) {
    return read_file(folder.path + "/program.so");
  }
  // If it cannot build anything, for example on a full disk, the text is not to blame.
  if (!compile(folder.path, "", &why)) throw Failure(CHIP_UNAVAILABLE, "the compiler can't be run: " + why);
  throw Failure(CHIP_REFUSED, "the program does not build:\n" + messages);
}

// SPDX-License-Identifier: BSD-3-Clause
// What the native test programs share: checks that count, and a driver library opened by path.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "torch_outboard/driver.h"

inline std::atomic<int> failed_checks{0};

inline bool check(bool holds, const char* text, const char* file, int line) {
  if (!holds) {
    failed_checks.fetch_add(1);
    std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
  }
  return holds;
}

inline bool check_status(ob_status got, ob_status expected, const char* text, const char* file, int line) {
  if (got != expected) {
    failed_checks.fetch_add(1);
    std::fprintf(stderr, "%s:%d: %s gave %d, not %d\n", file, line, text, got, expected);
  }
  return got == expected;
}

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
#define CHECK_STATUS(call, expected) check_status((call), (expected), #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_STATUS(call, OB_OK)

using OptionList = std::initializer_list<std::pair<const char*, const char*>>;

// One table of a driver library, with `self` and the usual arguments filled in. The environment
// variable OB_TEST_OPTIONS ("key=value,key=value") adds options to those of every table.
class Library {
 public:
  explicit Library(const char* path, OptionList options = {}) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(1);
    }
    const auto symbol = reinterpret_cast<ob_driver_table_fn>(dlsym(library, OB_DRIVER_TABLE_SYMBOL));
    if (symbol == nullptr) {
      std::fprintf(stderr, "%s has no %s\n", path, OB_DRIVER_TABLE_SYMBOL);
      std::exit(1);
    }
    std::vector<const char*> keys, values;
    std::vector<std::string> extra;
    if (const char* text = std::getenv("OB_TEST_OPTIONS"); text != nullptr) extra = split(text);
    for (size_t i = 0; i + 1 < extra.size(); i += 2) {
      keys.push_back(extra[i].c_str());
      values.push_back(extra[i + 1].c_str());
    }
    for (const auto& [key, value] : options) {  // later ones win: a test gets what it asks for
      keys.push_back(key);
      values.push_back(value);
    }
    const ob_options given = {sizeof(ob_options), keys.size(), keys.data(), values.data()};
    table.struct_size = sizeof table;
    char text[512] = "";
    status = symbol(&given, &table, text, sizeof text);
    error = text;
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (status == OB_OK && table.destroy != nullptr) table.destroy(table.self);
  }

  const ob_driver* operator->() const { return &table; }
  void* self() const { return table.self; }

  std::string last_error() const {
    char text[512] = "";
    table.last_error(table.self, text, sizeof text);
    return text;
  }
  bool error_has(const char* part) const {
    if (last_error().find(part) != std::string::npos) return true;
    std::fprintf(stderr, "the last error is: %s\n", last_error().c_str());
    return false;
  }

  void open(int32_t device = 0) const { CHECK_OK(table.device_open(table.self, device)); }
  uint64_t stream(int32_t device = 0, int32_t priority = 0) const {
    uint64_t handle = 0;
    CHECK_OK(table.stream_create(table.self, device, priority, &handle));
    return handle;
  }
  uint64_t event(uint32_t flags = 0, int32_t device = 0) const {
    uint64_t handle = 0;
    CHECK_OK(table.event_create(table.self, device, flags, &handle));
    CHECK(handle != 0);
    return handle;
  }
  uint64_t alloc(uint64_t bytes, int32_t device = 0) const {
    uint64_t address = 0;
    CHECK_OK(table.mem_alloc(table.self, device, bytes, &address));
    CHECK(address != 0 && address % 512 == 0);
    return address;
  }
  template <class T>
  T* host(uint64_t address, uint64_t bytes, int32_t device = 0) const {
    uint64_t host = 0;
    CHECK_OK(table.host_address(table.self, device, address, bytes, &host));
    return reinterpret_cast<T*>(host);
  }
  // Queues fn(user). A function object has to outlive the call.
  template <class F>
  ob_status call(uint64_t stream, F* fn, int32_t device = 0) const {
    return table.host_callback(table.self, device, stream, [](void* user) { (*static_cast<F*>(user))(); }, fn);
  }
  ob_status record(uint64_t stream, uint64_t event, int32_t device = 0) const {
    return table.event_record(table.self, device, stream, event);
  }
  ob_status wait(uint64_t stream, uint64_t event, int32_t device = 0, int32_t event_device = 0) const {
    return table.stream_wait_event(table.self, device, stream, event_device, event);
  }
  ob_status sync(uint64_t stream, int32_t device = 0) const {
    return table.stream_synchronize(table.self, device, stream);
  }
  ob_status copy(uint64_t stream, uint64_t dst, int32_t dst_device, uint64_t src, int32_t src_device, uint64_t bytes,
                 int32_t device = 0) const {
    const ob_copy copy = {sizeof(ob_copy), dst, src, bytes, dst_device, src_device};
    return table.copy_async(table.self, device, stream, &copy);
  }

  ob_driver table = {};
  ob_status status = OB_OK;
  std::string error;

 private:
  // "a=1,b=2" to a, 1, b, 2
  static std::vector<std::string> split(const char* text) {
    std::vector<std::string> parts(1);
    for (; *text != '\0'; ++text) {
      if (*text == '=' || *text == ',') {
        parts.emplace_back();
      } else {
        parts.back() += *text;
      }
    }
    return parts;
  }
};

inline uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

struct Test {
  const char* name;
  void (*run)(const char* path);
};

// The program's tests, in the order in which they are written.
inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*run)(const char* path)) { all_tests().push_back({name, run}); }
};

// A test is a function of the library's path: TEST(kernels_run) { … }
#define TEST(name)                                  \
  void name(const char* path);                      \
  const Registration name##_is_a_test(#name, name); \
  void name([[maybe_unused]] const char* path)

// Runs all tests, or those named after the path; says which failed and gives the exit status.
inline int run_tests(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s LIBRARY [TEST...]\n", argv[0]);
    return 1;
  }
  int ran = 0;
  int failed = 0;
  for (const Test& test : all_tests()) {
    bool is_wanted = argc == 2;
    for (int i = 2; i < argc; ++i) is_wanted = is_wanted || std::strcmp(argv[i], test.name) == 0;
    if (!is_wanted) continue;
    const int before = failed_checks.load();
    test.run(argv[1]);
    ++ran;
    const bool is_good = failed_checks.load() == before;
    std::printf("%s %s\n", is_good ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
    if (!is_good) ++failed;
  }
  if (ran == 0) std::fprintf(stderr, "no test is named so\n");
  std::printf("%d of %d tests passed\n", ran - failed, ran);
  return ran == 0 || failed != 0 ? 1 : 0;
}

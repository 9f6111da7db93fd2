// SPDX-License-Identifier: BSD-3-Clause
// Slang's plain C interface. Slang deprecates it, but compilers still export all of it.
#include "slang.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <sstream>

#include "torch_outboard/support/error.h"
#include "torch_outboard/support/library.h"
#include "torch_outboard/support/source_lines.h"

namespace vulkan {
namespace {

using support::fail;

using SlangSession = struct SlangSessionHandle;
using SlangRequest = struct SlangRequestHandle;
using SlangResult = int32_t;  // below 0: a failure

constexpr int kSlangLanguage = 1;

struct SlangApi {
  SlangSession* (*create_session)(const char*);
  SlangRequest* (*create_request)(SlangSession*);
  void (*destroy_request)(SlangRequest*);
  SlangResult (*process_arguments)(SlangRequest*, const char* const*, int);
  int (*add_unit)(SlangRequest*, int, const char*);
  void (*add_source)(SlangRequest*, int, const char*, const char*);
  SlangResult (*compile)(SlangRequest*);
  const char* (*diagnostics)(SlangRequest*);
  const void* (*code)(SlangRequest*, size_t*);
  const char* (*version)();
  SlangSession* session;
};

// Only one thread at a time may use a session.
std::mutex slang_mutex;
std::atomic<const SlangApi*> opened{nullptr};

bool open_slang(const std::string& path, SlangApi* api, std::string* out_error) {
  void* library =
      support::open_library(path, {"libslang-compiler.so", "libslang-compiler.so.0", "libslang.so"}, out_error);
  if (library == nullptr) return false;
  const auto find = [&](const char* name, auto* out_function) {
    return support::find_function(library, name, out_function, out_error);
  };
  if (!find("spCreateSession", &api->create_session) || !find("spCreateCompileRequest", &api->create_request) ||
      !find("spDestroyCompileRequest", &api->destroy_request) ||
      !find("spProcessCommandLineArguments", &api->process_arguments) ||
      !find("spAddTranslationUnit", &api->add_unit) || !find("spAddTranslationUnitSourceString", &api->add_source) ||
      !find("spCompile", &api->compile) || !find("spGetDiagnosticOutput", &api->diagnostics) ||
      !find("spGetCompileRequestCode", &api->code) || !find("spGetBuildTagString", &api->version)) {
    return false;
  }
  api->session = api->create_session(nullptr);
  if (api->session == nullptr) *out_error = "spCreateSession returned no session";
  return api->session != nullptr;
}

ob_status compile_request(const SlangApi& api, SlangRequest* request, const std::string& source,
                          const std::string& options, std::vector<uint32_t>* out_words) {
  // At higher levels x * y + x * c becomes x * (y + c).
  std::vector<std::string> words = {"-target", "spirv", "-O0", "-fvk-use-entrypoint-name"};
  std::istringstream given(options);
  for (std::string word; given >> word;) words.push_back(word);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  SlangResult result = api.process_arguments(request, arguments.data(), static_cast<int>(arguments.size()));
  if (result < 0) {
    return fail(OB_INVALID_ARGUMENT, "Slang rejects the options '%s':\n%s", options.c_str(), api.diagnostics(request));
  }
  api.add_source(request, api.add_unit(request, kSlangLanguage, nullptr), "program.slang", source.c_str());
  result = api.compile(request);
  size_t size = 0;
  const void* code = result < 0 ? nullptr : api.code(request, &size);
  if (code == nullptr || size < sizeof(uint32_t)) {
    const std::string log = api.diagnostics(request);
    return fail(OB_PROGRAM_REFUSED, "the program does not build (Slang %s), options '%s':\n%s%s", api.version(),
                options.c_str(), log.c_str(), support::cite_source(log, source).c_str());
  }
  out_words->resize(size / sizeof(uint32_t));
  std::memcpy(out_words->data(), code, out_words->size() * sizeof(uint32_t));
  return OB_OK;
}

}  // namespace

ob_status compile_slang(const std::string& library, const std::string& source, const std::string& options,
                        std::vector<uint32_t>* out_words) {
  const std::lock_guard lock(slang_mutex);
  std::string error;
  const SlangApi* api = support::load_once<SlangApi>(open_slang, library, &error);
  if (api == nullptr) {
    return fail(OB_UNAVAILABLE,
                "Slang, which compiles kernels, is not available (%s). Run pip install slangtorch, or set the option "
                "`slang` to "
                "the compiler's library (libslang-compiler.so). Cached programs do not need it.",
                error.c_str());
  }
  opened.store(api);
  SlangRequest* request = api->create_request(api->session);
  if (request == nullptr) return fail(OB_INTERNAL, "spCreateCompileRequest returned no request");
  const ob_status status = compile_request(*api, request, source, options, out_words);
  api->destroy_request(request);
  return status;
}

std::string slang_version() {
  const SlangApi* api = opened.load();
  return api == nullptr ? "" : api->version();
}

}  // namespace vulkan

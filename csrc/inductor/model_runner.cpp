// SPDX-License-Identifier: BSD-3-Clause
#include "inductor/model_runner.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/driver.h"
#include "inductor/compiled.h"

namespace outboard {

namespace {

// Keep the library of a model loaded after the runner is gone: queued launches and graphs refer to
// its kernels. Torch, which opens it next, reports its errors.
const std::string& keep_loaded(const std::string& library) {
  dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return library;
}

// Run code of a model, which passes on only an error's text.
template <class Body>
auto with_error_types(Body&& body) -> decltype(body()) {
  const CompiledErrors errors;
  try {
    return body();
  } catch (...) {
    if (errors.first() != nullptr) {
      std::rethrow_exception(errors.first());
    }
    throw;
  }
}

class ModelRunner final : public torch::inductor::AOTIModelContainerRunner {
 public:
  ModelRunner(const std::string& library, size_t models, const std::string& device, const std::string& folder,
              bool is_single_threaded)
      : AOTIModelContainerRunner(keep_loaded(library), models, device, folder, is_single_threaded) {}

 protected:
  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& inputs, void* stream) override {
    return with_error_types([&] { return AOTIModelContainerRunner::run_impl(inputs, stream); });
  }
};

std::unique_ptr<torch::inductor::AOTIModelContainerRunner> make_runner(const std::string& library, size_t models,
                                                                       const std::string& device,
                                                                       const std::string& folder,
                                                                       const bool is_single_threaded) {
  return with_error_types(
      [&] { return std::make_unique<ModelRunner>(library, models, device, folder, is_single_threaded); });
}

}  // namespace

void register_model_runner() {
  const torch::inductor::RegisterAOTIModelRunner registered(driver_name(), make_runner);
}

}  // namespace outboard

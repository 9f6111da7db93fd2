// SPDX-License-Identifier: BSD-3-Clause
// Programs, kernels, launches.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "driver.h"
#include "nvrtc.h"
#include "torch_outboard/support/source_lines.h"

namespace nv {
namespace {

constexpr size_t kMaxArguments = 4096;  // CUDA allows 4 KiB, or 32 KiB, of them: at most that many of one word

ob_status find_module(Driver& driver, int32_t index, uint64_t handle, Module** out_module) {
  std::unique_ptr<Module>* module = driver.modules.find(handle);
  if (module == nullptr || (*module)->device != index) {
    return fail(OB_INVALID_ARGUMENT, "device %d has no program 0x%" PRIx64, index, handle);
  }
  *out_module = module->get();
  return OB_OK;
}

ob_status program_build(void* self, int32_t index, const ob_program_source* source, uint64_t* out_program) {
  return on_device(self, index, "program_build", [&](Driver& driver, Device& device) -> ob_status {
    const std::string language = source->language;
    const auto* code = static_cast<const char*>(source->code);
    if (language == "cuda") {
      std::string image;
      const ob_status status = compile_cuda(driver.options.nvrtc, std::string(code, source->code_size), source->options,
                                            device.architecture(), &image);
      if (status != OB_OK) return status;
      const ob_status built = build_image(driver, device, image.data(), nullptr, out_program);
      Module* module = nullptr;
      if (built == OB_OK && find_module(driver, index, *out_program, &module) == OB_OK)
        module->cubin = std::move(image);
      return built;
    }
    // The bytes of program_binary are a cubin; the options were for NVRTC.
    if (language == OB_LANGUAGE_BINARY) return build_image(driver, device, code, nullptr, out_program);
    if (language != "ptx" && language != "cubin" && language != "fatbin") {
      return fail(OB_INVALID_ARGUMENT, "programs are built from 'ptx', 'cubin', 'fatbin' or 'cuda', not '%s'",
                  language.c_str());
    }
    if (*source->options != '\0') {
      return fail(OB_INVALID_ARGUMENT, "a program in '%s' takes no options, got '%s'", language.c_str(),
                  source->options);
    }
    if (language != "ptx") return build_image(driver, device, code, nullptr, out_program);
    const std::string text(code, source->code_size);
    return build_image(driver, device, text.c_str(), text.c_str(), out_program);
  });
}

ob_status program_binary(void* self, int32_t index, uint64_t program, void* context, ob_take_fn take) {
  return on_device(self, index, "program_binary", [&](Driver& driver, Device&) -> ob_status {
    Module* module = nullptr;
    if (const ob_status status = find_module(driver, index, program, &module); status != OB_OK) return status;
    const std::lock_guard lock(module->mutex);
    if (module->cubin.empty()) return fail(OB_UNIMPLEMENTED, "the program has no cubin, or its cubin was discarded");
    take(context, module->cubin.data(), module->cubin.size());
    return OB_OK;
  });
}

ob_status program_destroy(void* self, int32_t index, uint64_t handle) {
  return on_device(self, index, "program_destroy", [&](Driver& driver, Device& device) -> ob_status {
    Module* loaded = nullptr;
    if (const ob_status status = find_module(driver, index, handle, &loaded); status != OB_OK) return status;
    std::unique_ptr<Module> module;
    if (!driver.modules.take(handle, &module))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same program");
    return check(driver, device, unload(driver, *module), "cuModuleUnload");
  });
}

ob_status get_kernel(void* self, int32_t index, uint64_t program, const char* name, uint64_t* out_kernel) {
  return on_device(self, index, "kernel_get", [&](Driver& driver, Device& device) {
    return kernel_get(driver, device, program, name, out_kernel);
  });
}

ob_status kernel_launch(void* self, int32_t index, uint64_t stream, const ob_launch* request) {
  return on_device(self, index, "kernel_launch", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    return launch(driver, device, to_stream(stream), *request);
  });
}

// Refuse, with a message, a launch that this device cannot run.
ob_status check_sizes(const Device& device, const Kernel& kernel, const ob_launch& request) {
  const char* name = kernel.name.c_str();
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (request.grid[i] == 0 || request.block[i] == 0) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s': dimension %d of the grid or of the block is 0", name, i);
    }
    if (request.grid[i] > device.max_grid[i] || request.block[i] > device.max_block[i]) {
      return fail(
          OB_INVALID_ARGUMENT,
          "kernel '%s': dimension %d may have at most %u blocks of at most %u threads on this device, not %u of %u",
          name, i, device.max_grid[i], device.max_block[i], request.grid[i], request.block[i]);
    }
    threads *= request.block[i];
  }
  if (threads > kernel.max_threads) {
    return fail(OB_INVALID_ARGUMENT, "kernel '%s': a block may have at most %u threads on this device, not %" PRIu64,
                name, kernel.max_threads, threads);
  }
  if (request.shared_memory > device.max_shared || request.shared_memory + kernel.static_shared > device.max_shared) {
    return fail(OB_INVALID_ARGUMENT,
                "kernel '%s': a block may have at most %u bytes of shared memory, of which the kernel already uses %u; "
                "the launch cannot add %" PRIu64,
                name, device.max_shared, kernel.static_shared, request.shared_memory);
  }
  return OB_OK;
}

ob_status check_arguments(const Kernel& kernel, const ob_launch& request) {
  const char* name = kernel.name.c_str();
  if (request.arg_count > kMaxArguments) {
    return fail(OB_INVALID_ARGUMENT, "kernel '%s': a launch takes at most %zu arguments, not %zu", name, kMaxArguments,
                request.arg_count);
  }
  if (kernel.has_parameters && request.arg_count != kernel.parameters.size()) {
    return fail(OB_INVALID_ARGUMENT, "kernel '%s' takes %zu arguments, not %zu", name, kernel.parameters.size(),
                request.arg_count);
  }
  const char* at = reinterpret_cast<const char*>(request.args);
  for (size_t i = 0; i < request.arg_count; ++i, at += request.arg_stride) {
    const auto& arg = *reinterpret_cast<const ob_kernel_arg*>(at);
    if (arg.kind != OB_ARG_POINTER && arg.kind != OB_ARG_VALUE) {
      return fail(OB_INVALID_ARGUMENT,
                  "kernel '%s', argument %zu: CUDA takes shared memory with the launch (`shared_memory`), not as an "
                  "argument",
                  name, i);
    }
    const size_t size = arg.kind == OB_ARG_POINTER ? sizeof arg.pointer : arg.size;
    if (kernel.has_parameters && size != kernel.parameters[i]) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s' takes %zu bytes as argument %zu, but the launch passes %zu", name,
                  kernel.parameters[i], i, size);
    }
  }
  return OB_OK;
}

// A kernel needs an attribute for more than 48 KiB before its launch.
CUresult allow_shared(const Api& api, Kernel& kernel, uint64_t bytes) {
  constexpr uint64_t kAlways = 48 << 10;
  const auto wanted = static_cast<uint32_t>(bytes);
  if (bytes + kernel.static_shared <= kAlways || kernel.dynamic_shared.load() >= wanted) return CUDA_SUCCESS;
  const CUresult code = api.FuncSetAttribute(kernel.function, kFunctionMaxDynamicShared, static_cast<int>(wanted));
  if (code == CUDA_SUCCESS) kernel.dynamic_shared.store(wanted);
  return code;
}

CUresult launch_with_attributes(const Api& api, const Kernel& kernel, CUstream stream, const ob_launch& request,
                                void** arguments) {
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config = {};
  std::copy_n(request.grid, 3, config.grid);
  std::copy_n(request.block, 3, config.block);
  config.shared_memory = static_cast<uint32_t>(request.shared_memory);
  config.stream = stream;
  config.attributes = attributes;
  if (request.is_cooperative != 0) {
    CUlaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = kLaunchCooperative;
    attribute.value.cooperative = 1;
  }
  if (request.cluster[0] != 0) {
    CUlaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = kLaunchCluster;
    for (int i = 0; i < 3; ++i) attribute.value.cluster[i] = std::max(request.cluster[i], 1u);
  }
  return api.LaunchKernelEx(&config, kernel.function, arguments, nullptr);
}

// Find the sizes of a kernel's parameters, if CUDA reports them.
void find_parameters(const Api& api, Kernel* kernel) {
  if (api.FuncGetParamInfo == nullptr) return;
  for (size_t i = 0;; ++i) {
    size_t offset = 0;
    size_t size = 0;
    const CUresult code = api.FuncGetParamInfo(kernel->function, i, &offset, &size);
    if (code == CUDA_SUCCESS) {
      kernel->parameters.push_back(size);
      continue;
    }
    kernel->has_parameters = code == CUDA_ERROR_INVALID_VALUE;  // there are no more
    return;
  }
}

}  // namespace

ob_status build_image(Driver& driver, Device& device, const void* image, const char* source, uint64_t* out_program) {
  std::array<char, 8192> error_log = {};
  int options[] = {kJitErrorLog, kJitErrorLogSize};
  // The API takes sizes in the pointers themselves.
  void* values[] = {error_log.data(), reinterpret_cast<void*>(error_log.size())};
  auto module = std::make_unique<Module>();
  const CUresult code = driver.api.ModuleLoadDataEx(&module->module, image, 2, options, values);
  if (code != CUDA_SUCCESS) {
    const std::string log(error_log.data(), strnlen(error_log.data(), error_log.size()));
    const std::string lines = source != nullptr ? support::cite_source(log, source) : "";
    const std::string what = device.where + ": the program does not build";
    if (status_of(code) != OB_INVALID_ARGUMENT || log.empty()) {
      return cuda_fail(driver.api, code, "cuModuleLoadDataEx", what);
    }
    return fail(OB_PROGRAM_REFUSED, "%s (%d):\n%s%s", what.c_str(), code, log.c_str(), lines.c_str());
  }
  module->device = device.index;
  *out_program = driver.modules.make(std::move(module));
  return OB_OK;
}

CUresult unload(Driver& driver, const Module& module) {
  for (const auto& [name, handle] : module.kernels) {
    std::unique_ptr<Kernel> kernel;
    static_cast<void>(driver.kernels.take(handle, &kernel));
  }
  return driver.api.ModuleUnload(module.module);
}

ob_status kernel_get(Driver& driver, Device& device, uint64_t handle, const char* name, uint64_t* out_kernel) {
  Module* module = nullptr;
  if (const ob_status status = find_module(driver, device.index, handle, &module); status != OB_OK) return status;
  const std::lock_guard lock(module->mutex);
  module->cubin = std::string();
  if (const auto known = module->kernels.find(name); known != module->kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  const Api& api = driver.api;
  auto kernel = std::make_unique<Kernel>();
  CUresult code = api.ModuleGetFunction(&kernel->function, module->module, name);
  int max_threads = 0;
  int static_shared = 0;
  if (code == CUDA_SUCCESS) code = api.FuncGetAttribute(&max_threads, kFunctionMaxThreads, kernel->function);
  if (code == CUDA_SUCCESS) code = api.FuncGetAttribute(&static_shared, kFunctionStaticShared, kernel->function);
  if (code != CUDA_SUCCESS) {
    return cuda_fail(api, code, "cuModuleGetFunction", device.where + ": kernel '" + name + "'");
  }
  kernel->device = device.index;
  kernel->name = name;
  kernel->max_threads = static_cast<uint32_t>(max_threads);
  kernel->static_shared = static_cast<uint32_t>(static_shared);
  find_parameters(api, kernel.get());
  *out_kernel = driver.kernels.make(std::move(kernel));
  module->kernels.emplace(name, *out_kernel);
  return OB_OK;
}

ob_status launch(Driver& driver, Device& device, CUstream stream, const ob_launch& request) {
  std::unique_ptr<Kernel>* entry = driver.kernels.find(request.kernel);
  if (entry == nullptr || (*entry)->device != device.index) {
    return fail(OB_INVALID_ARGUMENT, "device %d has no kernel 0x%" PRIx64, device.index, request.kernel);
  }
  Kernel& kernel = **entry;
  if (const ob_status status = check_sizes(device, kernel, request); status != OB_OK) return status;
  if (const ob_status status = check_arguments(kernel, request); status != OB_OK) return status;
  void* arguments[kMaxArguments];
  const char* at = reinterpret_cast<const char*>(request.args);
  for (size_t i = 0; i < request.arg_count; ++i, at += request.arg_stride) {
    const auto& arg = *reinterpret_cast<const ob_kernel_arg*>(at);
    arguments[i] = arg.kind == OB_ARG_POINTER ? const_cast<uint64_t*>(&arg.pointer) : const_cast<void*>(arg.value);
  }
  CUresult code = allow_shared(driver.api, kernel, request.shared_memory);
  if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuFuncSetAttribute", "kernel '" + kernel.name + "'");
  if (request.is_cooperative == 0 && request.cluster[0] == 0) [[likely]] {
    code = driver.api.LaunchKernel(kernel.function, request.grid[0], request.grid[1], request.grid[2], request.block[0],
                                   request.block[1], request.block[2], static_cast<uint32_t>(request.shared_memory),
                                   stream, arguments, nullptr);
  } else if (driver.api.LaunchKernelEx == nullptr) {
    return fail(OB_UNIMPLEMENTED, "kernel '%s': cooperative launches and clusters need a driver of CUDA 11.8 or later",
                kernel.name.c_str());
  } else {
    code = launch_with_attributes(driver.api, kernel, stream, request, arguments);
  }
  return code == CUDA_SUCCESS ? OB_OK : cuda_fail(driver.api, code, "cuLaunchKernel", "kernel '" + kernel.name + "'");
}

void fill_program_entries(ob_driver* table) {
  table->program_build = program_build;
  table->program_destroy = program_destroy;
  table->kernel_get = get_kernel;
  table->kernel_launch = kernel_launch;
  table->program_binary = program_binary;
}

}  // namespace nv

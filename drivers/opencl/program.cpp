// SPDX-License-Identifier: BSD-3-Clause
// Programs from OpenCL C, their kernels, launches.
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstring>

#include "driver.h"
#include "torch_outboard/support/source_lines.h"

namespace opencl {
namespace {

using support::guarded;
using support::with_device;
using support::with_stream;

std::string build_log(const Api& api, cl_program program, cl_device_id device) {
  size_t size = 0;
  if (api.GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS) return "";
  std::string log(size, '\0');
  if (api.GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr) != CL_SUCCESS)
    return "";
  log.resize(std::strlen(log.c_str()));
  return log;
}

// Return a header for binaries, with the properties that the core does not compare.
std::string binary_head(const Api& api, const FoundDevice& found, const std::string& options) {
  return platform_text(api, found.platform, CL_PLATFORM_NAME) + '\0' +
         platform_text(api, found.platform, CL_PLATFORM_VERSION) + '\0' +
         device_text(api, found.device, CL_DEVICE_VERSION) + '\0' + options + '\0';
}

// Return true for a runtime that keeps programs on disk itself, and takes long to return a binary:
// PoCL compiles each kernel once more for it.
bool keeps_programs(const Api& api, const FoundDevice& found) {
  return platform_text(api, found.platform, CL_PLATFORM_NAME) == "Portable Computing Language";
}

// Build the program of a binary.
ob_status from_binary(Driver& driver, Device& device, const std::string& given, const std::string& options,
                      cl_program* out_program) {
  const Api& api = driver.api;
  const std::string head = binary_head(api, device.found, options);
  if (!given.starts_with(head)) {
    return fail(OB_INVALID_ARGUMENT, "%s: the binary was built for another platform or with other options",
                where(driver, device.index).c_str());
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given.data() + head.size());
  const size_t size = given.size() - head.size();
  cl_int status = CL_SUCCESS;
  cl_int code = CL_SUCCESS;
  const cl_program program =
      api.CreateProgramWithBinary(device.context, 1, &device.found.device, &size, &bytes, &status, &code);
  if (program == nullptr) return cl_fail(code, "clCreateProgramWithBinary", where(driver, device.index));
  if (code == CL_SUCCESS) code = status;
  if (code == CL_SUCCESS) {
    code = api.BuildProgram(program, 1, &device.found.device, options.c_str(), nullptr, nullptr);
  }
  if (code == CL_SUCCESS) {
    *out_program = program;
    return OB_OK;
  }
  api.ReleaseProgram(program);
  return cl_fail(code, "clBuildProgram", where(driver, device.index) + ", of a binary");
}

std::string to_binary(const Api& api, cl_program program) {
  size_t size = 0;
  if (api.GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) != CL_SUCCESS) return "";
  std::string binary(size, '\0');
  char* data = binary.data();
  if (size == 0 || api.GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr) != CL_SUCCESS)
    return "";
  return binary;
}

// Return the options for float32 division and square root rounded as on the CPU and on PyTorch's
// other devices. By default OpenCL leaves them some bits short, and trunc(a / b) is then wrong
// by one if a is a multiple of b.
std::string precise_options(const Api& api, cl_device_id device, const std::string& options) {
  const auto known = device_info<cl_bitfield>(api, device, CL_DEVICE_SINGLE_FP_CONFIG);
  if ((known & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) == 0) return options;
  return options + (options.empty() ? "" : " ") + "-cl-fp32-correctly-rounded-divide-sqrt";
}

// Return true if the compiler can build at all, tried with a text that no cache has. Runtimes
// report a full disk like an error in the text.
bool builds_anything(const Api& api, Device& device) {
  static std::atomic<uint64_t> number{
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  const std::string source = "__kernel void ob_nothing_" + std::to_string(number.fetch_add(1)) + "(void) {}";
  const char* text = source.data();
  const size_t size = source.size();
  cl_int code = CL_SUCCESS;
  const cl_program program = api.CreateProgramWithSource(device.context, 1, &text, &size, &code);
  if (code != CL_SUCCESS) return false;
  code = api.BuildProgram(program, 1, &device.found.device, "", nullptr, nullptr);
  api.ReleaseProgram(program);
  return code == CL_SUCCESS;
}

ob_status from_source(Driver& driver, Device& device, const std::string& source, const std::string& options,
                      cl_program* out_program) {
  const Api& api = driver.api;
  const char* text = source.data();
  const size_t size = source.size();
  cl_int code = CL_SUCCESS;
  const cl_program program = api.CreateProgramWithSource(device.context, 1, &text, &size, &code);
  if (code != CL_SUCCESS) return cl_fail(code, "clCreateProgramWithSource", where(driver, device.index));
  code = api.BuildProgram(program, 1, &device.found.device, options.c_str(), nullptr, nullptr);
  if (code == CL_SUCCESS) {
    *out_program = program;
    return OB_OK;
  }
  const std::string log = build_log(api, program, device.found.device);
  api.ReleaseProgram(program);
  if (code != CL_BUILD_PROGRAM_FAILURE) return cl_fail(code, "clBuildProgram", where(driver, device.index));
  if (!builds_anything(api, device)) {
    return fail(OB_UNAVAILABLE,
                "%s: the compiler cannot build any program, not even an empty kernel (%s). Its cache must be writable"
                " (PoCL's is POCL_CACHE_DIR or ~/.cache/pocl), and the disk must not be full:\n%s",
                where(driver, device.index).c_str(), error_name(code).c_str(), log.c_str());
  }
  return fail(OB_PROGRAM_REFUSED, "%s: the program does not build (%s), options '%s':\n%s%s",
              where(driver, device.index).c_str(), error_name(code).c_str(), options.c_str(), log.c_str(),
              support::cite_source(log, source).c_str());
}

ob_status build(void* self, int32_t index, const ob_program_source* source, uint64_t* out_program) {
  return with_device<Driver>(self, index, "program_build", [&](Driver& driver, Device* device) -> ob_status {
    const bool is_binary = std::strcmp(source->language, OB_LANGUAGE_BINARY) == 0;
    if (!is_binary && std::strcmp(source->language, "opencl_c") != 0) {
      return fail(OB_INVALID_ARGUMENT, "programs are built from 'opencl_c', not '%s'", source->language);
    }
    const std::string code(static_cast<const char*>(source->code), source->code_size);
    return program_build(driver, *device, code, source->options, is_binary, out_program);
  });
}

ob_status program_binary(void* self, int32_t index, uint64_t handle, void* context, ob_take_fn take) {
  return with_device<Driver>(self, index, "program_binary", [&](Driver& driver, Device* device) -> ob_status {
    Program* program = nullptr;
    if (const ob_status status = driver.find_program(index, handle, &program); status != OB_OK) return status;
    if (!driver.options.cache.value_or(!keeps_programs(driver.api, device->found))) {
      return fail(OB_UNIMPLEMENTED,
                  "programs are not cached, because of the option 'cache' or because the runtime caches them");
    }
    const std::string binary = to_binary(driver.api, program->program);
    if (binary.empty()) return fail(OB_UNIMPLEMENTED, "the runtime has no binary of the program");
    const std::string bytes = binary_head(driver.api, device->found, program->options) + binary;
    take(context, bytes.data(), bytes.size());
    return OB_OK;
  });
}

ob_status program_destroy(void* self, int32_t index, uint64_t handle) {
  return guarded("program_destroy", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Program* found = nullptr;
    if (const ob_status status = driver.find_program(index, handle, &found); status != OB_OK) return status;
    std::unique_ptr<Program> program;
    if (!driver.programs.take(handle, &program))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same program");
    for (const auto& [name, kernel_handle] : program->kernels) {
      std::unique_ptr<Kernel> kernel;
      if (driver.kernels.take(kernel_handle, &kernel)) driver.api.ReleaseKernel(kernel->kernel);
    }
    const cl_int code = driver.api.ReleaseProgram(program->program);
    return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clReleaseProgram", where(driver, index));
  });
}

ob_status get_kernel(void* self, int32_t index, uint64_t program, const char* name, uint64_t* out_kernel) {
  return guarded("kernel_get",
                 [&] { return kernel_get(*static_cast<Driver*>(self), index, program, name, out_kernel); });
}

ob_status kernel_launch(void* self, int32_t index, uint64_t handle, const ob_launch* request) {
  return with_stream<Driver>(self, index, handle, "kernel_launch", [&](Driver& driver, Stream* stream) -> ob_status {
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    return launch(driver, *device, *stream, *request);
  });
}

// Refuse, with a message, a launch that this device cannot run.
ob_status check_launch(const Device& device, const Kernel& kernel, const ob_launch& request) {
  const char* name = kernel.name.c_str();
  uint64_t group = 1;
  for (int i = 0; i < 3; ++i) {
    if (request.grid[i] == 0 || request.block[i] == 0) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s': dimension %d of the grid or of the block is 0", name, i);
    }
    if (request.block[i] > device.max_items[i]) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s': a block may have at most %zu work-items in dimension %d, not %u",
                  name, device.max_items[i], i, request.block[i]);
    }
    group *= request.block[i];
  }
  if (group > kernel.max_group) {
    return fail(OB_INVALID_ARGUMENT,
                "kernel '%s': a block may have at most %zu work-items on this device, not %" PRIu64, name,
                kernel.max_group, group);
  }
  if (request.shared_memory != 0) {
    return fail(
        OB_INVALID_ARGUMENT,
        "kernel '%s': OpenCL takes local memory as an argument (OB_ARG_LOCAL), not with the launch (`shared_memory`)",
        name);
  }
  if (request.is_cooperative != 0 || request.cluster[0] != 0 || request.cluster[1] != 0 || request.cluster[2] != 0) {
    return fail(OB_UNIMPLEMENTED, "kernel '%s': OpenCL has neither cooperative launches nor clusters", name);
  }
  if (request.arg_count != kernel.arg_count) {
    return fail(OB_INVALID_ARGUMENT, "kernel '%s' takes %u arguments, not %zu", name, kernel.arg_count,
                request.arg_count);
  }
  return OB_OK;
}

cl_int set_arg(const Api& api, cl_kernel kernel, cl_uint index, const ob_kernel_arg& arg) {
  switch (arg.kind) {
    case OB_ARG_POINTER:
      // A null pointer, as of a tensor without elements, is not a pointer to shared memory:
      // NVIDIA's runtime refuses the launch.
      if (arg.pointer == 0) {
        return api.SetKernelArg(kernel, index, sizeof(cl_mem), nullptr);
      }
      return api.SetKernelArgSVMPointer(kernel, index, reinterpret_cast<const void*>(arg.pointer));
    case OB_ARG_VALUE:
      return api.SetKernelArg(kernel, index, arg.size, arg.value);
    case OB_ARG_LOCAL:
      return api.SetKernelArg(kernel, index, arg.size, nullptr);
    default:
      return CL_INVALID_ARG_VALUE;
  }
}

// Report all memory to the runtime that a kernel may reach by addresses that are not
// arguments. The kernel keeps the report. Call it with the kernel's mutex held. Memory that is
// freed meanwhile is not used by queued work.
cl_int declare_memory(const Api& api, const Device& device, Kernel& kernel) {
  if (kernel.known_memory == device.memory.changes()) return CL_SUCCESS;
  uint64_t changes = 0;
  const std::vector<uint64_t> owners = device.memory.owners(&changes);
  const cl_int code = api.SetKernelExecInfo(kernel.kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS,
                                            owners.size() * sizeof(uint64_t), owners.data());
  if (code == CL_SUCCESS) kernel.known_memory = changes;
  return code;
}

}  // namespace

ob_status program_build(Driver& driver, Device& device, const std::string& source, const std::string& source_options,
                        bool is_binary, uint64_t* out_program) {
  auto program = std::make_unique<Program>();
  program->device = device.index;
  program->options = precise_options(driver.api, device.found.device, source_options);
  const auto make = is_binary ? from_binary : from_source;
  const ob_status status = make(driver, device, source, program->options, &program->program);
  if (status == OB_OK) *out_program = driver.programs.make(std::move(program));
  return status;
}

ob_status kernel_get(Driver& driver, int32_t device, uint64_t handle, const char* name, uint64_t* out_kernel) {
  Program* program = nullptr;
  if (const ob_status status = driver.find_program(device, handle, &program); status != OB_OK) return status;
  const std::lock_guard lock(program->mutex);
  if (const auto known = program->kernels.find(name); known != program->kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  cl_int code = CL_SUCCESS;
  auto kernel = std::make_unique<Kernel>();
  kernel->kernel = driver.api.CreateKernel(program->program, name, &code);
  if (code != CL_SUCCESS) {
    return cl_fail(code, "clCreateKernel", where(driver, device) + ": kernel '" + name + "'");
  }
  kernel->name = name;
  kernel->device = device;
  code = driver.api.GetKernelInfo(kernel->kernel, CL_KERNEL_NUM_ARGS, sizeof kernel->arg_count, &kernel->arg_count,
                                  nullptr);
  if (code == CL_SUCCESS) {
    const cl_device_id id = driver.enumeration.devices[static_cast<size_t>(device)].device;
    code = driver.api.GetKernelWorkGroupInfo(kernel->kernel, id, CL_KERNEL_WORK_GROUP_SIZE, sizeof kernel->max_group,
                                             &kernel->max_group, nullptr);
  }
  if (code != CL_SUCCESS) {
    driver.api.ReleaseKernel(kernel->kernel);
    return cl_fail(code, "clGetKernelWorkGroupInfo", where(driver, device) + ": kernel '" + name + "'");
  }
  *out_kernel = driver.kernels.make(std::move(kernel));
  program->kernels.emplace(name, *out_kernel);
  return OB_OK;
}

ob_status launch(Driver& driver, Device& device, Stream& stream, const ob_launch& request) {
  Kernel* found = nullptr;
  if (const ob_status status = driver.find_kernel(device.index, request.kernel, &found); status != OB_OK) return status;
  Kernel& kernel = *found;
  if (const ob_status status = check_launch(device, kernel, request); status != OB_OK) return status;
  size_t global[3];
  size_t local[3];
  for (int i = 0; i < 3; ++i) {
    local[i] = request.block[i];
    global[i] = local[i] * request.grid[i];
  }
  const std::lock_guard lock(kernel.mutex);
  const char* at = reinterpret_cast<const char*>(request.args);
  for (cl_uint i = 0; i < request.arg_count; ++i, at += request.arg_stride) {
    const cl_int code = set_arg(driver.api, kernel.kernel, i, *reinterpret_cast<const ob_kernel_arg*>(at));
    if (code != CL_SUCCESS) {
      return cl_fail(code, "clSetKernelArg", "kernel '" + kernel.name + "', argument " + std::to_string(i));
    }
  }
  if (request.follows_addresses != 0) {
    const cl_int code = declare_memory(driver.api, device, kernel);
    if (code != CL_SUCCESS) return cl_fail(code, "clSetKernelExecInfo", "kernel '" + kernel.name + "'");
  }
  const cl_int code =
      driver.api.EnqueueNDRangeKernel(stream.queue, kernel.kernel, 3, nullptr, global, local, 0, nullptr, nullptr);
  if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueNDRangeKernel", "kernel '" + kernel.name + "'");
  note_queued(stream);
  return OB_OK;
}

void fill_program_entries(ob_driver* table) {
  table->program_build = build;
  table->program_destroy = program_destroy;
  table->kernel_get = get_kernel;
  table->kernel_launch = kernel_launch;
  table->program_binary = program_binary;
}

}  // namespace opencl

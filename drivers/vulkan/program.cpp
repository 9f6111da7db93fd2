// SPDX-License-Identifier: BSD-3-Clause
// Programs from Slang and SPIR-V, their kernels, launches.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "driver.h"
#include "slang.h"

namespace vulkan {
namespace {

using support::guarded;
using support::with_device;

constexpr uint32_t kPushedBytes = 128;  // every device pushes that much
constexpr const char* kBinaryHead = "torch_outboard SPIR-V 1";

// Return a header for binaries, with the properties that the core does not compare.
std::string binary_head(const Device& device, const std::string& options) {
  const auto* uuid = reinterpret_cast<const char*>(device.found.properties.pipelineCacheUUID);
  return kBinaryHead + ('\0' + options) + '\0' + std::string(uuid, 16);
}

// Read the words of SPIR-V from bytes, or from a binary after its header.
ob_status read_words(const Device& device, const std::string& given, const std::string& options, bool is_binary,
                     std::vector<uint32_t>* out_words) {
  const std::string head = is_binary ? binary_head(device, options) : "";
  if (!given.starts_with(head)) {
    return fail(OB_INVALID_ARGUMENT, "%s: the binary was built for another device or driver, or with other options",
                where(device).c_str());
  }
  out_words->resize((given.size() - head.size()) / sizeof(uint32_t));
  std::memcpy(out_words->data(), given.data() + head.size(), out_words->size() * sizeof(uint32_t));
  return OB_OK;
}

ob_status build(void* self, int32_t index, const ob_program_source* source, uint64_t* out_program) {
  return with_device<Driver>(self, index, "program_build", [&](Driver& driver, Device* device) -> ob_status {
    const std::string code(static_cast<const char*>(source->code), source->code_size);
    const std::string name = source->language;
    if (name != "slang" && name != "spirv" && name != OB_LANGUAGE_BINARY) {
      return fail(OB_INVALID_ARGUMENT, "programs are built from 'slang' or 'spirv', not '%s'", source->language);
    }
    const Language language = name == "slang"   ? Language::kSlang
                              : name == "spirv" ? Language::kSpirv
                                                : Language::kBinary;
    return program_build(driver, *device, code, source->options, language, out_program);
  });
}

ob_status program_binary(void* self, int32_t index, uint64_t handle, void* context, ob_take_fn take) {
  return guarded("program_binary", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* device = nullptr;
    Program* program = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (const ob_status status = driver.find_program(index, handle, &program); status != OB_OK) return status;
    if (!program->is_text) return fail(OB_UNIMPLEMENTED, "the program was not built from text");
    std::string bytes = binary_head(*device, program->options);
    bytes.append(reinterpret_cast<const char*>(program->words.data()), program->words.size() * sizeof(uint32_t));
    take(context, bytes.data(), bytes.size());
    return OB_OK;
  });
}

ob_status program_destroy(void* self, int32_t index, uint64_t handle) {
  return guarded("program_destroy", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* device = nullptr;
    Program* found = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (const ob_status status = driver.find_program(index, handle, &found); status != OB_OK) return status;
    std::unique_ptr<Program> program;
    if (!driver.programs.take(handle, &program))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same program");
    destroy_program(driver, *device, *program);
    return OB_OK;
  });
}

ob_status get_kernel(void* self, int32_t index, uint64_t program, const char* name, uint64_t* out_kernel) {
  return guarded("kernel_get",
                 [&] { return kernel_get(*static_cast<Driver*>(self), index, program, name, out_kernel); });
}

ob_status kernel_launch(void* self, int32_t index, uint64_t handle, const ob_launch* given) {
  return guarded("kernel_launch", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Device* device = nullptr;
    Stream* stream = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (const ob_status status = driver.find_stream(index, handle, &stream); status != OB_OK) return status;
    return launch(driver, *device, *stream, *given, {OB_ACTIVITY_KERNEL});
  });
}

// Refuse, with a message, a launch that this device cannot run.
ob_status check_launch(const Device& device, const Kernel& kernel, const ob_launch& given) {
  const char* name = kernel.name.c_str();
  const VkPhysicalDeviceLimits& limits = device.found.properties.limits;
  for (int i = 0; i < 3; ++i) {
    if (given.grid[i] == 0 || given.block[i] == 0) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s': dimension %d of the grid or of the block is 0", name, i);
    }
    if (i > 0 && given.grid[i] > limits.maxComputeWorkGroupCount[i]) {
      return fail(OB_INVALID_ARGUMENT,
                  "kernel '%s': a grid may have at most %u groups in dimension %d on this device, not %u", name,
                  limits.maxComputeWorkGroupCount[i], i, given.grid[i]);
    }
    const bool is_free = i == 0 && kernel.entry.has_group_constant;
    if (!is_free && given.block[i] != kernel.entry.group[i]) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s': a block must have %u items in dimension %d, not %u", name,
                  kernel.entry.group[i], i, given.block[i]);
    }
  }
  const uint32_t most = std::min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]);
  if (uint64_t{given.block[0]} * given.block[1] * given.block[2] > most) {
    return fail(OB_INVALID_ARGUMENT, "kernel '%s': a block may have at most %u items on this device, not %" PRIu64,
                name, most, uint64_t{given.block[0]} * given.block[1] * given.block[2]);
  }
  const uint32_t lanes = device.found.properties11.subgroupSize;
  if (kernel.entry.has_matrices && (device.found.matrix_units.empty() || given.block[0] % lanes != 0)) {
    return fail(
        OB_INVALID_ARGUMENT,
        "kernel '%s' uses cooperative matrices: the device must support them, and dimension 0 of a block must be "
        "a multiple of the subgroup's %u items, not %u",
        name, lanes, given.block[0]);
  }
  if (kernel.entry.has_shuffles && !device.found.has_shuffles) {
    return fail(OB_INVALID_ARGUMENT,
                "kernel '%s' may use subgroup shuffles: the device must support shuffles in compute shaders, and let "
                "kernels choose the subgroup size",
                name);
  }
  if (given.shared_memory != 0) {
    return fail(
        OB_INVALID_ARGUMENT,
        "kernel '%s': Vulkan takes local memory as an argument (OB_ARG_LOCAL), not with the launch (`shared_memory`)",
        name);
  }
  if (given.is_cooperative != 0 || given.cluster[0] != 0 || given.cluster[1] != 0 || given.cluster[2] != 0) {
    return fail(OB_UNIMPLEMENTED, "kernel '%s': Vulkan has neither cooperative launches nor clusters", name);
  }
  return OB_OK;
}

// A launch's arguments as the kernel takes them.
struct Arguments {
  std::vector<char> bytes;            // the struct; the number of the first group stands first
  std::vector<uint32_t> specialized;  // the group's size, then the bytes of each local argument
};

ob_status collect_arguments(const Device& device, const Kernel& kernel, const ob_launch& given, Arguments& result) {
  const char* name = kernel.name.c_str();
  const std::vector<uint32_t>& offsets = kernel.entry.offsets;
  size_t field = 1;
  size_t end = sizeof(int64_t);
  uint64_t local = 0;
  result.bytes.resize(end);
  result.specialized.push_back(given.block[0]);
  const char* at = reinterpret_cast<const char*>(given.args);
  for (size_t i = 0; i < given.arg_count; ++i, at += given.arg_stride) {
    const auto& arg = *reinterpret_cast<const ob_kernel_arg*>(at);
    if (arg.kind == OB_ARG_LOCAL) {
      result.specialized.push_back(arg.size);
      local += arg.size;
      continue;
    }
    const bool is_pointer = arg.kind == OB_ARG_POINTER;
    const size_t size = is_pointer ? sizeof arg.pointer : arg.size;
    if ((!is_pointer && arg.kind != OB_ARG_VALUE) || size == 0) {
      return fail(OB_INVALID_ARGUMENT, "kernel '%s': argument %zu has an unknown kind or no bytes", name, i);
    }
    const size_t alignment = std::min<size_t>(8, size & (~size + 1));
    end = (end + alignment - 1) / alignment * alignment;
    if (field < offsets.size() && offsets[field] != end) {
      return fail(OB_INVALID_ARGUMENT,
                  "kernel '%s': argument %zu lies at byte %zu of the arguments, but the kernel reads it at byte %u",
                  name, i, end, offsets[field]);
    }
    result.bytes.resize(end + size);
    std::memcpy(result.bytes.data() + end, is_pointer ? &arg.pointer : arg.value, size);
    end += size;
    ++field;
  }
  if (!offsets.empty() && field != offsets.size()) {
    return fail(OB_INVALID_ARGUMENT, "kernel '%s' takes %zu arguments besides local memory, not %zu", name,
                offsets.size() - 1, field - 1);
  }
  if (local > device.found.properties.limits.maxComputeSharedMemorySize) {
    return fail(OB_INVALID_ARGUMENT,
                "kernel '%s': a block may have at most %u bytes of local memory on this device, not %" PRIu64, name,
                device.found.properties.limits.maxComputeSharedMemorySize, local);
  }
  result.bytes.resize(offsets.empty() ? 0 : (end + 7) / 8 * 8);
  return OB_OK;
}

// Find the pipeline for a group's size and the sizes of local memory.
ob_status find_pipeline(Device& device, Kernel& kernel, const std::vector<uint32_t>& specialized,
                        VkPipeline* out_pipeline) {
  const std::lock_guard lock(kernel.mutex);
  VkPipeline& pipeline = kernel.pipelines[specialized];
  *out_pipeline = pipeline;
  if (pipeline != nullptr) return OB_OK;
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < specialized.size(); ++i) entries.push_back({i, i * 4, sizeof(uint32_t)});
  const VkSpecializationInfo values = {static_cast<uint32_t>(entries.size()), entries.data(), 4 * specialized.size(),
                                       specialized.data()};
  VkComputePipelineCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = kernel.module;
  info.stage.pName = kernel.name.c_str();
  info.stage.pSpecializationInfo = &values;
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroups = {};
  subgroups.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
  const uint32_t lanes = subgroups.requiredSubgroupSize = device.found.properties11.subgroupSize;
  const uint32_t most = lanes * device.found.properties13.maxComputeWorkgroupSubgroups;
  // Another kernel of the module may have groups of any size.
  const bool is_whole = specialized[0] % lanes == 0 && specialized[0] <= most;
  if (kernel.entry.has_matrices || (kernel.entry.has_shuffles && is_whole)) {
    info.stage.pNext = &subgroups;
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  info.layout = device.layout;
  info.basePipelineIndex = -1;
  const VkResult code = device.api.CreateComputePipelines(device.device, nullptr, 1, &info, nullptr, &pipeline);
  if (code != VK_SUCCESS) {
    pipeline = nullptr;
    return vk_fail(code, "vkCreateComputePipelines", where(device) + ": kernel '" + kernel.name + "'");
  }
  *out_pipeline = pipeline;
  return OB_OK;
}

// Record one dispatch for each part of the grid, because a dispatch has a limited size. Call it
// with the stream's mutex held.
ob_status record_launch(Stream& stream, const Kernel& kernel, const ob_launch& given, Arguments& arguments,
                        VkPipeline pipeline) {
  const Device& device = *stream.device;
  const DeviceApi& api = device.api;
  Batch* batch = nullptr;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  if (batch->bound != pipeline) {
    api.CmdBindPipeline(batch->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    batch->bound = pipeline;
  }
  const uint32_t most = device.found.properties.limits.maxComputeWorkGroupCount[0];
  std::vector<char>& bytes = arguments.bytes;
  for (uint64_t first = 0; first < given.grid[0]; first += most) {
    const auto group = static_cast<int64_t>(first);
    if (!bytes.empty()) std::memcpy(bytes.data(), &group, sizeof group);
    if (kernel.entry.is_by_address) {
      Chunk* chunk = nullptr;
      uint64_t offset = 0;
      if (const ob_status status = reserve(stream, *batch, bytes.size(), &chunk, &offset); status != OB_OK) {
        return status;
      }
      std::memcpy(chunk->buffer.host + offset, bytes.data(), bytes.size());
      const uint64_t address = chunk->buffer.address + offset;
      api.CmdPushConstants(batch->commands, device.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof address, &address);
    } else if (!bytes.empty()) {
      api.CmdPushConstants(batch->commands, device.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                           static_cast<uint32_t>(bytes.size()), bytes.data());
    }
    const auto groups = static_cast<uint32_t>(std::min<uint64_t>(most, given.grid[0] - first));
    api.CmdDispatch(batch->commands, groups, given.grid[1], given.grid[2]);
  }
  end_command(stream, *batch);
  return OB_OK;
}

}  // namespace

void destroy_program(Driver& driver, Device& device, Program& program) {
  for (const auto& [name, handle] : program.kernels) {
    std::unique_ptr<Kernel> kernel;
    if (!driver.kernels.take(handle, &kernel)) continue;
    for (const auto& [sizes, pipeline] : kernel->pipelines) {
      if (pipeline != nullptr) device.api.DestroyPipeline(device.device, pipeline, nullptr);
    }
  }
  device.api.DestroyShaderModule(device.device, program.module, nullptr);
}

ob_status program_build(Driver& driver, Device& device, const std::string& source, const std::string& given,
                        Language language, uint64_t* out_program) {
  auto program = std::make_unique<Program>();
  program->device = device.index;
  program->options = given;
  program->is_text = language == Language::kSlang;
  const ob_status status = program->is_text
                               ? compile_slang(driver.options.slang, source, given, &program->words)
                               : read_words(device, source, given, language == Language::kBinary, &program->words);
  if (status != OB_OK) return status;
  std::string error;
  if (!prepare_module(device.found.properties12, &program->words, &program->entries, &error)) {
    return fail(language == Language::kSpirv ? OB_PROGRAM_REFUSED : OB_INVALID_ARGUMENT, "%s: %s",
                where(device).c_str(), error.c_str());
  }
  VkShaderModuleCreateInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  info.codeSize = program->words.size() * sizeof(uint32_t);
  info.pCode = program->words.data();
  const VkResult code = device.api.CreateShaderModule(device.device, &info, nullptr, &program->module);
  if (code != VK_SUCCESS) return vk_fail(code, "vkCreateShaderModule", where(device));
  *out_program = driver.programs.make(std::move(program));
  return OB_OK;
}

ob_status kernel_get(Driver& driver, int32_t device, uint64_t handle, const char* name, uint64_t* out_kernel) {
  Program* program = nullptr;
  if (const ob_status status = driver.find_program(device, handle, &program); status != OB_OK) return status;
  const std::lock_guard lock(program->mutex);
  if (const auto known = program->kernels.find(name); known != program->kernels.end()) {
    *out_kernel = known->second;
    return OB_OK;
  }
  const auto entry = program->entries.find(name);
  if (entry == program->entries.end()) {
    return fail(OB_NOT_FOUND, "device %d: the program has no kernel '%s'", device, name);
  }
  const size_t fields = entry->second.offsets.size();
  if (!entry->second.is_by_address && fields > 0 && entry->second.offsets[fields - 1] >= kPushedBytes) {
    return fail(OB_INVALID_ARGUMENT,
                "device %d: the arguments of kernel '%s' exceed %u bytes: pass the address of a struct instead", device,
                name, kPushedBytes);
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  kernel->device = device;
  kernel->module = program->module;
  kernel->entry = entry->second;
  *out_kernel = driver.kernels.make(std::move(kernel));
  program->kernels.emplace(name, *out_kernel);
  return OB_OK;
}

ob_status launch(Driver& driver, Device& device, Stream& stream, const ob_launch& given, Work work) {
  Kernel* found = nullptr;
  if (const ob_status status = driver.find_kernel(device.index, given.kernel, &found); status != OB_OK) return status;
  Kernel& kernel = *found;
  Arguments arguments;
  VkPipeline pipeline = nullptr;
  ob_status status = check_launch(device, kernel, given);
  if (status == OB_OK) status = collect_arguments(device, kernel, given, arguments);
  if (status == OB_OK && !kernel.entry.is_by_address && arguments.bytes.size() > kPushedBytes) {
    status = fail(OB_INVALID_ARGUMENT, "kernel '%s': its arguments have %zu bytes, but at most %u can be pushed",
                  kernel.name.c_str(), arguments.bytes.size(), kPushedBytes);
  }
  if (status == OB_OK) status = find_pipeline(device, kernel, arguments.specialized, &pipeline);
  if (status != OB_OK) return status;
  if (*work.name == 0) work.name = kernel.name.c_str();
  {
    const StreamLock lock(stream);
    const DeviceTiming timed(stream, work);
    status = record_launch(stream, kernel, given, arguments, pipeline);
  }
  if (status == OB_OK) notify(stream);
  return status;
}

void fill_program_entries(ob_driver* table) {
  table->program_build = build;
  table->program_destroy = program_destroy;
  table->kernel_get = get_kernel;
  table->kernel_launch = kernel_launch;
  table->program_binary = program_binary;
}

}  // namespace vulkan

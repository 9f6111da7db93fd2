// SPDX-License-Identifier: BSD-3-Clause
// A libcuda with host memory that does everything at once, for tests of the driver on machines
// without a GPU. Two devices of compute capability 3.1, 1 GiB each. A module is any text; its
// kernel "illegal" makes every later call fail, as an illegal address does, and any other does
// nothing. FAKE_CUDA_DEVICES sets the number of devices, and FAKE_CUDA_MAJOR another major compute
// capability (minor 0), because no compiler knows 3.1. If a module is a cubin, the fake reads its
// kernels, their parameters and blocks. It refuses launches that CUDA refuses, and writes the
// others to the file FAKE_CUDA_LAUNCHES, one line each: name, grid, block, shared memory, and the
// parameters' bytes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr size_t kTotal = size_t{1} << 30;
constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kInvalidPtx = 218, kInvalidHandle = 400,
              kNotFound = 500, kNotSupported = 801, kAlreadyRegistered = 712, kNotRegistered = 713;

std::atomic<int> sticky{0};
std::mutex mutex;
std::map<uint64_t, size_t> blocks;  // device memory
size_t used = 0;
std::map<void*, std::chrono::steady_clock::time_point> records;  // of events
std::set<void*> pinned, allocated_host, streams, events, graphs, executables;
std::set<void*> capturing;  // streams; a graph records nothing, and work queued meanwhile is done at once
// A kernel: only its name for a text, or the compiler's description from a cubin.
struct Function {
  std::string name;
  bool is_known = false;
  std::map<uint32_t, uint32_t> parameters;  // sizes by their places
  uint32_t block[3] = {};  // 0: any
  size_t shared = 0;  // static
  size_t allowed = 48 << 10;  // static and dynamic
};
std::map<std::string, Function> texts;  // kernels of texts
std::map<void*, std::map<std::string, Function>> cubins;  // by module
thread_local void* current = nullptr;
char contexts[64];

int devices() {
  const char* given = std::getenv("FAKE_CUDA_DEVICES");
  return given != nullptr ? std::atoi(given) : 2;
}

int major() {
  const char* given = std::getenv("FAKE_CUDA_MAJOR");
  return given != nullptr ? std::atoi(given) : 3;
}

int make(std::set<void*>& set, void** out) {
  if (sticky != 0) return sticky;
  if (current == nullptr) return 201;  // invalid context
  const std::lock_guard lock(mutex);
  *out = std::malloc(16);
  set.insert(*out);
  return 0;
}

int check(const std::set<void*>& set, void* handle) {
  if (sticky != 0) return sticky;
  if (current == nullptr) return 201;
  const std::lock_guard lock(mutex);
  return set.count(handle) != 0 ? 0 : kInvalidHandle;
}

int drop(std::set<void*>& set, void* handle) {
  if (const int code = check(set, handle)) return code;
  const std::lock_guard lock(mutex);
  set.erase(handle);
  std::free(handle);
  return 0;
}

template <class T>
int fill(uint64_t dst, T value, size_t count, void* stream) {
  if (const int code = check(streams, stream)) return code;
  for (size_t i = 0; i < count; ++i) std::memcpy(reinterpret_cast<char*>(dst) + i * sizeof value, &value, sizeof value);
  return 0;
}

uint64_t word(const char* at, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, at, bytes);
  return value;
}

// The section .nv.info.NAME: entries of a format, an attribute, and a value of two bytes, which in
// format 4 is the size of the data that follows.
void read_info(const char* at, const char* end, Function* out) {
  while (at + 4 <= end) {
    const auto format = static_cast<uint8_t>(at[0]), attribute = static_cast<uint8_t>(at[1]);
    const size_t size = format == 4 ? word(at + 2, 2) : 0;
    const char* value = at + 4;
    if (attribute == 0x17) out->parameters[word(value + 4, 2)] = word(value + 8, 4) >> 18;
    if (attribute == 0x10) std::memcpy(out->block, value, sizeof out->block);
    at += 4 + size;
  }
}

std::map<std::string, Function> read_cubin(const char* image) {
  std::map<std::string, Function> found;
  const char* sections = image + word(image + 40, 8);
  const size_t entry = word(image + 58, 2), count = word(image + 60, 2), names = word(image + 62, 2);
  const char* texts_at = image + word(sections + names * entry + 24, 8);
  for (size_t i = 0; i < count; ++i) {
    const char* section = sections + i * entry;
    const std::string name = texts_at + word(section, 4);
    const char* content = image + word(section + 24, 8);
    const size_t bytes = word(section + 32, 8);
    if (name.starts_with(".nv.info.")) read_info(content, content + bytes, &found[name.substr(9)]);
    if (name.starts_with(".nv.shared.")) found[name.substr(11)].shared = bytes;
  }
  for (auto& [name, function] : found) {
    function.name = name;
    function.is_known = true;
  }
  return found;
}

int check_launch(const Function& function, const unsigned (&block)[3], unsigned shared) {
  for (int i = 0; i < 3; ++i) {
    if (function.block[0] != 0 && block[i] != function.block[i]) return kInvalidValue;
  }
  return function.shared + shared <= function.allowed ? 0 : kInvalidValue;
}

void write_launch(const Function& function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                  void** arguments) {
  const char* path = std::getenv("FAKE_CUDA_LAUNCHES");
  if (path == nullptr) return;
  std::ofstream file(path, std::ios::app);
  file << function.name;
  for (const unsigned size : grid) file << ' ' << size;
  for (const unsigned size : block) file << ' ' << size;
  file << ' ' << shared;
  for (const auto& [place, size] : function.parameters) {
    file << ' ' << size << ':' << word(static_cast<const char*>(arguments[place]), std::min(size, 8u));
  }
  file << '\n';
}

struct Ipc {
  char bytes[64];
};
struct Uuid {
  char bytes[16];
};

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return devices() > 0 ? 0 : 100;
}
int cuDriverGetVersion(int* out) {
  return *out = 12040, 0;
}
int cuGetErrorName(int code, const char** out) {
  *out = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int code, const char** out) {
  *out = code == 700 ? "an illegal memory access was encountered" : "fake";
  return 0;
}
int cuDeviceGetCount(int* out) {
  return *out = devices(), 0;
}
int cuDeviceGet(int* out, int index) {
  return *out = index, index < devices() ? 0 : kInvalidDevice;
}
int cuDeviceGetName(char* out, int size, int) {
  return std::strncpy(out, "Fake GPU", static_cast<size_t>(size)), 0;
}
int cuDeviceGetUuid(Uuid* out, int) {
  return std::memset(out, 7, sizeof *out), 0;
}
int cuDeviceTotalMem_v2(size_t* out, int) {
  return *out = kTotal, 0;
}
int cuDeviceGetAttribute(int* out, int which, int) {
  switch (which) {
    case 1:  // threads of a block
    case 2:
    case 3:
    case 4:
      *out = 1024;
      break;
    case 8:
      *out = 48 << 10;
      break;
    case 75:
      *out = major();
      break;
    case 76:
      *out = major() == 3 ? 1 : 0;
      break;
    case 81:  // bytes of shared memory of a multiprocessor: a Hopper's, and a number that no GPU has
      *out = major() == 9 ? 228 << 10 : 65535;
      break;
    case 97:  // bytes of shared memory that a block may ask for
      *out = 227 << 10;
      break;
    case 102:
      *out = 0;
      break;
    default:
      *out = 65535;
  }
  return 0;
}
int cuDeviceCanAccessPeer(int* out, int, int) {
  return *out = 1, 0;
}
int cuDevicePrimaryCtxRetain(void** out, int device) {
  return *out = contexts + device, 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}
int cuCtxGetCurrent(void** out) {
  return *out = current, 0;
}
int cuCtxSetCurrent(void* context) {
  return current = context, 0;
}
int cuCtxSynchronize() {
  return sticky;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, 0;
}
int cuCtxEnablePeerAccess(void*, unsigned) {
  return 704;
}

int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  if (sticky != 0) return sticky;
  const std::lock_guard lock(mutex);
  if (bytes > kTotal - used) return kOutOfMemory;
  *out = reinterpret_cast<uint64_t>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
  blocks[*out] = bytes;
  used += bytes;
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  if (sticky != 0) return sticky;
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(address);
  if (found == blocks.end()) return kInvalidValue;
  used -= found->second;
  blocks.erase(found);
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  const std::lock_guard lock(mutex);
  return *free = kTotal - used, *total = kTotal, sticky;
}
int cuMemGetAddressRange_v2(uint64_t*, size_t*, uint64_t) {
  return kNotSupported;
}
int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  if (sticky != 0) return sticky;
  if (bytes > kTotal) return kOutOfMemory;
  *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  const std::lock_guard lock(mutex);
  allocated_host.insert(*out);
  return 0;
}
int cuMemFreeHost(void* pointer) {
  {
    const std::lock_guard lock(mutex);
    allocated_host.erase(pointer);
  }
  return std::free(pointer), static_cast<int>(sticky);
}
int cuMemHostRegister_v2(void* pointer, size_t, unsigned) {
  const std::lock_guard lock(mutex);
  if (pointer == nullptr || allocated_host.count(pointer) != 0) return kInvalidValue;
  return pinned.insert(pointer).second ? 0 : kAlreadyRegistered;
}
int cuMemHostGetFlags(unsigned* flags, void* pointer) {
  const std::lock_guard lock(mutex);
  *flags = 0;
  return pinned.count(pointer) + allocated_host.count(pointer) != 0 ? 0 : kInvalidValue;
}
int cuMemHostUnregister(void* pointer) {
  const std::lock_guard lock(mutex);
  return pinned.erase(pointer) != 0 ? 0 : kNotRegistered;
}
int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t bytes, void* stream) {
  if (const int code = check(streams, stream)) return code;
  return std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<void*>(src), bytes), 0;
}
int cuMemcpyPeerAsync(uint64_t dst, void*, uint64_t src, void*, size_t bytes, void* stream) {
  return cuMemcpyAsync(dst, src, bytes, stream);
}
int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, void* stream) {
  return fill(dst, value, n, stream);
}
int cuMemsetD16Async(uint64_t dst, uint16_t value, size_t n, void* stream) {
  return fill(dst, value, n, stream);
}
int cuMemsetD32Async(uint64_t dst, unsigned value, size_t n, void* stream) {
  return fill(dst, value, n, stream);
}
int cuMemAddressReserve(uint64_t*, size_t, size_t, uint64_t, unsigned long long) {
  return kNotSupported;
}
int cuMemAddressFree(uint64_t, size_t) {
  return kNotSupported;
}
int cuMemCreate(uint64_t*, size_t, const void*, unsigned long long) {
  return kNotSupported;
}
int cuMemRelease(uint64_t) {
  return kNotSupported;
}
int cuMemMap(uint64_t, size_t, size_t, uint64_t, unsigned long long) {
  return kNotSupported;
}
int cuMemUnmap(uint64_t, size_t) {
  return kNotSupported;
}
int cuMemSetAccess(uint64_t, size_t, const void*, size_t) {
  return kNotSupported;
}
int cuMemGetAllocationGranularity(size_t*, const void*, int) {
  return kNotSupported;
}
int cuIpcGetMemHandle(Ipc* out, uint64_t) {
  return std::memset(out, 0, sizeof *out), 0;
}
int cuIpcOpenMemHandle_v2(uint64_t*, Ipc, unsigned) {
  return kNotSupported;
}
int cuIpcCloseMemHandle(uint64_t) {
  return kNotSupported;
}

int cuStreamCreateWithPriority(void** out, unsigned, int priority) {
  return priority < -5 || priority > 0 ? kInvalidValue : make(streams, out);
}
int cuStreamDestroy_v2(void* stream) {
  return drop(streams, stream);
}
int cuStreamSynchronize(void* stream) {
  return check(streams, stream);
}
int cuStreamQuery(void* stream) {
  return check(streams, stream);
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  const int code = check(streams, stream);
  return code != 0 ? code : check(events, event);
}
int cuStreamAddCallback(void* stream, void (*fn)(void*, int, void*), void* user, unsigned) {
  const int code = check(streams, stream);
  if (code == 0) fn(stream, 0, user);
  return code;
}
int cuLaunchHostFunc(void*, void (*)(void*), void*) {
  return kNotSupported;
}
int cuStreamIsCapturing(void* stream, int* out) {
  const std::lock_guard lock(mutex);
  *out = capturing.count(stream) != 0 ? 1 : 0;
  return 0;
}
int cuStreamBeginCapture_v2(void* stream, int) {
  if (const int code = check(streams, stream)) return code;
  const std::lock_guard lock(mutex);
  return capturing.insert(stream).second ? 0 : kInvalidValue;
}
int cuStreamEndCapture(void* stream, void** out) {
  {
    const std::lock_guard lock(mutex);
    if (capturing.erase(stream) == 0) return kInvalidValue;
  }
  return make(graphs, out);
}
int cuThreadExchangeStreamCaptureMode(int*) {
  return 0;
}
int cuGraphInstantiateWithFlags(void**, void*, unsigned long long) {
  return kNotSupported;
}
int cuGraphLaunch(void* graph, void*) {
  return check(executables, graph);
}
int cuGraphDestroy(void* graph) {
  return drop(graphs, graph);
}
int cuGraphExecDestroy(void* graph) {
  return drop(executables, graph);
}

int cuEventCreate(void** out, unsigned) {
  return make(events, out);
}
int cuEventDestroy_v2(void* event) {
  {
    const std::lock_guard lock(mutex);
    records.erase(event);
  }
  return drop(events, event);
}
int cuEventRecord(void* event, void* stream) {
  int code = check(streams, stream);
  if (code == 0) code = check(events, event);
  if (code != 0) return code;
  const std::lock_guard lock(mutex);
  records[event] = std::chrono::steady_clock::now();
  return 0;
}
int cuEventQuery(void* event) {
  return check(events, event);
}
int cuEventSynchronize(void* event) {
  return check(events, event);
}
int cuEventElapsedTime(float* out, void* start, void* end) {
  int code = check(events, start);
  if (code == 0) code = check(events, end);
  if (code != 0) return code;
  const std::lock_guard lock(mutex);
  if (records.count(start) == 0 || records.count(end) == 0) return kInvalidHandle;
  *out = std::chrono::duration<float, std::milli>(records[end] - records[start]).count();
  return 0;
}

int cuModuleLoadDataEx(void** out, const void* image, unsigned, int*, void** values) {
  if (sticky != 0) return sticky;
  if (std::strstr(static_cast<const char*>(image), "syntax error") != nullptr) {
    std::strcpy(static_cast<char*>(values[0]),
                "ptxas application ptx input, line 2; fatal   : Parsing error near 'error'");
    return kInvalidPtx;
  }
  *out = const_cast<void*>(image);
  if (std::memcmp(image, "\177ELF", 4) == 0) {
    const std::lock_guard lock(mutex);
    *out = std::malloc(16);
    cubins[*out] = read_cubin(static_cast<const char*>(image));
  }
  return 0;
}
int cuModuleUnload(void*) {
  return sticky;
}
int cuModuleGetFunction(void** out, void* module, const char* name) {
  if (std::strcmp(name, "missing") == 0) return kNotFound;
  const std::lock_guard lock(mutex);
  if (const auto cubin = cubins.find(module); cubin != cubins.end()) {
    const auto found = cubin->second.find(name);
    return found == cubin->second.end() ? kNotFound : (*out = &found->second, 0);
  }
  Function& function = texts[name];
  function.name = name;
  return *out = &function, 0;
}
int cuFuncGetAttribute(int* out, int which, void* function) {
  *out = which == 0 ? 1024 : which == 1 ? static_cast<int>(static_cast<Function*>(function)->shared) : 0;
  return 0;
}
int cuFuncSetAttribute(void* function, int which, int value) {
  auto* changed = static_cast<Function*>(function);
  if (which == 8) changed->allowed = changed->shared + static_cast<size_t>(value);
  return 0;
}
int cuFuncGetParamInfo(void* given, size_t index, size_t* offset, size_t* size) {
  const auto* function = static_cast<Function*>(given);
  const std::string& name = function->name;
  *offset = 0;
  if (function->is_known) {
    const auto found = function->parameters.find(static_cast<uint32_t>(index));
    return found == function->parameters.end() ? kInvalidValue : (*size = found->second, 0);
  }
  // Kernels of the tests take one pointer. Nothing is known about others.
  if (name != "scale" && name != "put" && name != "illegal") return kNotSupported;
  return *size = 8, index == 0 ? 0 : kInvalidValue;
}
int cuLaunchKernel(void* given, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared, void* stream, void** arguments, void**) {
  if (const int code = check(streams, stream)) return code;
  const auto* function = static_cast<Function*>(given);
  if (function->name == "illegal") sticky = 700;
  if (!function->is_known) return 0;
  const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
  const std::lock_guard lock(mutex);
  if (const int code = check_launch(*function, block, shared)) return code;
  write_launch(*function, grid, block, shared, arguments);
  return 0;
}

}  // extern "C"

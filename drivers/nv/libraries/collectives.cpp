// SPDX-License-Identifier: BSD-3-Clause
// The collectives of this driver: NCCL's, without blocking calls.
#include "torch_outboard/collectives.h"

#include <algorithm>
#include <cstring>

#include "../../support/library.h"
#include "../../support/table.h"
#include "../driver.h"
#include "nccl.h"

namespace nv {

bool Nccl::load(const std::string& library, std::string* out_error) {
  // The copy that torch has mapped is the same file name's: the loader returns it.
  void* handle = support::open_library(library, {"libnccl.so.2"}, out_error);
  if (handle == nullptr) return false;
  bool is_whole = true;
#define OB_NCCL_LOAD(name, parameters)                                                    \
  name = reinterpret_cast<ncclResult(*) parameters>(dlsym(handle, "nccl" #name));         \
  is_whole = is_whole && name != nullptr;
  OB_NCCL_FUNCTIONS(OB_NCCL_LOAD)
#undef OB_NCCL_LOAD
  GetErrorString = reinterpret_cast<const char* (*)(ncclResult)>(dlsym(handle, "ncclGetErrorString"));
  GetLastError = reinterpret_cast<const char* (*)(ncclComm)>(dlsym(handle, "ncclGetLastError"));
  int version = 0;
  if (!is_whole || GetErrorString == nullptr || GetLastError == nullptr || GetVersion(&version) != NCCL_SUCCESS ||
      version < 21400) {
    *out_error = "it is older than NCCL 2.14";
    return false;
  }
  return true;
}

namespace collectives {
namespace {

struct Comm {
  ncclComm handle = nullptr;
  int32_t device = -1;
  int32_t size = 0;
  std::mutex mutex;  // an abort must not meet another call on the communicator
  bool is_aborted = false;
};

struct Collectives {
  explicit Collectives(Driver* given) : driver(given) {}
  Driver* const driver;
  std::mutex mutex;  // guards loading
  bool is_loaded = false;
  Nccl nccl;
  support::Handles<std::unique_ptr<Comm>, 7> comms;
  // The communicators that this thread's group uses, as group_end names none.
  static inline thread_local std::vector<Comm*> grouped;
  static inline thread_local bool is_grouping = false;
};

ob_status load(Collectives& self) {
  const std::lock_guard lock(self.mutex);
  std::string error;
  if (!self.is_loaded && !self.nccl.load(self.driver->options.nccl, &error)) {
    return fail(OB_UNAVAILABLE,
                "collectives need NCCL, which can't be opened: %s. Install it (the package nvidia-nccl-cu12 or"
                " nvidia-nccl-cu13), or name it with the option `nccl`.",
                error.c_str());
  }
  self.is_loaded = true;
  return OB_OK;
}

ob_status nccl_fail(const Collectives& self, ncclComm comm, ncclResult code, const char* function) {
  const char* detail = self.nccl.GetLastError(comm);
  const char* text = self.nccl.GetErrorString(code);
  // 1 to 6: CUDA, system, internal, invalid argument, invalid usage, remote.
  const ob_status status = code == 4 || code == 5 ? OB_INVALID_ARGUMENT : code == 6 ? OB_UNAVAILABLE : OB_INTERNAL;
  return fail(status, "%s gave %s%s%s", function, text, detail != nullptr && *detail != '\0' ? ": " : "",
              detail != nullptr ? detail : "");
}

ob_status find(Collectives& self, uint64_t handle, Comm** out_comm) {
  std::unique_ptr<Comm>* found = self.comms.find(handle);
  if (found == nullptr) return fail(OB_INVALID_ARGUMENT, "there is no communicator 0x%" PRIx64, handle);
  *out_comm = found->get();
  return OB_OK;
}

ob_status make_id(void* given, void* out_id) {
  return support::guarded("make_id", [&]() -> ob_status {
    auto& self = *static_cast<Collectives*>(given);
    if (const ob_status status = load(self); status != OB_OK) return status;
    ncclId id = {};
    static_assert(sizeof id == OB_COMM_ID_BYTES);
    const ncclResult code = self.nccl.GetUniqueId(&id);
    if (code != NCCL_SUCCESS) return nccl_fail(self, nullptr, code, "ncclGetUniqueId");
    std::memcpy(out_id, &id, sizeof id);
    return OB_OK;
  });
}

ob_status comm_create(void* given, const ob_comm_config* config, uint64_t* out_comm) {
  auto& self = *static_cast<Collectives*>(given);
  return on_device(self.driver, config->device, "comm_create", [&](Driver&, Device&) -> ob_status {
    if (config->size < 1 || config->rank < 0 || config->rank >= config->size) {
      return fail(OB_INVALID_ARGUMENT, "there is no rank %d of %d", config->rank, config->size);
    }
    if (const ob_status status = load(self); status != OB_OK) return status;
    auto comm = std::make_unique<Comm>();
    comm->device = config->device;
    comm->size = config->size;
    ncclId id;
    std::memcpy(&id, config->id, sizeof id);
    ncclConfig options;
    const ncclResult code = self.nccl.CommInitRankConfig(&comm->handle, config->size, id, config->rank, &options);
    if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) {
      return nccl_fail(self, nullptr, code, "ncclCommInitRankConfig");
    }
    *out_comm = self.comms.make(std::move(comm));
    return OB_OK;
  });
}

// Return what the communicator is at. Its mutex is held.
ob_status ask(const Collectives& self, Comm& comm) {
  if (comm.is_aborted) return fail(OB_ABORTED, "the communicator was aborted");
  ncclResult state = NCCL_SUCCESS;
  const ncclResult code = self.nccl.CommGetAsyncError(comm.handle, &state);
  if (code != NCCL_SUCCESS) return nccl_fail(self, comm.handle, code, "ncclCommGetAsyncError");
  if (state == NCCL_IN_PROGRESS) return OB_NOT_READY;
  return state == NCCL_SUCCESS ? OB_OK : nccl_fail(self, comm.handle, state, "the communicator");
}

ob_status comm_status(void* given, uint64_t handle) {
  return support::guarded("comm_status", [&]() -> ob_status {
    auto& self = *static_cast<Collectives*>(given);
    Comm* comm = nullptr;
    if (const ob_status status = find(self, handle, &comm); status != OB_OK) return status;
    const std::lock_guard lock(comm->mutex);
    return ask(self, *comm);
  });
}

// Return NCCL's number of a type, -1 for one that it lacks.
int type_of(ob_dtype dtype) {
  switch (dtype) {
    case OB_INT8:
      return 0;
    case OB_UINT8:
      return 1;
    case OB_INT32:
      return 2;
    case OB_UINT32:
      return 3;
    case OB_INT64:
      return 4;
    case OB_UINT64:
      return 5;
    case OB_FLOAT16:
      return 6;
    case OB_FLOAT32:
      return 7;
    case OB_FLOAT64:
      return 8;
    case OB_BFLOAT16:
      return 9;
    default:
      return -1;
  }
}

// NCCL's numbers: sum, product, max, min, average.
int operation_of(int32_t reduce) {
  switch (reduce) {
    case OB_REDUCE_SUM:
      return 0;
    case OB_REDUCE_PRODUCT:
      return 1;
    case OB_REDUCE_MAX:
      return 2;
    case OB_REDUCE_MIN:
      return 3;
    case OB_REDUCE_AVG:
      return 4;
    default:
      return -1;
  }
}

uint16_t half_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 112;
  uint32_t mantissa = bits & 0x7FFFFFu;
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7C00u);
  if (exponent < -10) return static_cast<uint16_t>(sign);
  int shift = 13;
  uint32_t base = 0;
  if (exponent <= 0) {
    mantissa |= 0x800000u;
    shift = 14 - exponent;
  } else {
    base = static_cast<uint32_t>(exponent) << 10;
  }
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  uint32_t rounded = base + (mantissa >> shift);
  if (rest > half || (rest == half && (rounded & 1u) != 0)) ++rounded;  // to even, and into the exponent
  return static_cast<uint16_t>(sign | rounded);
}

// Write the scale in the type that is reduced.
bool write_scale(ob_dtype dtype, double scale, void* out) {
  const auto single = static_cast<float>(scale);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  uint16_t half = 0;
  switch (dtype) {
    case OB_FLOAT64:
      std::memcpy(out, &scale, sizeof scale);
      return true;
    case OB_FLOAT32:
      std::memcpy(out, &single, sizeof single);
      return true;
    case OB_FLOAT16:
      half = half_bits(single);
      break;
    case OB_BFLOAT16:
      half = static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
      break;
    default:
      return false;
  }
  std::memcpy(out, &half, sizeof half);
  return true;
}

ncclResult call_nccl(const Nccl& nccl, const Comm& comm, const ob_collective& call, int type, int operation,
                     void* stream) {
  const void* src = reinterpret_cast<const void*>(call.src);
  void* dst = reinterpret_cast<void*>(call.dst);
  switch (call.kind) {
    case OB_ALL_REDUCE:
      return nccl.AllReduce(src, dst, call.count, type, operation, comm.handle, stream);
    case OB_BROADCAST:
      return nccl.Broadcast(src, dst, call.count, type, call.root, comm.handle, stream);
    case OB_REDUCE:
      return nccl.Reduce(src, dst, call.count, type, operation, call.root, comm.handle, stream);
    case OB_ALL_GATHER:
      return nccl.AllGather(src, dst, call.count, type, comm.handle, stream);
    case OB_REDUCE_SCATTER:
      return nccl.ReduceScatter(src, dst, call.count, type, operation, comm.handle, stream);
    case OB_SEND:
      return nccl.Send(src, call.count, type, call.root, comm.handle, stream);
    default:
      return nccl.Recv(dst, call.count, type, call.root, comm.handle, stream);
  }
}

bool reduces(int32_t kind) {
  return kind == OB_ALL_REDUCE || kind == OB_REDUCE || kind == OB_REDUCE_SCATTER;
}

// Queue a call. The communicator's mutex is held.
ob_status queue_on(Collectives& self, Comm& comm, const ob_collective& call, int type, uint64_t stream) {
  int operation = operation_of(call.reduce);
  char scale[8] = {};
  const bool is_scaled = reduces(call.kind) && call.reduce == OB_REDUCE_PREMUL_SUM;
  if (is_scaled) {
    if (!write_scale(call.dtype, call.scale, scale)) {
      return fail(OB_UNIMPLEMENTED, "NCCL multiplies floats alone before it sums");
    }
    // 1: the scale is host memory, which is read at once.
    const ncclResult code = self.nccl.RedOpCreatePreMulSum(&operation, scale, type, 1, comm.handle);
    if (code != NCCL_SUCCESS) return nccl_fail(self, comm.handle, code, "ncclRedOpCreatePreMulSum");
  } else if (reduces(call.kind) && operation < 0) {
    return fail(OB_UNIMPLEMENTED, "NCCL has no reduction %d", call.reduce);
  }
  const ncclResult code = call_nccl(self.nccl, comm, call, type, operation, to_stream(stream));
  if (is_scaled) static_cast<void>(self.nccl.RedOpDestroy(operation, comm.handle));
  if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) return nccl_fail(self, comm.handle, code, "a call of NCCL");
  if (Collectives::is_grouping) {
    std::vector<Comm*>& grouped = Collectives::grouped;
    if (std::find(grouped.begin(), grouped.end(), &comm) == grouped.end()) grouped.push_back(&comm);
    return OB_OK;
  }
  return code == NCCL_SUCCESS ? OB_OK : ask(self, comm);
}

ob_status queue(void* given, uint64_t handle, uint64_t stream, const ob_collective* call) {
  auto& self = *static_cast<Collectives*>(given);
  Comm* comm = nullptr;
  if (const ob_status status = find(self, handle, &comm); status != OB_OK) return status;
  return on_device(self.driver, comm->device, "queue", [&](Driver& driver, Device&) -> ob_status {
    if (const ob_status status = driver.check_stream(comm->device, stream); status != OB_OK) return status;
    if (call->kind < OB_ALL_REDUCE || call->kind > OB_RECV) {
      return fail(OB_UNIMPLEMENTED, "there is no kind %d of collective", call->kind);
    }
    const bool has_root = call->kind == OB_BROADCAST || call->kind == OB_REDUCE || call->kind >= OB_SEND;
    if (has_root && (call->root < 0 || call->root >= comm->size)) {
      return fail(OB_INVALID_ARGUMENT, "there is no rank %d of %d", call->root, comm->size);
    }
    const int type = type_of(call->dtype);
    if (type < 0) return fail(OB_UNIMPLEMENTED, "NCCL has no type %d", call->dtype);
    const std::lock_guard lock(comm->mutex);
    if (comm->is_aborted) return fail(OB_ABORTED, "the communicator was aborted");
    return queue_on(self, *comm, *call, type, stream);
  });
}

ob_status group_begin(void* given) {
  auto& self = *static_cast<Collectives*>(given);
  const ncclResult code = self.nccl.GroupStart();
  if (code != NCCL_SUCCESS) return nccl_fail(self, nullptr, code, "ncclGroupStart");
  Collectives::grouped.clear();
  Collectives::is_grouping = true;
  return OB_OK;
}

ob_status group_end(void* given) {
  auto& self = *static_cast<Collectives*>(given);
  Collectives::is_grouping = false;
  const ncclResult code = self.nccl.GroupEnd();
  if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) return nccl_fail(self, nullptr, code, "ncclGroupEnd");
  ob_status status = OB_OK;
  for (Comm* comm : std::exchange(Collectives::grouped, {})) {
    const std::lock_guard lock(comm->mutex);
    const ob_status one = ask(self, *comm);
    status = status == OB_OK || (status == OB_NOT_READY && one != OB_OK) ? one : status;
  }
  return status;
}

ob_status comm_abort(void* given, uint64_t handle) {
  auto& self = *static_cast<Collectives*>(given);
  Comm* comm = nullptr;
  if (const ob_status status = find(self, handle, &comm); status != OB_OK) return status;
  return on_device(self.driver, comm->device, "comm_abort", [&](Driver&, Device&) -> ob_status {
    const std::lock_guard lock(comm->mutex);
    if (std::exchange(comm->is_aborted, true)) return OB_OK;
    const ncclResult code = self.nccl.CommAbort(std::exchange(comm->handle, nullptr));
    if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS) return OB_OK;
    return nccl_fail(self, nullptr, code, "ncclCommAbort");
  });
}

// Wait until the communicator has ended what NCCL does in its own threads.
ob_status settle(const Collectives& self, Comm& comm) {
  ob_status status;
  while ((status = ask(self, comm)) == OB_NOT_READY) {
    const timespec pause = {0, 100'000};
    nanosleep(&pause, nullptr);
  }
  return status;
}

ob_status comm_destroy(void* given, uint64_t handle) {
  auto& self = *static_cast<Collectives*>(given);
  std::unique_ptr<Comm> comm;
  if (!self.comms.take(handle, &comm)) return fail(OB_INVALID_ARGUMENT, "there is no communicator 0x%" PRIx64, handle);
  return on_device(self.driver, comm->device, "comm_destroy", [&](Driver&, Device&) -> ob_status {
    const std::lock_guard lock(comm->mutex);
    if (comm->is_aborted) return OB_OK;  // an abort frees it
    ncclResult code = self.nccl.CommFinalize(comm->handle);
    if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS) {
      if (const ob_status status = settle(self, *comm); status != OB_OK) {
        static_cast<void>(self.nccl.CommAbort(comm->handle));
        return status;
      }
      code = self.nccl.CommDestroy(comm->handle);
    }
    return code == NCCL_SUCCESS ? OB_OK : nccl_fail(self, nullptr, code, "ncclCommDestroy");
  });
}

}  // namespace
}  // namespace collectives
}  // namespace nv

extern "C" OB_EXPORT ob_status ob_collectives_table(const ob_driver* driver, ob_collectives* out_collectives,
                                                    char* error, size_t error_size) {
  try {
    ob_collectives table = {};
    table.abi_major = OB_COLLECTIVES_MAJOR;
    table.abi_minor = OB_COLLECTIVES_MINOR;
    table.make_id = nv::collectives::make_id;
    table.comm_create = nv::collectives::comm_create;
    table.comm_status = nv::collectives::comm_status;
    table.queue = nv::collectives::queue;
    table.comm_abort = nv::collectives::comm_abort;
    table.comm_destroy = nv::collectives::comm_destroy;
    table.group_begin = nv::collectives::group_begin;
    table.group_end = nv::collectives::group_end;
    table.last_error = support::last_error;
    table.self = new nv::collectives::Collectives(static_cast<nv::Driver*>(driver->self));
    support::return_struct(table, out_collectives);
    return OB_OK;
  } catch (const std::exception& exception) {
    support::copy_text(exception.what(), error, error_size);
    return OB_INTERNAL;
  }
}

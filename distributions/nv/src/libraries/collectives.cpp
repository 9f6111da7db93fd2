// SPDX-License-Identifier: BSD-3-Clause
// The collectives of this driver: NCCL's.
#include "torch_outboard/collectives.h"

#include <algorithm>
#include <cstring>

#include "../driver.h"
#include "communicator.h"
#include "torch_outboard/support/library.h"
#include "torch_outboard/support/table.h"

namespace nv {

bool Nccl::load(const std::string& library, std::string* out_error) {
  // Torch's copy has the same file name, so the loader returns it if torch has loaded it.
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
  CommSplit = reinterpret_cast<decltype(CommSplit)>(dlsym(handle, "ncclCommSplit"));
  if (!is_whole || GetErrorString == nullptr || GetLastError == nullptr || GetVersion(&version) != NCCL_SUCCESS ||
      version < 21400) {
    *out_error = "it is older than NCCL 2.14";
    return false;
  }
  return true;
}

namespace collectives {
namespace {

struct Collectives {
  explicit Collectives(Driver* owner) : driver(owner) {}
  Driver* const driver;
  std::mutex mutex;  // guards loading
  bool is_loaded = false;
  Nccl nccl;
  support::Handles<std::unique_ptr<Communicator>, 7> comms;
  // The communicators of this thread's group, because group_end names none. Each is locked until
  // then.
  struct Grouped {
    Communicator* comm;
    std::unique_lock<std::mutex> lock;
  };
  static inline thread_local std::vector<Grouped> grouped;
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

ob_status find(Collectives& self, uint64_t handle, Communicator** out_comm) {
  std::unique_ptr<Communicator>* comm = self.comms.find(handle);
  if (comm == nullptr) return fail(OB_INVALID_ARGUMENT, "there is no communicator 0x%" PRIx64, handle);
  *out_comm = comm->get();
  return OB_OK;
}

ob_status make_id(void* self_pointer, void* out_id) {
  return support::guarded("make_id", [&]() -> ob_status {
    auto& self = *static_cast<Collectives*>(self_pointer);
    if (const ob_status status = load(self); status != OB_OK) return status;
    ncclId id = {};
    static_assert(sizeof id == OB_COMM_ID_BYTES);
    const ncclResult code = self.nccl.GetUniqueId(&id);
    if (code != NCCL_SUCCESS) return nccl_fail(self.nccl, nullptr, code, "ncclGetUniqueId");
    std::memcpy(out_id, &id, sizeof id);
    return OB_OK;
  });
}

ob_status comm_create(void* self_pointer, const ob_comm_config* config, uint64_t* out_comm) {
  auto& self = *static_cast<Collectives*>(self_pointer);
  return on_device(self.driver, config->device, "comm_create", [&](Driver&, Device&) -> ob_status {
    if (config->size < 1 || config->rank < 0 || config->rank >= config->size) {
      return fail(OB_INVALID_ARGUMENT, "rank %d does not exist in a group of %d", config->rank, config->size);
    }
    if (const ob_status status = load(self); status != OB_OK) return status;
    auto comm = std::make_unique<Communicator>(self.nccl, config->device, config->size, config->rank);
    if (const ob_status status = comm->join(config->id); status != OB_OK) return status;
    *out_comm = self.comms.make(std::move(comm));
    return OB_OK;
  });
}

// Find a communicator and run the body with its device's context, which NCCL needs.
template <class Body>
ob_status on_comm(void* self_pointer, uint64_t handle, const char* entry, Body&& body) {
  auto& self = *static_cast<Collectives*>(self_pointer);
  Communicator* comm = nullptr;
  if (const ob_status status = find(self, handle, &comm); status != OB_OK) return status;
  return on_device(self.driver, comm->device, entry, [&](Driver&, Device&) { return body(self, *comm); });
}

ob_status comm_status(void* self_pointer, uint64_t handle) {
  return on_comm(self_pointer, handle, "comm_status", [](Collectives&, Communicator& comm) { return comm.status(); });
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

ncclResult call_nccl(const Nccl& nccl, ncclComm comm, const ob_collective& call, int type, int operation,
                     void* stream) {
  const void* src = reinterpret_cast<const void*>(call.src);
  void* dst = reinterpret_cast<void*>(call.dst);
  switch (call.kind) {
    case OB_ALL_REDUCE:
      return nccl.AllReduce(src, dst, call.count, type, operation, comm, stream);
    case OB_BROADCAST:
      return nccl.Broadcast(src, dst, call.count, type, call.root, comm, stream);
    case OB_REDUCE:
      return nccl.Reduce(src, dst, call.count, type, operation, call.root, comm, stream);
    case OB_ALL_GATHER:
      return nccl.AllGather(src, dst, call.count, type, comm, stream);
    case OB_REDUCE_SCATTER:
      return nccl.ReduceScatter(src, dst, call.count, type, operation, comm, stream);
    case OB_SEND:
      return nccl.Send(src, call.count, type, call.root, comm, stream);
    default:
      return nccl.Recv(dst, call.count, type, call.root, comm, stream);
  }
}

bool reduces(int32_t kind) {
  return kind == OB_ALL_REDUCE || kind == OB_REDUCE || kind == OB_REDUCE_SCATTER;
}

// Queue a call. The communicator's mutex is held.
ncclResult queue_on(const Nccl& nccl, ncclComm comm, const ob_collective& call, int type, void* scale, void* stream) {
  int operation = operation_of(call.reduce);
  const bool is_scaled = scale != nullptr;
  if (is_scaled) {
    // 1: the scale is host memory, which is read at once.
    const ncclResult code = nccl.RedOpCreatePreMulSum(&operation, scale, type, 1, comm);
    if (code != NCCL_SUCCESS) return code;
  }
  const ncclResult code = call_nccl(nccl, comm, call, type, operation, stream);
  if (is_scaled) static_cast<void>(nccl.RedOpDestroy(operation, comm));
  return code;
}

// Return OB_OK if NCCL supports the call. Only the arguments decide.
ob_status check_call(const Communicator& comm, const ob_collective& call, int type, void* out_scale, bool* out_scaled) {
  if (call.kind < OB_ALL_REDUCE || call.kind > OB_RECV) {
    return fail(OB_UNIMPLEMENTED, "unknown kind %d of collective", call.kind);
  }
  const bool has_root = call.kind == OB_BROADCAST || call.kind == OB_REDUCE || call.kind >= OB_SEND;
  if (has_root && (call.root < 0 || call.root >= comm.size)) {
    return fail(OB_INVALID_ARGUMENT, "rank %d does not exist in a group of %d", call.root, comm.size);
  }
  if (type < 0) return fail(OB_UNIMPLEMENTED, "NCCL has no dtype %d", call.dtype);
  *out_scaled = reduces(call.kind) && call.reduce == OB_REDUCE_PREMUL_SUM;
  if (*out_scaled && !write_scale(call.dtype, call.scale, out_scale)) {
    return fail(OB_UNIMPLEMENTED, "NCCL's PreMulSum supports floats only");
  }
  if (reduces(call.kind) && !*out_scaled && operation_of(call.reduce) < 0) {
    return fail(OB_UNIMPLEMENTED, "NCCL has no reduction %d", call.reduce);
  }
  return OB_OK;
}

ob_status queue(void* self_pointer, uint64_t handle, uint64_t stream, const ob_collective* call) {
  return on_comm(self_pointer, handle, "queue", [&](Collectives& self, Communicator& comm) -> ob_status {
    if (const ob_status status = self.driver->check_stream(comm.device, stream); status != OB_OK) return status;
    const int type = type_of(call->dtype);
    char scale[8] = {};
    bool is_scaled = false;
    if (const ob_status status = check_call(comm, *call, type, scale, &is_scaled); status != OB_OK) return status;
    std::vector<Collectives::Grouped>& grouped = Collectives::grouped;
    const bool is_locked =
        std::any_of(grouped.begin(), grouped.end(), [&](auto& entry) { return entry.comm == &comm; });
    std::unique_lock lock(comm.mutex(), std::defer_lock);
    if (!is_locked) lock.lock();
    if (const ob_status status = comm.check(); status != OB_OK) return status;
    const ncclResult code =
        queue_on(self.nccl, comm.handle(), *call, type, is_scaled ? scale : nullptr, to_stream(stream));
    if (!Collectives::is_grouping) return comm.outcome(code, "an NCCL call");
    if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) {
      return nccl_fail(self.nccl, comm.handle(), code, "an NCCL call");
    }
    if (!is_locked) grouped.push_back({&comm, std::move(lock)});
    return OB_OK;
  });
}

ob_status group_begin(void* self_pointer) {
  auto& self = *static_cast<Collectives*>(self_pointer);
  const ncclResult code = self.nccl.GroupStart();
  if (code != NCCL_SUCCESS) return nccl_fail(self.nccl, nullptr, code, "ncclGroupStart");
  Collectives::is_grouping = true;
  return OB_OK;
}

ob_status group_end(void* self_pointer) {
  auto& self = *static_cast<Collectives*>(self_pointer);
  Collectives::is_grouping = false;
  const std::vector<Collectives::Grouped> grouped = std::exchange(Collectives::grouped, {});
  const ncclResult code = self.nccl.GroupEnd();
  if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) return nccl_fail(self.nccl, nullptr, code, "ncclGroupEnd");
  ob_status status = OB_OK;
  for (const Collectives::Grouped& entry : grouped) {
    const ob_status its = entry.comm->outcome(code, "ncclGroupEnd");
    status = status == OB_OK || (status == OB_NOT_READY && its != OB_OK) ? its : status;
  }
  return status;
}

ob_status comm_abort(void* self_pointer, uint64_t handle) {
  return on_comm(self_pointer, handle, "comm_abort", [](Collectives&, Communicator& comm) { return comm.abort(); });
}

ob_status comm_destroy(void* self_pointer, uint64_t handle) {
  auto& self = *static_cast<Collectives*>(self_pointer);
  std::unique_ptr<Communicator> comm;
  if (!self.comms.take(handle, &comm)) return fail(OB_INVALID_ARGUMENT, "there is no communicator 0x%" PRIx64, handle);
  return on_device(self.driver, comm->device, "comm_destroy", [&](Driver&, Device&) { return comm->destroy(); });
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

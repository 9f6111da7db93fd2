// SPDX-License-Identifier: BSD-3-Clause
// A libnccl with host memory, for tests of the driver on machines without a GPU. It needs
// fake_cuda, which has host memory and streams that do everything at once. Ranks are processes,
// which exchange through shared memory. Joining takes a while, as in NCCL without blocking calls. A
// communicator with blocking calls can be split from it: each call on that one waits for its peers,
// and the abort of the first ends it. A communicator is destroyed when all of its ranks destroy it,
// as in one host. FAKE_NCCL_VERSION is the version, FAKE_NCCL_FAIL the name of a function that
// fails, and FAKE_NCCL_SLOW makes calls without blocking be under way for as many questions after
// they return.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch_outboard/support/collective.h"

namespace {

constexpr int kSuccess = 0, kSystem = 2, kInvalidArgument = 4, kRemote = 6, kInProgress = 7;

thread_local std::string last_error;

bool fails(const char* name) {
  const char* given = std::getenv("FAKE_NCCL_FAIL");
  if (given == nullptr || std::strcmp(given, name) != 0) return false;
  last_error = std::string("told to fail in ") + name;
  return true;
}

int number(const char* name, int otherwise) {
  const char* given = std::getenv(name);
  return given != nullptr ? std::atoi(given) : otherwise;
}

// The used part of the library's own structure.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cga, min_ctas, max_ctas;
  const char* net;
  int split_share;
};

struct Comm {
  std::string id;
  bool is_blocking = false;
  bool shares = false;
  std::shared_ptr<support::Exchange> exchange;
  std::unique_ptr<Comm> child;  // while it is split from this one
  void** child_out = nullptr;
  std::vector<std::shared_ptr<support::Exchange>> flagged;  // those that share this one's abort flag
  std::shared_ptr<std::atomic<bool>> is_running = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> pending{0};  // questions until a call is queued, once it has run
  std::atomic<int> error{kSuccess};
  std::vector<double> scales;  // of operations from 5 on
};

struct Grouped {
  Comm* comm;
  ob_collective call;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> grouped;

const ob_dtype types[] = {OB_INT8,   OB_UINT8,   OB_INT32,   OB_UINT32,  OB_INT64,
                          OB_UINT64, OB_FLOAT16, OB_FLOAT32, OB_FLOAT64, OB_BFLOAT16};
const int32_t reductions[] = {OB_REDUCE_SUM, OB_REDUCE_PRODUCT, OB_REDUCE_MAX, OB_REDUCE_MIN, OB_REDUCE_AVG};

void work(Comm& comm, const std::vector<ob_collective>& calls) {
  support::Plan plan;
  std::vector<std::function<void()>> finishes;
  for (const ob_collective& call : calls) {
    support::add_to_plan(call, reinterpret_cast<char*>(call.src), reinterpret_cast<char*>(call.dst),
                         comm.exchange->rank(), comm.exchange->size(), &plan);
    if (plan.finish) finishes.push_back(std::exchange(plan.finish, nullptr));
  }
  std::string error;
  if (comm.exchange->run(plan.transfers, &error)) {
    for (const auto& finish : finishes) finish();
  } else {
    comm.error = kRemote;
    last_error = error;
  }
}

void wait(const Comm& comm) {
  comm.is_running->wait(true);
}

// A call counts as being queued until it is done, because the other fake's streams do everything at
// once.
int run(Comm& comm, std::vector<ob_collective> calls) {
  if (comm.is_blocking) {
    *comm.is_running = true;
    work(comm, calls);
    *comm.is_running = false;
    return comm.error;
  }
  wait(comm);
  *comm.is_running = true;
  comm.pending = number("FAKE_NCCL_SLOW", 0);
  // No thread joins it if the process ends first.
  std::thread([&comm, is_running = comm.is_running, given = std::move(calls)] {
    work(comm, given);
    *is_running = false;
    is_running->notify_all();
  }).detach();
  return kInProgress;
}

void drop(Comm* comm) {
  wait(*comm);
  delete comm;
}

int submit(Comm* comm, ob_collective call, int type, int operation = 0) {
  if (*comm->is_running || comm->pending > 0) {
    last_error = "a call on a communicator on which another is being queued";
    return kInvalidArgument;
  }
  if (call.count == 0 || type < 0 || type > 9) return kInvalidArgument;
  call.dtype = types[type];
  if (operation >= 5) {
    call.reduce = OB_REDUCE_PREMUL_SUM;
    call.scale = comm->scales.at(static_cast<size_t>(operation) - 5);
  } else {
    call.reduce = reductions[operation];
  }
  if (depth > 0) {
    grouped.push_back({comm, call});
    return kSuccess;
  }
  return run(*comm, {call});
}

ob_collective make(int32_t kind, const void* src, void* dst, size_t count, int root = 0) {
  ob_collective call = {};
  call.kind = kind;
  call.src = reinterpret_cast<uint64_t>(src);
  call.dst = reinterpret_cast<uint64_t>(dst);
  call.count = count;
  call.root = root;
  return call;
}

// Wait until all ranks do.
void meet(Comm& comm) {
  wait(comm);
  char own = 0;
  std::vector<char> all(static_cast<size_t>(comm.exchange->size()));
  ob_collective call = make(OB_ALL_GATHER, &own, all.data(), 1);
  call.dtype = OB_INT8;
  work(comm, {call});
}

}  // namespace

extern "C" {

struct ncclUniqueId {
  char bytes[128];
};

int ncclGetVersion(int* out) {
  *out = number("FAKE_NCCL_VERSION", 22803);
  return kSuccess;
}
const char* ncclGetErrorString(int code) {
  return code == kSystem ? "unhandled system error" : code == 6 ? "remote process exited" : "an error";
}
const char* ncclGetLastError(void*) {
  return last_error.c_str();
}
int ncclGetUniqueId(ncclUniqueId* out) {
  if (fails("ncclGetUniqueId")) return kSystem;
  std::FILE* random = std::fopen("/dev/urandom", "rb");
  unsigned char bytes[12];
  const bool is_read = random != nullptr && std::fread(bytes, 1, sizeof bytes, random) == sizeof bytes;
  if (random != nullptr) std::fclose(random);
  std::memset(out, 0, sizeof *out);
  char* at = out->bytes + std::sprintf(out->bytes, "ob-fake-nccl-");
  for (const unsigned char byte : bytes) at += std::sprintf(at, "%02x", byte);
  return is_read ? kSuccess : kSystem;
}
int ncclCommInitRankConfig(void** out, int size, ncclUniqueId id, int rank, const void* config) {
  if (fails("ncclCommInitRankConfig")) return kSystem;
  const Config& given = *static_cast<const Config*>(config);
  if (given.blocking != 0) return kInvalidArgument;
  auto comm = std::make_unique<Comm>();
  comm->id = id.bytes;
  comm->shares = given.split_share == 1;
  comm->exchange = support::Exchange::open(id.bytes, rank, size, &last_error);
  if (!comm->exchange) return kSystem;
  *out = comm.release();
  return kInProgress;
}
int ncclCommSplit(void* parent, int color, int key, void** out, const void* config) {
  if (fails("ncclCommSplit")) return kSystem;
  Comm& comm = *static_cast<Comm*>(parent);
  const Config& given = *static_cast<const Config*>(config);
  if (color != 0 || key != comm.exchange->rank() || given.blocking != 1) return kInvalidArgument;
  comm.child = std::make_unique<Comm>();
  comm.child->id = comm.id + "-split";
  comm.child->is_blocking = true;
  comm.child->exchange =
      support::Exchange::open(comm.child->id, comm.exchange->rank(), comm.exchange->size(), &last_error);
  if (!comm.child->exchange) return kSystem;
  if (comm.shares) comm.flagged.push_back(comm.child->exchange);
  comm.child_out = out;
  return kInProgress;
}
int ncclCommGetAsyncError(void* handle, int* out) {
  Comm& comm = *static_cast<Comm*>(handle);
  if (comm.error == kSuccess) {
    last_error = comm.exchange->find_error();
    if (!last_error.empty()) comm.error = kRemote;
  }
  *out = comm.error;
  if (comm.child && comm.error == kSuccess) {
    if (!comm.child->exchange->has_all()) {
      *out = kInProgress;
      return kSuccess;
    }
    *comm.child_out = comm.child.release();
  }
  if (comm.error == kSuccess && (!comm.exchange->has_all() || *comm.is_running || comm.pending > 0)) {
    if (!*comm.is_running && comm.pending > 0) --comm.pending;
    *out = kInProgress;
  }
  return kSuccess;
}
int ncclCommFinalize(void* handle) {
  return static_cast<Comm*>(handle)->is_blocking ? kSuccess : kInProgress;
}
int ncclCommAbort(void* handle) {
  for (const auto& exchange : static_cast<Comm*>(handle)->flagged) exchange->abort();
  static_cast<Comm*>(handle)->exchange->abort();
  drop(static_cast<Comm*>(handle));
  return kSuccess;
}
int ncclCommDestroy(void* handle) {
  auto* comm = static_cast<Comm*>(handle);
  if (comm->error == kSuccess && comm->exchange->has_all()) meet(*comm);
  drop(comm);
  return kSuccess;
}
int ncclAllReduce(const void* src, void* dst, size_t count, int type, int operation, void* comm, void*) {
  if (fails("ncclAllReduce")) return kSystem;
  return submit(static_cast<Comm*>(comm), make(OB_ALL_REDUCE, src, dst, count), type, operation);
}
int ncclBroadcast(const void* src, void* dst, size_t count, int type, int root, void* comm, void*) {
  return submit(static_cast<Comm*>(comm), make(OB_BROADCAST, src, dst, count, root), type);
}
int ncclReduce(const void* src, void* dst, size_t count, int type, int operation, int root, void* comm, void*) {
  return submit(static_cast<Comm*>(comm), make(OB_REDUCE, src, dst, count, root), type, operation);
}
int ncclAllGather(const void* src, void* dst, size_t count, int type, void* comm, void*) {
  return submit(static_cast<Comm*>(comm), make(OB_ALL_GATHER, src, dst, count), type);
}
int ncclReduceScatter(const void* src, void* dst, size_t count, int type, int operation, void* comm, void*) {
  return submit(static_cast<Comm*>(comm), make(OB_REDUCE_SCATTER, src, dst, count), type, operation);
}
int ncclSend(const void* src, size_t count, int type, int peer, void* comm, void*) {
  return submit(static_cast<Comm*>(comm), make(OB_SEND, src, nullptr, count, peer), type);
}
int ncclRecv(void* dst, size_t count, int type, int peer, void* comm, void*) {
  return submit(static_cast<Comm*>(comm), make(OB_RECV, nullptr, dst, count, peer), type);
}
int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
int ncclGroupEnd() {
  if (--depth > 0 || grouped.empty()) return kSuccess;
  const std::vector<Grouped> all = std::exchange(grouped, {});
  std::map<Comm*, std::vector<ob_collective>> calls;
  for (const Grouped& queued : all) calls[queued.comm].push_back(queued.call);
  // One after another, in the order of the peers' halves.
  std::vector<std::pair<Comm*, std::vector<ob_collective>>> ordered(calls.begin(), calls.end());
  std::sort(ordered.begin(), ordered.end(), [](auto& a, auto& b) { return a.first->id < b.first->id; });
  int state = kSuccess;
  for (auto& [comm, list] : ordered) {
    const int status = run(*comm, std::move(list));
    state = state == kSuccess ? status : state;
  }
  return state;
}
int ncclRedOpCreatePreMulSum(int* out, void* scalar, int type, int residence, void* handle) {
  if (residence != 1) return kInvalidArgument;
  Comm& comm = *static_cast<Comm*>(handle);
  ob_collective request = make(OB_ALL_REDUCE, nullptr, nullptr, 1);
  request.dtype = types[type];
  double value = 0;
  if (request.dtype == OB_FLOAT64) {
    std::memcpy(&value, scalar, sizeof value);
  } else if (request.dtype == OB_FLOAT32) {
    value = static_cast<double>(*static_cast<float*>(scalar));
  } else if (request.dtype == OB_FLOAT16) {
    value = static_cast<double>(*static_cast<_Float16*>(scalar));
  } else {
    value = static_cast<double>(static_cast<float>(*static_cast<support::BFloat16*>(scalar)));
  }
  comm.scales.push_back(value);
  *out = 4 + static_cast<int>(comm.scales.size());
  return kSuccess;
}
int ncclRedOpDestroy(int, void*) {
  return kSuccess;
}
}

// SPDX-License-Identifier: BSD-3-Clause
// cuDNN's graphs: descriptors, the choice of an engine, plans by what they depend on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cudnn.h"
#include "torch_outboard/driver.h"

namespace nv::cudnn {

// Descriptors that live together. The first failure is kept, and later calls do nothing.
class Descriptors {
 public:
  explicit Descriptors(const Library& library) : library_(library) {}
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors();

  Descriptor make(int kind);
  void set(Descriptor descriptor, int attribute, int type, const void* values, int64_t count = 1);
  void finalize(Descriptor descriptor);
  // Return the finalized graph of these operations.
  Descriptor graph_of(Handle handle, const std::vector<Descriptor>& operations);

  int status = 0;

 private:
  const Library& library_;
  std::vector<Descriptor> made_;
};

struct Plan {
  explicit Plan(const Library& library) : graph(library), chosen(library) {}

  Descriptors graph;  // what the plan is made of, and may refer to
  Descriptors chosen;
  Descriptor plan = nullptr;  // null: cuDNN has no engine
  int64_t workspace = 0;      // bytes of memory beside the tensors
};

// What an engine must not do.
struct Rules {
  bool repeats = true;           // its results must be the same in each run
  bool keeps_precision = false;  // it must not round its inputs
};

// What a plan depends on. The first word tells kinds of problems apart.
using PlanKey = std::vector<int64_t>;

// A place of a graph with its address, or the host's address of a number passed by value.
struct Binding {
  int64_t id;
  uint64_t address;
};

// Where plans are kept for later processes: to choose one takes milliseconds, and an engine that
// compiles its kernel takes a quarter of a second.
struct Store {
  int32_t device;
  decltype(ob_registrar::keep) keep;
  decltype(ob_registrar::recall) recall;
};

// A device's handle and its plans. Thread-safe.
class Session {
 public:
  // Return OB_INTERNAL, with the reason, if the library refuses. The
  // device's context must be current.
  static ob_status make(const Library& library, const Store& store, std::unique_ptr<Session>* out_session);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Return the plan of a key. `describe` makes its graph if the key is new. Return OB_UNIMPLEMENTED
  // if cuDNN has no engine for it; that is remembered too.
  ob_status find(const PlanKey& key, const Rules& rules,
                 const std::function<Descriptor(Handle, Descriptors*)>& describe,
                 std::shared_ptr<const Plan>* out_plan);

  // Call `body` with the handle, which no other thread uses meanwhile. Work that it queues goes to
  // `stream`; null if it queues none. Return cuDNN's status.
  int use(CUstream stream, const std::function<int(Handle)>& body);

  // Queue a plan. Return cuDNN's status.
  int execute(const Plan& plan, const std::vector<Binding>& bindings, uint64_t workspace, CUstream stream);

  const Library& library;

 private:
  Session(const Library& cudnn, const Store& store, Handle made) : library(cudnn), store_(store), handle_(made) {}
  std::string kept_key(const PlanKey& key) const;
  bool recall(const std::string& key, Plan* out_plan) const;
  void keep(const std::string& key, const Plan& plan) const;

  const Store store_;
  std::mutex handle_mutex_;  // a stream is set for the next call
  const Handle handle_;
  std::mutex mutex_;
  std::map<PlanKey, std::shared_ptr<const Plan>> plans_;
};

}  // namespace nv::cudnn

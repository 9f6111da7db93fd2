// SPDX-License-Identifier: BSD-3-Clause
// cuDNN's graphs: descriptors, the choice of an engine, plans by what they depend on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
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
  // False: until its kernel is compiled, another engine may run that compiles nothing. Not part of
  // what a plan depends on.
  bool is_awaited = true;
};

// What a plan depends on. The first word tells kinds of problems apart.
using PlanKey = std::vector<int64_t>;

// A place of a graph with its address, or the host's address of a number passed by value.
struct Binding {
  int64_t id;
  uint64_t address;
};

// What the core offers for plans, whose kernels take a quarter of a second each to compile.
struct Core {
  int32_t device;
  decltype(ob_registrar::keep) keep;  // for later processes
  decltype(ob_registrar::recall) recall;
  decltype(ob_registrar::build_in_background) build_in_background;  // compiles while another engine runs
};

// Describes the graph of a problem.
using Describe = std::function<Descriptor(Handle, Descriptors*)>;

// A device's handle and its plans. Thread-safe.
class Session {
 public:
  // Return OB_INTERNAL, with the reason, if the library refuses. The device's context must be
  // current; `enter` makes it current on another thread.
  static ob_status make(const Library& library, const Core& core, std::function<bool()> enter,
                        std::unique_ptr<Session>* out_session);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Return the plan of a key. If the key is new, `describe` returns what makes its graph, which is
  // kept if the rules don't await the plan, and called on another thread. Return OB_UNIMPLEMENTED
  // if cuDNN has no engine for it; that is remembered too.
  ob_status find(const PlanKey& key, const Rules& rules, const std::function<Describe()>& describe,
                 std::shared_ptr<const Plan>* out_plan);

  // Call `body` with the handle, which no other thread uses meanwhile. Work that it queues goes to
  // `stream`; null if it queues none. Return cuDNN's status.
  int use(CUstream stream, const std::function<int(Handle)>& body);

  // Queue a plan. Return cuDNN's status.
  int execute(const Plan& plan, const std::vector<Binding>& bindings, uint64_t workspace, CUstream stream);

  const Library& library;

 private:
  // A plan whose kernel is compiled while another runs.
  struct Build {
    PlanKey key;
    Rules rules;
    Describe describe;
  };
  // Connects builds with their session, which they may outlive.
  struct Link {
    std::shared_mutex mutex;  // shared by running builds
    Session* session = nullptr;  // null: it has ended
  };

  Session(const Library& cudnn, const Core& core, std::function<bool()> enter, Handle made);
  std::string store_key(const PlanKey& key) const;
  ob_status choose(Handle handle, const Build& wanted, Plan* out_plan, bool* out_is_interim) const;
  bool build_in_background(const Build& build);
  void run(const Build& build) noexcept;
  Handle take_handle();
  bool recall(const std::string& key, Plan* out_plan) const;
  void keep(const std::string& key, const Plan& plan) const;

  const Core core_;
  const std::function<bool()> enter_;
  std::mutex handle_mutex_;  // a stream is set for the next call
  const Handle handle_;
  const std::shared_ptr<Link> link_ = std::make_shared<Link>();
  std::mutex mutex_;  // guards what follows
  std::condition_variable built_;
  std::map<PlanKey, std::shared_ptr<const Plan>> plans_;
  std::set<PlanKey> pending_;    // whose kernels are being compiled while other plans run
  std::vector<Handle> handles_;  // of builds: no two threads may use one
};

}  // namespace nv::cudnn

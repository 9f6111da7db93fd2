// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_graphs.h"

#include <algorithm>

#include "torch_outboard/support/error.h"

namespace nv::cudnn {

namespace {

constexpr size_t kMaxPlans = 4096;
constexpr int64_t kMaxWorkspace = int64_t{1} << 30;
constexpr int64_t kMaxConfigs = 64;
constexpr int64_t kMaxNotes = 16;

}  // namespace

Descriptors::~Descriptors() {
  for (auto it = made_.rbegin(); it != made_.rend(); ++it) static_cast<void>(library_.BackendDestroyDescriptor(*it));
}

Descriptor Descriptors::make(int kind) {
  Descriptor descriptor = nullptr;
  if (status == 0) status = library_.BackendCreateDescriptor(kind, &descriptor);
  if (status == 0) made_.push_back(descriptor);
  return descriptor;
}

void Descriptors::set(Descriptor descriptor, int attribute, int type, const void* values, int64_t count) {
  if (status == 0) status = library_.BackendSetAttribute(descriptor, attribute, type, count, values);
}

void Descriptors::finalize(Descriptor descriptor) {
  if (status == 0) status = library_.BackendFinalize(descriptor);
}

Descriptor Descriptors::graph_of(Handle handle, const std::vector<Descriptor>& operations) {
  const Descriptor graph = make(kGraph);
  set(graph, kGraphHandle, kTypeHandle, &handle);
  set(graph, kGraphOperations, kTypeDescriptor, operations.data(), static_cast<int64_t>(operations.size()));
  finalize(graph);
  return graph;
}

namespace {

// Return true if the engine of a configuration keeps the rules.
bool is_allowed(const Library& library, Descriptor config, const Rules& rules) {
  Descriptors own(library);
  Descriptor engine = own.make(kEngine);
  int64_t count = 0;
  int notes[kMaxNotes];
  int status = own.status;
  if (status == 0) status = library.BackendGetAttribute(config, kConfigEngine, kTypeDescriptor, 1, &count, &engine);
  if (status == 0) {
    status = library.BackendGetAttribute(engine, kEngineNumericalNotes, kTypeNumericalNote, kMaxNotes, &count, notes);
  }
  return status == 0 && std::none_of(notes, notes + std::min(count, kMaxNotes), [&](int note) {
           return (rules.repeats && note == kNoteNondeterministic) ||
                  (rules.keeps_precision && (note == kNoteTensorCore || note == kNoteDownConvertInputs));
         });
}

// Make the plan that an attribute describes. Return false if it can't run.
bool finish(const Library& library, Handle handle, int attribute, int type, const void* values, int64_t count_of_values,
            Plan* out_plan) {
  Descriptors& own = out_plan->chosen;
  const Descriptor plan = own.make(kExecutionPlan);
  own.set(plan, kPlanHandle, kTypeHandle, &handle);
  own.set(plan, attribute, type, values, count_of_values);
  own.finalize(plan);
  int64_t count = 0, workspace = 0;
  int status = own.status;
  own.status = 0;  // the next configuration may work
  if (status == 0) {
    status = library.BackendGetAttribute(plan, kPlanWorkspace, kTypeInt64, 1, &count, &workspace);
  }
  if (status != 0 || workspace > kMaxWorkspace) return false;
  out_plan->plan = plan;
  out_plan->workspace = workspace;
  return true;
}

// Choose the first configuration, in the order of one of cuDNN's
// heuristics, that this driver can use.
void choose(const Library& library, Handle handle, Descriptor graph, int mode, const Rules& rules, Plan* out_plan) {
  Descriptors& own = out_plan->graph;
  const Descriptor heuristics = own.make(kHeuristics);
  own.set(heuristics, kHeuristicsGraph, kTypeDescriptor, &graph);
  own.set(heuristics, kHeuristicsMode, kTypeHeuristicMode, &mode);
  own.finalize(heuristics);
  int64_t count = 0;
  const auto read = [&](int64_t asked, Descriptor* configs) {
    if (own.status == 0) {
      own.status = library.BackendGetAttribute(heuristics, kHeuristicsResults, kTypeDescriptor, asked, &count, configs);
    }
    count = own.status == 0 ? std::min(count, kMaxConfigs) : 0;
  };
  read(0, nullptr);
  std::vector<Descriptor> configs(static_cast<size_t>(count));
  for (Descriptor& config : configs) config = own.make(kEngineConfig);
  if (count > 0) read(count, configs.data());
  own.status = 0;  // another heuristic may find one
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor config = configs[static_cast<size_t>(i)];
    if (is_allowed(library, config, rules) &&
        finish(library, handle, kPlanConfig, kTypeDescriptor, &config, 1, out_plan)) {
      return;
    }
  }
}

}  // namespace

ob_status Session::make(const Library& library, const Store& store, std::unique_ptr<Session>* out_session) {
  Handle handle = nullptr;
  if (const int status = library.Create(&handle); status != 0) {
    return support::fail(OB_INTERNAL, "cudnnCreate returned %s", library.describe(status).c_str());
  }
  out_session->reset(new Session(library, store, handle));
  return OB_OK;
}

Session::~Session() {
  plans_.clear();
  static_cast<void>(library.Destroy(handle_));
}

std::string Session::kept_key(const PlanKey& key) const {
  const std::string numbers(reinterpret_cast<const char*>(key.data()), key.size() * sizeof(key[0]));
  return "cuDNN " + std::to_string(library.version) + " plan 1 " + numbers;
}

// Make the plan that an earlier process stored. Return false if there is none, or if cuDNN rejects
// it for any reason, so that a plan is chosen anew.
bool Session::recall(const std::string& key, Plan* out_plan) const {
  if (store_.recall == nullptr) return false;
  std::string text;
  const auto take = [](void* context, const void* bytes, size_t size) {
    static_cast<std::string*>(context)->assign(static_cast<const char*>(bytes), size);
  };
  return store_.recall(store_.device, key.data(), key.size(), &text, take) == OB_OK &&
         finish(library, handle_, kPlanText, kTypeChar, text.data(), static_cast<int64_t>(text.size()), out_plan);
}

// cuDNN's text of a plan holds the kernels that its engine compiled. Some engines have none.
void Session::keep(const std::string& key, const Plan& plan) const {
  if (store_.keep == nullptr || plan.plan == nullptr) return;
  int64_t size = 0;
  if (library.BackendGetAttribute(plan.plan, kPlanText, kTypeChar, 0, &size, nullptr) != 0 || size < 1) return;
  std::string text(static_cast<size_t>(size), '\0');
  if (library.BackendGetAttribute(plan.plan, kPlanText, kTypeChar, size, &size, text.data()) == 0) {
    store_.keep(store_.device, key.data(), key.size(), text.data(), text.size());
  }
}

ob_status Session::find(const PlanKey& key, const Rules& rules,
                        const std::function<Descriptor(Handle, Descriptors*)>& describe,
                        std::shared_ptr<const Plan>* out_plan) {
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    auto plan = std::make_shared<Plan>(library);
    const std::string kept = kept_key(key);
    if (!recall(kept, plan.get())) {
      const Descriptor graph = describe(handle_, &plan->graph);
      if (plan->graph.status != 0 && !is_refusal(plan->graph.status)) {
        return support::fail(OB_INTERNAL, "cuDNN can't describe an operation: %s",
                             library.describe(plan->graph.status).c_str());
      }
      for (const int mode : {kHeuristicsA, kHeuristicsFallback}) {
        if (plan->graph.status == 0 && plan->plan == nullptr) {
          choose(library, handle_, graph, mode, rules, plan.get());
        }
      }
      keep(kept, *plan);
    }
    if (plans_.size() >= kMaxPlans) plans_.clear();  // the callers that run a plan hold it
    found = plans_.emplace(key, std::move(plan)).first;
  }
  if (found->second->plan == nullptr) {
    return support::fail(OB_UNIMPLEMENTED, "cuDNN: no engine for these sizes, strides and types");
  }
  *out_plan = found->second;
  return OB_OK;
}

int Session::execute(const Plan& plan, const std::vector<Binding>& bindings, uint64_t workspace, CUstream stream) {
  std::vector<int64_t> ids;
  std::vector<uint64_t> addresses;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    addresses.push_back(binding.address);
  }
  const auto count = static_cast<int64_t>(bindings.size());
  Descriptors own(library);
  const Descriptor pack = own.make(kVariantPack);
  own.set(pack, kPackIds, kTypeInt64, ids.data(), count);
  own.set(pack, kPackPointers, kTypePointer, addresses.data(), count);
  own.set(pack, kPackWorkspace, kTypePointer, &workspace);
  own.finalize(pack);
  if (own.status != 0) return own.status;
  return use(stream, [&](Handle handle) { return library.BackendExecute(handle, plan.plan, pack); });
}

int Session::use(CUstream stream, const std::function<int(Handle)>& body) {
  const std::lock_guard lock(handle_mutex_);
  const int status = stream == nullptr ? 0 : library.SetStream(handle_, stream);
  return status != 0 ? status : body(handle_);
}

}  // namespace nv::cudnn

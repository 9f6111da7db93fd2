// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_graphs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "../recall.h"
#include "torch_outboard/support/error.h"

namespace nv::cudnn {

namespace {

constexpr size_t kMaxPlans = 4096;
constexpr int64_t kMaxWorkspace = int64_t{1} << 30;
// How many configurations are requested in turn until one is usable. cuDNN prepares each
// configuration that it returns, in up to 20 ms, and usually the first is usable.
constexpr int64_t kConfigCounts[] = {1, 4, 64};
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

// What a configuration's engine says of itself.
class Engine {
 public:
  Engine(const Library& library, Descriptor config) : library_(library), own_(library), engine_(own_.make(kEngine)) {
    int64_t count = 0;
    if (own_.status == 0) {
      own_.status = library.BackendGetAttribute(config, kConfigEngine, kTypeDescriptor, 1, &count, &engine_);
    }
  }

  bool keeps(const Rules& rules) const {
    const auto notes = read(kEngineNumericalNotes, kTypeNumericalNote);
    return notes.has_value() && std::none_of(notes->begin(), notes->end(), [&](int note) {
             return (rules.repeats && note == kNoteNondeterministic) ||
                    (rules.keeps_precision && (note == kNoteTensorCore || note == kNoteDownConvertInputs));
           });
  }

  // Return true too if it does not say.
  bool may_compile() const {
    const auto notes = read(kEngineBehaviorNotes, kTypeBehaviorNote);
    return !notes.has_value() || std::find(notes->begin(), notes->end(), kNoteCompiles) != notes->end();
  }

 private:
  std::optional<std::vector<int>> read(int attribute, int type) const {
    int64_t count = 0;
    std::vector<int> notes(kMaxNotes);
    if (own_.status != 0 ||
        library_.BackendGetAttribute(engine_, attribute, type, kMaxNotes, &count, notes.data()) != 0) {
      return std::nullopt;
    }
    notes.resize(static_cast<size_t>(std::clamp(count, int64_t{0}, kMaxNotes)));
    return notes;
  }

  const Library& library_;
  Descriptors own_;
  Descriptor engine_;
};

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

// Choose the first configuration, in the order of one of cuDNN's heuristics, that this driver can
// use. Unless the rules say to wait, omit engines that may compile, and set `out_omits` if there
// are any.
void choose_config(const Library& library, Handle handle, Descriptor graph, int mode, const Rules& rules,
                   Plan* out_plan, bool* out_omits) {
  Descriptors& own = out_plan->graph;
  const Descriptor heuristics = own.make(kHeuristics);
  own.set(heuristics, kHeuristicsGraph, kTypeDescriptor, &graph);
  own.set(heuristics, kHeuristicsMode, kTypeHeuristicMode, &mode);
  own.finalize(heuristics);
  int64_t tried = 0;
  for (const int64_t requested : kConfigCounts) {
    std::vector<Descriptor> configs(static_cast<size_t>(requested));
    for (Descriptor& config : configs) config = own.make(kEngineConfig);
    int64_t count = 0;
    if (own.status == 0) {
      own.status = library.BackendGetAttribute(heuristics, kHeuristicsResults, kTypeDescriptor, requested, &count,
                                               configs.data());
    }
    const bool has_configs = own.status == 0;
    own.status = 0;  // another heuristic may find one
    if (!has_configs) return;
    for (; tried < std::min(count, requested); ++tried) {
      const Descriptor config = configs[static_cast<size_t>(tried)];
      const Engine engine(library, config);
      if (!engine.keeps(rules)) continue;
      if (!rules.is_awaited && engine.may_compile()) {
        *out_omits = true;
      } else if (finish(library, handle, kPlanConfig, kTypeDescriptor, &config, 1, out_plan)) {
        return;
      }
    }
    if (count < requested) return;
  }
}

}  // namespace

Session::Session(const Library& cudnn, const Core& core, std::function<bool()> enter, Handle made)
    : library(cudnn), core_(core), enter_(std::move(enter)), handle_(made) {
  link_->session = this;
}

ob_status Session::make(const Library& library, const Core& core, std::function<bool()> enter,
                        std::unique_ptr<Session>* out_session) {
  Handle handle = nullptr;
  if (const int status = library.Create(&handle); status != 0) {
    return support::fail(OB_INTERNAL, "cudnnCreate returned %s", library.describe(status).c_str());
  }
  out_session->reset(new Session(library, core, std::move(enter), handle));
  return OB_OK;
}

Session::~Session() {
  {
    const std::unique_lock lock(link_->mutex);  // waits for running builds
    link_->session = nullptr;
  }
  plans_.clear();
  handles_.push_back(handle_);
  for (const Handle handle : handles_) static_cast<void>(library.Destroy(handle));
}

std::string Session::store_key(const PlanKey& key) const {
  const std::string numbers(reinterpret_cast<const char*>(key.data()), key.size() * sizeof(key[0]));
  return "cuDNN " + std::to_string(library.version) + " plan 1 " + numbers;
}

// Make the plan that an earlier process stored. Return false if there is none, or if cuDNN rejects
// it for any reason, so that a plan is chosen anew.
bool Session::recall(const std::string& key, Plan* out_plan) const {
  std::string text;
  return recall_bytes(core_.recall, core_.device, key, &text) &&
         finish(library, handle_, kPlanText, kTypeChar, text.data(), static_cast<int64_t>(text.size()), out_plan);
}

// cuDNN's text of a plan holds the kernels that its engine compiled. Some engines have none.
void Session::keep(const std::string& key, const Plan& plan) const {
  if (core_.keep == nullptr || plan.plan == nullptr) return;
  int64_t size = 0;
  if (library.BackendGetAttribute(plan.plan, kPlanText, kTypeChar, 0, &size, nullptr) != 0 || size < 1) return;
  std::string text(static_cast<size_t>(size), '\0');
  if (library.BackendGetAttribute(plan.plan, kPlanText, kTypeChar, size, &size, text.data()) == 0) {
    core_.keep(core_.device, key.data(), key.size(), text.data(), text.size());
  }
}

// Choose a plan. It is an interim one if an engine that cuDNN would rather take was omitted,
// because it may compile.
ob_status Session::choose(Handle handle, const Build& wanted, Plan* out_plan, bool* out_is_interim) const {
  const Descriptor graph = wanted.describe(handle, &out_plan->graph);
  if (out_plan->graph.status != 0 && !is_refusal(out_plan->graph.status)) {
    return support::fail(OB_INTERNAL, "cuDNN can't describe an operation: %s",
                         library.describe(out_plan->graph.status).c_str());
  }
  if (out_plan->graph.status != 0) return OB_OK;
  Rules rules = wanted.rules;
  bool omits = false;
  for (const bool is_awaited : {false, true}) {
    if (wanted.rules.is_awaited && !is_awaited) continue;
    rules.is_awaited = is_awaited;
    for (const int mode : {kHeuristicsA, kHeuristicsFallback}) {
      if (out_plan->plan == nullptr) choose_config(library, handle, graph, mode, rules, out_plan, &omits);
    }
    if (out_plan->plan != nullptr || !omits) break;
  }
  *out_is_interim = omits && !rules.is_awaited;
  return OB_OK;
}

ob_status Session::find(const PlanKey& key, const Rules& rules, const std::function<Describe()>& describe,
                        std::shared_ptr<const Plan>* out_plan) {
  std::unique_lock lock(mutex_);
  if (rules.is_awaited) built_.wait(lock, [&] { return pending_.count(key) == 0; });
  auto entry = plans_.find(key);
  if (entry == plans_.end()) {
    auto plan = std::make_shared<Plan>(library);
    const std::string kept = store_key(key);
    if (!recall(kept, plan.get())) {
      Build build{key, rules, describe()};
      build.rules.is_awaited = rules.is_awaited || core_.build_in_background == nullptr;
      bool is_interim = false;
      if (const ob_status status = choose(handle_, build, plan.get(), &is_interim); status != OB_OK) return status;
      const bool is_in_background = is_interim && build_in_background(build);
      if (is_interim && !is_in_background) {  // no thread builds
        build.rules.is_awaited = true;
        plan = std::make_shared<Plan>(library);
        if (const ob_status status = choose(handle_, build, plan.get(), &is_interim); status != OB_OK) return status;
      }
      if (!is_in_background) keep(kept, *plan);
    }
    if (plans_.size() >= kMaxPlans) plans_.clear();  // the callers that run a plan hold it
    entry = plans_.insert_or_assign(key, std::move(plan)).first;
  }
  if (entry->second->plan == nullptr) {
    return support::fail(OB_UNIMPLEMENTED, "cuDNN: no engine for these sizes, strides and types");
  }
  *out_plan = entry->second;
  return OB_OK;
}

// Start the build of a plan for which another one runs meanwhile. Return false if no thread builds.
// Call it with the mutex held.
bool Session::build_in_background(const Build& build) {
  struct Task {
    std::shared_ptr<Link> link;
    Build build;
  };
  auto task = std::make_unique<Task>(Task{link_, build});
  const auto run_task = [](void* user) {
    const std::unique_ptr<Task> owned(static_cast<Task*>(user));
    const std::shared_lock lock(owned->link->mutex);
    if (Session* const session = owned->link->session; session != nullptr) session->run(owned->build);
  };
  pending_.insert(build.key);
  if (core_.build_in_background(run_task, task.get()) == OB_OK) {
    static_cast<void>(task.release());
    return true;
  }
  pending_.erase(build.key);
  return false;
}

// On a thread of the core. Without memory the process ends.
void Session::run(const Build& build) noexcept {
  auto plan = std::make_shared<Plan>(library);
  const Handle handle = enter_() ? take_handle() : nullptr;
  Build awaited = build;
  awaited.rules.is_awaited = true;
  bool is_interim = false;
  if (handle != nullptr && choose(handle, awaited, plan.get(), &is_interim) == OB_OK) keep(store_key(build.key), *plan);
  const std::lock_guard lock(mutex_);
  if (handle != nullptr) handles_.push_back(handle);
  if (plan->plan != nullptr) plans_.insert_or_assign(build.key, std::move(plan));
  pending_.erase(build.key);
  built_.notify_all();
}

// Return a handle that no other thread uses, or null if the library refuses.
Handle Session::take_handle() {
  {
    const std::lock_guard lock(mutex_);
    if (!handles_.empty()) {
      const Handle handle = handles_.back();
      handles_.pop_back();
      return handle;
    }
  }
  Handle handle = nullptr;
  return library.Create(&handle) == 0 ? handle : nullptr;
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

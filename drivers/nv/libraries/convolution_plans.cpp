// SPDX-License-Identifier: BSD-3-Clause
#include "convolution_plans.h"

#include <algorithm>
#include <vector>

#include "../../support/error.h"

namespace nv::convolutions {

using namespace cudnn;
// cuBLASLt has the same names.
using cudnn::Descriptor;
using cudnn::Handle;
using cudnn::Library;

namespace {

constexpr size_t kMaxPlans = 4096;
constexpr int64_t kMaxWorkspace = int64_t{1} << 30;
constexpr int64_t kMaxConfigs = 64;
constexpr int64_t kMaxNotes = 16;

}  // namespace

// Descriptors that live together. The first failure is kept, and later calls do nothing.
class Descriptors {
 public:
  explicit Descriptors(const Library& library) : library_(library) {}
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    for (auto it = made_.rbegin(); it != made_.rend(); ++it) static_cast<void>(library_.BackendDestroyDescriptor(*it));
  }

  Descriptor make(int kind) {
    Descriptor descriptor = nullptr;
    if (status == 0) status = library_.BackendCreateDescriptor(kind, &descriptor);
    if (status == 0) made_.push_back(descriptor);
    return descriptor;
  }

  void set(Descriptor descriptor, int attribute, int type, const void* values, int64_t count = 1) {
    if (status == 0) status = library_.BackendSetAttribute(descriptor, attribute, type, count, values);
  }

  void finalize(Descriptor descriptor) {
    if (status == 0) status = library_.BackendFinalize(descriptor);
  }

  int status = 0;

 private:
  const Library& library_;
  std::vector<Descriptor> made_;
};

PlanKey Problem::key() const {
  PlanKey key{static_cast<int64_t>(direction), type, is_channels_last, dims, alignment};
  auto next = key.begin() + 5;
  for (const Sizes* sizes : {&image, &filter, &response}) next = std::copy(sizes->begin(), sizes->end(), next);
  for (const auto* numbers : {&stride, &padding, &dilation}) next = std::copy(numbers->begin(), numbers->end(), next);
  return key;
}

Sizes dense_strides(const Sizes& sizes, int dims, bool is_channels_last) {
  Sizes strides{};
  int64_t step = 1;
  const auto add = [&](size_t dim) {
    strides[dim] = step;
    step *= sizes[dim];
  };
  if (is_channels_last) add(1);
  for (auto dim = static_cast<size_t>(dims) + 1; dim >= 2; --dim) add(dim);
  if (!is_channels_last) add(1);
  add(0);
  return strides;
}

struct Plan {
  explicit Plan(const Library& library) : graph(library), chosen(library) {}

  Descriptors graph;   // what the plan is made of, and may refer to
  Descriptors chosen;
  Descriptor plan = nullptr;  // null: cuDNN has no engine
  int64_t workspace = 0;
};

namespace {

Descriptor describe(const Problem& problem, const Sizes& sizes, int64_t id, Descriptors* out) {
  const Descriptor tensor = out->make(kTensor);
  const Sizes strides = dense_strides(sizes, problem.dims, problem.is_channels_last);
  const int64_t count = problem.dims + 2;
  out->set(tensor, kTensorData, kTypeData, &problem.type);
  out->set(tensor, kTensorSizes, kTypeInt64, sizes.data(), count);
  out->set(tensor, kTensorStrides, kTypeInt64, strides.data(), count);
  out->set(tensor, kTensorId, kTypeInt64, &id);
  out->set(tensor, kTensorAlignment, kTypeInt64, &problem.alignment);
  out->finalize(tensor);
  return tensor;
}

Descriptor describe_convolution(const Problem& problem, Descriptors* out) {
  const Descriptor convolution = out->make(kConvolution);
  const int compute = kFloat, mode = kCrossCorrelation;
  const int64_t dims = problem.dims;
  out->set(convolution, kConvolutionCompute, kTypeData, &compute);
  out->set(convolution, kConvolutionMode, kTypeConvolutionMode, &mode);
  out->set(convolution, kConvolutionDims, kTypeInt64, &dims);
  out->set(convolution, kConvolutionStrides, kTypeInt64, problem.stride.data(), dims);
  out->set(convolution, kConvolutionDilations, kTypeInt64, problem.dilation.data(), dims);
  out->set(convolution, kConvolutionPrePadding, kTypeInt64, problem.padding.data(), dims);
  out->set(convolution, kConvolutionPostPadding, kTypeInt64, problem.padding.data(), dims);
  out->finalize(convolution);
  return convolution;
}

Descriptor describe_graph(const Problem& problem, Handle handle, Descriptors* out) {
  struct Operation {
    int kind, first;
  };
  constexpr Operation kOperations[] = {
      {kForwardOperation, kForwardAlpha}, {kDataOperation, kDataAlpha}, {kFilterOperation, kFilterAlpha}};
  const auto [kind, first] = kOperations[static_cast<int>(problem.direction)];
  const Descriptor image = describe(problem, problem.image, 1, out);
  const Descriptor filter = describe(problem, problem.filter, 2, out);
  const Descriptor response = describe(problem, problem.response, 3, out);
  const Descriptor convolution = describe_convolution(problem, out);
  const Descriptor operation = out->make(kind);
  const float alpha = 1, beta = 0;
  out->set(operation, first, kTypeFloat, &alpha);
  out->set(operation, first + 1, kTypeFloat, &beta);
  out->set(operation, first + 2, kTypeDescriptor, &convolution);
  out->set(operation, first + 3, kTypeDescriptor, &filter);
  out->set(operation, first + 4, kTypeDescriptor, &image);
  out->set(operation, first + 5, kTypeDescriptor, &response);
  out->finalize(operation);
  const Descriptor graph = out->make(kGraph);
  out->set(graph, kGraphHandle, kTypeHandle, &handle);
  out->set(graph, kGraphOperations, kTypeDescriptor, &operation);
  out->finalize(graph);
  return graph;
}

// Return true if the engine of a configuration keeps the promises of this driver: results that repeat, and float32
// multiplied as float32.
bool is_allowed(const Library& library, Descriptor config, int type) {
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
           return note == kNoteNondeterministic ||
                  (type == kFloat && (note == kNoteTensorCore || note == kNoteDownConvertInputs));
         });
}

// Make the plan of a configuration. Return false if it can't run.
bool finish(const Library& library, Handle handle, Descriptor config, Plan* out_plan) {
  Descriptors& own = out_plan->chosen;
  const Descriptor plan = own.make(kExecutionPlan);
  own.set(plan, kPlanHandle, kTypeHandle, &handle);
  own.set(plan, kPlanConfig, kTypeDescriptor, &config);
  own.finalize(plan);
  int64_t count = 0, workspace = 0;
  int status = own.status;
  own.status = 0;  // the next configuration may do
  if (status == 0) {
    status = library.BackendGetAttribute(plan, kPlanWorkspace, kTypeInt64, 1, &count, &workspace);
  }
  if (status != 0 || workspace > kMaxWorkspace) return false;
  out_plan->plan = plan;
  out_plan->workspace = workspace;
  return true;
}

// Choose the first configuration, in the order of one of cuDNN's heuristics, that this driver can use.
void choose(const Library& library, Handle handle, Descriptor graph, int mode, int type, Plan* out_plan) {
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
  own.status = 0;  // another heuristic may know more
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor config = configs[static_cast<size_t>(i)];
    if (is_allowed(library, config, type) && finish(library, handle, config, out_plan)) return;
  }
}

}  // namespace

ob_status Plans::make(const Library& library, std::unique_ptr<Plans>* out_plans) {
  Handle handle = nullptr;
  if (const int status = library.Create(&handle); status != 0) {
    return support::fail(OB_INTERNAL, "cudnnCreate gave %s", library.describe(status).c_str());
  }
  out_plans->reset(new Plans(library, handle));
  return OB_OK;
}

Plans::~Plans() {
  plans_.clear();
  static_cast<void>(library.Destroy(handle_));
}

ob_status Plans::find(const Problem& problem, std::shared_ptr<const Plan>* out_plan) {
  const PlanKey key = problem.key();
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    auto plan = std::make_shared<Plan>(library);
    const Descriptor graph = describe_graph(problem, handle_, &plan->graph);
    if (plan->graph.status != 0 && !is_refusal(plan->graph.status)) {
      return support::fail(OB_INTERNAL, "cuDNN can't describe a convolution: %s",
                           library.describe(plan->graph.status).c_str());
    }
    for (const int mode : {kHeuristicsA, kHeuristicsFallback}) {
      if (plan->graph.status == 0 && plan->plan == nullptr) {
        choose(library, handle_, graph, mode, problem.type, plan.get());
      }
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

int Plans::execute(const Plan& plan, const std::array<uint64_t, 3>& addresses, uint64_t workspace, CUstream stream) {
  Descriptors own(library);
  const Descriptor pack = own.make(kVariantPack);
  constexpr int64_t kIds[] = {1, 2, 3};
  own.set(pack, kPackIds, kTypeInt64, kIds, 3);
  own.set(pack, kPackPointers, kTypePointer, addresses.data(), 3);
  own.set(pack, kPackWorkspace, kTypePointer, &workspace);
  own.finalize(pack);
  if (own.status != 0) return own.status;
  const std::lock_guard lock(handle_mutex_);
  const int status = library.SetStream(handle_, stream);
  return status != 0 ? status : library.BackendExecute(handle_, plan.plan, pack);
}

uint64_t workspace_of(const Plan& plan) {
  return static_cast<uint64_t>(plan.workspace);
}

}  // namespace nv::convolutions

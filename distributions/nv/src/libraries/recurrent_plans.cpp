// SPDX-License-Identifier: BSD-3-Clause
#include "recurrent_plans.h"

#include <utility>

#include "torch_outboard/support/error.h"

namespace nv::recurrent {

using cudnn::PlanKey;
using cudnn::Session;

namespace {

constexpr size_t kMaxPlans = 1024;

// Return true for the sizes from which one kernel runs all steps of a layer in half precision.
bool is_persistent(const Problem& problem, const DeviceInfo& device) {
  constexpr int64_t kCellMultiple = 128, kMaxCells = 1024, kMaxBatch = 128, kBatchMultiple = 8;
  constexpr int kMinMultiprocessors = 98;
  if (problem.type != cudnn::kHalf || problem.layers != 1 || problem.directions != 1 || problem.cells > kMaxCells ||
      problem.cells % kCellMultiple != 0 || problem.width % kCellMultiple != 0 || problem.batch > kMaxBatch ||
      problem.batch % kBatchMultiple != 0 || device.major < 8 || device.minor == 6 ||
      device.multiprocessors < kMinMultiprocessors) {
    return false;
  }
  // Large plain nets are slower this way, and GRUs often are.
  return problem.cell == cudnn::kLstmCell ||
         (problem.cell != cudnn::kGruCell && (problem.batch < 96 || problem.cells < 896));
}

// Return true if the cells are so few that their weights stay on the chip.
bool is_small(const Problem& problem, const DeviceInfo& device) {
  const bool has_gates = problem.gates() > 1;
  const int64_t most = problem.is_trained ? (has_gates ? 128 : 256) : (has_gates ? 192 : 384);
  return device.major >= 6 && problem.cells <= most && (problem.type == cudnn::kFloat || problem.type == cudnn::kHalf);
}

}  // namespace

PlanKey Problem::key() const {
  PlanKey key{cell,  type,  width,      cells,      states,   layers,   directions,
              batch, steps, has_biases, is_trained, is_exact, algorithm};
  key.insert(key.end(), lengths.begin(), lengths.end());
  return key;
}

int choose_algorithm(const Problem& problem, const DeviceInfo& device) {
  if (problem.is_projected() || !problem.lengths.empty()) return cudnn::kStandard;
  if (is_small(problem, device)) return cudnn::kPersistentSmall;
  return is_persistent(problem, device) ? cudnn::kPersistent : cudnn::kStandard;
}

Plan::~Plan() {
  if (net != nullptr) static_cast<void>(library_.DestroyRNNDescriptor(net));
  if (dropout_ != nullptr) static_cast<void>(library_.DestroyDropoutDescriptor(dropout_));
  for (cudnn::RnnDataDescriptor rows : {input, output}) {
    if (rows != nullptr) static_cast<void>(library_.DestroyRNNDataDescriptor(rows));
  }
  for (cudnn::TensorDescriptor states : {hidden, cell}) {
    if (states != nullptr) static_cast<void>(library_.DestroyTensorDescriptor(states));
  }
}

int Plan::describe_net(cudnn::Handle handle, const Problem& problem) {
  const int compute = problem.type == cudnn::kDouble ? cudnn::kDouble : cudnn::kFloat;
  const int math = problem.type == cudnn::kHalf ? cudnn::kTensorMath
                   : problem.is_exact           ? cudnn::kExactMath
                                                : cudnn::kDefaultMath;
  int status = library_.CreateRNNDescriptor(&net);
  if (status == 0) status = library_.CreateDropoutDescriptor(&dropout_);
  if (status == 0) status = library_.SetDropoutDescriptor(dropout_, handle, 0, nullptr, 0, 0);
  if (status != 0) return status;
  return library_.SetRNNDescriptor_v8(
      net, problem.algorithm, problem.cell, problem.has_biases ? cudnn::kTwoBiases : cudnn::kNoBias,
      problem.directions == 2 ? 1 : 0, cudnn::kLinearInput, problem.type, compute, math,
      static_cast<int32_t>(problem.width), static_cast<int32_t>(problem.cells), static_cast<int32_t>(problem.states),
      static_cast<int32_t>(problem.layers), dropout_, problem.lengths.empty() ? cudnn::kPaddedIo : 0);
}

int Plan::describe_rows(const Problem& problem, int64_t width, cudnn::RnnDataDescriptor* out_rows) {
  const bool is_packed = !problem.lengths.empty();
  const auto batch = static_cast<size_t>(problem.batch);
  const std::vector<int> lengths = is_packed ? problem.lengths : std::vector(batch, static_cast<int>(problem.steps));
  const int status = library_.CreateRNNDataDescriptor(out_rows);
  if (status != 0) return status;
  return library_.SetRNNDataDescriptor(*out_rows, problem.type, is_packed ? cudnn::kPacked : cudnn::kPadded,
                                       static_cast<int>(problem.steps), static_cast<int>(problem.batch),
                                       static_cast<int>(width), lengths.data(), nullptr);
}

int Plan::describe_states(const Problem& problem, int64_t width, cudnn::TensorDescriptor* out_states) {
  const int sizes[] = {static_cast<int>(problem.layers * problem.directions), static_cast<int>(problem.batch),
                       static_cast<int>(width)};
  const int strides[] = {sizes[1] * sizes[2], sizes[2], 1};
  const int status = library_.CreateTensorDescriptor(out_states);
  return status != 0 ? status : library_.SetTensorNdDescriptor(*out_states, problem.type, 3, sizes, strides);
}

int Plan::make(cudnn::Handle handle, const Problem& problem) {
  int status = describe_net(handle, problem);
  if (status == 0) status = describe_rows(problem, problem.width, &input);
  if (status == 0) status = describe_rows(problem, problem.states * problem.directions, &output);
  if (status == 0) status = describe_states(problem, problem.states, &hidden);
  if (status == 0) status = describe_states(problem, problem.cells, &cell);
  if (status == 0) status = library_.GetRNNWeightSpaceSize(handle, net, &weights);
  if (status != 0) return status;
  const int mode = problem.is_trained ? cudnn::kTraining : cudnn::kInference;
  return library_.GetRNNTempSpaceSizes(handle, net, mode, input, &workspace, &reserve);
}

bool Plan::has_layout(cudnn::Handle handle, const Problem& problem) const {
  cudnn::TensorDescriptor matrix = nullptr, bias = nullptr;
  bool is_right = library_.CreateTensorDescriptor(&matrix) == 0 && library_.CreateTensorDescriptor(&bias) == 0;
  char* const base = reinterpret_cast<char*>(uintptr_t{1} << 30);  // nothing is read there
  char *matrices = base, *biases = base;
  const auto find = [&](int64_t layer, int64_t id) {
    std::pair<void*, void*> addresses{nullptr, nullptr};
    is_right = is_right && library_.GetRNNWeightParams(handle, net, static_cast<int32_t>(layer), weights, base,
                                                       static_cast<int32_t>(id), matrix, &addresses.first, bias,
                                                       &addresses.second) == 0;
    return addresses;
  };
  const int64_t gates = problem.gates(), element = problem.element_bytes(), all = problem.layers * problem.directions;
  const auto width_of = [&](int64_t layer) {
    return layer < problem.directions ? problem.width : problem.states * problem.directions;
  };
  for (int64_t layer = 0; layer < all; ++layer) {
    biases += gates * problem.cells * (width_of(layer) + problem.states) * element;
    if (problem.is_projected()) biases += problem.states * problem.cells * element;
  }
  for (int64_t layer = 0; layer < all; ++layer) {
    for (int64_t id = 0; id < 2 * gates; ++id) {
      const auto [found_matrix, found_bias] = find(layer, id);
      is_right = is_right && found_matrix == matrices && (!problem.has_biases || found_bias == biases);
      matrices += problem.cells * (id < gates ? width_of(layer) : problem.states) * element;
      if (problem.has_biases) biases += problem.cells * element;
    }
    if (!problem.is_projected()) continue;
    is_right = is_right && find(layer, 2 * gates).first == matrices;
    matrices += problem.states * problem.cells * element;
  }
  for (cudnn::TensorDescriptor states : {matrix, bias}) {
    if (states != nullptr) static_cast<void>(library_.DestroyTensorDescriptor(states));
  }
  return is_right && biases == base + weights;
}

ob_status Plans::find(Session& session, Problem problem, std::shared_ptr<const Plan>* out_plan) {
  const std::lock_guard lock(mutex_);
  auto entry = plans_.find(problem.key());
  if (entry == plans_.end()) {
    PlanKey key = problem.key();
    std::shared_ptr<Plan> plan;
    bool has_layout = false;
    const auto make = [&](cudnn::Handle handle) {
      plan = std::make_shared<Plan>(session.library);
      const int status = plan->make(handle, problem);
      has_layout = status == 0 && plan->has_layout(handle, problem);
      return status;
    };
    int status = session.use(nullptr, make);
    if (cudnn::is_refusal(status) && problem.algorithm != cudnn::kStandard) {
      problem.algorithm = cudnn::kStandard;
      status = session.use(nullptr, make);
    }
    if (status != 0 && !cudnn::is_refusal(status)) {
      return support::fail(OB_INTERNAL, "cuDNN can't describe a recurrent net: %s",
                           session.library.describe(status).c_str());
    }
    if (!has_layout) plan = nullptr;
    if (plans_.size() >= kMaxPlans) plans_.clear();  // the callers that run a plan hold it
    entry = plans_.emplace(std::move(key), std::move(plan)).first;
  }
  if (entry->second == nullptr) {
    return support::fail(OB_UNIMPLEMENTED, "cuDNN: no recurrent net of these sizes and types");
  }
  *out_plan = entry->second;
  return OB_OK;
}

}  // namespace nv::recurrent

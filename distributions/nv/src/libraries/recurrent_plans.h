// SPDX-License-Identifier: BSD-3-Clause
// cuDNN's plans of recurrent nets, by what they depend on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cudnn_graphs.h"
#include "torch_outboard/driver.h"

namespace nv::recurrent {

struct Problem {
  int cell = 0;
  int type = 0;
  int64_t width = 0;  // of an input
  int64_t cells = 0;
  int64_t states = 0;  // as many as cells, or fewer, which are projections
  int64_t layers = 0;
  int64_t directions = 1;
  int64_t batch = 0;
  int64_t steps = 0;
  std::vector<int> lengths{};  // of packed sequences, the longest first; else empty
  bool has_biases = true;
  bool is_trained = false;
  bool is_exact = false;  // float32 must not be rounded
  int algorithm = cudnn::kStandard;

  bool is_projected() const { return states != cells; }
  int64_t gates() const { return cell == cudnn::kLstmCell ? 4 : cell == cudnn::kGruCell ? 3 : 1; }
  int64_t element_bytes() const { return type == cudnn::kDouble ? 8 : type == cudnn::kFloat ? 4 : 2; }
  cudnn::PlanKey key() const;
};

// The facts about a device that choose an algorithm.
struct DeviceInfo {
  int major = 0, minor = 0, multiprocessors = 0;
};

// Return cuDNN's fastest algorithm that runs the problem.
int choose_algorithm(const Problem& problem, const DeviceInfo& device);

// The descriptors of a problem, and the bytes of memory that it takes.
class Plan {
 public:
  explicit Plan(const cudnn::Library& library) : library_(library) {}
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Return cuDNN's status.
  int make(cudnn::Handle handle, const Problem& problem);

  // Return true if cuDNN has the weights where torch-outboard has them: the matrices of all layers
  // and directions, then the biases, without gaps.
  bool has_layout(cudnn::Handle handle, const Problem& problem) const;

  cudnn::RnnDescriptor net = nullptr;
  cudnn::RnnDataDescriptor input = nullptr, output = nullptr;
  cudnn::TensorDescriptor hidden = nullptr, cell = nullptr;
  size_t weights = 0, workspace = 0, reserve = 0;

 private:
  int describe_net(cudnn::Handle handle, const Problem& problem);
  int describe_rows(const Problem& problem, int64_t width, cudnn::RnnDataDescriptor* out_rows);
  int describe_states(const Problem& problem, int64_t width, cudnn::TensorDescriptor* out_states);

  const cudnn::Library& library_;
  cudnn::DropoutDescriptor dropout_ = nullptr;
};

// A device's plans. Thread-safe.
class Plans {
 public:
  // Return the plan of a problem. Return OB_UNIMPLEMENTED if cuDNN refuses
  // it; that is remembered too.
  ob_status find(cudnn::Session& session, Problem problem, std::shared_ptr<const Plan>* out_plan);

 private:
  std::mutex mutex_;
  std::map<cudnn::PlanKey, std::shared_ptr<const Plan>> plans_;  // null: refused
};

}  // namespace nv::recurrent

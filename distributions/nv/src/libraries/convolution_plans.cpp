// SPDX-License-Identifier: BSD-3-Clause
#include "convolution_plans.h"

#include <algorithm>

namespace nv::convolutions {

using namespace cudnn;
// cuBLASLt has the same names.
using cudnn::Descriptor;
using cudnn::Handle;

PlanKey Problem::key() const {
  PlanKey key{
      kConvolution,         static_cast<int64_t>(direction), type, is_channels_last, dims, alignment, rules.repeats,
      rules.keeps_precision};
  for (const Sizes* sizes : {&image, &filter, &response}) key.insert(key.end(), sizes->begin(), sizes->end());
  for (const auto* numbers : {&stride, &padding, &dilation}) key.insert(key.end(), numbers->begin(), numbers->end());
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
  const int compute = problem.type == kDouble ? kDouble : kFloat, mode = kCrossCorrelation;
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
  const double numbers[] = {1, 0};  // factors of the product, and of the previous content
  const float singles[] = {1, 0};
  for (int i = 0; i < 2; ++i) {
    if (problem.type == kDouble) {
      out->set(operation, first + i, kTypeDouble, &numbers[i]);
    } else {
      out->set(operation, first + i, kTypeFloat, &singles[i]);
    }
  }
  out->set(operation, first + 2, kTypeDescriptor, &convolution);
  out->set(operation, first + 3, kTypeDescriptor, &filter);
  out->set(operation, first + 4, kTypeDescriptor, &image);
  out->set(operation, first + 5, kTypeDescriptor, &response);
  out->finalize(operation);
  return out->graph_of(handle, {operation});
}

}  // namespace

ob_status find_plan(Session& session, const Problem& problem, std::shared_ptr<const Plan>* out_plan) {
  return session.find(
      problem.key(), problem.rules,
      [&]() -> Describe {
        return [problem](Handle handle, Descriptors* out) { return describe_graph(problem, handle, out); };
      },
      out_plan);
}

}  // namespace nv::convolutions

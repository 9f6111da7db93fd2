// SPDX-License-Identifier: BSD-3-Clause
// Attention by cuDNN: aten::_scaled_dot_product_fused_attention_overrideable and its gradients.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../driver.h"
#include "../own_kernels.h"
#include "attention_graphs.h"
#include "cudnn_calls.h"

namespace nv::attention {
namespace {

constexpr int64_t kMaxHead = 256;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kAlignedElements = 8;  // elements: cuDNN reads 16 bytes at once
constexpr int kMinComputeMajor = 8;  // major compute capability
constexpr size_t kMinVersion = 90900;  // versions of cuDNN
constexpr size_t kMinVersionForInfinity = 91000;
constexpr size_t kMinVersionForRaggedKeys = 91501;

std::optional<int> half_of(ob_dtype dtype) {
  if (dtype == OB_FLOAT16) return cudnn::kHalf;
  if (dtype == OB_BFLOAT16) return cudnn::kBFloat16;
  return std::nullopt;
}

// A tensor of a call. `data` is a copy's address if cuDNN can't take the caller's memory.
struct Operand {
  Tensor tensor{};
  Sizes given{};  // the caller's strides
  uint64_t source = 0;
  uint64_t data = 0;
  bool is_copied = false;
  bool is_written = false;  // a copied operand is copied back

  int64_t element_bytes() const { return tensor.type == cudnn::kFloat ? 4 : 2; }
  uint64_t bytes() const {
    const auto rows = static_cast<uint64_t>(tensor.sizes[0] * tensor.sizes[1] * tensor.sizes[2]);
    return rows * static_cast<uint64_t>(tensor.strides[2] * element_bytes());
  }
};

struct Call {
  Call(const ob_kernel_call& call, bool is_query) : request(call), is_query(is_query) {}

  const ob_kernel_call& request;
  const bool is_query;  // only the answer is wanted
  int type = cudnn::kHalf;
  Problem problem{};
  std::vector<Operand> operands{};
  const char* refusal = nullptr;  // the first reason why cuDNN cannot run the call
  float scale = 0, masked_score = 0, dropout_scale = 1, inverse_dropout_scale = 1;
  uint64_t workspace = 0;

  void refuse(const char* reason) {
    if (refusal == nullptr) refusal = reason;
  }
  const Operand& find(TensorRole role) const {
    return *std::find_if(operands.begin(), operands.end(),
                         [&](const Operand& operand) { return operand.tensor.role == role; });
  }
  const Sizes& sizes_of(TensorRole role) const { return find(role).tensor.sizes; }
};

// Return true if cuDNN takes memory with these strides: adjacent columns,
// all else in units of 16 bytes.
bool is_supported_layout(const Sizes& sizes, const Sizes& strides, int64_t least) {
  if (strides[3] != 1) return false;
  for (size_t dim = 0; dim < 3; ++dim) {
    if (sizes[dim] != 1 && (strides[dim] % kAlignedElements != 0 || strides[dim] < least)) return false;
  }
  return true;
}

// Add a tensor with four dimensions.
Operand* add(TensorRole role, const ob_tensor& tensor, Call* call) {
  Operand operand;
  operand.tensor = {role, call->type, {}, {}};
  operand.source = operand.data = tensor.data;
  if (tensor.ndim != 4) call->refuse("tensors must have four dimensions");
  if (half_of(tensor.dtype) != call->type) call->refuse("tensors must have one dtype");
  if (tensor.device != call->request.device) call->refuse("tensors must be on one device");
  int64_t count = 1;
  for (size_t dim = 0; dim < 4 && call->refusal == nullptr; ++dim) {
    operand.tensor.sizes[dim] = tensor.sizes[dim];
    operand.given[dim] = tensor.strides[dim];
    if (tensor.sizes[dim] == 0) call->refuse("empty tensors are not supported");
    if (tensor.strides[dim] < 0) call->refuse("negative strides are not supported");
    if (__builtin_mul_overflow(count, tensor.sizes[dim], &count) || count > kMaxInt32)
      call->refuse("too many elements");
  }
  // The strides of dimensions of size 1 mean nothing.
  const Sizes dense = dense_strides(operand.tensor.sizes);
  for (size_t dim = 0; dim < 4; ++dim) {
    if (operand.tensor.sizes[dim] == 1) operand.given[dim] = dense[dim];
  }
  operand.is_copied = !is_supported_layout(operand.tensor.sizes, operand.given, 1) || tensor.data % 16 != 0;
  operand.tensor.strides = operand.is_copied ? dense : operand.given;
  call->operands.push_back(operand);
  return &call->operands.back();
}

// Add memory for the call alone, dense.
void add_memory(TensorRole role, const Sizes& sizes, int type, Call* call) {
  Operand operand;
  operand.tensor = {role, type, sizes, dense_strides(sizes)};
  call->operands.push_back(operand);
}

// Add a tensor that the call writes. If it is not wanted, cuDNN writes to memory of the call.
void add_written(TensorRole role, const ob_tensor& tensor, const Sizes& sizes, Call* call) {
  if (tensor.is_defined == 0) return add_memory(role, sizes, call->type, call);
  add(role, tensor, call)->is_written = true;
}

// Add a float for each query.
void add_rows(TensorRole role, const ob_tensor& tensor, const Sizes& query, Call* call) {
  Operand operand;
  operand.tensor = {role, cudnn::kFloat, {query[0], query[1], query[2], 1}, {}};
  operand.tensor.strides = operand.given = dense_strides(operand.tensor.sizes);
  operand.source = operand.data = tensor.data;
  operand.is_copied = tensor.data % 16 != 0;
  bool is_right = tensor.ndim == 3 && tensor.dtype == OB_FLOAT32 && tensor.device == call->request.device;
  for (size_t dim = 0; dim < 3 && is_right; ++dim) {
    is_right = tensor.sizes[dim] == query[dim] && (query[dim] == 1 || tensor.strides[dim] == operand.given[dim]);
  }
  if (!is_right) call->refuse("logsumexp must be a dense float32 tensor with a number for each query");
  call->operands.push_back(operand);
}

// Add a seed or an offset of dropout.
void add_draw(TensorRole role, const ob_tensor& tensor, Call* call) {
  Operand operand;
  operand.tensor = {role, cudnn::kInt64, {1, 1, 1, 1}, {1, 1, 1, 1}};
  operand.source = operand.data = tensor.data;
  if (tensor.dtype != OB_INT64 || tensor.ndim != 0 || tensor.device != call->request.device) {
    call->refuse("the seed and the offset must be int64 scalars on the device");
  }
  call->operands.push_back(operand);
}

// Add the mask, which has two to four dimensions and repeats along those of size 1.
void add_mask(const ob_tensor& tensor, const Sizes& scores, Call* call) {
  if (half_of(tensor.dtype) != call->type) return call->refuse("the mask must have the dtype of the query");
  if (tensor.device != call->request.device) return call->refuse("tensors must be on one device");
  if (tensor.ndim < 2 || tensor.ndim > 4) return call->refuse("the mask must have two to four dimensions");
  Operand operand;
  // Batches and heads may share a matrix, so it is kept whole.
  operand.tensor = {kMask, call->type, {1, 1, scores[2], scores[3]}, {}};
  operand.source = operand.data = tensor.data;
  const size_t missing = 4 - static_cast<size_t>(tensor.ndim);
  for (size_t dim = 0; dim < 4 - missing; ++dim) {
    const int64_t size = tensor.sizes[dim];
    if (size != 1 && size != scores[dim + missing]) return call->refuse("the mask does not broadcast to the scores");
    if (tensor.strides[dim] < 0) return call->refuse("negative strides are not supported");
    if (size == 1) continue;
    operand.tensor.sizes[dim + missing] = size;
    operand.given[dim + missing] = tensor.strides[dim];
  }
  const Sizes& sizes = operand.tensor.sizes;
  const int64_t row = (scores[3] + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  const Sizes padded = dense_strides({sizes[0], sizes[1], sizes[2], row});
  if (static_cast<double>(sizes[0]) * static_cast<double>(padded[0]) > static_cast<double>(kMaxInt32)) {
    return call->refuse("too many elements");
  }
  for (size_t dim = 0; dim < 2; ++dim) {
    if (sizes[dim] == 1) operand.given[dim] = padded[dim];
  }
  if (scores[3] == 1) operand.given[3] = 1;
  operand.is_copied = !is_supported_layout(sizes, operand.given, 0) || tensor.data % 16 != 0;
  operand.tensor.strides = operand.is_copied ? padded : operand.given;
  call->operands.push_back(operand);
}

// Add query, key, value and mask, which stand in this order from the argument `first` on.
void add_inputs(size_t first, Call* call) {
  const Sizes query = add(kQuery, *value_at(call->request, first).tensors, call)->tensor.sizes;
  const Sizes key = add(kKey, *value_at(call->request, first + 1).tensors, call)->tensor.sizes;
  const Sizes value = add(kValue, *value_at(call->request, first + 2).tensors, call)->tensor.sizes;
  if (call->refusal != nullptr) return;
  if (key[0] != query[0] || value[0] != query[0] || key[3] != query[3] || value[2] != key[2] || value[1] != key[1] ||
      query[1] % key[1] != 0) {
    return call->refuse("the sizes of query, key and value do not match");
  }
  for (const int64_t head : {query[3], value[3]}) {
    if (head % kAlignedElements != 0 || head > kMaxHead) return call->refuse("unsupported head size");
  }
  const ob_value& mask = value_at(call->request, first + 3);
  if (mask.kind == OB_VALUE_TENSOR && mask.tensors->is_defined != 0) {
    add_mask(*mask.tensors, {query[0], query[1], query[2], key[2]}, call);
  }
}

// Read the numbers of a call.
void read_numbers(size_t dropout, size_t causal, size_t scale, Call* call) {
  call->problem.dropout = value_at(call->request, dropout).doubles[0];
  call->problem.is_causal = value_at(call->request, causal).ints[0] != 0;
  const ob_value& factor = value_at(call->request, scale);
  const auto head = static_cast<double>(call->sizes_of(kQuery)[3]);
  call->scale = static_cast<float>(factor.kind == OB_VALUE_NONE ? 1 / std::sqrt(head) : factor.doubles[0]);
  if (call->problem.dropout < 0 || call->problem.dropout >= 1)
    call->refuse("dropout must be at least 0 and less than 1");
  call->inverse_dropout_scale = static_cast<float>(1 - call->problem.dropout);
  call->dropout_scale = 1 / call->inverse_dropout_scale;
}

// Refuse what a version of the library or a chip computes wrongly or not at all.
void check_versions(const Device& device, const cudnn::Library& library, Call* call) {
  const size_t version = library.version;
  if (device.major < kMinComputeMajor) call->refuse("attention needs sm_80 or newer");
  if (version < kMinVersion) call->refuse("attention needs version 9.9 or newer");
  if (version == 91000 || version == 91001) call->refuse("attention is not used in versions 9.10.0 and 9.10.1");
  if (call->problem.is_backward && version < kMinVersionForRaggedKeys && call->sizes_of(kKey)[2] % 128 != 0) {
    call->refuse("gradients for this number of keys need version 9.15.1 or newer");
  }
  call->masked_score =
      version < kMinVersionForInfinity ? std::numeric_limits<float>::lowest() : -std::numeric_limits<float>::infinity();
}

// Queue the copy of a tensor into memory that cuDNN takes, or of a result from it.
ob_status copy(Driver& driver, Device& device, const Call& call, const Operand& operand) {
  ob_copy_nd nd = {};
  nd.struct_size = sizeof nd;
  nd.dst = operand.is_written ? operand.source : operand.data;
  nd.src = operand.is_written ? operand.data : operand.source;
  nd.dst_device = nd.src_device = device.index;
  nd.element_size = static_cast<uint32_t>(operand.element_bytes());
  nd.ndim = 4;
  nd.sizes = operand.tensor.sizes.data();
  nd.dst_strides = (operand.is_written ? operand.given : operand.tensor.strides).data();
  nd.src_strides = (operand.is_written ? operand.tensor.strides : operand.given).data();
  return copy_nd(driver, device, to_stream(call.request.stream), nd);
}

// Take all memory for the call. Only this plan can reproduce the weights that dropout keeps.
ob_status take(const cudnn::Plan& plan, Call* call) {
  ob_status status = take_scratch(call->request, static_cast<uint64_t>(plan.workspace), &call->workspace);
  for (Operand& operand : call->operands) {
    if (status != OB_OK || (!operand.is_copied && operand.data != 0)) continue;
    status = take_scratch(call->request, operand.bytes(), &operand.data);
  }
  return status == OB_UNIMPLEMENTED && call->problem.dropout > 0 ? OB_OUT_OF_MEMORY : status;
}

// Take all memory before anything is queued, then queue the copies and the draw of a seed.
ob_status prepare(Driver& driver, Device& device, const cudnn::Plan& plan, Call* call) {
  if (const ob_status status = take(plan, call); status != OB_OK) return status;
  for (const Operand& operand : call->operands) {
    if (!operand.is_copied || operand.is_written) continue;
    if (const ob_status status = copy(driver, device, *call, operand); status != OB_OK) return status;
  }
  if (call->problem.dropout == 0 || call->problem.is_backward) return OB_OK;
  const ob_status drawn = call->request.draw(call->request.scratch_context, call->find(kSeed).data);
  if (drawn != OB_OK) return drawn;
  const CUstream stream = to_stream(call->request.stream);
  return check(driver, device, driver.api.MemsetD32Async(call->find(kOffset).data, 0, 2, stream), "cuMemsetD32Async");
}

ob_status queue(Driver& driver, Device& device, cudnn::Session& session, const cudnn::Plan& plan, const Call& call) {
  const auto address = [](const float& number) { return reinterpret_cast<uint64_t>(&number); };
  std::vector<cudnn::Binding> bindings = {{kScale, address(call.scale)}};
  if (call.problem.is_causal) bindings.push_back({kMaskedScore, address(call.masked_score)});
  if (call.problem.is_backward) bindings.push_back({kInverseDropoutScale, address(call.inverse_dropout_scale)});
  if (call.problem.dropout > 0) bindings.push_back({kDropoutScale, address(call.dropout_scale)});
  for (const Operand& operand : call.operands) bindings.push_back({operand.tensor.role, operand.data});
  const int status = session.execute(plan, bindings, call.workspace, to_stream(call.request.stream));
  if (status != 0) {
    return fail(OB_INTERNAL, "%s: cudnnBackendExecute returned %s", device.where.c_str(),
                session.library.describe(status).c_str());
  }
  for (const Operand& operand : call.operands) {
    if (!operand.is_copied || !operand.is_written) continue;
    if (const ob_status copied = copy(driver, device, call, operand); copied != OB_OK) return copied;
  }
  return OB_OK;
}

// Return the status of a plan for the gradients of a call that drops weights. Only such a plan can
// reproduce the dropped weights.
ob_status find_gradients(cudnn::Session& session, const Call& call) {
  Problem problem = call.problem;
  problem.is_backward = true;
  problem.repeats = has_flags(call.request, OB_CALL_REPEATS);
  const auto add_like = [&](TensorRole role, TensorRole like, int type) {
    const Sizes& sizes = call.sizes_of(like);
    problem.tensors.push_back({role, type, sizes, dense_strides(sizes)});
  };
  add_like(kGrad, kResult, call.type);
  add_like(kGradQuery, kQuery, call.type);
  add_like(kGradKey, kKey, call.type);
  add_like(kGradValue, kValue, call.type);
  add_like(kDelta, kLogSumExp, cudnn::kFloat);
  if (!problem.repeats) add_like(kQuerySums, kQuery, cudnn::kFloat);
  std::shared_ptr<const cudnn::Plan> plan;
  return find_plan(session, problem, &plan);
}

ob_status run(Driver& driver, Device& device, Call* call) {
  cudnn::Session* session = nullptr;
  if (const ob_status status = session_of(driver, device, &session); status != OB_OK) return status;
  check_versions(device, session->library, call);
  if (call->refusal != nullptr) return decline_cudnn(call->refusal);
  for (const Operand& operand : call->operands) call->problem.tensors.push_back(operand.tensor);
  std::shared_ptr<const cudnn::Plan> plan;
  if (const ob_status status = find_plan(*session, call->problem, &plan); status != OB_OK) return status;
  if (call->problem.dropout > 0 && !call->problem.is_backward) {
    if (const ob_status status = find_gradients(*session, *call); status != OB_OK) return status;
  }
  // For copies. Whether a call needs them depends on its addresses too, which a question lacks.
  if (const ob_status status = load_own(driver, device, "2"); status != OB_OK) return status;
  if (call->is_query) return OB_OK;
  if (const ob_status status = prepare(driver, device, *plan, call); status != OB_OK) return status;
  return queue(driver, device, *session, *plan, *call);
}

ob_status check_and_run(void* self, Call* call) {
  if (call->refusal != nullptr) return decline_cudnn(call->refusal);
  return on_device(self, call->request.device, call->request.op,
                   [&](Driver& driver, Device& device) { return run(driver, device, call); });
}

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale)
ob_status forward_of(void* self, const ob_kernel_call* request, bool is_query) {
  Call call(*request, is_query);
  const std::optional<int> type = half_of(value_at(*request, 0).tensors->dtype);
  if (!type.has_value()) return decline_cudnn("unsupported dtype");
  call.type = *type;
  add_inputs(0, &call);
  if (value_at(*request, 6).ints[0] != 0) call.refuse("attention weights cannot be returned");
  if (call.refusal == nullptr) {
    const Sizes query = call.sizes_of(kQuery);
    read_numbers(4, 5, 7, &call);
    add_written(kResult, output_at(*request, 0), query, &call);
    add_rows(kLogSumExp, output_at(*request, 1), query, &call);
    if (call.problem.dropout > 0) {
      add_draw(kSeed, output_at(*request, 6), &call);
      add_draw(kOffset, output_at(*request, 7), &call);
    }
  }
  return check_and_run(self, &call);
}

// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k,
// max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale)
ob_status backward_of(void* self, const ob_kernel_call* request, bool is_query) {
  Call call(*request, is_query);
  const std::optional<int> type = half_of(value_at(*request, 1).tensors->dtype);
  if (!type.has_value()) return decline_cudnn("unsupported dtype");
  call.type = *type;
  call.problem.is_backward = true;
  add_inputs(1, &call);
  if (value_at(*request, 5).ints[3] != 0) call.refuse("gradients of the mask are not supported");
  if (call.refusal == nullptr) {
    const Sizes query = call.sizes_of(kQuery), key = call.sizes_of(kKey), value = call.sizes_of(kValue);
    if (query[2] == 1 && key[2] == 1) call.refuse("gradients of one query and one key are not supported");
    read_numbers(12, 13, 16, &call);
    add(kGrad, *value_at(*request, 0).tensors, &call);
    add(kResult, *value_at(*request, 6).tensors, &call);
    add_rows(kLogSumExp, *value_at(*request, 7).tensors, query, &call);
    add_written(kGradQuery, output_at(*request, 0), query, &call);
    add_written(kGradKey, output_at(*request, 1), key, &call);
    add_written(kGradValue, output_at(*request, 2), value, &call);
    add_memory(kDelta, {query[0], query[1], query[2], 1}, cudnn::kFloat, &call);
    call.problem.repeats = has_flags(*request, OB_CALL_REPEATS);
    if (!call.problem.repeats) add_memory(kQuerySums, query, cudnn::kFloat, &call);
    if (call.problem.dropout > 0) {
      add_draw(kSeed, *value_at(*request, 14).tensors, &call);
      add_draw(kOffset, *value_at(*request, 15).tensors, &call);
    }
  }
  return check_and_run(self, &call);
}

ob_status forward(void* self, const ob_kernel_call* request) {
  return forward_of(self, request, false);
}

ob_status query_forward(void* self, const ob_kernel_call* request) {
  return forward_of(self, request, true);
}

ob_status backward(void* self, const ob_kernel_call* request) {
  return backward_of(self, request, false);
}

ob_status query_backward(void* self, const ob_kernel_call* request) {
  return backward_of(self, request, true);
}

}  // namespace
}  // namespace nv::attention

namespace nv {

ob_status register_attention(void* self, const ob_registrar* registrar) {
  const auto add = [&](const char* op, ob_operator_fn function, ob_operator_fn ask) {
    return registrar->add_with_query(registrar->context, op, function, ask, self);
  };
  const ob_status status =
      add("aten::_scaled_dot_product_fused_attention_overrideable", attention::forward, attention::query_forward);
  if (status != OB_OK) return status;
  return add("aten::_scaled_dot_product_fused_attention_overrideable_backward", attention::backward,
             attention::query_backward);
}

}  // namespace nv

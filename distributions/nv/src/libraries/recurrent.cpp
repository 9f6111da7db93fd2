// SPDX-License-Identifier: BSD-3-Clause
// Recurrent nets by cuDNN: outboard::recurrent_net and its gradients. All layers and directions
// are one call of the library.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "../driver.h"
#include "cudnn_calls.h"
#include "recurrent_plans.h"

namespace nv::recurrent {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int kMinComputeMajorForBFloat16 = 8;  // major compute capability
constexpr size_t kMinVersionForBFloat16 = 91300;  // version of cuDNN

// The arguments that both operators have. From `first` on: the input, the weights and the initial
// states. From `numbers` on: the sizes of a packed batch, the kind, and whether there are two
// directions and biases.
struct Call {
  Call(const ob_kernel_call& call, size_t first, size_t numbers)
      : given(call),
        input(*value_at(call, first).tensors),
        weights(*value_at(call, first + 1).tensors),
        hx(*value_at(call, first + 2).tensors),
        cx(given_tensor(first + 3)),
        sizes(value_at(call, numbers)),
        kind(value_at(call, numbers + 1).ints[0]),
        directions(value_at(call, numbers + 2).ints[0] != 0 ? 2 : 1),
        has_biases(value_at(call, numbers + 3).ints[0] != 0) {}

  const ob_kernel_call& given;
  const ob_tensor& input;
  const ob_tensor& weights;
  const ob_tensor& hx;
  const ob_tensor* cx;  // null if there is none
  const ob_value& sizes;
  int64_t kind, directions;
  bool has_biases;

  // Return an argument, or null if it was not given.
  const ob_tensor* given_tensor(size_t place) const {
    const ob_value& value = value_at(given, place);
    return value.kind == OB_VALUE_TENSOR && value.tensors->is_defined != 0 ? value.tensors : nullptr;
  }
};

bool is_dense(const ob_tensor& tensor) {
  int64_t stride = 1;
  for (int32_t dim = tensor.ndim - 1; dim >= 0; --dim) {
    if (tensor.sizes[dim] != 1 && tensor.strides[dim] != stride) return false;
    stride *= tensor.sizes[dim];
  }
  return true;
}

int64_t count_of(const ob_tensor& tensor) {
  int64_t count = 1;
  for (int32_t dim = 0; dim < tensor.ndim; ++dim) count *= tensor.sizes[dim];
  return count;
}

// Return null, or why cuDNN cannot take a tensor of a call.
const char* refusal_of(const Call& call, const ob_tensor& tensor, int32_t dims) {
  if (tensor.dtype != call.input.dtype) return "tensors must have one dtype";
  if (tensor.device != call.given.device) return "tensors must be on one device";
  if (tensor.ndim != dims) return "unsupported number of dimensions";
  if (!is_dense(tensor)) return "tensors must be contiguous";
  const int64_t count = count_of(tensor);
  return count == 0 || count > kMaxInt32 ? "empty tensors, or too many elements" : nullptr;
}

// Read the sizes of a packed batch as lengths of sequences. Return false if they grow.
bool read_lengths(const ob_value& sizes, int64_t batch, std::vector<int>* out_lengths) {
  out_lengths->assign(static_cast<size_t>(batch), 0);
  for (size_t step = 0; step < sizes.count; ++step) {
    const int64_t size = sizes.ints[step];
    if (size < 1 || size > (step == 0 ? batch : sizes.ints[step - 1])) return false;
    for (int64_t i = 0; i < size; ++i) ++(*out_lengths)[static_cast<size_t>(i)];
  }
  return sizes.ints[0] == batch;
}

// Describe a call. Return null, or why cuDNN cannot run it.
const char* describe(const Call& call, const Device& device, const cudnn::Library& library, bool is_trained,
                     Problem* out) {
  constexpr int kCells[] = {cudnn::kLstmCell, cudnn::kGruCell, cudnn::kTanhCell, cudnn::kReluCell};
  const std::optional<int> type = cudnn::type_of(call.input.dtype);
  if (!type.has_value()) return "unsupported dtype";
  if (!library.has_recurrent) return "the library has no recurrent nets";
  if (*type == cudnn::kBFloat16 &&
      (device.major < kMinComputeMajorForBFloat16 || library.version < kMinVersionForBFloat16)) {
    return "bfloat16 needs sm_80 or newer and version 9.13 or newer";
  }
  if (call.kind < 0 || call.kind > 3 || (call.cx != nullptr) != (call.kind == 0)) return "unknown kind of net";
  const bool is_packed = call.sizes.count > 0;
  const char* refusal = refusal_of(call, call.input, is_packed ? 2 : 3);
  if (refusal == nullptr) refusal = refusal_of(call, call.weights, 1);
  if (refusal == nullptr) refusal = refusal_of(call, call.hx, 3);
  if (refusal == nullptr && call.cx != nullptr) refusal = refusal_of(call, *call.cx, 3);
  if (refusal != nullptr) return refusal;
  out->cell = kCells[call.kind];
  out->type = *type;
  out->width = call.input.sizes[is_packed ? 1 : 2];
  out->states = call.hx.sizes[2];
  out->cells = call.cx != nullptr ? call.cx->sizes[2] : out->states;
  out->directions = call.directions;
  out->layers = call.hx.sizes[0] / call.directions;
  out->batch = call.hx.sizes[1];
  out->steps = is_packed ? static_cast<int64_t>(call.sizes.count) : call.input.sizes[0];
  out->has_biases = call.has_biases;
  out->is_trained = is_trained;
  out->is_exact = *type == cudnn::kFloat && !has_flags(call.given, OB_CALL_ROUNDS_RECURRENT);
  if (is_packed ? !read_lengths(call.sizes, out->batch, &out->lengths) : call.input.sizes[1] != out->batch) {
    return "the sizes of the sequences do not match";
  }
  if (call.hx.sizes[0] % call.directions != 0 || out->states > out->cells ||
      (call.cx != nullptr && (call.cx->sizes[0] != call.hx.sizes[0] || call.cx->sizes[1] != out->batch))) {
    return "the sizes of the states do not match";
  }
  out->algorithm = choose_algorithm(*out, {device.major, device.minor, device.multiprocessors});
  return nullptr;
}

ob_status find_plan(Driver& driver, Device& device, const Call& call, bool is_trained, cudnn::Session** out_session,
                    std::shared_ptr<const Plan>* out_plan) {
  Problem problem;
  if (const ob_status status = session_of(driver, device, out_session); status != OB_OK) return status;
  const char* refusal = describe(call, device, (*out_session)->library, is_trained, &problem);
  if (refusal != nullptr) return decline_cudnn(refusal);
  if (const ob_status status = device.recurrent_plans.find(**out_session, problem, out_plan); status != OB_OK) {
    return status;
  }
  const auto bytes = static_cast<uint64_t>(count_of(call.weights) * problem.element_bytes());
  return bytes == (*out_plan)->weights ? OB_OK : decline_cudnn("the number of weights does not match");
}

void* address(uint64_t data) {
  return reinterpret_cast<void*>(data);
}

void* address_of(const ob_tensor* tensor) {
  return tensor == nullptr || tensor->is_defined == 0 ? nullptr : address(tensor->data);
}

// Take the workspace. A call that was asked about beforehand cannot fall back for lack of memory.
ob_status take_workspace(const Call& call, const Plan& plan, uint64_t* out_workspace) {
  if (plan.workspace == 0) return OB_OK;
  return call.given.scratch(call.given.scratch_context, plan.workspace, out_workspace);
}

ob_status check_library(const Device& device, const cudnn::Session& session, int status, const char* function) {
  if (status == 0) return OB_OK;
  return fail(OB_INTERNAL, "%s: %s returned %s", device.where.c_str(), function,
              session.library.describe(status).c_str());
}

// Check the memory that a call keeps for its gradients.
ob_status check_kept(const Plan& plan, const ob_tensor& kept) {
  if (kept.dtype == OB_UINT8 && static_cast<uint64_t>(count_of(kept)) >= plan.reserve) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "a recurrent net keeps %zu bytes for its gradients, not %lld", plan.reserve,
              static_cast<long long>(count_of(kept)));
}

// (input, weights, hx, cx, batch_sizes, kind, bidirectional, biases, kept)
ob_status forward_of(void* self, const ob_kernel_call* request, bool is_query) {
  const Call call(*request, 0, 4);
  const bool is_trained = value_at(*request, 8).kind == OB_VALUE_INT;
  // cuBLAS, which it uses, chooses kernels by the memory that happens to be free.
  if (has_flags(*request, OB_CALL_REPEATS)) return decline_cudnn("deterministic results are not supported");
  return on_device(self, request->device, request->op, [&](Driver& driver, Device& device) -> ob_status {
    cudnn::Session* session = nullptr;
    std::shared_ptr<const Plan> plan;
    ob_status status = find_plan(driver, device, call, is_trained, &session, &plan);
    if (status != OB_OK) return status;
    uint64_t workspace = 0;
    if (is_query) {
      return is_trained ? request->scratch(request->scratch_context, plan->reserve, &workspace) : OB_OK;
    }
    const ob_tensor& kept = output_at(*request, 3);
    if (is_trained) status = check_kept(*plan, kept);
    if (status == OB_OK) status = take_workspace(call, *plan, &workspace);
    if (status != OB_OK) return status;
    const ob_tensor* cell = call.cx == nullptr ? nullptr : &output_at(*request, 2);
    const int code = session->use(to_stream(request->stream), [&](cudnn::Handle handle) {
      return session->library.RNNForward(
          handle, plan->net, is_trained ? cudnn::kTraining : cudnn::kInference, nullptr, plan->input,
          address_of(&call.input), plan->output, address_of(&output_at(*request, 0)), plan->hidden,
          address_of(&call.hx), address_of(&output_at(*request, 1)), plan->cell, address_of(call.cx), address_of(cell),
          plan->weights, address_of(&call.weights), plan->workspace, address(workspace), is_trained ? plan->reserve : 0,
          is_trained ? address_of(&kept) : nullptr);
    });
    return check_library(device, *session, code, "cudnnRNNForward");
  });
}

// The tensors of the gradients.
struct Gradients {
  const ob_tensor& output;  // the net's own
  const ob_tensor& kept;
  const ob_tensor* of_output;
  const ob_tensor* of_hy;
  const ob_tensor* of_cy;
};

ob_status queue_gradients(Driver& driver, Device& device, cudnn::Session& session, const Plan& plan, const Call& call,
                          const Gradients& tensors, uint64_t workspace) {
  const ob_kernel_call& given = call.given;
  const CUstream stream = to_stream(given.stream);
  const ob_tensor* cell = call.cx == nullptr ? nullptr : &output_at(given, 2);
  const ob_tensor& of_weights = output_at(given, 3);
  if (of_weights.is_defined != 0) {  // cuDNN adds to the previous content
    const CUresult filled = driver.api.MemsetD8Async(of_weights.data, 0, plan.weights, stream);
    if (const ob_status status = check(driver, device, filled, "cuMemsetD8Async"); status != OB_OK) return status;
  }
  const int code = session.use(stream, [&](cudnn::Handle handle) {
    const cudnn::Library& library = session.library;
    const int status = library.RNNBackwardData_v8(
        handle, plan.net, nullptr, plan.output, address_of(&tensors.output), address_of(tensors.of_output), plan.input,
        address_of(&output_at(given, 0)), plan.hidden, address_of(&call.hx), address_of(tensors.of_hy),
        address_of(&output_at(given, 1)), plan.cell, address_of(call.cx), address_of(tensors.of_cy), address_of(cell),
        plan.weights, address_of(&call.weights), plan.workspace, address(workspace), plan.reserve,
        address_of(&tensors.kept));
    if (status != 0 || of_weights.is_defined == 0) return status;
    return library.RNNBackwardWeights_v8(handle, plan.net, cudnn::kAddGradients, nullptr, plan.input,
                                         address_of(&call.input), plan.hidden, address_of(&call.hx), plan.output,
                                         address_of(&tensors.output), plan.weights, address_of(&of_weights),
                                         plan.workspace, address(workspace), plan.reserve, address_of(&tensors.kept));
  });
  return check_library(device, session, code, "cudnnRNNBackward");
}

// (grad_output, grad_hy, grad_cy, input, weights, hx, cx, output, kept, batch_sizes, kind,
// bidirectional, biases, needs_weights)
ob_status backward(void* self, const ob_kernel_call* request) {
  const Call call(*request, 3, 9);
  const Gradients tensors{*value_at(*request, 7).tensors, *value_at(*request, 8).tensors, call.given_tensor(0),
                          call.given_tensor(1), call.given_tensor(2)};
  for (const ob_tensor* tensor : {&tensors.output, tensors.of_output, tensors.of_hy, tensors.of_cy}) {
    if (tensor == nullptr) continue;
    if (const char* refusal = refusal_of(call, *tensor, tensor->ndim)) return decline_cudnn(refusal);
  }
  return on_device(self, request->device, request->op, [&](Driver& driver, Device& device) -> ob_status {
    cudnn::Session* session = nullptr;
    std::shared_ptr<const Plan> plan;
    ob_status status = find_plan(driver, device, call, true, &session, &plan);
    if (status == OB_OK) status = check_kept(*plan, tensors.kept);
    uint64_t workspace = 0;
    if (status == OB_OK) status = take_workspace(call, *plan, &workspace);
    if (status != OB_OK) return status;
    return queue_gradients(driver, device, *session, *plan, call, tensors, workspace);
  });
}

ob_status forward(void* self, const ob_kernel_call* request) {
  return forward_of(self, request, false);
}

ob_status ask(void* self, const ob_kernel_call* request) {
  return forward_of(self, request, true);
}

}  // namespace
}  // namespace nv::recurrent

namespace nv {

ob_status register_recurrent(void* self, const ob_registrar* registrar) {
  void* context = registrar->context;
  const ob_status status =
      registrar->add_with_query(context, "outboard::recurrent_net", recurrent::forward, recurrent::ask, self);
  if (status != OB_OK) return status;
  return registrar->add(context, "outboard::recurrent_net_backward", recurrent::backward, self);
}

}  // namespace nv

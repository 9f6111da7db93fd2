// SPDX-License-Identifier: BSD-3-Clause
// Convolutions by cuDNN: aten::convolution and aten::convolution_backward.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../driver.h"
#include "../own_kernels.h"
#include "biases.h"
#include "call.h"
#include "convolution_plans.h"
#include "cudnn_calls.h"

namespace nv::convolutions {
namespace {

constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();

// A tensor with two dimensions of a grid or three: a grid of one dimension gets
// another, of size 1, before it.
struct Grid {
  const ob_tensor* tensor = nullptr;
  Sizes sizes{}, strides{};
  uint64_t data = 0;
  bool is_copied = false;  // `data` is a copy in the call's layout
};

Grid grid_of(const ob_tensor& tensor) {
  Grid grid{&tensor};
  grid.data = tensor.data;
  if (tensor.ndim < 3 || tensor.ndim > 5) return grid;  // refused later
  const int32_t added = tensor.ndim == 3 ? 1 : 0;
  for (int32_t dim = 0; dim < tensor.ndim; ++dim) {
    const auto to = static_cast<size_t>(dim < 2 ? dim : dim + added);
    grid.sizes[to] = tensor.sizes[dim];
    grid.strides[to] = tensor.strides[dim];
  }
  if (added != 0) grid.sizes[2] = 1;
  return grid;
}

bool is_dense(const Grid& grid, int dims, bool is_channels_last) {
  const Sizes strides = dense_strides(grid.sizes, dims, is_channels_last);
  for (size_t dim = 0; dim < static_cast<size_t>(dims) + 2; ++dim) {
    if (grid.sizes[dim] != 1 && grid.strides[dim] != strides[dim]) return false;
  }
  return true;
}

// One convolution of a call: grids by their place among those of the call.
struct Work {
  Direction direction;
  size_t image, filter, response;
  std::shared_ptr<const cudnn::Plan> plan = nullptr;
  uint64_t workspace = 0;

  size_t written() const {
    return direction == Direction::kResponse ? response : direction == Direction::kImage ? image : filter;
  }
};

// A call of either operator.
struct Call {
  const ob_kernel_call& given;
  Problem problem{};  // common to its convolutions
  std::vector<Grid> grids{};
  std::vector<Work> works{};
  const ob_tensor* bias = nullptr;           // to add to the result
  const ob_tensor* bias_gradient = nullptr;  // to write, the sums of `summed`
  size_t summed = 0;
  uint64_t sums = 0;  // memory for them

  size_t add(const ob_tensor& tensor) {
    grids.push_back(grid_of(tensor));
    return grids.size() - 1;
  }
};

// Read a list with a number for each dimension, or one for all. Return false for
// numbers that cuDNN doesn't take.
bool read_numbers(const ob_value& value, int rank, int64_t least, int64_t neutral, std::array<int64_t, 3>* out) {
  if (value.count != 1 && value.count != static_cast<size_t>(rank)) return false;
  const int added = rank == 1 ? 1 : 0;
  if (added != 0) (*out)[0] = neutral;
  for (int i = 0; i < rank; ++i) {
    const int64_t number = value.ints[value.count == 1 ? 0 : i];
    if (number < least || number > kMaxElements) return false;
    (*out)[static_cast<size_t>(i + added)] = number;
  }
  return true;
}

// Read stride, padding and dilation, which stand in this order from the argument `first` on.
bool read_window(size_t first, int rank, Call* call) {
  if (rank < 1 || rank > 3) return false;
  Problem& problem = call->problem;
  problem.dims = std::max(rank, 2);
  return read_numbers(value_at(call->given, first), rank, 1, 1, &problem.stride) &&
         read_numbers(value_at(call->given, first + 1), rank, 0, 0, &problem.padding) &&
         read_numbers(value_at(call->given, first + 2), rank, 1, 1, &problem.dilation);
}

// Return null, or why cuDNN cannot take a call's tensors.
const char* refusal_of(const Call& call) {
  const ob_tensor& first = *call.grids.front().tensor;
  for (const Grid& grid : call.grids) {
    const ob_tensor& tensor = *grid.tensor;
    if (tensor.dtype != first.dtype) return "tensors must have one dtype";
    if (tensor.device != call.given.device) return "tensors must be on one device";
    if (tensor.ndim != first.ndim || tensor.ndim < 3 || tensor.ndim > 5)
      return "tensors must have three to five dimensions";
    int64_t count = 1;
    for (int32_t dim = 0; dim < tensor.ndim; ++dim) {
      if (tensor.sizes[dim] == 0) return "empty tensors are not supported";
      if (tensor.strides[dim] < 0 || __builtin_mul_overflow(count, tensor.sizes[dim], &count) || count > kMaxElements) {
        return "negative strides, or too many elements";
      }
    }
  }
  for (const ob_tensor* bias : {call.bias, call.bias_gradient}) {
    if (bias == nullptr) continue;
    if (bias->dtype != first.dtype || bias->device != call.given.device || bias->ndim != 1 ||
        (bias->sizes[0] != 1 && bias->strides[0] != 1)) {
      return "unsupported bias";
    }
  }
  return nullptr;
}

// Choose the layout of all tensors of a call: the layout of the results. Return false if they have
// neither layout.
bool choose_layout(Call* call) {
  const int dims = call->problem.dims;
  bool can_last = true, can_first = true;
  for (const Work& work : call->works) {
    const Grid& grid = call->grids[work.written()];
    can_last = can_last && is_dense(grid, dims, true);
    can_first = can_first && is_dense(grid, dims, false);
  }
  const Grid& first = call->grids.front();
  const bool is_first_last = is_dense(first, dims, true) && !is_dense(first, dims, false);
  call->problem.is_channels_last = can_last && (!can_first || is_first_last);
  if (call->bias != nullptr && call->grids[call->works.front().written()].data % 16 != 0) return false;
  return can_last || can_first;
}

int64_t element_bytes(const Call& call) {
  return call.problem.type == cudnn::kFloat ? 4 : call.problem.type == cudnn::kDouble ? 8 : 2;
}

// Find the plan of each convolution, and mark what needs a copy in the call's layout.
ob_status plan(cudnn::Session& session, Call* call) {
  const int dims = call->problem.dims;
  for (Grid& grid : call->grids) grid.is_copied = !is_dense(grid, dims, call->problem.is_channels_last);
  for (Work& work : call->works) {
    Problem problem = call->problem;
    problem.direction = work.direction;
    const Grid* const grids[] = {&call->grids[work.image], &call->grids[work.filter], &call->grids[work.response]};
    for (const Grid* grid : grids) {
      if (!grid->is_copied && grid->data % 16 != 0) problem.alignment = element_bytes(*call);
    }
    problem.image = grids[0]->sizes;
    problem.filter = grids[1]->sizes;
    problem.response = grids[2]->sizes;
    if (const ob_status status = find_plan(session, problem, &work.plan); status != OB_OK) return status;
  }
  return OB_OK;
}

int64_t count_of(const Sizes& sizes, int dims) {
  int64_t count = 1;
  for (int dim = 0; dim < dims + 2; ++dim) count *= sizes[static_cast<size_t>(dim)];
  return count;
}

// Return a type's name among the driver's own kernels.
const char* name_of(int type) {
  return type == cudnn::kDouble  ? "double"
         : type == cudnn::kFloat ? "float"
         : type == cudnn::kHalf  ? "half"
                                 : "bfloat16";
}

// Load the driver's own kernels that the call needs, before anything is queued.
ob_status load_kernels(Driver& driver, Device& device, const Call& call) {
  ob_status status = OB_OK;
  if (call.bias != nullptr || call.bias_gradient != nullptr) {
    status = load_own(driver, device, name_of(call.problem.type));
  }
  const bool copies =
      std::any_of(call.grids.begin(), call.grids.end(), [](const Grid& grid) { return grid.is_copied; });
  if (status == OB_OK && copies) status = load_own(driver, device, std::to_string(element_bytes(call)));
  return status;
}

// Return the tensor and the bias as the driver's own kernels read them.
Biased biased(const Call& call, const Grid& grid, const ob_tensor& bias) {
  const int type = call.problem.type;
  const auto count = static_cast<uint32_t>(count_of(grid.sizes, call.problem.dims));
  const auto batch = static_cast<uint32_t>(grid.sizes[0]), channels = static_cast<uint32_t>(grid.sizes[1]);
  return {name_of(type),
          static_cast<uint32_t>(element_bytes(call)),
          type == cudnn::kDouble ? 8u : 4u,
          grid.data,
          bias.data,
          count,
          channels,
          call.problem.is_channels_last ? 1 : count / batch / channels};
}

// Queue the copy of a tensor into the call's layout.
ob_status copy_in(Driver& driver, Device& device, const Call& call, const Grid& grid) {
  const int dims = call.problem.dims;
  const Sizes strides = dense_strides(grid.sizes, dims, call.problem.is_channels_last);
  ob_copy_nd copy = {};
  copy.struct_size = sizeof copy;
  copy.dst = grid.data;
  copy.src = grid.tensor->data;
  copy.dst_device = copy.src_device = device.index;
  copy.element_size = static_cast<uint32_t>(element_bytes(call));
  copy.ndim = static_cast<uint32_t>(dims + 2);
  copy.sizes = grid.sizes.data();
  copy.dst_strides = strides.data();
  copy.src_strides = grid.strides.data();
  return copy_nd(driver, device, to_stream(call.given.stream), copy);
}

// Take all memory before anything is queued, then queue the copies.
ob_status prepare(Driver& driver, Device& device, Call* call) {
  const int dims = call->problem.dims;
  for (Work& work : call->works) {
    if (const ob_status status =
            take_scratch(call->given, static_cast<uint64_t>(work.plan->workspace), &work.workspace);
        status != OB_OK) {
      return status;
    }
  }
  for (Grid& grid : call->grids) {
    if (!grid.is_copied) continue;
    const auto bytes = static_cast<uint64_t>(count_of(grid.sizes, dims) * element_bytes(*call));
    if (const ob_status status = take_scratch(call->given, bytes, &grid.data); status != OB_OK) return status;
  }
  if (call->bias_gradient != nullptr) {
    const Biased sums = biased(*call, call->grids[call->summed], *call->bias_gradient);
    if (const ob_status status = take_scratch(call->given, sums.scratch_bytes(), &call->sums); status != OB_OK)
      return status;
  }
  for (const Grid& grid : call->grids) {
    if (!grid.is_copied) continue;
    if (const ob_status status = copy_in(driver, device, *call, grid); status != OB_OK) return status;
  }
  return OB_OK;
}

// Queue a call whose plans and memory exist.
ob_status queue(Driver& driver, Device& device, cudnn::Session& session, const Call& call) {
  const CUstream stream = to_stream(call.given.stream);
  for (const Work& work : call.works) {
    const std::vector<cudnn::Binding> bindings = {
        {1, call.grids[work.image].data}, {2, call.grids[work.filter].data}, {3, call.grids[work.response].data}};
    if (const int status = session.execute(*work.plan, bindings, work.workspace, stream); status != 0) {
      return fail(OB_INTERNAL, "%s: cudnnBackendExecute returned %s", device.where.c_str(),
                  session.library.describe(status).c_str());
    }
  }
  if (call.bias != nullptr) {
    const Grid& result = call.grids[call.works.front().written()];
    return add_bias(driver, device, stream, biased(call, result, *call.bias));
  }
  if (call.bias_gradient == nullptr) return OB_OK;
  return sum_to_bias(driver, device, stream, biased(call, call.grids[call.summed], *call.bias_gradient), call.sums);
}

ob_status run(Driver& driver, Device& device, Call* call) {
  cudnn::Session* session = nullptr;
  if (const ob_status status = session_of(driver, device, &session); status != OB_OK) return status;
  bool is_captured = false;  // a graph would keep the interim engine
  if (const ob_status status = is_capturing(driver, device, to_stream(call->given.stream), &is_captured);
      status != OB_OK) {
    return status;
  }
  call->problem.rules.is_awaited = call->problem.rules.repeats || is_captured;
  if (const ob_status status = plan(*session, call); status != OB_OK) return status;
  if (const ob_status status = load_kernels(driver, device, *call); status != OB_OK) return status;
  if (const ob_status status = prepare(driver, device, call); status != OB_OK) return status;
  return queue(driver, device, *session, *call);
}

ob_status check_and_run(void* self, Call* call) {
  if (call->works.empty()) return decline_cudnn("only the gradient of the bias is wanted");
  if (const char* reason = refusal_of(*call); reason != nullptr) return decline_cudnn(reason);
  const std::optional<int> type = cudnn::type_of(call->grids.front().tensor->dtype);
  if (!type.has_value()) return decline_cudnn("unsupported dtype");
  call->problem.type = *type;
  call->problem.rules = {
      .repeats = has_flags(call->given, OB_CALL_REPEATS_CONVOLUTIONS),
      .keeps_precision = *type == cudnn::kFloat && !has_flags(call->given, OB_CALL_ROUNDS_CONVOLUTIONS)};
  if (!choose_layout(call)) return decline_cudnn("unsupported strides of a result");
  return on_device(self, call->given.device, call->given.op,
                   [&](Driver& driver, Device& device) { return run(driver, device, call); });
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
ob_status forward(void* self, const ob_kernel_call* request) {
  Call call{*request};
  const size_t input = call.add(*value_at(*request, 0).tensors);
  const size_t weight = call.add(*value_at(*request, 1).tensors);
  const size_t output = call.add(output_at(*request, 0));
  if (!read_window(3, call.grids[input].tensor->ndim - 2, &call))
    return decline_cudnn("unsupported stride, padding or dilation");
  const ob_value& bias = value_at(*request, 2);
  if (bias.kind == OB_VALUE_TENSOR && bias.tensors->is_defined != 0) call.bias = bias.tensors;
  if (value_at(*request, 6).ints[0] != 0) {
    call.works.push_back({Direction::kImage, output, weight, input});
  } else {
    call.works.push_back({Direction::kResponse, input, weight, output});
  }
  return check_and_run(self, &call);
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
// output_padding, groups, output_mask)
ob_status backward(void* self, const ob_kernel_call* request) {
  Call call{*request};
  const size_t input = call.add(*value_at(*request, 1).tensors);
  const size_t gradient = call.add(*value_at(*request, 0).tensors);
  const size_t weight = call.add(*value_at(*request, 2).tensors);
  if (!read_window(4, call.grids[input].tensor->ndim - 2, &call))
    return decline_cudnn("unsupported stride, padding or dilation");
  const bool is_transposed = value_at(*request, 7).ints[0] != 0;
  const size_t image = is_transposed ? gradient : input, response = is_transposed ? input : gradient;
  if (const ob_tensor& of_input = output_at(*request, 0); of_input.is_defined != 0) {
    const size_t written = call.add(of_input);
    if (is_transposed) {
      call.works.push_back({Direction::kResponse, gradient, weight, written});
    } else {
      call.works.push_back({Direction::kImage, written, weight, gradient});
    }
  }
  if (const ob_tensor& of_weight = output_at(*request, 1); of_weight.is_defined != 0) {
    call.works.push_back({Direction::kFilter, image, call.add(of_weight), response});
  }
  if (const ob_tensor& of_bias = output_at(*request, 2); of_bias.is_defined != 0) {
    call.bias_gradient = &of_bias;
    call.summed = gradient;
  }
  return check_and_run(self, &call);
}

}  // namespace
}  // namespace nv::convolutions

namespace nv {

ob_status register_convolutions(void* self, const ob_registrar* registrar) {
  const std::pair<const char*, ob_operator_fn> kernels[] = {{"aten::convolution", convolutions::forward},
                                                            {"aten::convolution_backward", convolutions::backward}};
  for (const auto& [op, function] : kernels) {
    if (const ob_status status = registrar->add(registrar->context, op, function, self); status != OB_OK) {
      return status;
    }
  }
  return OB_OK;
}

}  // namespace nv

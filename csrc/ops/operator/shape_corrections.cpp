// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/shape_corrections.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <vector>

#include "ops/operator/operator.h"
#include "ops/tensors/shell.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

void set_format(OutputShape& output, at::MemoryFormat format) {
  if (!output.is_defined) {
    return;
  }
  const auto assign = [&output](const auto& strides) { output.strides.assign(strides.begin(), strides.end()); };
  if (format == at::MemoryFormat::ChannelsLast && output.sizes.size() == 4) {
    assign(c10::get_channels_last_strides_2d(output.sizes));
  } else if (format == at::MemoryFormat::ChannelsLast3d && output.sizes.size() == 5) {
    assign(c10::get_channels_last_strides_3d(output.sizes));
  } else {
    assign(c10::contiguous_strides(output.sizes));
  }
  output.nbytes = span_bytes(output.sizes, output.strides, c10::elementSize(output.dtype));
}

void set_strides(OutputShape& output, c10::IntArrayRef strides) {
  if (output.is_defined && output.sizes.size() == strides.size()) {
    output.strides.assign(strides.begin(), strides.end());
    output.nbytes = span_bytes(output.sizes, output.strides, c10::elementSize(output.dtype));
  }
}

void lay_out_like(const at::Tensor& like, OutputShape& output) {
  if (like.sizes().equals(output.sizes)) {
    set_strides(output, at::infer_dense_strides(like.sizes(), like.strides()));
  }
}

void lay_out(const Facts& facts, const torch::jit::Stack& arguments, CallShape& shape) {
  if (facts.layout == Layout::AsMeta) {
    return;
  }
  if (facts.layout == Layout::Like) {
    lay_out_like(arguments[facts.like].toTensor(), shape.outputs[0]);
    return;
  }
  const at::MemoryFormat format = facts.layout == Layout::Suggested
                                      ? arguments[facts.like].toTensor().suggest_memory_format()
                                      : at::MemoryFormat::Contiguous;
  for (size_t i = 0; i < std::min<size_t>(facts.layout_count, shape.outputs.size()); ++i) {
    set_format(shape.outputs[i], format);
  }
}

// Return the format in which a convolution's CPU kernels read and write: that of the selected
// back end. The input is the argument `first`; the weight, the bias (or its sizes) and the
// constants follow, forward and backward.
at::MemoryFormat format_of_convolution(const torch::jit::Stack& arguments, size_t first) {
  const auto as_cpu = [](const c10::IValue& value) {
    c10::TensorImpl& meta = *value.toTensor().unsafeGetTensorImpl();
    const size_t nbytes = span_bytes(meta.sizes(), meta.strides(), meta.itemsize());
    return make_cpu_view(nullptr, nbytes, meta);  // only its shape is read
  };
  const at::Tensor input = as_cpu(arguments[first]);
  const at::Tensor weight = as_cpu(arguments[first + 1]);
  const c10::IValue& bias_value = arguments[first + 2];
  const bool has_bias = bias_value.isTensor() && bias_value.toTensor().defined();
  const std::optional<at::Tensor> bias = has_bias ? std::optional(as_cpu(bias_value)) : std::nullopt;
  const auto numbers = [&](size_t index) { return arguments[first + index].toSymIntVector(); };
  const auto stride = numbers(3), padding = numbers(4), dilation = numbers(5), output_padding = numbers(7);
  const at::native::ConvBackend backend =
      at::native::select_conv_backend(input, weight, bias, stride, padding, dilation, arguments[first + 6].toBool(),
                                      output_padding, arguments[first + 8].toSymInt(), std::nullopt);
  return at::native::_determine_backend_memory_format(input, weight, backend);
}

// Return true if the running torch sums bags of bfloat16 without noting each index's bag. Older
// versions note it, and the meta kernels of newer ones still return it.
bool sums_bfloat16_bags_fast() {
  static const bool is_fast = [] {
    const at::Tensor weight = at::zeros({1, 1}, c10::kBFloat16);
    const at::Tensor index = at::zeros({1}, c10::kLong);
    return std::get<1>(at::_embedding_bag_forward_only(weight, index, index)).numel() == 0;
  }();
  return is_fast;
}

void set_dtype(OutputShape& output, c10::ScalarType dtype) {
  output.dtype = dtype;
  output.nbytes = span_bytes(output.sizes, output.strides, c10::elementSize(dtype));
}

void correct_bags(const torch::jit::Stack& arguments, bool has_gradients, CallShape& shape) {
  constexpr int64_t kSum = 0, kMax = 2;
  OutputShape& offset2bag = shape.outputs[1];
  // There is one entry per bag. But if no caller reads the bags' sizes, the CPU's kernel returns
  // one per offset, and there may be one more offset than bags. It does the same for maximum
  // indices that are not requested.
  const int64_t mode = arguments[4].toInt();
  const int64_t unread = has_gradients || mode != kSum || !arguments[7].toBool() ? 0 : 1;
  const int64_t bags = arguments[2].toTensor().numel() - (arguments[7].toBool() ? 1 : 0);
  for (size_t i = 2; i < (mode == kMax ? 3 : 4); ++i) {
    OutputShape& output = shape.outputs[i];
    output.sizes.assign({bags + unread});
    output.strides.assign({1});
    output.nbytes = span_bytes(output.sizes, output.strides, c10::elementSize(output.dtype));
  }
  const at::Tensor& weight = arguments[0].toTensor();
  const bool has_weights = arguments[6].isTensor() && arguments[6].toTensor().defined();
  if (weight.scalar_type() == c10::kBFloat16 && arguments[4].toInt() == kSum && weight.stride(1) == 1 &&
      (!has_weights || arguments[6].toTensor().stride(0) == 1) && arguments[8].toInt() < 0 &&
      sums_bfloat16_bags_fast()) {
    offset2bag.sizes.assign({0});
    offset2bag.strides.assign({1});
    offset2bag.nbytes = 0;
  }
}

}  // namespace

// Correct a convolution's output: the CPU kernel writes in the back end's
// format, the meta kernel contiguously.
void correct_convolution(const Operator&, const torch::jit::Stack& arguments, CallShape& shape) {
  if (arguments[1].toTensor().dim() == 3) {
    return;  // computed in two dimensions, from contiguous inputs
  }
  const at::MemoryFormat format = format_of_convolution(arguments, 0);
  if (format != at::MemoryFormat::Contiguous) {
    set_format(shape.outputs[0], format);
  }
}

// Both gradients have the back end's format too. The meta kernel reads only the input and the
// weight, and before torch 2.13 the result's gradient.
void correct_convolution_backward(const Operator&, const torch::jit::Stack& arguments, CallShape& shape) {
  if (arguments[2].toTensor().dim() == 3) {
    return;  // as forward
  }
  const at::MemoryFormat format = format_of_convolution(arguments, 1);
  set_format(shape.outputs[0], format);
  set_format(shape.outputs[1], format);
}

void correct_embedding_bag(const Operator&, const torch::jit::Stack& arguments, CallShape& shape) {
  correct_bags(arguments, /*has_gradients=*/true, shape);
}

void correct_embedding_bag_forward_only(const Operator&, const torch::jit::Stack& arguments, CallShape& shape) {
  correct_bags(arguments, /*has_gradients=*/false, shape);
}

// The CPU kernels of batch norm save statistics in the parameters' dtype (or the
// input's), and none in evaluation.
void correct_statistics(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape) {
  const bool has_weight = arguments[1].isTensor() && arguments[1].toTensor().defined();
  const size_t training = op.handle.operator_name().overload_name == "no_stats" ? 3 : 5;
  const bool is_training =
      op.handle.operator_name().name == "aten::_batch_norm_with_update" || arguments[training].toBool();
  for (size_t i = 1; i < 3; ++i) {
    OutputShape& saved = shape.outputs[i];
    if (!is_training) {
      saved.sizes.assign({0});
      saved.strides.assign({1});
    }
    set_dtype(saved, arguments[has_weight ? 1 : 0].toTensor().scalar_type());
  }
}

void correct_iterated(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).add_owned_output(at::Tensor());
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined()) {
      config.add_owned_const_input(arguments[i].toTensor());
    }
  }
  config.declare_static_dtype_and_device(shape.outputs[0].dtype, c10::kMeta);
  set_strides(shape.outputs[0], config.build().output().strides());
}

// Two parts are joined for each dimension. One without elements suggests the contiguous format.
void correct_roll(const Operator&, const torch::jit::Stack& arguments, CallShape& shape) {
  const at::Tensor& self = arguments[0].toTensor();
  const auto shifts = arguments[1].toIntVector(), dims = arguments[2].toIntVector();
  if (self.numel() == 0 || dims.empty() || dims.size() != shifts.size()) {
    return;
  }
  bool has_parts = true;
  for (size_t i = 0; i < dims.size(); ++i) {
    has_parts &= shifts[i] % self.size(dims[i]) != 0;
  }
  set_format(shape.outputs[0], has_parts ? self.suggest_memory_format() : at::MemoryFormat::Contiguous);
}

// Torch 2.11's meta kernel returns float32 for all; the CPU kernel sums doubles in doubles.
void correct_flash_attention(const Operator&, const torch::jit::Stack& arguments, CallShape& shape) {
  if (arguments[0].toTensor().scalar_type() == c10::kDouble) {
    set_dtype(shape.outputs[1], c10::kDouble);
  }
}

void correct_shape(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape) {
  if (shape.outputs.empty()) {
    return;  // an out= form, whose arguments are its outputs
  }
  lay_out(op.facts, arguments, shape);
  if (op.facts.correct != nullptr) {
    op.facts.correct(op, arguments, shape);
  }
}

void correct_svd(const Operator& /*op*/, const torch::jit::Stack& /*arguments*/, CallShape& shape) {
  // The columns of Vh are contiguous; the meta kernel reports rows.
  if (shape.outputs.size() != 3) {
    return;  // it writes its arguments
  }
  OutputShape& vh = shape.outputs[2];
  const size_t dims = vh.sizes.size();
  if (dims >= 2) {
    vh.strides[dims - 2] = 1;
    vh.strides[dims - 1] = std::max<int64_t>(vh.sizes[dims - 2], 1);
  }
}

}  // namespace outboard

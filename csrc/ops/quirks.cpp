// SPDX-License-Identifier: BSD-3-Clause
#include "ops/quirks.h"

#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/shell.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

template <size_t N>
bool is_among(const std::array<std::string_view, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 1> kMisleadingMeta = {
    // Residuals are there only if the matrix turns out to have full rank.
    "aten::linalg_lstsq",
};

constexpr std::array<std::string_view, 10> kKeepsShapes = {
    "aten::_fused_sgd_", "aten::_fused_adagrad_", "aten::bernoulli_", "aten::cauchy_", "aten::exponential_",
    "aten::geometric_",  "aten::log_normal_",     "aten::normal_",    "aten::random_", "aten::uniform_",
};

constexpr std::array<std::string_view, 4> kShapeOfScalars = {"aten::arange", "aten::range", "aten::linspace",
                                                             "aten::logspace"};

// The CPU kernel of a convolution writes in the format of the back end that it picks, the meta kernel contiguously.
void lay_out_convolution(const torch::jit::Stack& arguments, OutputShape& output) {
  const auto as_cpu = [](const c10::IValue& value) {
    c10::TensorImpl& meta = *value.toTensor().unsafeGetTensorImpl();
    const size_t nbytes = span_bytes(meta.sizes(), meta.strides(), meta.itemsize());
    return make_cpu_view(nullptr, nbytes, meta);  // asked for its shape only
  };
  const at::Tensor input = as_cpu(arguments[0]);
  const at::Tensor weight = as_cpu(arguments[1]);
  if (weight.dim() == 3) {
    return;  // computed in two dimensions, from contiguous inputs
  }
  const bool has_bias = arguments[2].isTensor() && arguments[2].toTensor().defined();
  const std::optional<at::Tensor> bias = has_bias ? std::optional(as_cpu(arguments[2])) : std::nullopt;
  const auto numbers = [&](size_t index) { return arguments[index].toSymIntVector(); };
  const auto stride = numbers(3), padding = numbers(4), dilation = numbers(5), output_padding = numbers(7);
  const at::native::ConvBackend backend =
      at::native::select_conv_backend(input, weight, bias, stride, padding, dilation, arguments[6].toBool(),
                                      output_padding, arguments[8].toSymInt(), std::nullopt);
  const at::MemoryFormat format = at::native::_determine_backend_memory_format(input, weight, backend);
  if (format == at::MemoryFormat::ChannelsLast && output.sizes.size() == 4) {
    const auto strides = c10::get_channels_last_strides_2d(output.sizes);
    output.strides.assign(strides.begin(), strides.end());
  } else if (format == at::MemoryFormat::ChannelsLast3d && output.sizes.size() == 5) {
    const auto strides = c10::get_channels_last_strides_3d(output.sizes);
    output.strides.assign(strides.begin(), strides.end());
  }
}

void set_dtype(OutputShape& output, c10::ScalarType dtype) {
  output.dtype = dtype;
  output.nbytes = span_bytes(output.sizes, output.strides, c10::elementSize(dtype));
}

}  // namespace

bool has_misleading_meta(const std::string& name) {
  return is_among(kMisleadingMeta, name);
}

bool keeps_shapes(const std::string& name) {
  return is_among(kKeepsShapes, name);
}

bool has_shape_of_scalars(const std::string& name) {
  return is_among(kShapeOfScalars, name);
}

bool writes_in_secret(const std::string& name, const std::string& arg) {
  return name == "aten::native_batch_norm" && (arg == "running_mean" || arg == "running_var");
}

void correct_shape(const OpPlan& plan, const torch::jit::Stack& arguments, CallShape& shape) {
  if (shape.outputs.empty()) {
    return;  // an out= form, whose arguments are its outputs
  }
  const std::string& name = plan.op.operator_name().name;
  if (name == "aten::_batch_norm_with_update") {
    // As native_batch_norm in training.
    const bool has_weight = arguments[1].isTensor() && arguments[1].toTensor().defined();
    for (size_t i = 1; i < 3; ++i) {
      set_dtype(shape.outputs[i], arguments[has_weight ? 1 : 0].toTensor().scalar_type());
    }
  } else if (name == "aten::native_batch_norm" || name == "aten::_native_batch_norm_legit") {
    // The CPU kernel saves statistics in the parameters' dtype (or the input's), and none in evaluation.
    const size_t training = 5 - (plan.op.operator_name().overload_name == "no_stats" ? 2 : 0);
    const bool has_weight = arguments[1].isTensor() && arguments[1].toTensor().defined();
    const c10::ScalarType dtype = arguments[has_weight ? 1 : 0].toTensor().scalar_type();
    for (size_t i = 1; i < 3; ++i) {
      OutputShape& saved = shape.outputs[i];
      if (!arguments[training].toBool()) {
        saved.sizes.assign({0});
        saved.strides.assign({1});
      }
      set_dtype(saved, dtype);
    }
  } else if (name == "aten::convolution" || name == "aten::_convolution") {
    lay_out_convolution(arguments, shape.outputs[0]);
  } else if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    // Torch 2.11's meta kernel says float32 for each; the CPU kernel sums a double's in doubles.
    if (arguments[0].toTensor().scalar_type() == c10::kDouble) {
      set_dtype(shape.outputs[1], c10::kDouble);
    }
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/quirks.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/tensors/shell.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

template <size_t N>
bool is_among(const std::array<std::string_view, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 1> kMisleadingMeta = {
    // Residuals exist only if the matrix turns out to have full rank.
    "aten::linalg_lstsq",
};

constexpr std::array<std::string_view, 10> kKeepsShapes = {
    "aten::_fused_sgd_", "aten::_fused_adagrad_", "aten::bernoulli_", "aten::cauchy_", "aten::exponential_",
    "aten::geometric_",  "aten::log_normal_",     "aten::normal_",    "aten::random_", "aten::uniform_",
};

// Found by running the CPU kernels of torch's operator database on zeros of their arguments' shapes.
constexpr std::array<std::string_view, 7> kRefusesZeros = {
    // Integers divided by 0, pivots below 1.
    "aten::div",       "aten::floor_divide",     "aten::fmod",
    "aten::remainder", "aten::linalg_ldl_solve", "aten::linalg_lu_solve",
    "aten::lu_unpack",
};
// Matrices that cannot be factored are refused.
constexpr std::array<std::string_view, 2> kWantsFullRank = {"aten::cholesky", "aten::cholesky_inverse"};
// Probabilities whose sum is 0, lengths whose sum must have a given value.
constexpr std::array<std::string_view, 4> kJudgesSums = {
    "aten::multinomial",
    "aten::repeat_interleave",
    "aten::segment_reduce",
    "aten::_segment_reduce_backward",
};
constexpr std::array<std::string_view, 9> kJudgesValues = {
    // Registered for the CPU only to say that a device must provide them.
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
    // Assertions.
    "aten::_assert_async",
    "aten::_functional_assert_async",
    "aten::_validate_sparse_bsc_tensor_args",
    "aten::_validate_sparse_bsr_tensor_args",
    "aten::_validate_sparse_compressed_tensor_args",
    "aten::_validate_sparse_csc_tensor_args",
    "aten::_validate_sparse_csr_tensor_args",
};

// Structured operators whose CPU kernels check nothing beyond their meta kernels, for any sizes and numbers of dtypes
// that they accept. Found by the matrix of refusals (tests/operators/refusals), which enforces it.
constexpr std::array<std::string_view, 12> kMetaChecksAll = {
    "aten::_upsample_bicubic2d_aa",
    "aten::_upsample_bilinear2d_aa",
    "aten::topk",
    "aten::tril",
    "aten::triu",
    "aten::upsample_bicubic2d",
    "aten::upsample_bilinear2d",
    "aten::upsample_linear1d",
    "aten::upsample_nearest1d",
    "aten::upsample_nearest2d",
    "aten::upsample_nearest3d",
    "aten::upsample_trilinear3d",
};

// Tagged as random, but given the numbers that they use.
constexpr std::array<std::string_view, 2> kIsGivenSamples = {"aten::fractional_max_pool2d",
                                                             "aten::fractional_max_pool3d"};

constexpr std::array<std::string_view, 4> kShapeOfScalars = {"aten::arange", "aten::range", "aten::linspace",
                                                             "aten::logspace"};

// The layout of a CPU kernel's results, if the meta kernel follows the arguments in another way.
enum class Layout : uint8_t {
  Contiguous,
  Suggested  // in the memory format that the argument suggests
};

struct LaidOut {
  std::string_view op;
  Layout layout;
  size_t like;    // the argument that suggests it
  size_t count;   // the number of leading results that it applies to
};

constexpr LaidOut kLaidOut[] = {
    {"aten::_batch_norm_with_update", Layout::Suggested, 0, 1},
    {"aten::_native_batch_norm_legit", Layout::Suggested, 0, 1},
    {"aten::batch_norm_backward", Layout::Suggested, 1, 1},
    {"aten::channel_shuffle", Layout::Suggested, 0, 1},
    {"aten::glu_backward", Layout::Contiguous, 0, 1},
    {"aten::log_sigmoid_forward", Layout::Contiguous, 0, 2},
    {"aten::max_unpool2d", Layout::Suggested, 0, 1},
    {"aten::mse_loss_backward", Layout::Contiguous, 0, 1},
    {"aten::native_batch_norm", Layout::Suggested, 0, 1},
    {"aten::native_batch_norm_backward", Layout::Suggested, 1, 1},
    {"aten::native_channel_shuffle", Layout::Suggested, 0, 1},
    {"aten::nll_loss2d_forward", Layout::Contiguous, 0, 1},
    {"aten::normal", Layout::Contiguous, 0, 1},
    {"aten::reflection_pad2d_backward", Layout::Suggested, 1, 1},
    {"aten::replication_pad2d", Layout::Suggested, 0, 1},
    {"aten::replication_pad2d_backward", Layout::Suggested, 1, 1},
    {"aten::rrelu_with_noise", Layout::Contiguous, 0, 1},
};

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

void lay_out(const std::string& name, const torch::jit::Stack& arguments, CallShape& shape) {
  for (const LaidOut& row : kLaidOut) {
    if (row.op != name) {
      continue;
    }
    const at::MemoryFormat format = row.layout == Layout::Suggested
                                        ? arguments[row.like].toTensor().suggest_memory_format()
                                        : at::MemoryFormat::Contiguous;
    for (size_t i = 0; i < std::min(row.count, shape.outputs.size()); ++i) {
      set_format(shape.outputs[i], format);
    }
  }
}

// Return the format in which a convolution's CPU kernels read and write: that of the selected back end. The input is
// the argument `first`; the weight, the bias (or its sizes) and the constants follow, forward and backward.
at::MemoryFormat format_of_convolution(const torch::jit::Stack& arguments, size_t first) {
  const auto as_cpu = [](const c10::IValue& value) {
    c10::TensorImpl& meta = *value.toTensor().unsafeGetTensorImpl();
    const size_t nbytes = span_bytes(meta.sizes(), meta.strides(), meta.itemsize());
    return make_cpu_view(nullptr, nbytes, meta);  // only its shape is read
  };
  const at::Tensor input = as_cpu(arguments[first]);
  const at::Tensor weight = as_cpu(arguments[first + 1]);
  const c10::IValue& given = arguments[first + 2];
  const bool has_bias = given.isTensor() && given.toTensor().defined();
  const std::optional<at::Tensor> bias = has_bias ? std::optional(as_cpu(given)) : std::nullopt;
  const auto numbers = [&](size_t index) { return arguments[first + index].toSymIntVector(); };
  const auto stride = numbers(3), padding = numbers(4), dilation = numbers(5), output_padding = numbers(7);
  const at::native::ConvBackend backend =
      at::native::select_conv_backend(input, weight, bias, stride, padding, dilation, arguments[first + 6].toBool(),
                                      output_padding, arguments[first + 8].toSymInt(), std::nullopt);
  return at::native::_determine_backend_memory_format(input, weight, backend);
}

// Correct a convolution's output: the CPU kernel writes in the back end's format, the meta kernel contiguously.
void lay_out_convolution(const torch::jit::Stack& arguments, OutputShape& output) {
  if (arguments[1].toTensor().dim() == 3) {
    return;  // computed in two dimensions, from contiguous inputs
  }
  const at::MemoryFormat format = format_of_convolution(arguments, 0);
  if (format != at::MemoryFormat::Contiguous) {
    set_format(output, format);
  }
}

// Both gradients have the back end's format too. The meta kernel reads only the input and the weight, and before torch
// 2.13 the result's gradient.
void lay_out_convolution_backward(const torch::jit::Stack& arguments, CallShape& shape) {
  if (arguments[2].toTensor().dim() == 3) {
    return;  // as forward
  }
  const at::MemoryFormat format = format_of_convolution(arguments, 1);
  set_format(shape.outputs[0], format);
  set_format(shape.outputs[1], format);
}

// Return true if the running torch sums bags of bfloat16 without noting each index's bag. Older versions note it, and
// the meta kernels of newer ones still return it.
bool sums_bfloat16_bags_fast() {
  static const bool is_fast = [] {
    const at::Tensor weight = at::zeros({1, 1}, c10::kBFloat16);
    const at::Tensor index = at::zeros({1}, c10::kLong);
    return std::get<1>(at::_embedding_bag_forward_only(weight, index, index)).numel() == 0;
  }();
  return is_fast;
}

void correct_embedding_bag(const torch::jit::Stack& arguments, bool has_gradients, CallShape& shape) {
  constexpr int64_t kSum = 0, kMax = 2;
  OutputShape& offset2bag = shape.outputs[1];
  // There is one for each bag. But if no caller reads the sizes of bags, the CPU's kernel returns one for each offset,
  // of which there may be one more. It does the same with maximum indices that are not requested.
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

void set_dtype(OutputShape& output, c10::ScalarType dtype) {
  output.dtype = dtype;
  output.nbytes = span_bytes(output.sizes, output.strides, c10::elementSize(dtype));
}

// The CPU kernels of batch norm save statistics in the parameters' dtype (or the input's), and none in evaluation.
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

std::optional<Elements> harmless_elements(const std::string& name, bool is_refused) {
  const bool is_in_place = name.ends_with('_') && !name.ends_with("__");
  const std::string functional = is_in_place ? name.substr(0, name.size() - 1) : name;
  if (is_among(kJudgesValues, functional) || (is_among(kJudgesSums, functional) && !is_refused)) {
    return std::nullopt;
  }
  if (is_among(kWantsFullRank, functional)) {
    return Elements::Identities;
  }
  return is_among(kRefusesZeros, functional) ? Elements::Ones : Elements::Zeros;
}

bool checks_all_in_meta(const std::string& name) {
  return is_among(kMetaChecksAll, name);
}

bool is_given_samples(const std::string& name) {
  return is_among(kIsGivenSamples, name);
}

bool writes_in_secret(const std::string& name, const std::string& arg) {
  return name == "aten::native_batch_norm" && (arg == "running_mean" || arg == "running_var");
}

void correct_shape(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape) {
  if (shape.outputs.empty()) {
    return;  // an out= form, whose arguments are its outputs
  }
  const std::string& name = op.handle.operator_name().name;
  lay_out(name, arguments, shape);
  if (name == "aten::_batch_norm_with_update" || name == "aten::native_batch_norm" ||
      name == "aten::_native_batch_norm_legit") {
    correct_statistics(op, arguments, shape);
  } else if (name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only") {
    correct_embedding_bag(arguments, name == "aten::_embedding_bag", shape);
  } else if (name == "aten::convolution" || name == "aten::_convolution") {
    lay_out_convolution(arguments, shape.outputs[0]);
  } else if (name == "aten::convolution_backward") {
    lay_out_convolution_backward(arguments, shape);
  } else if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    // Torch 2.11's meta kernel returns float32 for all; the CPU kernel sums doubles in doubles.
    if (arguments[0].toTensor().scalar_type() == c10::kDouble) {
      set_dtype(shape.outputs[1], c10::kDouble);
    }
  }
}

}  // namespace outboard

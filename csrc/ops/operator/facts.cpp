// SPDX-License-Identifier: BSD-3-Clause
#include "ops/operator/facts.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "ops/operator/shape_corrections.h"

namespace outboard {

namespace {

// "aten::div" stands for all overloads of this form, "aten::add_.Tensor" or "aten::cat.default" for
// one.
struct Of {
  std::string_view op;
  Facts facts;
  int line = __builtin_LINE();  // of the row, if the row names its type
};

constexpr Facts kKeepsShapes{.keeps_shapes = true};
constexpr Facts kChecksAllInMeta{.checks_all_in_meta = true};
constexpr Facts kGivenSamples{.is_given_samples = true};
constexpr Facts kShapeOfScalars{.has_shape_of_scalars = true};
// Found by running the CPU kernels of torch's operator database on zeros of their arguments'
// shapes: integers divided by 0, pivots below 1.
constexpr Facts kRefusesZeros{.accepts = Elements::Ones};
// Matrices that cannot be factored are refused.
constexpr Facts kWantsFullRank{.accepts = Elements::Identities};
// Probabilities whose sum is 0, lengths whose sum must have a given value.
constexpr Facts kJudgesSums{.judges = Judges::Sums};
// Assertions.
constexpr Facts kJudgesValues{.judges = Judges::Values};
constexpr Facts kWarnsOfFreedom{.warns = Warns::OfFreedom};
constexpr Facts kNativeBatchNorm{
    .layout = Layout::Suggested, .correct = correct_statistics, .written_in_secret = "running_mean running_var"};

// Sorted; a row is one line, whose number it has. The rows with `checks_all_in_meta` were found by
// the matrix of refusals (tests/operators/refusals), which enforces them.
constexpr Of kRows[] = {
    Of{"aten::_assert_async", kJudgesValues},
    Of{"aten::_batch_norm_with_update", {.layout = Layout::Suggested, .correct = correct_statistics}},
    Of{"aten::_convolution", {.correct = correct_convolution}},
    Of{"aten::_embedding_bag", {.correct = correct_embedding_bag}},
    Of{"aten::_embedding_bag_forward_only", {.correct = correct_embedding_bag_forward_only}},
    Of{"aten::_functional_assert_async", kJudgesValues},
    Of{"aten::_fused_adagrad_", kKeepsShapes},
    Of{"aten::_fused_rms_norm_backward", {.layout = Layout::Like, .on_cpu = "outboard::rms_norm_backward"}},
    Of{"aten::_fused_sgd_", kKeepsShapes},
    Of{"aten::_index_put_impl_.default", {.warns = Warns::OfBytes}},
    Of{"aten::_linalg_eigh", {.raises_at_call = true}},
    Of{"aten::_linalg_eigvals", {.raises_at_call = true}},
    Of{"aten::_linalg_solve_ex", kWantsFullRank},
    Of{"aten::_linalg_svd", {.raises_at_call = true, .correct = correct_svd}},
    Of{"aten::_native_batch_norm_legit", {.layout = Layout::Suggested, .correct = correct_statistics}},
    Of{"aten::_padded_dense_to_jagged_forward", kJudgesValues},
    Of{"aten::_scaled_dot_product_flash_attention_for_cpu", {.correct = correct_flash_attention}},
    // Registered for the CPU only to say that a device must provide them.
    Of{"aten::_scaled_dot_product_fused_attention_overrideable", {.judges = Judges::Values, .drops_at = 4}},
    Of{"aten::_scaled_dot_product_fused_attention_overrideable_backward", {.judges = Judges::Values, .drops_at = 12}},
    Of{"aten::_segment_reduce_backward", kJudgesSums},
    Of{"aten::_upsample_bicubic2d_aa", kChecksAllInMeta},
    Of{"aten::_upsample_bilinear2d_aa", kChecksAllInMeta},
    Of{"aten::_validate_sparse_bsc_tensor_args", kJudgesValues},
    Of{"aten::_validate_sparse_bsr_tensor_args", kJudgesValues},
    Of{"aten::_validate_sparse_compressed_tensor_args", kJudgesValues},
    Of{"aten::_validate_sparse_csc_tensor_args", kJudgesValues},
    Of{"aten::_validate_sparse_csr_tensor_args", kJudgesValues},
    Of{"aten::arange", kShapeOfScalars},
    Of{"aten::batch_norm_backward", {.layout = Layout::Suggested, .like = 1}},
    Of{"aten::bernoulli_", kKeepsShapes},
    Of{"aten::binary_cross_entropy_backward", {.layout = Layout::Like, .like = 1}},
    Of{"aten::cat.default", {.begins_in_parts = true}},
    Of{"aten::cauchy_", kKeepsShapes},
    Of{"aten::channel_shuffle", {.layout = Layout::Suggested}},
    Of{"aten::cholesky", {.raises_at_call = true, .accepts = Elements::Identities}},
    Of{"aten::cholesky_inverse", kWantsFullRank},
    Of{"aten::convolution", {.correct = correct_convolution}},
    Of{"aten::convolution_backward", {.correct = correct_convolution_backward}},
    Of{"aten::div", kRefusesZeros},
    Of{"aten::exponential_", kKeepsShapes},
    Of{"aten::floor_divide", kRefusesZeros},
    Of{"aten::fmod", kRefusesZeros},
    Of{"aten::fractional_max_pool2d", kGivenSamples},
    Of{"aten::fractional_max_pool3d", kGivenSamples},
    Of{"aten::geometric_", kKeepsShapes},
    Of{"aten::glu_backward", {.layout = Layout::Contiguous}},
    Of{"aten::hardswish_backward", {.correct = correct_iterated}},
    Of{"aten::hardtanh_backward", {.correct = correct_iterated}},
    Of{"aten::huber_loss", {.layout = Layout::Like}},
    Of{"aten::index", {.masks_decide = true}},
    Of{"aten::index.Tensor", {.warns = Warns::OfBytes}},
    Of{"aten::linalg_cholesky_ex", kWantsFullRank},
    Of{"aten::linalg_eig", {.raises_at_call = true}},
    Of{"aten::linalg_inv_ex", kWantsFullRank},
    Of{"aten::linalg_ldl_factor_ex", kWantsFullRank},
    Of{"aten::linalg_ldl_solve", kRefusesZeros},
    // Residuals exist only if the matrix turns out to have full rank.
    Of{"aten::linalg_lstsq", {.has_misleading_meta = true}},
    Of{"aten::linalg_lu_factor_ex", kWantsFullRank},
    Of{"aten::linalg_lu_solve", kRefusesZeros},
    Of{"aten::linspace", kShapeOfScalars},
    Of{"aten::log_normal_", kKeepsShapes},
    Of{"aten::log_sigmoid_backward", {.layout = Layout::Like}},
    Of{"aten::log_sigmoid_forward", {.layout = Layout::Contiguous, .laid_out = 2}},
    Of{"aten::logspace", kShapeOfScalars},
    Of{"aten::lu_unpack", kRefusesZeros},
    Of{"aten::max_unpool2d", {.layout = Layout::Suggested}},
    Of{"aten::median", {.misreads_expanded = true}},
    Of{"aten::mse_loss_backward", {.layout = Layout::Contiguous}},
    Of{"aten::multinomial", kJudgesSums},
    Of{"aten::nanmedian", {.misreads_expanded = true}},
    Of{"aten::native_batch_norm", kNativeBatchNorm},
    Of{"aten::native_batch_norm_backward", {.layout = Layout::Suggested, .like = 1}},
    Of{"aten::native_channel_shuffle", {.layout = Layout::Suggested}},
    Of{"aten::nll_loss2d_forward", {.layout = Layout::Contiguous}},
    Of{"aten::normal", {.layout = Layout::Contiguous}},
    Of{"aten::normal_", kKeepsShapes},
    Of{"aten::random_", {.keeps_shapes = true, .has_bounds = true}},
    Of{"aten::random_.from", {.warns = Warns::OfTwoBounds}},
    Of{"aten::random_.to", {.warns = Warns::OfBound}},
    Of{"aten::range", kShapeOfScalars},
    Of{"aten::reflection_pad2d_backward", {.layout = Layout::Suggested, .like = 1}},
    Of{"aten::remainder", kRefusesZeros},
    Of{"aten::repeat_interleave", kJudgesSums},
    Of{"aten::replication_pad2d", {.layout = Layout::Suggested}},
    Of{"aten::replication_pad2d_backward", {.layout = Layout::Suggested, .like = 1}},
    Of{"aten::roll", {.correct = correct_roll}},
    Of{"aten::rrelu_with_noise", {.layout = Layout::Contiguous}},
    Of{"aten::segment_reduce", {.raises_at_call = true, .judges = Judges::Sums}},
    Of{"aten::std.correction", kWarnsOfFreedom},
    Of{"aten::std.correction_out", kWarnsOfFreedom},
    Of{"aten::std_mean.correction", kWarnsOfFreedom},
    Of{"aten::topk", kChecksAllInMeta},
    Of{"aten::tril", kChecksAllInMeta},
    Of{"aten::triu", kChecksAllInMeta},
    Of{"aten::uniform_", kKeepsShapes},
    Of{"aten::upsample_bicubic2d", kChecksAllInMeta},
    Of{"aten::upsample_bilinear2d", kChecksAllInMeta},
    Of{"aten::upsample_linear1d", kChecksAllInMeta},
    Of{"aten::upsample_nearest1d", kChecksAllInMeta},
    Of{"aten::upsample_nearest2d", kChecksAllInMeta},
    Of{"aten::upsample_nearest3d", kChecksAllInMeta},
    Of{"aten::upsample_trilinear3d", kChecksAllInMeta},
    Of{"aten::var.correction", kWarnsOfFreedom},
    Of{"aten::var.correction_out", kWarnsOfFreedom},
    Of{"aten::var_mean.correction", kWarnsOfFreedom},
};

constexpr bool row_before(const Of& a, const Of& b) {
  return a.op < b.op;
}
static_assert(std::is_sorted(std::begin(kRows), std::end(kRows), row_before));

const Of* row_of(std::string_view name) {
  const Of* row = std::lower_bound(std::begin(kRows), std::end(kRows), Of{name, {}}, row_before);
  return row != std::end(kRows) && row->op == name ? row : nullptr;
}

// Return the facts of one overload, completed by those of all.
Facts completed(Facts facts, const Facts& general) {
  const Facts none;
  const auto complete = [&](auto field) {
    if (facts.*field == none.*field) {
      facts.*field = general.*field;
    }
  };
  complete(&Facts::has_misleading_meta);
  complete(&Facts::keeps_shapes);
  complete(&Facts::has_shape_of_scalars);
  complete(&Facts::checks_all_in_meta);
  complete(&Facts::is_given_samples);
  complete(&Facts::has_bounds);
  complete(&Facts::masks_decide);
  complete(&Facts::begins_in_parts);
  complete(&Facts::misreads_expanded);
  complete(&Facts::raises_at_call);
  complete(&Facts::accepts);
  complete(&Facts::judges);
  complete(&Facts::warns);
  complete(&Facts::layout);
  complete(&Facts::like);
  complete(&Facts::laid_out);
  complete(&Facts::drops_at);
  complete(&Facts::correct);
  complete(&Facts::written_in_secret);
  complete(&Facts::on_cpu);
  return facts;
}

}  // namespace

Facts facts_of(const c10::OperatorName& name) {
  const std::string& base = name.name;
  Facts facts;
  if (const Of* row = row_of(base)) {
    facts = row->facts;
    facts.line = row->line;
  }
  if (const Of* row = row_of(base + '.' + (name.overload_name.empty() ? "default" : name.overload_name))) {
    facts = completed(row->facts, facts);
    facts.line = row->line;
  }
  if (base.ends_with('_') && !base.ends_with("__")) {
    if (const Of* row = row_of(std::string_view(base).substr(0, base.size() - 1))) {
      facts.accepts = row->facts.accepts;
      facts.judges = row->facts.judges;
      facts.line = facts.line == 0 ? row->line : facts.line;
    }
  }
  return facts;
}

std::vector<std::string> described(const Facts& facts) {
  std::vector<std::string> words;
  const auto add = [&](bool holds, std::string text) {
    if (holds) {
      words.push_back(std::move(text));
    }
  };
  add(facts.has_misleading_meta, "its meta kernel is wrong about shapes: the caller waits for the kernel");
  add(facts.keeps_shapes, "it writes in place, and needs no meta kernel");
  add(facts.has_shape_of_scalars, "its numbers decide the result's shape");
  add(facts.checks_all_in_meta, "the meta kernel checks all that the CPU's kernel checks");
  add(facts.is_given_samples, "it draws nothing: an argument has the numbers");
  add(facts.masks_decide, "the values of a mask among the indices decide the result's shape");
  add(facts.begins_in_parts, "its parts are tried before a plan");
  add(facts.misreads_expanded, "the CPU's kernel reads past expanded tensors: it gets a copy");
  add(facts.raises_at_call, "it raises errors of values at the call: the caller waits for it");
  add(facts.accepts == Elements::Ones, "the CPU's kernel refuses zeros: it is tried on ones");
  add(facts.accepts == Elements::Identities, "the CPU's kernel wants full rank: it is tried on identity matrices");
  add(facts.judges != Judges::Nothing, "the CPU's kernel judges values: it is not tried on stand-ins");
  add(facts.warns != Warns::No, "it warns at the call: csrc/ops/call/known_warnings.cpp");
  add(facts.layout == Layout::Contiguous, "its results are contiguous, whatever the meta kernel returns");
  add(facts.layout == Layout::Like, "its results are laid out as an argument");
  add(facts.layout == Layout::Suggested, "its results follow the memory format of an argument");
  add(facts.drops_at != 0, "which numbers are dropped, the provider of the forward operator alone knows");
  add(facts.correct != nullptr, "its results' shapes are corrected: csrc/ops/operator/shape_corrections.cpp");
  add(!facts.written_in_secret.empty(), "it writes " + std::string(facts.written_in_secret) + ", undeclared");
  add(!facts.on_cpu.empty(), "on the CPU " + std::string(facts.on_cpu) + " computes it");
  return words;
}

bool writes_in_secret(const Facts& facts, std::string_view argument) {
  for (std::string_view rest = facts.written_in_secret; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    if (name == argument) {
      return true;
    }
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return false;
}

}  // namespace outboard

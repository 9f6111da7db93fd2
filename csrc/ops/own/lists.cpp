// SPDX-License-Identifier: BSD-3-Clause
#include "ops/own/lists.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "core/capture.h"
#include "core/device.h"
#include "core/trace.h"
#include "memory/caching_allocator.h"
#include "ops/boxed.h"
#include "ops/call/bad_arguments.h"
#include "ops/generated/constant_words.h"
#include "ops/generated/recipes.h"
#include "ops/own/factories.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using kernels::ChunkSource;
using Kind = ChunkSource::Kind;

// Return the device of the first tensor in a list; -1 if it is not ours, or if there is none.
c10::DeviceIndex device_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList() && !value.toListRef().empty()) {
      const at::Tensor& first = value.toListRef()[0].toTensor();
      return first.defined() && is_ours(*first.unsafeGetTensorImpl()) ? first.device().index() : -1;
    }
  }
  return -1;
}

uint64_t word_of(const at::Tensor& tensor, bool is_element_of_list) {
  if (!tensor.defined()) {
    return 0;
  }
  // Sizes of tensors in lists do not matter. A CPU number is passed by value.
  return 1 | static_cast<uint64_t>(tensor.scalar_type()) << 8 | (tensor.is_cpu() ? uint64_t{1} << 16 : 0) |
         (is_element_of_list ? 0 : static_cast<uint64_t>(tensor.dim()) << 24);
}

// Return what decides which kernel may serve a call.
std::vector<uint64_t> class_of(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device, uint64_t numbers) {
  std::vector<uint64_t> words{static_cast<uint64_t>(device),
                              static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())};
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensorList()) {
      const auto list = value.toListRef();
      words.push_back(list.empty() ? 2 : word_of(list[0].toTensor(), true));
    } else if (value.isTensor()) {
      words.push_back(word_of(value.toTensor(), false));
    } else {
      const bool is_by_value = (numbers >> i & 1) != 0;
      add_constant(words, value, !is_by_value);
      if (is_by_value && value.isList() && !value.toListRef().empty()) {
        add_constant(words, value.toListRef()[0], false);
      }
    }
  }
  return words;
}

// Return a number's bits in the first bytes of a word; nothing if the dtype cannot hold it.
std::optional<uint64_t> bits_of(const c10::Scalar& number, c10::ScalarType dtype) {
  if (dtype == c10::kLong ? !number.isIntegral(/*includeBool=*/false) : !number.isFloatingPoint()) {
    return std::nullopt;
  }
  switch (dtype) {
    case c10::kLong:
      return static_cast<uint64_t>(number.toLong());
    case c10::kDouble:
      return std::bit_cast<uint64_t>(number.toDouble());
    default:
      return std::bit_cast<uint32_t>(static_cast<float>(number.toDouble()));  // too large values become infinite
  }
}

// Return false if the dtype of the lists may not hold a number. The operator for one tensor then refuses it.
bool numbers_fit(c10::ArrayRef<c10::IValue> arguments) {
  if (!arguments[0].isTensorList() || arguments[0].toListRef().empty()) {
    return true;  // a power of a number
  }
  const c10::ScalarType dtype = arguments[0].toListRef()[0].toTensor().scalar_type();
  return std::ranges::all_of(arguments, [dtype](const c10::IValue& value) {
    if (value.isScalar()) {
      return !may_overflow(value.toScalar(), dtype);
    }
    return !value.isList() || value.isTensorList() ||
           std::ranges::all_of(value.toListRef(), [dtype](const c10::IValue& one) {
             return !one.isScalar() || !may_overflow(one.toScalar(), dtype);
           });
  });
}

bool is_plain(const at::Tensor& tensor, c10::DeviceIndex device) {
  return tensor.defined() && is_ours(*tensor.unsafeGetTensorImpl()) && tensor.device().index() == device &&
         has_plain_elements(tensor) && !tensor._is_zerotensor();
}

// Return true if elements of the same index lie at the same places.
bool is_laid_out_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous()));
}

// Memory of a call, to find whether written memory overlaps other memory.
struct Extent {
  uint64_t begin;
  uint64_t end;
  bool is_written;
};

bool are_apart(std::vector<Extent>& extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  uint64_t end_of_written = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < (extent.is_written ? end : end_of_written)) {
      return false;
    }
    end = std::max(end, extent.end);
    end_of_written = extent.is_written ? std::max(end_of_written, extent.end) : end_of_written;
  }
  return true;
}

// Return true if written memory of the first `count` overlaps no other.
bool are_first_apart(const std::vector<Extent>& extents, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Extent& one = extents[i];
    if (std::any_of(extents.begin() + static_cast<std::ptrdiff_t>(i) + 1, extents.end(), [&one](const Extent& other) {
          return one.begin < other.end && other.begin < one.end && (one.is_written || other.is_written);
        })) {
      return false;
    }
  }
  return true;
}

// One call: the arguments of its kernel, gathered from the operator's.
class ListCall {
 public:
  ListCall(ListRecipe& recipe, const std::string& name, c10::ArrayRef<c10::IValue> arguments, Stream& stream)
      : recipe_(recipe), name_(name), arguments_(arguments), stream_(stream) {}

  // Return false if no kernel over chunks can serve the call.
  bool gather() { return gather_arguments() && gather_rows(); }

  // Return true if the tensors have several dtypes, and some have no dimensions: type promotion treats those
  // differently.
  bool is_mixed() const {
    if (C10_LIKELY(!has_numbers_)) {
      return false;
    }
    std::vector<c10::ScalarType> types;
    for (const c10::IValue& value : arguments_) {
      if (value.isTensorList() && !value.toListRef().empty()) {
        types.push_back(value.toListRef()[0].toTensor().scalar_type());
      } else if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0) {
        types.push_back(value.toTensor().scalar_type());
      }
    }
    return std::ranges::adjacent_find(types, std::not_equal_to()) != types.end();
  }

  // Do the same for the steps that need memory and the table.
  bool prepare() {
    table_ = recipe_.tables.find(stream_, rows_);
    if (table_.has_value()) {
      // The rows are known to be disjoint; that does not cover the tensors beside the lists.
      return are_first_apart(extents_, beside_lists_);
    }
    if (are_apart(extents_)) {
      table_ = recipe_.tables.make(stream_, std::move(rows_));
    }
    return table_.has_value();
  }

  void launch() {
    if (Trace* active = trace(); C10_UNLIKELY(active != nullptr && capture_of(stream_) == nullptr)) {
      accesses_.push_back({reinterpret_cast<uint64_t>(table_->memory.storage().data()), false});
      active->access(name_.c_str(), stream_, accesses_.data(), accesses_.size());
    }
    c10::SmallVector<uint64_t, 12> words{device_address(table_->memory), static_cast<uint64_t>(table_->chunks),
                                         static_cast<uint64_t>(table_->elements)};
    words.append(words_.begin(), words_.end());
    if (!recipe_.plan->join.has_value()) {
      recipe_.kernels[0]->launch(stream_, words);
      return;
    }
    const kernels::ChunkJoin& join = *recipe_.plan->join;
    const auto rows = static_cast<int64_t>(results_[0].size());
    const at::Tensor joined = make_device_tensor(stream_, join.kept, {table_->chunks}, {1});
    words.push_back(device_address(joined));
    recipe_.kernels[0]->launch(stream_, words);
    has_launched_ = true;
    recipe_.kernels[1]->launch(stream_, {words[0], words[1], words[2], static_cast<uint64_t>(rows), words.back(),
                                         device_address(results_[0].get(0))});
  }

  // Return true if a kernel was launched before another one failed.
  bool has_launched() const { return has_launched_; }

  // Return the lists of results, one for each column of fresh tensors.
  const std::vector<c10::List<at::Tensor>>& results() const { return results_; }

 private:
  bool gather_arguments() {
    for (const ChunkSource& source : recipe_.plan->arguments) {
      const c10::IValue& value = arguments_[source.argument];
      if (source.kind == Kind::Tensor) {
        if (!value.isTensor() || !is_plain(value.toTensor(), stream_.device) || value.toTensor().numel() != 1) {
          return false;
        }
        words_.push_back(device_address(value.toTensor()));
        use(value.toTensor(), source.is_written);
        continue;
      }
      const std::optional<uint64_t> bits =
          bits_of(value.isTensor() ? value.toTensor().item() : value.toScalar(), source.dtype);
      if (!bits.has_value()) {
        return false;
      }
      words_.push_back(*bits);
    }
    beside_lists_ = extents_.size();
    return true;
  }

  bool gather_rows() {
    const auto first = arguments_[recipe_.plan->columns[0].argument].toListRef();
    if (!have_lengths(first.size())) {
      return false;
    }
    rows_.width = recipe_.plan->columns.size() + 1;
    if (recipe_.plan->join.has_value()) {
      const auto chunk = std::ranges::find(recipe_.plan->columns, Kind::Chunk, &ChunkSource::kind);
      rows_.chunk_column = static_cast<size_t>(chunk - recipe_.plan->columns.begin());
    }
    rows_.words.resize(rows_.width * first.size());
    for (size_t place = 0; place < first.size(); ++place) {
      uint64_t* row = rows_.words.data() + place * rows_.width;
      const at::Tensor& like = first[place].toTensor();
      if (!is_plain(like, stream_.device) || !like.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) {
        return false;
      }
      for (size_t column = 0; column < recipe_.plan->columns.size(); ++column) {
        if (!gather_word(recipe_.plan->columns[column], place, like, row + column)) {
          return false;
        }
      }
      if (like.numel() == 0 && recipe_.plan->join.has_value() && recipe_.plan->join->needs_elements) {
        return false;
      }
      row[rows_.width - 1] = static_cast<uint64_t>(like.numel());
      has_numbers_ |= like.dim() == 0;
    }
    gather_results(first);
    return true;
  }

  // Return true if all lists of the operator have that length, or are empty.
  bool have_lengths(size_t length) const {
    return std::all_of(arguments_.begin(), arguments_.end(), [length](const c10::IValue& value) {
      return !value.isTensorList() || value.toListRef().empty() || value.toListRef().size() == length;
    });
  }

  bool gather_word(const ChunkSource& source, size_t place, const at::Tensor& like, uint64_t* out_word) {
    if (source.kind == Kind::Fresh || source.kind == Kind::Chunk) {
      return true;  // made once everything else is checked
    }
    const c10::IValue& value = arguments_[source.argument];
    if (source.kind == Kind::Number) {
      const std::optional<uint64_t> bits = number_at(value, place, rows_.words.size() / rows_.width, source.dtype);
      *out_word = bits.value_or(0);
      return bits.has_value();
    }
    const auto list = value.toListRef();
    const at::Tensor& tensor = list[place].toTensor();
    if (!is_plain(tensor, stream_.device) || tensor.scalar_type() != list[0].toTensor().scalar_type() ||
        (source.kind == Kind::Element ? tensor.numel() != 1 : !is_laid_out_alike(tensor, like))) {
      return false;
    }
    *out_word = device_address(tensor);
    use(tensor, source.is_written);
    return true;
  }

  // Return the number from a list of numbers, or from a CPU tensor.
  static std::optional<uint64_t> number_at(const c10::IValue& value, size_t place, size_t length,
                                           c10::ScalarType dtype) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      return tensor.numel() == static_cast<int64_t>(length) && tensor.is_contiguous()
                 ? bits_of(tensor[static_cast<int64_t>(place)].item(), dtype)
                 : std::nullopt;
    }
    const auto list = value.toListRef();
    return list.size() == length ? bits_of(list[place].toScalar(), dtype) : std::nullopt;
  }

  void gather_results(c10::ArrayRef<c10::IValue> first) {
    if (recipe_.plan->join.has_value()) {
      gather_results_of_rows(recipe_.plan->join->result, first.size());
    }
    for (size_t column = 0; column < recipe_.plan->columns.size(); ++column) {
      const ChunkSource& source = recipe_.plan->columns[column];
      if (source.kind != Kind::Fresh) {
        continue;
      }
      c10::List<at::Tensor> list;
      list.reserve(first.size());
      for (size_t place = 0; place < first.size(); ++place) {
        const at::Tensor& like = first[place].toTensor();
        at::Tensor made = make_device_tensor(stream_, source.dtype, like.sizes(), like.strides());
        rows_.words[place * rows_.width + column] = device_address(made);
        if (trace() != nullptr && made.numel() > 0) {
          accesses_.push_back({reinterpret_cast<uint64_t>(made.storage().data()), true});
        }
        list.push_back(std::move(made));
      }
      results_.push_back(std::move(list));
    }
  }

  // Allocate results side by side, as a kernel writes them: one allocation, and a table that does not change with their
  // addresses.
  void gather_results_of_rows(c10::ScalarType dtype, size_t rows) {
    const at::Tensor all = make_device_tensor(stream_, dtype, {static_cast<int64_t>(rows)}, {1});
    c10::List<at::Tensor> list;
    list.reserve(rows);
    for (size_t row = 0; row < rows; ++row) {
      at::Tensor one =
          at::detail::make_tensor<c10::TensorImpl>(c10::Storage(all.storage()), all.key_set(), all.dtype());
      one.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(), c10::IntArrayRef(),
                                                       static_cast<int64_t>(row));
      list.push_back(std::move(one));
    }
    accesses_.push_back({reinterpret_cast<uint64_t>(all.storage().data()), true});
    results_.push_back(std::move(list));
  }

  void use(const at::Tensor& tensor, bool is_written) {
    if (tensor.numel() == 0) {
      return;
    }
    const uint64_t begin = device_address(tensor);
    extents_.push_back({begin, begin + tensor.nbytes(), is_written});
    record_stream(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data_ptr(), stream_);
    if (C10_UNLIKELY(trace() != nullptr)) {
      accesses_.push_back({reinterpret_cast<uint64_t>(tensor.storage().data()), is_written});
    }
  }

  ListRecipe& recipe_;
  const std::string& name_;
  c10::ArrayRef<c10::IValue> arguments_;
  Stream& stream_;
  c10::SmallVector<uint64_t, 8> words_;
  ChunkRows rows_;
  std::vector<Extent> extents_;
  size_t beside_lists_ = 0;  // the first of the extents, of tensors beside the lists
  std::vector<TraceAccess> accesses_;
  std::vector<c10::List<at::Tensor>> results_;
  std::optional<ChunkTable> table_;
  bool has_launched_ = false;
  bool has_numbers_ = false;
};

// Return the arguments for the builder: lists are cut to their first element.
torch::jit::Stack first_elements(c10::ArrayRef<c10::IValue> arguments) {
  torch::jit::Stack result;
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList() && value.toListRef().size() > 1) {
      result.emplace_back(c10::List<at::Tensor>({value.toListRef()[0].toTensor()}));
    } else if (value.isList() && value.toListRef().size() > 1) {
      c10::impl::GenericList list(value.toList().elementType());
      list.push_back(value.toListRef()[0]);
      result.emplace_back(std::move(list));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

// Run the operator for each tensor of its lists, if kernels are generated and none takes the lists as a whole. Plans
// are for lists of one tensor, so that no plan grows with a list. Return false, with nothing done, for other calls.
bool run_each(Operator& op, torch::jit::Stack* stack) {
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, op.args.size());
  const c10::DeviceIndex device = device_of(arguments);
  const size_t length = arguments[0].isTensorList() ? arguments[0].toTensorList().size() : 0;
  if (!allows_generated() || device < 0 || length < 2 || !may_generate(device)) {
    return false;
  }
  for (const c10::IValue& argument : arguments) {
    const size_t size = argument.isTensorList() ? argument.toTensorList().size() : 0;
    if (size != 0 && size != length) {
      return false;  // the operator itself raises
    }
  }
  for (size_t i = 0; i < length; ++i) {
    torch::jit::Stack single;
    for (const c10::IValue& argument : arguments) {
      if (!argument.isTensorList()) {
        single.push_back(argument);
        continue;
      }
      c10::List<at::Tensor> one;
      if (const c10::List<at::Tensor> all = argument.toTensorList(); !all.empty()) {
        one.push_back(all.get(i));
      }
      single.emplace_back(std::move(one));
    }
    run_chain(op, &single);
  }
  torch::jit::drop(*stack, op.args.size());
  return true;
}

class ListKernel final : public c10::OperatorKernel {
 public:
  ListKernel(Operator& op, bool is_composite) : known_(op, is_composite), is_composite_(is_composite) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Operator& op = known_.op();
    const bool is_native = op.native.load(std::memory_order_acquire) != nullptr && allows_native();
    if (C10_LIKELY(!is_native && allows_generated()) && known_.run(stack)) {
      return;
    }
    if (is_composite_ && !is_native) {
      // Torch's composite, which the CPU's table holds: an operator for each tensor, through the dispatcher.
      handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } else if (is_native || !run_each(op, stack)) {
      run_chain(op, stack);
    }
  }

 private:
  ListOperator known_;
  const bool is_composite_;
};

}  // namespace

ListOperator::ListOperator(Operator& op, bool promotes) : op_(op), promotes_(promotes) {
  const std::string_view name = std::string_view(op.name).substr(std::min<size_t>(op.name.size(), 15));
  for (const std::string_view one : {"addcdiv", "addcmul", "clamp_max", "clamp_min", "lerp", "maximum", "minimum",
                                     "pow", "add.List", "add_.List", "sub.List", "sub_.List"}) {
    converts_ |= op.name.starts_with("aten::_foreach_") && name.starts_with(one);
  }
}

uint64_t ListOperator::numbers() {
  uint64_t known = numbers_.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(known == kUnknown)) {
    const PlanBuilder* ask = plan_builder();
    known = ask == nullptr ? 0 : ask->numbers_of_lists(op_);  // the same for every caller
    numbers_.store(known, std::memory_order_relaxed);
  }
  return known;
}

std::shared_ptr<ListRecipe> ListOperator::recipe_for(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device) {
  Words words = class_of(arguments, device, numbers());
  std::shared_ptr<RecentFailure> failed;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = recipes_.find(words); C10_LIKELY(found != recipes_.end())) {
      found->second->was_used.store(true, std::memory_order_relaxed);
      return found->second;
    }
    std::shared_ptr<RecentFailure>& known = failures_[words];
    if (known == nullptr) {
      known = std::make_shared<RecentFailure>();
    }
    failed = known;
  }
  failed->raise_if_recent();
  std::shared_ptr<ListRecipe> made;
  try {
    made = build(arguments, device);
  } catch (...) {
    failed->keep_current();
    throw;
  }
  std::shared_ptr<ListRecipe> evicted;
  const std::lock_guard lock(mutex_);
  failures_.erase(words);
  if (recipes_.size() >= kMaxRecipes) {
    evicted = evict();
  }
  // If several threads build at once, one result is kept: nothing was launched yet.
  return recipes_.try_emplace(std::move(words), std::move(made)).first->second;
}

std::shared_ptr<ListRecipe> ListOperator::evict() {
  // Two rounds: the first may only clear marks.
  for (size_t left = 2 * recipes_.size(); left > 0; --left) {
    auto next = recipes_.upper_bound(hand_);
    if (next == recipes_.end()) {
      next = recipes_.begin();
    }
    hand_ = next->first;
    if (!next->second->was_used.exchange(false, std::memory_order_relaxed)) {
      std::shared_ptr<ListRecipe> evicted = std::move(next->second);
      recipes_.erase(next);
      return evicted;
    }
  }
  return nullptr;
}

std::shared_ptr<ListRecipe> ListOperator::build(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device) {
  auto recipe = std::make_shared<ListRecipe>();
  const PlanBuilder* ask = plan_builder();
  if (ask == nullptr) {
    return recipe;
  }
  std::string reason;
  for (bool is_dropped = true; is_dropped;) {
    const NotedCall noted("the builder of plans", device, nullptr, op_.name.c_str());
    BuiltPlan built = ask->build_chunks(op_, first_elements(arguments), device);
    const std::string text = built.text;
    reason = built.refusal;
    if (!reason.empty()) {
      break;
    }
    try {
      TORCH_CHECK_VALUE(built.damage.empty(), built.damage);
      fill(*recipe, std::move(built), arguments, device);
      count_plan();
      return recipe;
    } catch (const c10::ValueError& error) {  // an invalid plan, or a program that is refused
      reason = unusable(error);
      recipe = std::make_unique<ListRecipe>();
      is_dropped = may_be_plans(error, device) &&
                   ask->drop_chunks(op_, first_elements(arguments), device, text, error.what_without_backtrace());
    }
  }
  OperatorRecipes::of(op_).list(reason);
  return recipe;
}

void ListOperator::drop(const std::shared_ptr<ListRecipe>& recipe, c10::ArrayRef<c10::IValue> arguments,
                        c10::DeviceIndex device, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase_if(recipes_, [&recipe](const auto& known) { return known.second == recipe; }) == 0) {
      return;  // another thread was first
    }
  }
  if (const PlanBuilder* ask = plan_builder()) {
    ask->drop_chunks(op_, first_elements(arguments), device, recipe->kept, why);
  }
}

void ListOperator::fill(ListRecipe& recipe, BuiltPlan built, c10::ArrayRef<c10::IValue> arguments,
                        c10::DeviceIndex device) const {
  std::vector<std::string> letters;
  for (const auto& kernel : built.kernels) {
    letters.push_back(kernel->arguments());
  }
  kernels::ChunkPlan plan(built.text, letters);
  for (const auto* sources : {&plan.columns, &plan.arguments}) {
    for (const ChunkSource& source : *sources) {
      const bool is_list = source.kind == Kind::List || source.kind == Kind::Element;
      TORCH_CHECK_VALUE(
          source.kind == Kind::Fresh || source.kind == Kind::Chunk ||
              (source.argument < arguments.size() && (!is_list || (arguments[source.argument].isTensorList() &&
                                                                   !arguments[source.argument].toListRef().empty()))),
          "a plan of ", op_.name, " over chunks reads argument ", source.argument, ", which is no such list");
    }
  }
  for (const auto& kernel : built.kernels) {
    kernel->build(device);
  }
  recipe.kernels = std::move(built.kernels);
  recipe.plan = std::move(plan);
  recipe.kept = built.is_kept ? std::move(built.text) : std::string();
}

bool ListOperator::run(torch::jit::Stack* stack) {
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - op_.args.size(), op_.args.size());
  const c10::DeviceIndex device = device_of(arguments);
  if (device < 0 || !may_generate(device) || device_properties(device).follows_addresses == 0) {
    return false;
  }
  if (converts_ && !numbers_fit(arguments)) {
    return false;
  }
  ensure_open(device);
  std::vector<c10::List<at::Tensor>> results;
  for (bool has_run = false; !has_run;) {
    const std::shared_ptr<ListRecipe> recipe = recipe_for(arguments, device);
    if (recipe->kernels.empty()) {
      return false;
    }
    ListCall call(*recipe, op_.name, arguments, current_stream(device));
    try {
      if (!call.gather() || (promotes_ && call.is_mixed()) || !call.prepare()) {
        return false;
      }
      call.launch();
      has_run = true;
    } catch (const std::exception& error) {
      if (recipe->kept.empty() || !may_be_plans(error, device)) {
        throw;
      }
      drop(recipe, arguments, device, words_of(error));
      if (call.has_launched()) {
        throw;  // nothing is written twice
      }
    }
    results = call.results();
  }
  torch::jit::drop(*stack, op_.args.size());
  for (const c10::List<at::Tensor>& list : results) {
    stack->emplace_back(list);
  }
  op_.compiled_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void register_lists() {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  constexpr std::string_view kOfTheCpu[] = {"aten::_fused_adagrad_", "aten::_fused_adam_", "aten::_fused_adamw_",
                                            "aten::_fused_sgd_", "aten::_amp_foreach_non_finite_check_and_unscale_"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool is_foreach = name.name.starts_with("aten::_foreach_") && !name.overload_name.ends_with("out");
    const bool is_of_the_cpu = std::ranges::find(kOfTheCpu, name.name) != std::end(kOfTheCpu);
    const auto handle = is_foreach || is_of_the_cpu ? c10::Dispatcher::singleton().findSchema(name) : std::nullopt;
    // Foreach operators have no CPU kernel: the CPU's table holds the composite.
    if (handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) == is_of_the_cpu &&
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) == is_foreach) {
      Operator& op = operator_for(*handle);
      library->impl(op.name.c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ListKernel>(op, is_foreach)));
    }
  }
}

}  // namespace outboard

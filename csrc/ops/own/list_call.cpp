// SPDX-License-Identifier: BSD-3-Clause
#include "ops/own/list_call.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using kernels::ChunkSource;
using Kind = ChunkSource::Kind;

bool is_plain(const at::Tensor& tensor, c10::DeviceIndex device) {
  return tensor.defined() && is_device_tensor(*tensor.unsafeGetTensorImpl()) && tensor.device().index() == device &&
         has_plain_elements(tensor) && !tensor._is_zerotensor();
}

// Return true if elements of the same index lie at the same places.
bool is_laid_out_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous()));
}

}  // namespace

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

bool ListCall::are_disjoint(std::vector<Extent>& extents) {
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

bool ListCall::are_first_disjoint(const std::vector<Extent>& extents, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Extent& extent = extents[i];
    if (std::any_of(
            extents.begin() + static_cast<std::ptrdiff_t>(i) + 1, extents.end(), [&extent](const Extent& other) {
              return extent.begin < other.end && other.begin < extent.end && (extent.is_written || other.is_written);
            })) {
      return false;
    }
  }
  return true;
}

bool ListCall::is_mixed() const {
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

bool ListCall::prepare() {
  table_ = recipe_.tables.find(stream_, rows_);
  if (table_.has_value()) {
    // The rows are known to be disjoint; that does not cover the tensors beside the lists.
    return are_first_disjoint(extents_, unlisted_count_);
  }
  if (are_disjoint(extents_)) {
    table_ = recipe_.tables.make(stream_, std::move(rows_));
  }
  return table_.has_value();
}

void ListCall::launch() {
  uses_.note(table_->memory, false);
  uses_.report(name_.c_str());
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

bool ListCall::gather_arguments() {
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
  unlisted_count_ = extents_.size();
  return true;
}

bool ListCall::gather_rows() {
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

bool ListCall::have_lengths(size_t length) const {
  return std::all_of(arguments_.begin(), arguments_.end(), [length](const c10::IValue& value) {
    return !value.isTensorList() || value.toListRef().empty() || value.toListRef().size() == length;
  });
}

bool ListCall::gather_word(const ChunkSource& source, size_t place, const at::Tensor& like, uint64_t* out_word) {
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

std::optional<uint64_t> ListCall::number_at(const c10::IValue& value, size_t place, size_t length,
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

void ListCall::gather_results(c10::ArrayRef<c10::IValue> first) {
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
      at::Tensor output = make_device_tensor(stream_, source.dtype, like.sizes(), like.strides());
      rows_.words[place * rows_.width + column] = device_address(output);
      uses_.note(output, true);
      list.push_back(std::move(output));
    }
    results_.push_back(std::move(list));
  }
}

void ListCall::gather_results_of_rows(c10::ScalarType dtype, size_t rows) {
  const at::Tensor all = make_device_tensor(stream_, dtype, {static_cast<int64_t>(rows)}, {1});
  c10::List<at::Tensor> list;
  list.reserve(rows);
  for (size_t row = 0; row < rows; ++row) {
    at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(all.storage()), all.key_set(), all.dtype());
    part.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(), c10::IntArrayRef(),
                                                      static_cast<int64_t>(row));
    list.push_back(std::move(part));
  }
  uses_.note(all, true);
  results_.push_back(std::move(list));
}

void ListCall::use(const at::Tensor& tensor, bool is_written) {
  if (tensor.numel() == 0) {
    return;
  }
  const uint64_t begin = device_address(tensor);
  extents_.push_back({begin, begin + tensor.nbytes(), is_written});
  uses_.add(tensor, is_written);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Graphs of products, pointwise operations, reductions, reshapes and draws, as
// attention has them, run operation by operation in double. Operations must come in an
// order in which their inputs are known.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "fake_cudnn_parts.h"

namespace graphs {

using Sizes = std::vector<int64_t>;

struct Tensor {
  int type = 0;
  int64_t id = 0, alignment = 0;
  bool is_virtual = false, is_by_value = false;
  Sizes sizes, strides;

  int64_t count() const {
    int64_t result = 1;
    for (const int64_t size : sizes) result *= size;
    return result;
  }
  Sizes place(int64_t index) const {
    Sizes result(4);
    for (size_t dim = 4; dim-- > 0; index /= sizes[dim]) result[dim] = index % sizes[dim];
    return result;
  }
  int64_t offset(const Sizes& at) const {
    int64_t result = 0;
    for (size_t dim = 0; dim < 4; ++dim) result += at[dim] * strides[dim];
    return result;
  }
  // Return the dense index of a place of a tensor that this one
  // repeats to, or whose groups it sums.
  int64_t index_of(const Sizes& at, const Sizes& from) const {
    int64_t result = 0;
    for (size_t dim = 0; dim < 4; ++dim) {
      result = result * sizes[dim] + (sizes[dim] == from[dim] ? at[dim] : at[dim] / (from[dim] / sizes[dim]));
    }
    return result;
  }
};

inline Tensor tensor_of(const Descriptor& given) {
  return {given.one<int>(901),       given.one<int64_t>(906), given.one<int64_t>(900), given.one<char>(907) != 0,
          given.one<char>(908) != 0, given.all<int64_t>(902), given.all<int64_t>(903)};
}

// The attributes of tensors of an operation by its kind, the result last.
inline const std::map<int, std::vector<int>> kParts = {{13, {751, 752, 758, 753}},
                                                       {19, {1520, 1521, 1522}},
                                                       {22, {1610, 1611}},
                                                       {31, {2200, 2201}},
                                                       {33, {2311, 2313, 2310}}};
inline const std::map<int, int> kDescriptions = {{13, 750}, {19, 1523}, {22, 1612}, {33, 2312}};

struct Operation {
  int kind = 0;
  Descriptor* description = nullptr;
  std::vector<Tensor> tensors;  // those that were given, the result last

  const Tensor& result() const { return tensors.back(); }
};

// Read an operation. Return false if it lacks something, or its sizes don't fit together.
inline bool read(const Descriptor& given, Operation* out) {
  out->kind = given.kind;
  if (const auto found = kDescriptions.find(given.kind); found != kDescriptions.end()) {
    out->description = given.one<Descriptor*>(found->second);
    if (out->description == nullptr || !out->description->is_final) return false;
  }
  for (const int attribute : kParts.at(given.kind)) {
    Descriptor* part = given.one<Descriptor*>(attribute);
    if (part == nullptr && given.kind == 13 && (attribute == 752 || attribute == 758)) continue;
    if (part == nullptr || part->kind != 17 || !part->is_final) return false;
    out->tensors.push_back(tensor_of(*part));
    if (out->tensors.back().sizes.size() != 4) return false;
  }
  const Sizes& to = out->result().sizes;
  const Sizes& first = out->tensors.front().sizes;
  if (given.kind == 19) {
    const Sizes& by = out->tensors[1].sizes;
    return first[3] == by[2] && to[2] == first[2] && to[3] == by[3] && to[1] == first[1] && to[1] % by[1] == 0 &&
           first[0] == by[0] && to[0] == first[0] && out->tensors[1].type != 0;
  }
  for (size_t i = 0; i + 1 < out->tensors.size() && given.kind == 13; ++i) {
    for (size_t dim = 0; dim < 4; ++dim) {
      if (out->tensors[i].sizes[dim] != to[dim] && out->tensors[i].sizes[dim] != 1) return false;
    }
  }
  for (size_t dim = 0; dim < 4 && given.kind == 22; ++dim) {
    if (first[dim] % to[dim] != 0) return false;
  }
  return true;
}

// Return true for memory that cuDNN takes: 16 bytes at once, and adjacent rows or columns.
inline bool is_memory_right(const Tensor& tensor) {
  if (tensor.type != 2 && tensor.type != 9) return true;
  int adjacent = 0;
  for (size_t dim = 0; dim < 4; ++dim) {
    if (tensor.strides[dim] < 0) return false;
    if (tensor.strides[dim] == 1) {
      ++adjacent;
    } else if (tensor.sizes[dim] > 1 && tensor.strides[dim] % 8 != 0) {
      return false;
    }
  }
  return adjacent > 0 && tensor.alignment == 16;
}

class Run {
 public:
  explicit Run(const std::map<int64_t, void*>& pointers) : pointers_(pointers) {}

  // Return false for a place that the variant pack lacks, or an address that is not aligned.
  bool run(const Operation& operation) {
    for (size_t i = 0; i + 1 < operation.tensors.size(); ++i) {
      if (!load(operation.tensors[i])) return false;
    }
    std::vector<double> result(static_cast<size_t>(operation.result().count()));
    if (operation.kind == 13) point(operation, &result);
    if (operation.kind == 19) multiply(operation, &result);
    if (operation.kind == 22) reduce(operation, &result);
    if (operation.kind == 31) reshape(operation, &result);
    if (operation.kind == 33) draw(operation, &result);
    return keep(operation.result(), std::move(result));
  }

 private:
  const std::vector<double>& of(const Tensor& tensor) const { return known_.at(tensor.id); }

  double at(const Tensor& tensor, const Sizes& place, const Sizes& of_result) const {
    return of(tensor)[static_cast<size_t>(tensor.index_of(place, of_result))];
  }

  void* pointer(const Tensor& tensor) const {
    const auto found = pointers_.find(tensor.id);
    if (found == pointers_.end()) return nullptr;
    const auto address = reinterpret_cast<int64_t>(found->second);
    return !tensor.is_by_value && address % tensor.alignment != 0 ? nullptr : found->second;
  }

  bool load(const Tensor& tensor) {
    if (known_.count(tensor.id) != 0) return true;
    if (tensor.is_virtual) return false;
    const void* from = pointer(tensor);
    if (from == nullptr) return false;
    std::vector<double>& values = known_[tensor.id];
    for (int64_t i = 0; i < tensor.count(); ++i) values.push_back(read_at(from, tensor, i));
    return true;
  }

  static double read_at(const void* from, const Tensor& tensor, int64_t index) {
    const int64_t offset = tensor.offset(tensor.place(index));
    return tensor.type == 10 ? static_cast<double>(static_cast<const int64_t*>(from)[offset])
                             : ::read(tensor.type, from, offset);
  }

  bool keep(const Tensor& tensor, std::vector<double> values) {
    if (!tensor.is_virtual) {
      void* to = pointer(tensor);
      if (to == nullptr) return false;
      for (int64_t i = 0; i < tensor.count(); ++i) {
        ::write(tensor.type, to, tensor.offset(tensor.place(i)), values[static_cast<size_t>(i)]);
      }
    }
    known_[tensor.id] = std::move(values);
    return true;
  }

  // The library's engines take care of queries that see no key: they have weights of 0.
  static double compute(int mode, double x, double b, double flag) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    switch (mode) {
      case 0:
        return x + b;
      case 1:
        return x * b;
      case 6:
        return b == 0 ? 0 : x / b;
      case 9:
        return x == -kInfinity && b == -kInfinity ? -kInfinity : x - b;
      case 13:
        return std::exp(x);
      case 15:
        return std::log(x);
      case 21:
        return x;
      case 303:
        return x >= b ? 1 : 0;
      case 601:
        return flag != 0 ? x : b;
      default:
        return std::nan("");
    }
  }

  void point(const Operation& operation, std::vector<double>* out) const {
    const int mode = operation.description->one<int>(0);
    const auto axis = static_cast<size_t>(operation.description->one<int64_t>(9));
    const Tensor& to = operation.result();
    const size_t inputs = operation.tensors.size() - 1;
    for (int64_t i = 0; i < to.count(); ++i) {
      const Sizes place = to.place(i);
      double given[3] = {};
      for (size_t input = 0; input < inputs; ++input) given[input] = at(operation.tensors[input], place, to.sizes);
      (*out)[static_cast<size_t>(i)] =
          mode == 501 ? static_cast<double>(place[axis]) : compute(mode, given[0], given[1], given[2]);
    }
  }

  void multiply(const Operation& operation, std::vector<double>* out) const {
    const Tensor &a = operation.tensors[0], &b = operation.tensors[1], &to = operation.tensors[2];
    for (int64_t i = 0; i < to.count(); ++i) {
      const Sizes place = to.place(i);
      const int64_t head = place[1] / (to.sizes[1] / b.sizes[1]);
      double sum = 0;
      for (int64_t k = 0; k < a.sizes[3]; ++k) {
        const auto left =
            static_cast<size_t>(((place[0] * a.sizes[1] + place[1]) * a.sizes[2] + place[2]) * a.sizes[3] + k);
        const auto right =
            static_cast<size_t>(((place[0] * b.sizes[1] + head) * b.sizes[2] + k) * b.sizes[3] + place[3]);
        sum += of(a)[left] * of(b)[right];
      }
      (*out)[static_cast<size_t>(i)] = sum;
    }
  }

  void reduce(const Operation& operation, std::vector<double>* out) const {
    const bool is_sum = operation.description->one<int>(1600) == 0;
    const Tensor &from = operation.tensors[0], &to = operation.tensors[1];
    std::fill(out->begin(), out->end(), is_sum ? 0 : -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < from.count(); ++i) {
      double& result = (*out)[static_cast<size_t>(to.index_of(from.place(i), from.sizes))];
      const double value = of(from)[static_cast<size_t>(i)];
      result = is_sum ? result + value : std::max(result, value);
    }
  }

  // Show the same elements in another order of dimensions.
  void reshape(const Operation& operation, std::vector<double>* out) const {
    const Tensor &from = operation.tensors[0], &to = operation.tensors[1];
    std::map<int64_t, double> memory;
    for (int64_t i = 0; i < from.count(); ++i) {
      memory[from.offset(from.place(i))] = of(from)[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < to.count(); ++i) (*out)[static_cast<size_t>(i)] = memory.at(to.offset(to.place(i)));
  }

  void draw(const Operation& operation, std::vector<double>* out) const {
    const auto seed = static_cast<uint64_t>(of(operation.tensors[0])[0]);
    const double probability = operation.description->one<double>(2305);
    for (size_t i = 0; i < out->size(); ++i) {
      uint64_t bits = (seed + i + 1) * 0x9E3779B97F4A7C15ull;
      bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9ull;
      (*out)[i] = static_cast<double>((bits ^ (bits >> 32)) >> 11) * 0x1p-53 < probability ? 1 : 0;
    }
  }

  const std::map<int64_t, void*>& pointers_;
  std::map<int64_t, std::vector<double>> known_;
};

// Read a graph's operations. Return false if one is wrong.
inline bool read_all(const Descriptor& graph, std::vector<Operation>* out) {
  for (const Descriptor* descriptor : graph.all<Descriptor*>(801)) {
    Operation operation;
    if (!descriptor->is_final || kParts.count(descriptor->kind) == 0 || !read(*descriptor, &operation)) return false;
    for (const Tensor& tensor : operation.tensors) {
      if (!tensor.is_virtual && !tensor.is_by_value && !is_memory_right(tensor)) return false;
    }
    out->push_back(operation);
  }
  return true;
}

// Heads of 200 elements have no engine.
inline bool has_engine(const std::vector<Operation>& operations) {
  return std::none_of(operations.begin(), operations.end(), [](const Operation& operation) {
    return operation.kind == 19 && operation.tensors[0].sizes[3] == 200 && operation.tensors[0].type != 0;
  });
}

// Gradients need memory; they are the graphs with reshapes.
inline bool needs_workspace(const std::vector<Operation>& operations) {
  return std::any_of(operations.begin(), operations.end(),
                     [](const Operation& operation) { return operation.kind == 31; });
}

}  // namespace graphs

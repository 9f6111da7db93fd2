// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices by cuBLASLt: aten::mm, addmm, bmm and baddbmm.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "cublaslt.h"

namespace nv {

// What a product's plan depends on: types, sizes, leading dimensions, steps, alignments, the epilogue.
using ProductKey = std::array<int64_t, 24>;

struct ProductKeyHash {
  size_t operator()(const ProductKey& key) const noexcept;
};

struct ProductPlan;

// A device's handle, and the plans that its calls have asked cuBLASLt for: a heuristic takes it 100 µs. For any threads.
class Products {
 public:
  // OB_INTERNAL, with the reason, where the library refuses. The device's context is current.
  static ob_status make(const cublaslt::Library& library, std::unique_ptr<Products>* out_products);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The plan of a key; `fill(plan)`, which gives the library's status, makes it where it is new.
  template <class Fill>
  ob_status find(const ProductKey& key, Fill&& fill, std::shared_ptr<const ProductPlan>* out_plan);

  const cublaslt::Library& library;
  const cublaslt::Handle handle;

 private:
  Products(const cublaslt::Library& given, cublaslt::Handle made) : library(given), handle(made) {}

  std::shared_mutex mutex_;
  std::unordered_map<ProductKey, std::shared_ptr<const ProductPlan>, ProductKeyHash> plans_;
};

}  // namespace nv

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

// What a product's plan depends on: types, sizes, leading dimensions,
// steps, alignments, the epilogue.
using ProductKey = std::array<int64_t, 24>;

struct ProductKeyHash {
  size_t operator()(const ProductKey& key) const noexcept;
};

struct ProductPlan;

// A device's handle, and a cache of cuBLASLt's plans: a heuristic takes 100 µs. Thread-safe.
class Products {
 public:
  // Return OB_INTERNAL, with the reason, if the library refuses. The
  // device's context must be current.
  static ob_status make(const cublaslt::Library& library, std::unique_ptr<Products>* out_products);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Return the plan of a key. For a new key, `fill(plan)` makes it
  // and returns the library's status.
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

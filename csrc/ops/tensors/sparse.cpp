// SPDX-License-Identifier: BSD-3-Clause
#include "ops/tensors/sparse.h"

#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>

namespace outboard {

bool is_sparse_coo(const at::Tensor& tensor) {
  return tensor.layout() == c10::kSparse;
}

at::Tensor convert_sparse(const at::Tensor& sparse, const std::function<at::Tensor(const at::Tensor&)>& convert) {
  const at::SparseTensorImpl* impl = at::sparse::get_sparse_impl(sparse);
  at::Tensor result = at::_sparse_coo_tensor_unsafe(convert(impl->indices()), convert(impl->values()), sparse.sizes());
  return result._coalesced_(impl->coalesced());
}

void write_back_sparse(const at::Tensor& sparse, const at::Tensor& converted,
                       const std::function<at::Tensor(const at::Tensor&)>& convert_back) {
  at::SparseTensorImpl* impl = at::sparse::get_sparse_impl(sparse);
  const at::SparseTensorImpl* from = at::sparse::get_sparse_impl(converted);
  impl->raw_resize_(from->sparse_dim(), from->dense_dim(), converted.sizes());
  at::sparse::alias_into_sparse(sparse, convert_back(from->indices()), convert_back(from->values()));
  impl->set_coalesced(from->coalesced());
}

}  // namespace outboard

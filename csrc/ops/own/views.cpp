// SPDX-License-Identifier: BSD-3-Clause
// View operators whose kernels in torch serve any device.
#include <ATen/native/TensorShape.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "ops/own/factories.h"

namespace outboard {

namespace {

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) {
  return at::native::view_as_real(self);
}

at::Tensor view_as_complex(const at::Tensor& self) {
  return at::native::view_as_complex(self);
}

// Copy at once. Torch copies on the first write, which needs pointers of its own allocators.
at::Tensor lazy_clone(const at::Tensor& self) {
  const at::Tensor bytes = at::empty({0}, self.options().dtype(c10::kByte)).set_(self.storage()).clone();
  return at::empty({0}, self.options()).set_(bytes.storage(), self.storage_offset(), self.sizes(), self.strides());
}

}  // namespace

void register_views(torch::Library& aten) {
  aten.impl("as_strided", as_strided);
  aten.impl("view", view);
  aten.impl("_reshape_alias", reshape_alias);
  aten.impl("unfold", unfold);
  aten.impl("view_as_real", view_as_real);
  aten.impl("view_as_complex", view_as_complex);
  aten.impl("_lazy_clone", lazy_clone);
}

}  // namespace outboard

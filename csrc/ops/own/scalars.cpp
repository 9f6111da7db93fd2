// SPDX-License-Identifier: BSD-3-Clause
// .item(): the only operator of a training step that waits.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_local_scalar_dense.h>

#include <cstring>

#include "core/capture.h"
#include "core/stream.h"
#include "core/sync_debug.h"
#include "ops/call/observe.h"
#include "ops/call/transfer.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  Stream& stream = current_stream(self.device().index());
  refuse_in_capture(stream, "item(), for whose result the caller waits,");
  note_sync("item()");
  if (Observer* active = observer(); C10_UNLIKELY(active != nullptr)) {
    observe_tensors(*active, "aten::_local_scalar_dense", self.device().index(), {}, self);
  }
  const at::Tensor host = at::detail::empty_cpu({}, self.scalar_type());
  void* element = nullptr;
  if (storage_host_address(self.storage(), &element) && element != nullptr) {
    // Read directly, without a copy on the stream: waiting for the copy
    // would take one more thread switch.
    count_wait("aten::_local_scalar_dense");
    synchronize_stream(stream);
    const ptrdiff_t offset =
        static_cast<const char*>(self.const_data_ptr()) - static_cast<const char*>(self.storage().data());
    std::memcpy(host.data_ptr(), static_cast<const char*>(element) + offset, self.element_size());
  } else {
    copy_bytes(stream, host.data_ptr(), host.device(), self.const_data_ptr(), self.device(), self.element_size());
    wait_for_copy(stream, host, "aten::_local_scalar_dense");
  }
  return at::_local_scalar_dense(host);
}

}  // namespace

void register_scalars(torch::Library& aten) {
  aten.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace outboard

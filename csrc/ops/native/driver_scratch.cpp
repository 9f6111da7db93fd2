// SPDX-License-Identifier: BSD-3-Clause
#include "ops/native/driver_scratch.h"

#include <ATen/ops/scalar_tensor.h>

#include <string>

#include "core/driver.h"
#include "core/error.h"
#include "core/queue.h"
#include "memory/caching_allocator.h"

namespace outboard {

template <typename Body>
ob_status Scratch::guarded(const char* wanted, Body&& body) {
  wanted_ = wanted;
  try {
    body();
    return OB_OK;
  } catch (const c10::OutOfMemoryError&) {
    failure_ = std::current_exception();
    return OB_OUT_OF_MEMORY;
  } catch (...) {
    failure_ = std::current_exception();
    return OB_FAILED_PRECONDITION;
  }
}

ob_status Scratch::take(void* context, uint64_t bytes, uint64_t* out_address) {
  auto& self = *static_cast<Scratch*>(context);
  return self.guarded("scratch memory", [&] {
    *out_address = self.get(bytes);
    self.sizes_.push_back(bytes);
  });
}

ob_status Scratch::draw(void* context, uint64_t address) {
  auto& self = *static_cast<Scratch*>(context);
  return self.guarded("a seed", [&] {
    self.store(self.seed(), address);
    self.has_drawn_ = true;
  });
}

void Scratch::check(ob_status status) const {
  if (C10_LIKELY(status == OB_OK || failure_ == nullptr)) {
    outboard::check(status, op_.name.c_str(), stream_.device);
    return;
  }
  try {
    std::rethrow_exception(failure_);
  } catch (c10::Error& error) {
    error.add_context("The driver's kernel for " + op_.name + " requested " + wanted_ + ".");
    throw;
  }
}

uint64_t Scratch::get(uint64_t bytes) {
  return reinterpret_cast<uint64_t>(held_.emplace_back(allocate(stream_, bytes)).get());
}

at::Tensor Scratch::seed() {
  check_draw();
  return seed_for(*call_, stream_);
}

void Scratch::check_draw() const {
  TORCH_CHECK_VALUE(op_.is_random && !has_drawn_, "The driver's kernel for ", op_.name, " draws a seed",
                    has_drawn_ ? " twice." : ", but torch does not tag the operator as random.");
}

void Scratch::store(const at::Tensor& seed, uint64_t address) {
  const void* data = seed.const_data_ptr();
  if (!seed.is_cpu()) {
    ob_copy copy{};
    copy.struct_size = sizeof(copy);
    copy.dst = address;
    copy.src = reinterpret_cast<uint64_t>(data);
    copy.bytes = sizeof(int64_t);
    copy.dst_device = copy.src_device = stream_.device;
    queue_copy(stream_, copy);
  } else if (!queue_fill(stream_, address, data, sizeof(int64_t), 1)) {
    raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
          "the kernel of driver '" + driver_name() + "' for " + op_.name +
              " draws a seed, which needs the entry fill_async");
  }
}

at::Tensor ReservedScratch::seed() {
  check_draw();
  return at::scalar_tensor(seed_when_queued(drawn_), at::TensorOptions(c10::kLong));
}

uint64_t ReservedScratch::get(uint64_t bytes) {
  const size_t at = sizes().size();
  TORCH_CHECK(at < reserved_.size() && bytes <= reserved_[at].bytes, "In a graph's replay, a kernel requested ", bytes,
              " bytes of scratch memory, but in the capture the same call requested ",
              at < reserved_.size() ? std::to_string(reserved_[at].bytes) + " bytes at this point"
                                    : "memory " + std::to_string(reserved_.size()) + " times",
              ". The size of a kernel's scratch memory may depend only on dtypes, sizes, strides and numbers.");
  return reserved_[at].address;
}

}  // namespace outboard

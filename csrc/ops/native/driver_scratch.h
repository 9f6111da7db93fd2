// SPDX-License-Identifier: BSD-3-Clause
// What a driver's kernel takes from the core during its call: memory, and a seed.
#pragma once

#include <ATen/ops/scalar_tensor.h>

#include <exception>
#include <string>
#include <vector>

#include "core/driver.h"
#include "core/error.h"
#include "core/queue.h"
#include "memory/caching_allocator.h"
#include "ops/call/call.h"
#include "ops/call/random.h"

namespace outboard {

// The memory that a kernel requests during its call, from the stream's pool: the next owner comes behind the call's
// work. In a driver's capture it belongs to the graph. It also draws the call's seed.
class Scratch {
 public:
  // `call` is null in a replay.
  Scratch(Stream& stream, const Operator& op, const Call* call) : stream_(stream), op_(op), call_(call) {}
  virtual ~Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Like an entry, throws no exceptions into the driver's code.
  static ob_status take(void* context, uint64_t bytes, uint64_t* out_address) {
    auto& self = *static_cast<Scratch*>(context);
    return self.guarded("scratch memory", [&] {
      *out_address = self.get(bytes);
      self.sizes_.push_back(bytes);
    });
  }

  // Do the same for a seed.
  static ob_status draw(void* context, uint64_t address) {
    auto& self = *static_cast<Scratch*>(context);
    return self.guarded("a seed", [&] {
      self.store(self.seed(), address);
      self.has_drawn_ = true;
    });
  }

  // Raise the error of memory that the kernel could not get, if it failed because of that.
  void check(ob_status status) const {
    if (C10_LIKELY(status == OB_OK || failure_ == nullptr)) {
      outboard::check(status, op_.name.c_str(), stream_.device);
      return;
    }
    try {
      std::rethrow_exception(failure_);
    } catch (c10::Error& error) {
      error.add_context("The driver's kernel for " + op_.name + " asked for it, as " + wanted_ + ".");
      throw;
    }
  }

  bool has_failed() const { return failure_ != nullptr; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 protected:
  virtual uint64_t get(uint64_t bytes) {
    return reinterpret_cast<uint64_t>(held_.emplace_back(allocate(stream_, bytes)).get());
  }

  // Return the seed, an int64 on the CPU or on the device.
  virtual at::Tensor seed() {
    check_draw();
    return seed_for(*call_, stream_);
  }

  void check_draw() const {
    TORCH_CHECK_VALUE(op_.is_random && !has_drawn_, "The driver's kernel for ", op_.name, " draws a seed",
                      has_drawn_ ? " twice." : ", but torch does not tag the operator as random.");
  }

 private:
  template <typename Body>
  ob_status guarded(const char* wanted, Body&& body) {
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

  void store(const at::Tensor& seed, uint64_t address) {
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

  Stream& stream_;
  const Operator& op_;
  const Call* call_;
  const char* wanted_ = "";
  bool has_drawn_ = false;
  std::vector<c10::DataPtr> held_;
  std::vector<uint64_t> sizes_;
  std::exception_ptr failure_;
};

// The memory of a replay: what the graph's pool reserved for it when the call was recorded.
struct Reserved {
  uint64_t address;
  uint64_t bytes;
};

class ReservedScratch final : public Scratch {
 public:
  ReservedScratch(Stream& stream, const Operator& op, const std::vector<Reserved>& reserved, const RandomDraw& drawn)
      : Scratch(stream, op, nullptr), reserved_(reserved), drawn_(drawn) {}

 private:
  at::Tensor seed() override {
    check_draw();
    return at::scalar_tensor(seed_of(drawn_), at::TensorOptions(c10::kLong));
  }

  uint64_t get(uint64_t bytes) override {
    const size_t at = sizes().size();
    TORCH_CHECK(at < reserved_.size() && bytes <= reserved_[at].bytes, "In a replay of a graph, ", bytes,
                " bytes are asked for; when it was recorded, calls alike had asked for ",
                at < reserved_.size() ? std::to_string(reserved_[at].bytes) + " bytes there"
                                      : "memory " + std::to_string(reserved_.size()) + " times",
                ". What a kernel asks for must depend on dtypes, sizes, strides and numbers alone.");
    return reserved_[at].address;
  }

  const std::vector<Reserved>& reserved_;
  const RandomDraw drawn_;
};

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Resources that a driver's kernel requests from the core during its call: memory and a seed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch_outboard/driver.h>

#include <exception>
#include <vector>

#include "core/stream.h"
#include "ops/call/call.h"
#include "ops/call/random.h"

namespace outboard {

// The memory that a kernel requests during its call, from the stream's pool: the next owner's work
// is ordered after the call's work. In a driver's capture, the memory belongs to the graph. Also
// draws the call's seed.
class Scratch {
 public:
  // `call` is null in a replay.
  Scratch(Stream& stream, const Operator& op, const Call* call) : stream_(stream), op_(op), call_(call) {}
  virtual ~Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Like an entry, throws no exceptions into the driver's code.
  static ob_status take(void* context, uint64_t bytes, uint64_t* out_address);
  // Do the same for a seed.
  static ob_status draw(void* context, uint64_t address);

  // Raise the allocation error, if the kernel failed because it could not get memory.
  void check(ob_status status) const;

  bool has_failed() const { return failure_ != nullptr; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 protected:
  virtual uint64_t get(uint64_t bytes);
  // Return the seed, an int64 on the CPU or on the device.
  virtual at::Tensor seed();
  void check_draw() const;

 private:
  template <typename Body>
  ob_status guarded(const char* wanted, Body&& body);
  void store(const at::Tensor& seed, uint64_t address);

  Stream& stream_;
  const Operator& op_;
  const Call* call_;
  const char* wanted_ = "";
  bool has_drawn_ = false;
  std::vector<c10::DataPtr> held_;
  std::vector<uint64_t> sizes_;
  std::exception_ptr failure_;
};

// The memory of a replay, reserved by the graph's pool when the call was recorded.
struct Reserved {
  uint64_t address;
  uint64_t bytes;
};

class ReservedScratch final : public Scratch {
 public:
  ReservedScratch(Stream& stream, const Operator& op, const std::vector<Reserved>& reserved, const RandomDraw& drawn)
      : Scratch(stream, op, nullptr), reserved_(reserved), drawn_(drawn) {}

 private:
  at::Tensor seed() override;
  uint64_t get(uint64_t bytes) override;

  const std::vector<Reserved>& reserved_;
  const RandomDraw drawn_;
};

}  // namespace outboard

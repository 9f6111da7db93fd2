// SPDX-License-Identifier: BSD-3-Clause
// Kernels in a driver's own language: a program, the kernel's name in it, the kinds of its
// arguments, and formulas for the number of threads.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <torch_outboard/driver.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/export.h"
#include "core/stream.h"
#include "kernels/argument_kind.h"
#include "kernels/expression.h"
#include "kernels/program.h"

namespace outboard::kernels {

// Formulas over the arguments: a2 is the third argument, which must be an integer.
struct Geometry {
  std::array<std::string, 3> grid;  // blocks
  std::array<std::string, 3> block;  // threads of a block
  std::string local_bytes;  // dynamic local (shared) memory of a block
};

// The evaluated formulas of a geometry.
struct LaunchSizes {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t local_bytes;
};

class OUTBOARD_API DeviceKernel {
 public:
  // Create a kernel. `arguments` has a letter for each argument (kernels/argument_kind.h). A
  // checking kernel has a record among its arguments, through which it reports a failure.
  //
  // `checks` describes each check, by its number: "index" and the operator's name, or
  // "assert" and a message. Raise ValueError for other letters and checks, for checks without
  // a record, and for invalid formulas.
  DeviceKernel(const std::string& name, ProgramText program, std::string entry, std::string_view arguments,
               const Geometry& geometry, const std::vector<std::string>& checks = {});

  const std::string& name() const noexcept { return kernel_.name(); }
  const ArgumentKinds& arguments() const noexcept { return arguments_; }
  const ArgumentKinds& passed() const noexcept { return passed_; }  // the arguments that calls pass

  // Build the program for the device, unless it is already built. Waits for the compiler.
  void build(c10::DeviceIndex device) const { static_cast<void>(kernel_.handle(device)); }
  // See ProgramKernel.
  bool was_refused(c10::DeviceIndex device) const { return kernel_.was_refused(device); }
  void note_refused(c10::DeviceIndex device) const { kernel_.note_refused(device); }
  // Start building the program on the pool. Launches are queued meanwhile, if kernels/builds.h
  // allows it. Return false if there is no pool.
  bool start(c10::DeviceIndex device, const std::function<void()>& on_refusal) const {
    return kernel_.start(device, on_refusal);
  }

  // Queue a launch on the stream, or in the graph that the stream captures. `words` are
  // addresses and the bits of numbers, one for each argument that is passed. A grid of no blocks
  // queues nothing. Raise ValueError with the kernel's name for a geometry below 0 or beyond 32
  // bits, and if the driver refuses it.
  void launch(Stream& stream, c10::ArrayRef<uint64_t> words) const { launch(stream, words, sizes(words)); }

  // The same in two steps: compute the sizes, which depend only on integers (addresses are not
  // read), then launch.
  LaunchSizes sizes(c10::ArrayRef<uint64_t> words) const;
  void launch(Stream& stream, c10::ArrayRef<uint64_t> words, const LaunchSizes& sizes) const;

 private:
  static constexpr size_t kNoRecord = static_cast<size_t>(-1);

  bool try_add_pending(Stream& stream, ob_launch& launch) const;
  void read_checks(const std::vector<std::string>& checks);
  void fill_arguments(c10::ArrayRef<uint64_t> words, uint32_t local_bytes, ob_kernel_arg* args) const;
  void check_formula(const Expression& formula) const;
  uint32_t size(const Expression& formula, c10::ArrayRef<int64_t> numbers, const char* what) const;

  ProgramKernel kernel_;
  ArgumentKinds arguments_;
  ArgumentKinds passed_;
  bool has_local_argument_ = false;
  bool follows_addresses_ = false;
  size_t record_ = kNoRecord;  // the record's position among the arguments
  size_t taken_ = 0;  // number of arguments that the kernel takes; the record counts once
  uint32_t checked_kernel_ = 0;  // the number of its checks, if it has a record
  std::array<Expression, 3> grid_;
  std::array<Expression, 3> block_;
  Expression local_bytes_;
};

}  // namespace outboard::kernels

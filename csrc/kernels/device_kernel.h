// SPDX-License-Identifier: BSD-3-Clause
// Kernels in a driver's own language: a program, the kernel's name in it, the kinds of its arguments, and formulas for
// the number of threads.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <torch_outboard/driver.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/export.h"
#include "core/stream.h"
#include "kernels/expression.h"
#include "kernels/program.h"

namespace outboard::kernels {

// Formulas over the arguments' numbers: a2 is the third argument, which must be an integer.
struct Geometry {
  std::array<std::string, 3> grid;  // blocks
  std::array<std::string, 3> block;  // threads of a block
  std::string local_bytes;  // dynamic local (shared) memory of a block
};

// Return true if calls pass a value for an argument of this letter.
OUTBOARD_API bool is_passed(char letter) noexcept;

// A geometry with its formulas computed.
struct LaunchSizes {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t local_bytes;
};

class OUTBOARD_API DeviceKernel {
 public:
  // Create a kernel. `arguments` has a letter for each argument:
  //
  //  - 'r' and 'w': an address.
  //  - 't': the address of a table of addresses, which the kernel uses too. Only for devices whose properties have
  //    `follows_addresses`.
  //  - 'i' an int64_t, 'j' an int32_t, 'f' a float, 'd' a double.
  //  - 'h' an int16_t and 'b' an int8_t, which formulas do not read.
  //  - 'k': an integer that formulas read and the kernel does not take; 'n': an address of 0, which calls do not pass.
  //  - 'l': local memory, for languages that take it as an argument. Calls pass no value. It has `local_bytes` of the
  //    geometry, which otherwise belong to the launch.
  //  - 'e': for a kernel that checks. Calls pass no value. It becomes three arguments of the driver's launch, through
  //    which the kernel reports a failure (core/kernel_failure.h).
  //
  // `checks` describes each check, by its number: "index" and the operator's name, or "assert" and a message. Raise
  // ValueError for other letters and checks, for checks without 'e', and for invalid formulas.
  DeviceKernel(const std::string& name, ProgramText program, std::string entry, std::string arguments,
               const Geometry& geometry, const std::vector<std::string>& checks = {});

  const std::string& name() const noexcept { return kernel_.name(); }
  const std::string& arguments() const noexcept { return arguments_; }

  // Build the program for the device, if it was not built yet. Waits for the compiler.
  void build(c10::DeviceIndex device) const { static_cast<void>(kernel_.handle(device)); }

  // Queue a launch on the stream, or in the graph that the stream captures. `words` are addresses and the bits of
  // numbers, one for each letter that is passed. A grid of no blocks queues nothing. Raise ValueError with the kernel's
  // name for a geometry below 0 or beyond 32 bits, and if the driver refuses it.
  void launch(Stream& stream, c10::ArrayRef<uint64_t> words) const { launch(stream, words, sizes(words)); }

  // Do the same in two parts: compute what depends on the integers alone (addresses are not read), and launch.
  LaunchSizes sizes(c10::ArrayRef<uint64_t> words) const;
  void launch(Stream& stream, c10::ArrayRef<uint64_t> words, const LaunchSizes& sizes) const;

 private:
  static constexpr size_t kNoRecord = static_cast<size_t>(-1);

  void read_checks(const std::vector<std::string>& checks);
  void fill_arguments(c10::ArrayRef<uint64_t> words, uint32_t local_bytes, ob_kernel_arg* args) const;
  void check_formula(const Expression& formula) const;
  uint32_t size(const Expression& formula, c10::ArrayRef<int64_t> numbers, const char* what) const;

  ProgramKernel kernel_;
  std::string arguments_;
  bool has_local_argument_ = false;
  bool follows_addresses_ = false;
  size_t record_ = kNoRecord;  // index of 'e'
  size_t taken_ = 0;  // letters for which the kernel takes an argument, 'e' counted once
  uint32_t checked_kernel_ = 0;  // the number of its checks, if it has 'e'
  std::array<Expression, 3> grid_;
  std::array<Expression, 3> block_;
  Expression local_bytes_;
};

}  // namespace outboard::kernels

// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/device_kernel.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <limits>
#include <utility>

#include "core/queue.h"

namespace outboard::kernels {

namespace {

constexpr size_t kInlineArguments = 12;
constexpr char kLetters[] = "rwijfdl";
constexpr char kLocal = 'l';

bool is_integer(char letter) {
  return letter == 'i' || letter == 'j';
}

uint32_t bytes_of(char letter) {
  return letter == 'j' || letter == 'f' ? 4 : 8;
}

}  // namespace

DeviceKernel::DeviceKernel(std::string name, ProgramText program, std::string entry, std::string arguments,
                           const Geometry& geometry)
    : name_(std::move(name)),
      program_(std::move(program)),
      entry_(std::move(entry)),
      arguments_(std::move(arguments)),
      grid_{Expression(geometry.grid[0]), Expression(geometry.grid[1]), Expression(geometry.grid[2])},
      block_{Expression(geometry.block[0]), Expression(geometry.block[1]), Expression(geometry.block[2])},
      local_bytes_(geometry.local_bytes) {
  TORCH_CHECK_VALUE(arguments_.find_first_not_of(kLetters) == std::string::npos, "the arguments of the kernel ", name_,
                    " are letters of '", kLetters, "', not '", arguments_, "'");
  const size_t local = arguments_.find(kLocal);
  has_local_argument_ = local != std::string::npos;
  TORCH_CHECK_VALUE(!has_local_argument_ || arguments_.find(kLocal, local + 1) == std::string::npos, "the kernel ",
                    name_, " has several arguments of local memory, and a launch knows the bytes of one");
  for (const auto* formulas : {&grid_, &block_}) {
    for (const Expression& formula : *formulas) {
      check_formula(formula);
    }
  }
  check_formula(local_bytes_);
}

void DeviceKernel::check_formula(const Expression& formula) const {
  for (const size_t value : formula.values()) {
    TORCH_CHECK_VALUE(value < arguments_.size() && is_integer(arguments_[value]), "the formula '", formula.text(),
                      "' of the kernel ", name_, " reads a", value, ", and its arguments '", arguments_,
                      "' have no integer there");
  }
}

uint32_t DeviceKernel::size(const Expression& formula, c10::ArrayRef<int64_t> numbers, const char* what) const {
  const int64_t number = formula.evaluate(numbers);
  TORCH_CHECK_VALUE(number >= 0 && number <= std::numeric_limits<uint32_t>::max(), "the kernel ", name_, " has ",
                    number, " ", what, ", by '", formula.text(), "': it must be a number of 32 bits");
  return static_cast<uint32_t>(number);
}

DeviceKernel::Sizes DeviceKernel::sizes(c10::ArrayRef<uint64_t> words) const {
  c10::SmallVector<int64_t, kInlineArguments> numbers;
  size_t word = 0;
  for (const char letter : arguments_) {
    const int64_t number = letter == kLocal ? 0 : static_cast<int64_t>(words[word++]);
    numbers.push_back(letter == 'j' ? static_cast<int32_t>(number) : number);
  }
  Sizes result{};
  for (size_t i = 0; i < grid_.size(); ++i) {
    result.grid[i] = size(grid_[i], numbers, "blocks in a dimension");
    result.block[i] = size(block_[i], numbers, "threads in a dimension of a block");
  }
  result.local_bytes = size(local_bytes_, numbers, "bytes of local memory");
  return result;
}

uint64_t DeviceKernel::handle(c10::DeviceIndex device) const {
  std::atomic<uint64_t>& known = handles_[static_cast<size_t>(device)];
  uint64_t kernel = known.load(std::memory_order_acquire);
  if (C10_UNLIKELY(kernel == 0)) {
    kernel = find_kernel(device, program_, entry_, name_);
    known.store(kernel, std::memory_order_release);
  }
  return kernel;
}

void DeviceKernel::launch(Stream& stream, c10::ArrayRef<uint64_t> words) const {
  const Sizes sizes = this->sizes(words);
  if (sizes.grid[0] == 0 || sizes.grid[1] == 0 || sizes.grid[2] == 0) {
    return;
  }
  c10::SmallVector<ob_kernel_arg, kInlineArguments> args(arguments_.size(), ob_kernel_arg{});
  size_t word = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    ob_kernel_arg& arg = args[i];
    arg.struct_size = sizeof(arg);
    const char letter = arguments_[i];
    if (letter == kLocal) {
      arg.kind = OB_ARG_LOCAL;
      arg.size = sizes.local_bytes;
    } else if (letter == 'r' || letter == 'w') {
      arg.kind = OB_ARG_POINTER;
      arg.pointer = words[word++];
    } else {
      arg.kind = OB_ARG_VALUE;
      arg.size = bytes_of(letter);
      arg.value = &words[word++];  // its first bytes, as machines that have devices are little-endian
    }
  }
  ob_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.kernel = handle(stream.device);
  for (size_t i = 0; i < 3; ++i) {
    launch.grid[i] = sizes.grid[i];
    launch.block[i] = sizes.block[i];
  }
  launch.shared_memory = has_local_argument_ ? 0 : sizes.local_bytes;
  launch.arg_count = args.size();
  launch.arg_stride = sizeof(ob_kernel_arg);
  launch.args = args.data();
  queue_launch(stream, launch, name_.c_str());
}

}  // namespace outboard::kernels

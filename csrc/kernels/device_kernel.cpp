// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/device_kernel.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "core/kernel_failure.h"
#include "core/queue.h"

namespace outboard::kernels {

namespace {

constexpr size_t kInlineArguments = 12;
constexpr char kLetters[] = "rwtijhbkfdlne";
constexpr char kKept = 'k';
constexpr char kLocal = 'l';
constexpr char kNull = 'n';
constexpr char kRecord = 'e';
constexpr char kTable = 't';

// The first word of a check.
constexpr std::pair<std::string_view, KernelCheck::Kind> kChecks[] = {
    {"index", KernelCheck::Kind::Index},
    {"range", KernelCheck::Kind::Range},
    {"assert", KernelCheck::Kind::Assertion},
};

bool is_pointer(char letter) {
  return letter == 'r' || letter == 'w' || letter == kTable;
}

bool is_integer(char letter) {
  return letter == 'i' || letter == 'j' || letter == kKept;
}

uint32_t bytes_of(char letter) {
  switch (letter) {
    case 'b':
      return 1;
    case 'h':
      return 2;
    case 'j':
    case 'f':
      return 4;
    default:
      return 8;
  }
}

}  // namespace

bool is_passed(char letter) noexcept {
  return letter != kLocal && letter != kNull && letter != kRecord;
}

DeviceKernel::DeviceKernel(const std::string& name, ProgramText program, std::string entry, std::string arguments,
                           const Geometry& geometry, const std::vector<std::string>& checks)
    : kernel_(name, std::move(program), std::move(entry)),
      arguments_(std::move(arguments)),
      grid_{Expression(geometry.grid[0]), Expression(geometry.grid[1]), Expression(geometry.grid[2])},
      block_{Expression(geometry.block[0]), Expression(geometry.block[1]), Expression(geometry.block[2])},
      local_bytes_(geometry.local_bytes) {
  TORCH_CHECK_VALUE(arguments_.find_first_not_of(kLetters) == std::string::npos, "the arguments of the kernel ", name,
                    " are letters of '", kLetters, "', not '", arguments_, "'");
  const size_t local = arguments_.find(kLocal);
  has_local_argument_ = local != std::string::npos;
  follows_addresses_ = arguments_.find(kTable) != std::string::npos;
  TORCH_CHECK_VALUE(!has_local_argument_ || arguments_.find(kLocal, local + 1) == std::string::npos, "the kernel ",
                    name, " has several arguments of local memory, and a launch knows the bytes of one");
  for (const auto* formulas : {&grid_, &block_}) {
    for (const Expression& formula : *formulas) {
      check_formula(formula);
    }
  }
  check_formula(local_bytes_);
  read_checks(checks);
  taken_ = arguments_.size() - static_cast<size_t>(std::ranges::count(arguments_, kKept));
}

void DeviceKernel::read_checks(const std::vector<std::string>& checks) {
  record_ = arguments_.find(kRecord);
  TORCH_CHECK_VALUE((record_ == kNoRecord) == checks.empty() && std::ranges::count(arguments_, kRecord) <= 1,
                    "the kernel ", name(), " has ", checks.size(), " checks and the arguments '", arguments_,
                    "': what checks something has one argument 'e'");
  if (record_ == kNoRecord) {
    return;
  }
  std::vector<KernelCheck> known;
  for (const std::string& check : checks) {
    const size_t space = check.find(' ');
    const std::string word = check.substr(0, space);
    const auto* kind = std::ranges::find(kChecks, word, &std::pair<std::string_view, KernelCheck::Kind>::first);
    TORCH_CHECK_VALUE(space != std::string::npos && kind != std::end(kChecks), "the kernel ", name(),
                      " has the check '", check,
                      "': it is 'index' or 'range' and an operator, or 'assert' and a message");
    known.push_back({kind->second, check.substr(space + 1)});
  }
  checked_kernel_ = add_checked_kernel(name(), std::move(known));
}

void DeviceKernel::check_formula(const Expression& formula) const {
  for (const size_t value : formula.values()) {
    TORCH_CHECK_VALUE(value < arguments_.size() && is_integer(arguments_[value]), "the formula '", formula.text(),
                      "' of the kernel ", name(), " reads a", value, ", and its arguments '", arguments_,
                      "' have no integer there");
  }
}

uint32_t DeviceKernel::size(const Expression& formula, c10::ArrayRef<int64_t> numbers, const char* what) const {
  const int64_t number = formula.evaluate(numbers);
  TORCH_CHECK_VALUE(number >= 0 && number <= std::numeric_limits<uint32_t>::max(), "the kernel ", name(), " has ",
                    number, " ", what, ", by '", formula.text(), "': it must be a number of 32 bits");
  return static_cast<uint32_t>(number);
}

LaunchSizes DeviceKernel::sizes(c10::ArrayRef<uint64_t> words) const {
  c10::SmallVector<int64_t, kInlineArguments> numbers;
  size_t word = 0;
  for (const char letter : arguments_) {
    const int64_t number = !is_passed(letter) ? 0 : static_cast<int64_t>(words[word++]);
    numbers.push_back(letter == 'j' ? static_cast<int32_t>(number) : number);
  }
  LaunchSizes result{};
  for (size_t i = 0; i < grid_.size(); ++i) {
    result.grid[i] = size(grid_[i], numbers, "blocks in a dimension");
    result.block[i] = size(block_[i], numbers, "threads in a dimension of a block");
  }
  result.local_bytes = size(local_bytes_, numbers, "bytes of local memory");
  return result;
}

void DeviceKernel::fill_arguments(c10::ArrayRef<uint64_t> words, uint32_t local_bytes, ob_kernel_arg* args) const {
  size_t word = 0;
  for (const char letter : arguments_) {
    if (letter == kRecord) {
      args += RecordArguments::kCount;
      continue;
    }
    if (letter == kKept) {
      ++word;
      continue;
    }
    ob_kernel_arg& arg = *args++;
    arg.struct_size = sizeof(arg);
    if (letter == kLocal) {
      arg.kind = OB_ARG_LOCAL;
      arg.size = local_bytes;
    } else if (letter == kNull) {
      arg.kind = OB_ARG_POINTER;
    } else if (is_pointer(letter)) {
      arg.kind = OB_ARG_POINTER;
      arg.pointer = words[word++];
    } else {
      arg.kind = OB_ARG_VALUE;
      arg.size = bytes_of(letter);
      arg.value = &words[word++];  // its first bytes: machines with devices are little-endian
    }
  }
}

void DeviceKernel::launch(Stream& stream, c10::ArrayRef<uint64_t> words, const LaunchSizes& sizes) const {
  if (sizes.grid[0] == 0 || sizes.grid[1] == 0 || sizes.grid[2] == 0) {
    return;
  }
  const bool is_checked = record_ != kNoRecord;
  const size_t count = taken_ + (is_checked ? RecordArguments::kCount - 1 : 0);
  c10::SmallVector<ob_kernel_arg, kInlineArguments> args;
  while (args.size() < count) {
    args.push_back(ob_kernel_arg{});
  }
  fill_arguments(words, sizes.local_bytes, args.data());
  ob_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.kernel = kernel_.handle(stream.device);
  for (size_t i = 0; i < 3; ++i) {
    launch.grid[i] = sizes.grid[i];
    launch.block[i] = sizes.block[i];
  }
  launch.shared_memory = has_local_argument_ ? 0 : sizes.local_bytes;
  launch.arg_count = args.size();
  launch.arg_stride = sizeof(ob_kernel_arg);
  launch.args = args.data();
  launch.follows_addresses = follows_addresses_ ? 1 : 0;
  if (C10_LIKELY(!is_checked)) {
    queue_launch(stream, launch, name().c_str());
  } else {
    queue_checked_launch(stream, launch, args.data(), name().c_str(), {record_, checked_kernel_});
  }
}

}  // namespace outboard::kernels

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
#include "kernels/builds.h"

namespace outboard::kernels {

namespace {

constexpr size_t kInlineArguments = 12;
// The first word of a check.
constexpr std::pair<std::string_view, KernelCheck::Kind> kChecks[] = {
    {"index", KernelCheck::Kind::Index},
    {"range", KernelCheck::Kind::Range},
    {"assert", KernelCheck::Kind::Assertion},
};

}  // namespace

DeviceKernel::DeviceKernel(const std::string& name, ProgramText program, std::string entry, std::string_view arguments,
                           const Geometry& geometry, const std::vector<std::string>& checks)
    : kernel_(name, std::move(program), std::move(entry)),
      arguments_(read_kinds(name, arguments)),
      passed_(kernels::passed(arguments_)),
      grid_{Expression(geometry.grid[0]), Expression(geometry.grid[1]), Expression(geometry.grid[2])},
      block_{Expression(geometry.block[0]), Expression(geometry.block[1]), Expression(geometry.block[2])},
      local_bytes_(geometry.local_bytes) {
  const auto local = std::ranges::count(arguments_, ArgumentKind::Local);
  has_local_argument_ = local > 0;
  follows_addresses_ = std::ranges::count(arguments_, ArgumentKind::Table) > 0;
  TORCH_CHECK_VALUE(local <= 1, "the kernel ", name,
                    " has several arguments of local memory, but a launch passes the size of only one");
  for (const auto* formulas : {&grid_, &block_}) {
    for (const Expression& formula : *formulas) {
      check_formula(formula);
    }
  }
  check_formula(local_bytes_);
  read_checks(checks);
  taken_ = arguments_.size() - static_cast<size_t>(std::ranges::count(arguments_, ArgumentKind::Kept));
}

void DeviceKernel::read_checks(const std::vector<std::string>& checks) {
  const auto records = std::ranges::count(arguments_, ArgumentKind::Record);
  TORCH_CHECK_VALUE((records == 0) == checks.empty() && records <= 1, "the kernel ", name(), " has ", checks.size(),
                    " checks and the arguments '", letters_of(arguments_),
                    "': a kernel with checks needs one argument '", static_cast<char>(ArgumentKind::Record),
                    "', and a kernel without checks none");
  if (records == 0) {
    return;
  }
  record_ = static_cast<size_t>(std::ranges::find(arguments_, ArgumentKind::Record) - arguments_.begin());
  std::vector<KernelCheck> known;
  for (const std::string& check : checks) {
    const size_t space = check.find(' ');
    const std::string word = check.substr(0, space);
    const auto* kind = std::ranges::find(kChecks, word, &std::pair<std::string_view, KernelCheck::Kind>::first);
    TORCH_CHECK_VALUE(space != std::string::npos && kind != std::end(kChecks), "the kernel ", name(),
                      " has the check '", check,
                      "': a check is 'index' or 'range' followed by an operator, or 'assert' followed by a message");
    known.push_back({kind->second, check.substr(space + 1)});
  }
  checked_kernel_ = add_checked_kernel(name(), std::move(known));
}

void DeviceKernel::check_formula(const Expression& formula) const {
  for (const size_t value : formula.values()) {
    TORCH_CHECK_VALUE(value < arguments_.size() && info_of(arguments_[value]).is_integer, "the formula '",
                      formula.text(), "' of the kernel ", name(), " reads a", value, ", but its arguments '",
                      letters_of(arguments_), "' have no integer at that index");
  }
}

uint32_t DeviceKernel::size(const Expression& formula, c10::ArrayRef<int64_t> numbers, const char* what) const {
  const int64_t number = formula.evaluate(numbers);
  TORCH_CHECK_VALUE(number >= 0 && number <= std::numeric_limits<uint32_t>::max(), "the kernel ", name(), " has ",
                    number, " ", what, ", computed by '", formula.text(), "': the number must fit in 32 bits");
  return static_cast<uint32_t>(number);
}

LaunchSizes DeviceKernel::sizes(c10::ArrayRef<uint64_t> words) const {
  c10::SmallVector<int64_t, kInlineArguments> numbers;
  size_t word = 0;
  for (const ArgumentKind kind : arguments_) {
    const int64_t number = !info_of(kind).is_passed ? 0 : static_cast<int64_t>(words[word++]);
    numbers.push_back(kind == ArgumentKind::Int32 ? static_cast<int32_t>(number) : number);
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
  for (const ArgumentKind kind : arguments_) {
    if (kind == ArgumentKind::Record) {
      args += RecordArguments::kCount;
      continue;
    }
    if (kind == ArgumentKind::Kept) {
      ++word;
      continue;
    }
    const ArgumentKindInfo& info = info_of(kind);
    ob_kernel_arg& arg = *args++;
    arg.struct_size = sizeof(arg);
    if (kind == ArgumentKind::Local) {
      arg.kind = OB_ARG_LOCAL;
      arg.size = local_bytes;
    } else if (info.is_pointer) {
      arg.kind = OB_ARG_POINTER;
      arg.pointer = info.is_passed ? words[word++] : 0;
    } else {
      arg.kind = OB_ARG_VALUE;
      arg.size = info.bytes;
      arg.value = &words[word++];  // its first bytes: machines with devices are little-endian
    }
  }
}

// Queue a launch that waits for its program or for other launches that do. Return false, with the
// kernel built, if nothing needs to wait or the launch may not.
bool DeviceKernel::try_add_pending(Stream& stream, ob_launch& launch) const {
  if (may_build_in_background(stream)) {
    const std::shared_ptr<const BackgroundBuild> build =
        launch.kernel == 0 ? kernel_.find_background_build(stream.device) : nullptr;
    launch.kernel = kernel_.known(stream.device);
    if (build != nullptr || (launch.kernel != 0 && has_pending(stream))) {
      const RecordArguments record{record_, checked_kernel_};
      queue_awaited_launch(stream, launch, build, name().c_str(), record_ != kNoRecord ? &record : nullptr);
      return true;
    }
  }
  launch.kernel = kernel_.handle(stream.device);
  return false;
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
  launch.kernel = kernel_.known(stream.device);
  for (size_t i = 0; i < 3; ++i) {
    launch.grid[i] = sizes.grid[i];
    launch.block[i] = sizes.block[i];
  }
  launch.shared_memory = has_local_argument_ ? 0 : sizes.local_bytes;
  launch.arg_count = args.size();
  launch.arg_stride = sizeof(ob_kernel_arg);
  launch.args = args.data();
  launch.follows_addresses = follows_addresses_ ? 1 : 0;
  if (C10_UNLIKELY(launch.kernel == 0 || has_pending(stream)) && try_add_pending(stream, launch)) {
    return;
  }
  if (C10_LIKELY(!is_checked)) {
    queue_launch(stream, launch, name().c_str());
  } else {
    queue_checked_launch(stream, launch, args.data(), name().c_str(), {record_, checked_kernel_});
  }
}

}  // namespace outboard::kernels

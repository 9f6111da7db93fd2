// SPDX-License-Identifier: BSD-3-Clause
// `backward()` returns when the last gradient is ready. The device's autograd thread drops its
// share of the pass a little later, and with it a Python object that torch keeps in the
// thread-local state (torch/autograd/graph.py, "context"). If Python has ended by then, taking its
// lock ends the thread in a destructor, which aborts the process.
//
// The thread takes one task after the other: when it runs our task, it has dropped everything that
// it finished before. Our task is started by a C++ thread, so its thread-local state holds no
// Python objects. Python's lock is released.
#include "torch/autograd_threads.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>

#include "core/blocking.h"
#include "core/device.h"
#include "core/error.h"
#include "core/process.h"

namespace outboard {

namespace {

using torch::autograd::Edge;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr std::chrono::seconds kDrainTimeout{5};

struct NoOpNode : Node {
  variable_list apply(variable_list&&) override { return {}; }
};

// A node's owner is a shared_ptr up to torch 2.11 and an intrusive_ptr from then on.
template <class Owner>
Owner make_no_op_node() {
  if constexpr (std::is_same_v<Owner, std::shared_ptr<Node>>) {
    return std::make_shared<NoOpNode>();
  } else {
    return c10::make_intrusive<NoOpNode>();
  }
}

void run_no_op(c10::DeviceIndex device) {
  const at::Tensor gradient = at::empty({0}, at::TensorOptions(c10::Device(kDeviceType, device)));
  auto node = make_no_op_node<decltype(Edge::function)>();
  node->add_input_metadata(gradient);
  Engine::get_default_engine().execute({Edge(node, 0)}, {gradient}, /*keep_graph=*/false, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

void run_no_op_on_open_devices() {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    if (is_open(device)) {
      run_no_op(device);
    }
  }
}

// Opens protected members of the engine. A pointer to a protected member may be
// taken through a derived class.
struct OpenEngine : Engine {
  static auto queues() { return &OpenEngine::device_ready_queues_; }
  static auto workers() { return &OpenEngine::thread_pool_shared_; }
  static auto new_workers() { return std::make_shared<ThreadPoolShared>(); }
};

thread_local bool is_device_count_hidden = false;

// Return true if this process was forked and has executed no program since: PF_FORKNOEXEC, in the
// ninth number of its state.
bool is_forked() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end_of_name = text.rfind(')');
  unsigned long long flags = 0;
  return end_of_name != std::string::npos &&
         std::sscanf(text.c_str() + end_of_name, ") %*c %*d %*d %*d %*d %*d %llu", &flags) == 1 && (flags & 0x40U) != 0;
}

}  // namespace

bool has_autograd_begun() {
  Engine& engine = Engine::get_default_engine();
  return engine.*OpenEngine::workers() != nullptr;
}

void begin_autograd_threads(c10::DeviceIndex devices) {
  Engine& engine = Engine::get_default_engine();
  auto& queues = engine.*OpenEngine::queues();
  if (queues.size() >= static_cast<size_t>(devices)) {
    return;
  }
  if (!queues.empty()) {
    raise(ErrorKind::Registration, OB_FAILED_PRECONDITION,
          "A backward pass ran before this driver was attached, when torch counted " + std::to_string(queues.size()) +
              " devices; the driver has " + std::to_string(devices) +
              ". Attach it before the first backward pass of the process.");
  }
  // Passes of the CPU, which may run now, do not read this list.
  for (c10::DeviceIndex device = 0; device < devices; ++device) {
    queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
  }
  for (c10::DeviceIndex device = 0; device < devices; ++device) {
    std::thread([&engine, device, queue = queues[static_cast<size_t>(device)]] {
      engine.thread_init(device, queue, /*should_increment=*/true);
    }).detach();
  }
}

// Return true if torch counts devices of another accelerator. A parent that had run a backward pass
// then has threads for them, and torch refuses its children's passes regardless of this code.
bool has_other_devices() {
  for (size_t type = 0; type < c10::impl::device_guard_impl_registry.size(); ++type) {
    const auto device_type = static_cast<c10::DeviceType>(type);
    if (device_type == c10::kCPU || device_type == c10::kMeta || device_type == kDeviceType) {
      continue;
    }
    const c10::impl::DeviceGuardImplInterface* guard = c10::impl::device_guard_impl_registry[type].load();
    if (guard != nullptr && guard->deviceCount() > 0) {
      return true;
    }
  }
  return false;
}

void begin_autograd_after_fork() {
  if (!is_forked() || has_other_devices()) {
    return;
  }
  Engine& engine = Engine::get_default_engine();
  auto& workers = engine.*OpenEngine::workers();
  if (workers != nullptr) {
    return;
  }
  const BlockingRegion without_interpreter;  // each thread takes its lock first
  // Torch starts no threads for no devices. If it started them, it would refuse all later passes of
  // this process's own forked children, those on the CPU too.
  is_device_count_hidden = true;
  try {
    engine.initialize_device_threads_pool();
  } catch (const c10::Error&) {
    is_device_count_hidden = false;
    return;  // the parent had threads: a backward pass raises that error, and nothing else needs the threads
  }
  is_device_count_hidden = false;
  if (workers == nullptr) {
    workers = OpenEngine::new_workers();
  }
  begin_autograd_threads(static_cast<c10::DeviceIndex>(device_count()));
}

bool hides_devices() {
  return is_device_count_hidden;
}

void drain_autograd_threads() noexcept {
  if (driver_is_gone() || !any_device_opened()) {
    return;
  }
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> is_done = done->get_future();
  const auto wait = [done] {
    try {
      run_no_op_on_open_devices();
    } catch (const std::exception& error) {
      // The process continues to end: its devices must still be waited for.
      TORCH_WARN("waiting for autograd's threads at exit failed: ", error.what());
    }
    done->set_value();
  };
  try {
    std::thread(wait).detach();
  } catch (const std::system_error&) {
    // No thread can be started: this one waits, without a limit, and hides
    // its Python objects from the task.
    const at::impl::ThreadLocalPythonObjects own = at::impl::ThreadLocalPythonObjects::get_state();
    at::impl::ThreadLocalPythonObjects::set_state({});
    wait();
    at::impl::ThreadLocalPythonObjects::set_state(own);
  }
  // A pass that never ends, such as one in a daemon thread, must not keep the process from ending.
  is_done.wait_for(kDrainTimeout);
}

}  // namespace outboard

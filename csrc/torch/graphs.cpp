// SPDX-License-Identifier: BSD-3-Clause
// Graphs behind torch.accelerator.Graph.
#include "torch/graphs.h"

#include "graph/graph.h"

#if OUTBOARD_TORCH_MINOR >= 12

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/DeviceType.h>

#include <fstream>
#include <memory>

#include "core/driver.h"

namespace outboard {

namespace {

// The two enumerations have the same values.
static_assert(static_cast<int>(CaptureMode::Relaxed) == static_cast<int>(at::GraphCaptureMode::Relaxed));

struct GraphImpl final : at::GraphImplInterface {
  explicit GraphImpl(const at::GraphImplArgs& args) : graph(args.keep_graph) {}

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override {
    graph.capture_begin(pool, static_cast<CaptureMode>(mode));
  }
  void capture_end() override { graph.capture_end(); }
  void instantiate() override { graph.instantiate(); }
  void replay() override { graph.replay(); }
  void reset() override { graph.reset(); }
  at::MempoolId_t pool() const override { return graph.pool(); }
  void enable_debug_mode() override {}  // the data of debug_dump is kept anyway
  void debug_dump(const std::string& path) override {
    const std::string text = graph.describe();
    std::ofstream file(path);
    file << text;
    file.close();
    TORCH_CHECK(file.good(), "debug_dump: cannot write ", path);
  }

  Graph graph;
};

}  // namespace

void register_graphs() {
  at::GraphImplRegistry()->Register(c10::DeviceTypeName(kDeviceType, /*lower_case=*/false),
                                    [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
                                      return std::make_unique<GraphImpl>(args);
                                    });
}

}  // namespace outboard

#else

namespace outboard {

void register_graphs() {}  // torch.accelerator.Graph is not there

}  // namespace outboard

#endif

# SPDX-License-Identifier: BSD-3-Clause
"""The C++ API, through an extension that is built as a user builds it, and the example operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

import torch_outboard
from examples import custom_operator

from .support import has_entry, module_of, reaches_memory

ROOT = Path(__file__).resolve().parents[2]
# Kept between runs: compiling takes half a minute.
FOLDER = ROOT / "build" / "extensions" / torch.__version__

# Not torch/extension.h, which takes four times as long to compile.
PROBE = """
#include <torch/csrc/utils/pybind.h>
#include <torch_outboard/runtime.h>

namespace ob = torch_outboard;

void throws_in_a_guard(int64_t device) {
  const ob::DeviceGuard guard(c10::Device(ob::kDeviceType, static_cast<c10::DeviceIndex>(device)));
  const ob::StreamGuard stream(ob::get_stream_from_pool());
  throw std::runtime_error("thrown within guards");
}

// A chain over two streams of the pool, ordered by events.
void chain(const at::Tensor& x, int64_t length) {
  const c10::Stream streams[] = {ob::get_stream_from_pool(), ob::get_stream_from_pool(-1, -1)};
  ob::Event last = ob::make_event();
  last.record(ob::current_stream());
  for (int64_t i = 0; i < length; ++i) {
    ob::OptionalStreamGuard guard;
    guard.reset_stream(streams[i % 2]);
    last.block(streams[i % 2]);
    ob::launch("chain", {x}, {}, [i](at::TensorList outputs, at::TensorList) { outputs[0].mul_(2).add_(i % 2); });
    ob::Event done = ob::make_event(true);
    done.record(streams[i % 2]);
    last = std::move(done);
  }
  last.block(ob::current_stream());
}

std::tuple<std::string, int64_t, int64_t, bool> facts() {
  const c10::Stream before = ob::current_stream();
  const c10::Stream fresh = ob::get_stream_from_pool(ob::current_device());
  ob::set_current_stream(fresh);
  const bool is_set = ob::current_stream() == fresh && fresh != ob::default_stream();
  ob::set_current_stream(before);
  ob::device_synchronize();
  ob::MultiStreamGuard none{c10::ArrayRef<c10::Stream>()};
  return {ob::device_name(), ob::device_count(), static_cast<int64_t>(ob::stream_handle(before)), is_set};
}

void fails(const at::Tensor& x) {
  ob::launch("fails", {x}, {}, [](at::TensorList, at::TensorList) { throw std::runtime_error("the body's error"); });
}

void two_devices(const at::Tensor& x, const at::Tensor& y) {
  ob::launch("two_devices", {x}, {y}, [](at::TensorList, at::TensorList) {});
}

int64_t handle() {
  return static_cast<int64_t>(ob::stream_handle(ob::current_stream()));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("handle", handle);
  m.def("throws_in_a_guard", throws_in_a_guard);
  m.def("chain", chain);
  m.def("facts", facts);
  m.def("fails", fails);
  m.def("two_devices", two_devices);
}
"""


def build_folder(name: str) -> str:
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


@pytest.fixture(scope="module")
def probe() -> Any:
    libraries = torch_outboard.library_paths()
    source = Path(build_folder("probe")) / "probe.cpp"
    if not source.exists() or source.read_text() != PROBE:
        source.write_text(PROBE)
    return cpp_extension.load(
        "outboard_probe",
        [str(source)],
        extra_include_paths=torch_outboard.include_paths(),
        extra_ldflags=[*(f"-L{path} -Wl,-rpath,{path}" for path in libraries), "-ltorch_outboard"],
        extra_cflags=["-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-O0"],
        build_directory=build_folder("probe"),
    )


@pytest.fixture(scope="module", autouse=True)
def softclip() -> None:
    custom_operator.build(build_folder("softclip"))


def test_facts_and_streams(probe: Any, device: torch.device, driver_name: str) -> None:
    module = module_of(device)
    name, count, handle, is_set = probe.facts()
    assert (name, count, is_set) == (driver_name, module.device_count(), True)
    assert handle == module.current_stream().native_handle


def test_guards_restore_when_something_is_thrown(probe: Any, device: torch.device, second_device: torch.device) -> None:
    module = module_of(device)
    before = module.current_stream(device), module.current_stream(second_device)
    with pytest.raises(RuntimeError, match="thrown within guards"):
        probe.throws_in_a_guard(second_device.index)
    assert module.current_device() == device.index
    assert (module.current_stream(device), module.current_stream(second_device)) == before


def test_launches_are_ordered_by_streams_and_events(probe: Any, device: torch.device) -> None:
    x = torch.ones(1 << 14, device=device)
    probe.chain(x, 10)
    expected = 1.0
    for step in range(10):
        expected = expected * 2 + step % 2
    assert x.unique().tolist() == [expected]


def test_an_error_of_a_launch_is_raised_at_a_wait(probe: Any, device: torch.device) -> None:
    x = torch.ones(8, device=device)
    with pytest.raises(RuntimeError, match="the body's error"):
        probe.fails(x)
        torch.accelerator.synchronize()
    assert x.tolist() == [1.0] * 8


def test_launch_refuses_tensors_of_two_devices(probe: Any, device: torch.device) -> None:
    x = torch.ones(8, device=device)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        probe.two_devices(x, torch.ones(8))
    with pytest.raises(ValueError, match="launch takes tensors of"):
        probe.two_devices(torch.ones(8), torch.ones(8))


def test_the_handle_of_a_stream_that_the_core_records(probe: Any, device: torch.device) -> None:
    module = module_of(device)
    graph = module.Graph()
    with module.stream(module.Stream(device)):
        assert probe.handle() == module._get_current_raw_stream(device.index)
    if has_entry("graph_capture_begin"):
        return  # the driver captures, and records what it is given by the handle
    with pytest.raises(torch_outboard.CaptureError, match="driver's stream handle"), module.graph(graph):
        probe.handle()


def test_the_operator_and_its_gradient(device: torch.device) -> None:
    cpu = torch.linspace(-3, 3, 1000, dtype=torch.float64, requires_grad=True)
    ours = cpu.detach().to(device).requires_grad_()
    for x in (cpu, ours):
        custom_operator.softclip(x * 2, 1.5).square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), cpu.grad)
    torch.testing.assert_close(custom_operator.softclip(ours, 1.5).detach().cpu(), 1.5 * torch.tanh(cpu.detach() / 1.5))
    small = torch.randn(5, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: custom_operator.softclip(x, 0.7), (small,))
    with pytest.raises(ValueError, match="limit must be positive"):
        custom_operator.softclip(ours, 0.0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_operator_in_a_compiled_function(
    device: torch.device, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = torch_outboard.attached_driver()
    if backend == "inductor" and (driver is None or driver.code_generator is None):
        pytest.skip("capability: a code generator")
    if backend == "inductor" and driver.code_generator == "cpp" and not reaches_memory(device):
        pytest.skip("capability: memory that the host reaches, where kernels are the host's")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def function(x: torch.Tensor) -> torch.Tensor:
        return custom_operator.softclip(x + 1, 2.0) * 3

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = torch.randn(7, 5, device=device)
    results = []
    for run in (function, compiled):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        y.sum().backward()
        results.append((y.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[0], results[1])


def test_the_operator_in_a_graph(device: torch.device) -> None:
    if not reaches_memory(device):
        pytest.skip("capability: host_address. A body in C++ runs on copies, which are not captured")
    module = module_of(device)
    x = torch.zeros(100, device=device)
    graph = module.Graph()
    with module.graph(graph):
        y = custom_operator.softclip(x, 2.0)
    for value in (0.5, 30.0):
        x.fill_(value)
        graph.replay()
        torch.testing.assert_close(y.cpu(), 2 * torch.tanh(torch.full((100,), value) / 2))

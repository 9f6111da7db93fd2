# SPDX-License-Identifier: BSD-3-Clause
"""AOTInductor: a model is compiled into a package, loaded and run."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_outboard._compat.imports import asks_for_backend
from torch_outboard._extension import library_paths
from torch_outboard.testing.plugin import RunPython

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning")

RUN = """
import sys, torch
package, result, driver = sys.argv[1:4]
if driver:
    import torch_outboard
    options = dict(option.split("=") for option in sys.argv[4:])
    torch_outboard.attach(driver, **options)
torch._inductor.config.cpp.cxx = (None, "/nonexistent/compiler")
model = torch._inductor.aoti_load_package(package)
device = torch_outboard.attached_driver().name
x, want = torch.load(result)
with torch.no_grad():
    got = model(x.to(device))
    del model  # with its kernels still in the queue
torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-4)
print("right")
"""


class Model(torch.nn.Module):
    """Parameters, a buffer, a constant on the CPU, a view of a constant, and operators with and without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(8, 16, generator=generator))
        self.register_buffer("scale", torch.randn(20, generator=generator)[4:])
        self.number = torch.tensor(2.5)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.gelu((x + 0.5) @ self.weight) * self.scale + self.number
        return y.softmax(-1).topk(3)[0] + x.shape[0]


class Package:
    """A model's package on the disk."""

    def __init__(self, folder: Path, device: torch.device, **settings: Any) -> None:
        self.path = str(folder / "model.pt2")
        self.model = Model()
        x = torch.randn(6, 8)
        batch = torch.export.Dim("batch", min=2, max=64)
        on_device = Model().to(device)
        with torch.no_grad():
            program = torch.export.export(on_device, (x.to(device),), dynamic_shapes=({0: batch},))
            torch._inductor.aoti_compile_and_package(program, package_path=self.path, inductor_configs=settings)

    def want(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(x)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, driver_name: str) -> Package:
    return Package(tmp_path_factory.mktemp("package"), torch.device(driver_name, 0))


def _load(package: Package, **options: Any) -> Any:
    return torch._inductor.aoti_load_package(package.path, **options)


def _check(package: Package, model: Any, x: torch.Tensor, device: torch.device) -> None:
    with torch.no_grad():
        got = model(x.to(device))
    assert got.device == device
    torch.testing.assert_close(got.cpu(), package.want(x), atol=1e-4, rtol=1e-4)


@pytest.mark.core
def test_values(package: Package, device: torch.device) -> None:
    model = _load(package)
    for rows in (6, 2, 64):
        _check(package, model, torch.randn(rows, 8), device)


def test_the_second_device(package: Package, second_device: torch.device) -> None:
    """A package runs on any device of the type, constants included, even if another device is current."""
    _check(package, _load(package, device_index=second_device.index), torch.randn(5, 8), second_device)


@pytest.mark.core
def test_constants_may_be_replaced(package: Package, device: torch.device) -> None:
    model = _load(package)
    fresh = Model()
    with torch.no_grad():
        fresh.weight.mul_(0.5)
    x = torch.randn(6, 8)
    model.load_constants({"weight": fresh.weight.to(device), "scale": fresh.scale.to(device)}, check_full_update=False)
    with torch.no_grad():
        torch.testing.assert_close(model(x.to(device)).cpu(), fresh(x), atol=1e-4, rtol=1e-4)
    # Shared with the caller from now on.
    shared = package.model.weight.detach().to(device)
    model.load_constants({"weight": shared}, check_full_update=False, user_managed=True)
    _check(package, model, x, device)
    shared.zero_()
    with torch.no_grad():
        assert not torch.allclose(model(x.to(device)).cpu(), package.want(x))


def test_constants_outlive_the_model_on_another_stream(package: Package, device: torch.device) -> None:
    """The constants' memory belongs to the stream that loaded the model; it is not reused while this stream uses it."""
    x = torch.randn(6, 8)
    here = x.to(device)
    for _ in range(3):
        model = _load(package)
        with torch.Stream(device) as side, torch.no_grad():
            got = model(here)
        del model
        filler = [torch.full((64,), 1e9, device=device) for _ in range(8)]
        side.synchronize()
        torch.testing.assert_close(got.cpu(), package.want(x), atol=1e-4, rtol=1e-4)
        assert filler[0][0] == 1e9


def test_a_package_without_its_constants(device: torch.device, tmp_path: Path) -> None:
    package = Package(tmp_path, device, **{"aot_inductor.package_constants_in_so": False})
    model = _load(package)
    x = torch.randn(6, 8)
    with pytest.raises(RuntimeError, match="needs load_constants before it runs"), torch.no_grad():
        model(x.to(device))
    constants = {"weight": package.model.weight, "scale": package.model.scale}
    number = {name: package.model.number for name in model.get_constant_fqns() if name not in constants}
    on_device = {name: value.detach().to(device) for name, value in constants.items()}
    model.load_constants({**on_device, **number}, check_full_update=True)
    _check(package, model, x, device)


def test_kernels_are_queued(package: Package, device: torch.device) -> None:
    """In a capture the kernels are steps of the graph."""
    model = _load(package)
    module = torch.get_device_module(device)
    x = torch.zeros(6, 8, device=device)
    with torch.no_grad():
        model(x)
        graph = module.Graph()
        with module.graph(graph):
            got = model(x)
    values = torch.randn(6, 8)
    x.copy_(values)
    graph.replay()
    torch.testing.assert_close(got.cpu(), package.want(values), atol=1e-4, rtol=1e-4)


def test_errors_keep_their_types(package: Package) -> None:
    with pytest.raises(ValueError, match="reads a tensor of 48 elements on cpu"), torch.no_grad():
        _load(package)(torch.randn(6, 8))


@pytest.mark.core
class TwoStreams(torch.nn.Module):
    def __init__(self, side: torch.Stream, waits_only: bool) -> None:
        super().__init__()
        self.side, self.waits_only = side, waits_only

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.accelerator.current_stream())
        if self.waits_only:
            return x.cos()
        with self.side:
            y = x.cos() + 1
        torch.accelerator.current_stream().wait_stream(self.side)
        return y * 2


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="capability: torch 2.11 compiles no streams")
@pytest.mark.parametrize("waits_only", [True, False])
def test_streams_are_refused(device: torch.device, tmp_path: Path, waits_only: bool) -> None:
    x = torch.ones(4, device=device)
    program = torch.export.export(TwoStreams(torch.Stream(device), waits_only), (x,), strict=True)
    with pytest.raises(Exception, match="NotSupportedError: AOTInductor packages support only one stream"):
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    with pytest.raises(Exception, match="NotSupportedError: with fx_wrapper, aot_compile supports only one stream"):
        torch._inductor.aot_compile(program.module(), (x,), options={"fx_wrapper": True})


def test_in_another_process(package: Package, run_python: RunPython, driver_target: str, tmp_path: Path) -> None:
    """Nothing is compiled there, and a deleted model's queued work still runs."""
    import torch_outboard

    driver = torch_outboard.attached_driver()
    assert driver is not None
    options = ["schedule=lazy:1"] if "schedule" in driver.options else []  # nothing runs before the wait
    x = torch.randn(6, 8)
    torch.save((x, package.want(x)), tmp_path / "result.pt")
    assert (
        "right"
        in run_python(RUN, package.path, str(tmp_path / "result.pt"), driver_target, *options, imports=()).stdout
    )


def test_without_the_driver(package: Package, run_python: RunPython, tmp_path: Path) -> None:
    answer = run_python(RUN, package.path, str(tmp_path / "result.pt"), "", status=1, imports=())
    assert "Unsupported device" in answer.stderr


def test_the_functions_of_another_version() -> None:
    library = ctypes.CDLL(str(Path(library_paths()[0]) / "libtorch_outboard.so"))
    find = library.outboard_compiled_functions
    find.restype = ctypes.c_void_p
    assert find(ctypes.c_uint32(3)) and not find(ctypes.c_uint32(2)) and not find(ctypes.c_uint32(4))


@pytest.mark.core
def test_torch_still_needs_the_name_of_our_header() -> None:
    from torch_outboard._compat.inductor import needs_model_header

    assert needs_model_header() == (not asks_for_backend()), (
        "older torches ask for the header: remove name_model_header"
    )

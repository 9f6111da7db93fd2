# SPDX-License-Identifier: BSD-3-Clause
"""Dynamo's device interface, and the time of the import of torch's compiler."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.device_interface import (
    DeviceGuard,
    DeviceInterface,
    get_interface_for_device,
    get_registered_device_interfaces,
)

from torch_outboard.testing.plugin import RunPython

EAGER = """
import sys, torch_outboard
torch_outboard.attach(sys.argv[1])
late = [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
assert not late, late
"""

AFTERWARDS = """
import sys
import torch._dynamo.device_interface, torch._inductor.compile_fx, torch
import torch_outboard
torch_outboard.attach(sys.argv[1])
name = torch_outboard.attached_driver().name
assert torch._dynamo.device_interface.get_interface_for_device(name).device_count() > 0
assert torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(2, device=name)).tolist() == [2, 2]
"""

OPENS_NOTHING = """
import sys, torch, torch_outboard
from torch_outboard import _C
torch_outboard.attach(sys.argv[1])
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.async_compile import caching_device_properties
from torch._inductor.runtime.hints import DeviceProperties
name = torch_outboard.attached_driver().name
interface = get_interface_for_device(name)
caching_device_properties()
interface.Worker.set_device(0)
assert interface.Worker.current_device() == 0
assert interface.Worker.get_device_properties(torch.device(name, 0)).name
DeviceProperties.create(torch.device(name, 0))
assert not _C.any_device_opened()
"""


@pytest.mark.core
def test_attach_imports_no_compiler(run_python: RunPython, driver_target: str) -> None:
    run_python(EAGER, driver_target, imports=())


def test_a_compiler_that_was_imported_before(run_python: RunPython, driver_target: str) -> None:
    run_python(AFTERWARDS, driver_target)


def test_workers_open_no_device(run_python: RunPython, driver_target: str) -> None:
    run_python(OPENS_NOTHING, driver_target)


@pytest.mark.core
def test_lookup(device: torch.device) -> None:
    interface = get_interface_for_device(device)
    assert get_interface_for_device(device.type) is interface
    assert get_interface_for_device(f"{device.type}:0") is interface
    assert device.type in dict(get_registered_device_interfaces())
    with pytest.raises(NotImplementedError):
        get_interface_for_device("nosuchdevice")


@pytest.mark.core
def test_every_member_is_there(device: torch.device) -> None:
    """The base class raises NotImplementedError for members that a device does not define."""
    interface = get_interface_for_device(device)
    inherited = {"get_device_properties", "raise_if_triton_unavailable", "is_gpu", "get_cpp_device_options"}
    inherited |= {"exposes_streams"}
    members = {name for name in vars(DeviceInterface) if not name.startswith("__")} - inherited
    assert members <= set(vars(interface))


@pytest.mark.core
def test_queries(device: torch.device) -> None:
    interface = get_interface_for_device(device)
    assert interface.device_count() == torch.get_device_module(device).device_count()
    assert interface.is_available()
    assert interface.get_device_properties(device).multi_processor_count >= 0
    assert interface.is_dtype_supported(torch.float32)
    assert isinstance(interface.get_raw_stream(0), int)
    assert interface.current_stream().device.type == device.type
    assert isinstance(interface.memory_allocated(), int)
    assert interface.get_compute_capability(device)
    interface.synchronize(device)


@pytest.mark.core
def test_guard(device: torch.device, second_device: torch.device) -> None:
    interface = get_interface_for_device(device)
    with DeviceGuard(interface, second_device.index):
        assert interface.current_device() == second_device.index
    assert interface.current_device() == device.index


@pytest.mark.core
def test_device_as_a_context(device: torch.device, second_device: torch.device) -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("capability: torch 2.11 traces the context manager of torch.cuda alone")
    module = torch.get_device_module(device)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with module.device(second_device.index):
            there = torch.ones(3, device=device.type)
        return there, x + 1

    there, here = torch.compile(function, fullgraph=True)(torch.zeros(3, device=device))
    assert (there.device, here.device) == (second_device, device)
    assert torch.accelerator.current_device_index() == device.index

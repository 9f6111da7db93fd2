# SPDX-License-Identifier: BSD-3-Clause
"""What torch 2.15 asks a device instead of being patched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._dynamo import device_interface
from torch._inductor import choices
from torch._inductor.codegen import common
from torch._inductor.virtualized import V

from torch_outboard._compat.imports import asks_for_backend
from torch_outboard._compat.patches import PATCHES
from torch_outboard._compat.splits import needs_split_reductions

pytestmark = pytest.mark.core
ASKS = asks_for_backend()
hooks = pytest.mark.skipif(not ASKS, reason="torch 2.15 has the hooks")


@pytest.fixture(autouse=True)
def compiled(device: torch.device) -> None:
    torch.compile(lambda x: x + 1)(torch.ones(3, device=device))


def test_what_the_version_says_is_so(device: torch.device) -> None:
    """The version decides whether the finder or the hook registers the back end: both would, or none."""
    assert hasattr(common, "_privateuse1_backend_init_in_progress") == ASKS
    assert hasattr(torch.get_device_module(device), "_inductor_backend_init") == ASKS
    assert hasattr(device_interface.DeviceInterface, "get_cpp_device_options") == ASKS
    assert hasattr(choices, "register_inductor_choices") == ASKS
    assert needs_split_reductions() == (not ASKS), "torch 2.14 or older takes choices: remove the patch of splits.py"
    assert common.get_scheduling_for_device(device.type) is not None


@hooks
def test_it_is_not_asked_again(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("the device is registered")

    monkeypatch.setattr(torch.get_device_module(device), "_inductor_backend_init", fail)
    common.init_backend_registration()


@hooks
def test_types_streams_and_wrappers(device: torch.device) -> None:
    from torch._inductor.codegen.cpp_utils import device_to_aten
    from torch._inductor.utils import device_need_guard, is_gpu

    assert device_to_aten(device.type) == "at::kPrivateUse1"
    # Ours measures configurations of kernels itself: it is not CUDA's wrapper of two passes.
    assert not common._uses_gpu_cpp_wrapper(device.type)
    assert device_interface.get_interface_for_device(device).exposes_streams()
    assert device_need_guard(device.type) == is_gpu(device.type)


@hooks
def test_models_find_their_header(device: torch.device) -> None:
    options = device_interface.get_interface_for_device(device).get_cpp_device_options
    assert options(False, False) is None
    config = options(True, False)
    assert config is not None and len(config) == 7
    [folder] = config[1]
    text = Path(folder, "torch", "csrc", "inductor", "aoti_include", f"{device.type}.h").read_text()
    assert Path(text.removeprefix('#include "').rstrip().rstrip('"')).is_file(), text


@hooks
def test_the_choice_of_splits_is_for_the_device_alone(device: torch.device) -> None:
    if not dict(choices.registered_inductor_choices()).get("torch_outboard"):
        pytest.skip("this driver's generator splits no reductions of its own")
    sizes = {"reduction_numel_hint": 1 << 22, "numel_hint": 1, "inner_reduction": True}
    assert V.choices.reduction_split_factor(device=device, **{**sizes, "reduction_numel_hint": 100}) == 1
    # As torch's own for another type, whose numbers of multiprocessors are not the device's.
    elsewhere = [
        choices.reduction_split_factor(torch.device("cpu"), **sizes)
        for choices in (V.choices, type(V.choices).__base__())
    ]
    assert elsewhere[0] == elsewhere[1]
    assert V.choices.uuid() == ("torch_outboard", device.type)


@hooks
def test_few_patches_are_left() -> None:
    """The number only falls: whoever adds a patch for torch 2.15 says here why."""
    needed = [patch.target for patch in PATCHES if patch.is_needed()]
    assert len(needed) <= 21, needed

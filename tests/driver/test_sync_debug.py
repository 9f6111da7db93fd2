# SPDX-License-Identifier: BSD-3-Clause
"""set_sync_debug_mode: operations for which the host waits are reported before they begin."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_outboard import _C

from .support import has_entry, module_of, pinned, queues_operators, runs_operators


@pytest.fixture
def module(device: torch.device) -> Iterator[Any]:
    module = module_of(device)
    yield module
    module.set_sync_debug_mode("default")


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item()": lambda x: x.sum().item(),
    "a copy to the host": lambda x: x.cpu(),
    "a copy to the host, strided": lambda x: x.t()[::2].cpu(),
    "a copy from memory of the host that is not pinned": lambda x: x.copy_(torch.zeros(x.shape)),
    "synchronize() of a stream": lambda x: torch.accelerator.current_stream().synchronize(),
}


@pytest.mark.parametrize("what", WAITS)
def test_a_wait_is_reported(what: str, module: Any, device: torch.device) -> None:
    x = torch.ones(512, 513, device=device)
    x.add_(1)
    text = re.escape(f"called a synchronizing operation of {device.type}: {what.partition(',')[0]} waits")
    module.set_sync_debug_mode("warn")
    assert module.get_sync_debug_mode() == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WAITS[what](x)
    assert any(re.search(text, str(warning.message)) for warning in caught if warning.category is UserWarning)
    module.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match=f"called a synchronizing operation of {device.type}: "):
        WAITS[what](x)
    module.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        WAITS[what](x)


def test_nothing_is_queued_of_an_operation_that_is_refused(module: Any, device: torch.device) -> None:
    x = torch.ones(512, 513, device=device)
    module.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="not pinned"):
        x.copy_(torch.zeros(x.shape))
    host = torch.zeros(x.shape)
    with pytest.raises(RuntimeError, match="a copy to the host"):
        host.copy_(x)
    module.set_sync_debug_mode("default")
    assert x.cpu().eq(1).all() and host.eq(0).all()


def test_an_operator_whose_values_decide_its_size_waits(module: Any, device: torch.device) -> None:
    if not runs_operators(device):
        pytest.skip("capability: operators that run on the device's memory, not on copies")
    x = torch.ones(5, device=device)
    torch.nonzero(x)
    module.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing operation"):
        torch.nonzero(x)


def test_what_does_not_wait_is_not_reported(module: Any, device: torch.device) -> None:
    if not queues_operators(device):
        pytest.skip("capability: operators that are queued")
    x = torch.ones(7, 5, device=device, requires_grad=True)
    event = torch.Event(device)
    host = pinned(7, 5)
    copies_late = has_entry("host_alloc")  # without it the copy waits
    for mode in ("default", "error"):  # the first calls may wait, and build kernels
        module.set_sync_debug_mode(mode)
        torch.relu(x @ x.t()).sum().backward()
        torch.optim.SGD([x], 0.1).step()
        if copies_late:
            host.copy_(x.detach(), non_blocking=True)
        event.record()
        event.synchronize()
        module.synchronize()
    assert module.get_sync_debug_mode() == 2


@pytest.mark.parametrize("given", [3, -1, "raise", True, None, 1.5])
def test_other_modes_are_refused(given: Any, module: Any) -> None:
    with pytest.raises(ValueError, match=r"takes 0 or 'default', 1 or 'warn', 2 or 'error', got "):
        module.set_sync_debug_mode(given)
    assert module.get_sync_debug_mode() == 0


@pytest.mark.parametrize("given", [0, "warn", 2])
def test_modes_by_number_and_name(given: Any, module: Any) -> None:
    module.set_sync_debug_mode(given)
    assert module.get_sync_debug_mode() == {"warn": 1}.get(given, given)


@pytest.mark.parametrize("given", [-1, 3, 1 << 70, "1"])
def test_the_core_refuses_them_too(given: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        _C.set_sync_debug_mode(given)

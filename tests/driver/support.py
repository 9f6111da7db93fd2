# SPDX-License-Identifier: BSD-3-Clause
"""Helpers that the driver tests share."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

import torch_outboard
from torch_outboard import _C, _settings


def module_of(device: torch.device) -> ModuleType:
    return torch.get_device_module(device)


def has_entry(name: str) -> bool:
    """Return whether the attached driver has an optional entry of the contract."""
    return _C.entries()[name]


def maps_memory(device: torch.device) -> bool:
    """Return whether the driver reserves address space and maps memory into it."""
    return has_entry("mem_reserve") and _C.device_properties(device.index)["mem_granularity"] != 0


def reaches_memory(device: torch.device) -> bool:
    """Return whether the host reaches the device's memory, so that the CPU's kernels run there, not on copies of it."""
    return _C.reaches_memory(device.index)


def generates_kernels(device: torch.device) -> bool:
    """Return whether operators run as kernels that are generated in the driver's language."""
    driver = torch_outboard.attached_driver()
    return driver is not None and _settings.generates_kernels(driver, device.index)


def runs_operators(device: torch.device) -> bool:
    """Return whether operators run on the device's memory, by whichever kernels, not on copies of it."""
    return reaches_memory(device) or generates_kernels(device)


def queues_operators(device: torch.device) -> bool:
    """Return whether operators are queued in streams, so that calls return at once and failures come later."""
    return generates_kernels(device) or (reaches_memory(device) and has_entry("host_callback"))


def skip_unless_graphs_draw(device: torch.device) -> None:
    """Skip a test of graphs that draw, unless pinned memory exists for the seed of generated kernels' replays."""
    if generates_kernels(device) and not has_entry("host_alloc"):
        pytest.skip("capability: host_alloc, by which a replay of generated kernels gets its seed")


def attends(device: torch.device) -> bool:
    """Return whether attention is one kernel, not a composite; a driver with its own `bmm` has the composite."""
    torch_outboard.reset_coverage()
    q = torch.zeros(1, 1, 2, 8, device=device)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return any("attention" in row.op for row in torch_outboard.coverage())


def times_events(device: torch.device) -> bool:
    """Return whether the driver's events have times."""
    first, second = (torch.Event(device, enable_timing=True) for _ in range(2))
    first.record()
    second.record()
    second.synchronize()
    try:
        first.elapsed_time(second)
    except NotImplementedError as error:
        assert "event_elapsed" in str(error) or "event_timestamp" in str(error)
        return False
    return True


def pins() -> bool:
    """Return whether the driver allocates host memory; otherwise `pin_memory` returns ordinary memory."""
    return pinned(1).is_pinned()


def pinned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return page-locked host memory.

    A CUDA build of torch with a GPU uses CUDA's memory for torch.empty(pin_memory=True).
    """
    return torch.empty(shape, dtype=dtype).pin_memory()


def reset_waits() -> None:
    torch_outboard.reset_coverage()


def waits() -> dict[str, int]:
    """Return the operators whose host calls made the caller wait since `reset_waits`, and the number of waits."""
    return _C.waited_operators()


_mark: dict[tuple[str, str], int] = {}


def mark() -> None:
    """Restart the records of `ran`; each test begins with a mark."""
    _mark.clear()
    _mark.update({(row.op, row.provider): row.calls for row in torch_outboard.coverage()})


def ran(*providers: str) -> bool:
    """Return whether one of these providers ran an operator since the mark."""
    # Also fewer calls than at the mark, since `reset_coverage` starts anew.
    return any(
        row.provider in providers and row.calls != _mark.get((row.op, row.provider), 0)
        for row in torch_outboard.coverage()
    )


def ran_device_kernels() -> bool:
    """Return whether a kernel ran since the mark that is not the CPU's own.

    The host and the fallback run the CPU's kernels.
    """
    return ran("native", "generated")


def tolerances(dtype: torch.dtype, tolerance: float = 0.0) -> dict[str, float]:
    """Return rtol and atol of results of `dtype`: `tolerance`, and torch's own if kernels of the device ran."""
    rtol, atol = torch.testing._comparison.default_tolerances(dtype) if ran_device_kernels() else (0.0, 0.0)
    return {"rtol": max(rtol, tolerance), "atol": max(atol, tolerance)}


def assert_same(result: torch.Tensor, expected: torch.Tensor, device: torch.device, tolerance: float = 0.0) -> None:
    """Assert that a result is on `device` and has the type, shape and values of a CPU tensor, NaN for NaN.

    The values are equal bit for bit, except for `tolerance`. If kernels of the device ran, torch's tolerance of the
    dtype applies.
    """
    assert isinstance(result, torch.Tensor)
    assert result.device == device
    assert result.requires_grad == expected.requires_grad
    ours, theirs = result.detach().cpu(), expected.detach()
    torch.testing.assert_close(ours, theirs, **tolerances(theirs.dtype, tolerance), equal_nan=True, check_stride=False)

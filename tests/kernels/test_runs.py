# SPDX-License-Identifier: BSD-3-Clause
"""Runs of neighbouring elements, one for each item of a CPU's kernel: their ends, and errors within them."""

from __future__ import annotations

import pytest
import torch

import torch_outboard
from torch_outboard.codegen.mapping.run import ELEMENTS

SIZES = (1, 15, 17, 33, ELEMENTS - 1, ELEMENTS, ELEMENTS + 1, 3 * ELEMENTS + 47)


@pytest.mark.parametrize("size", SIZES)
def test_ends(size: int, device: torch.device) -> None:
    """All of a run is computed, and nothing is written beyond it."""
    x, around = torch.randn(size), torch.randn(size + 64)
    here = around.to(device)
    torch.add(x.to(device), 0.5, out=here[32 : size + 32])
    expected = around.clone()
    torch.add(x, 0.5, out=expected[32 : size + 32])
    assert torch.equal(here.cpu(), expected)


@pytest.mark.parametrize("size", SIZES)
def test_dimensions_that_do_not_join(size: int, device: torch.device) -> None:
    """A run continues from a row to the next one."""
    x, y = torch.randn(5, size + 3), torch.randn(size, 5)
    ours = x.to(device)[:, 1:-2] * y.to(device).t()
    assert torch.equal(ours.cpu(), x[:, 1:-2] * y.t())


@pytest.mark.parametrize("given", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_other_types(given: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(2 * ELEMENTS + 5) * 4).abs().to(given)
    ours = x.to(device)
    assert torch.equal(torch.where(ours > 0, ours, 1).cpu(), torch.where(x > 0, x, 1))
    assert torch.equal(ours.to(torch.float32).cpu(), x.to(torch.float32))


def test_in_place_over_memory_that_is_read(device: torch.device) -> None:
    x = torch.randn(2 * ELEMENTS + 5)
    ours = x.to(device)
    ours.mul_(ours).add_(ours)
    assert torch.equal(ours.cpu(), (x * x) * 2)


def test_error_in_the_middle_of_a_run(device: torch.device) -> None:
    """The error is raised, and the device goes on."""
    table, where = torch.randn(10, 4), torch.randint(10, (2 * ELEMENTS + 5,))
    where[ELEMENTS // 2] = 10
    with pytest.raises((torch_outboard.OutboardError, IndexError), match="10"):
        torch.index_select(table.to(device), 0, where.to(device)).cpu()
    where[ELEMENTS // 2] = 9
    assert torch.equal(torch.index_select(table.to(device), 0, where.to(device)).cpu(), table[where])


ROWS = ((3, 1000), (70, 64), (5, 7, 300), (40, 3))


@pytest.mark.parametrize("size", ROWS, ids=str)
def test_rows(size: tuple[int, ...], device: torch.device) -> None:
    """Indices of each dimension, in runs that begin and end within a row or span many rows."""
    x = torch.randn(size)
    ours = x.to(device)
    for dimension in range(x.dim()):
        row = x.narrow(dimension, 0, 1)
        assert torch.equal((ours + row.to(device)).cpu(), x + row), dimension
        several = x.amax(tuple(axis for axis in range(x.dim()) if axis != dimension), keepdim=True)
        assert torch.equal((ours * several.to(device)).cpu(), x * several), dimension
        assert torch.equal(torch.cat([ours, ours], dimension).cpu(), torch.cat([x, x], dimension)), dimension
        assert torch.equal(ours.flip(dimension).cpu(), x.flip(dimension)), dimension
        assert torch.equal(ours.roll(3, dimension).cpu(), x.roll(3, dimension)), dimension


@pytest.mark.parametrize("size", ROWS[1:3], ids=str)
def test_rows_of_a_compiled_function(size: tuple[int, ...], device: torch.device) -> None:
    """Sizes that the compiler knows, and sizes that it does not know."""
    x = torch.randn(size)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x.narrow(0, 0, 1) + x.narrow(-1, 0, 1) - x.flip(-1)

    for dynamic in (False, True):
        torch._dynamo.reset()
        ours = torch.compile(function, fullgraph=True, dynamic=dynamic)(x.to(device))
        torch.testing.assert_close(ours.cpu(), function(x), rtol=1e-6, atol=1e-6)

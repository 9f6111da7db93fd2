# SPDX-License-Identifier: BSD-3-Clause
"""Operators that Inductor leaves to a library: means of large windows, and rows that are scaled to a norm."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("nothing_on_the_cpu")


@pytest.mark.parametrize(("size", "count"), [((20, 31), (3, 4)), ((32, 32), (2, 2)), ((33, 9), (4, 7))])
def test_adaptive_means_of_large_windows(size: tuple[int, int], count: tuple[int, int], device: torch.device) -> None:
    x = torch.randn(2, 3, *size)
    x.view(-1)[3], x.view(-1)[-1] = math.nan, math.inf  # in one window alone
    for image in (x, x.contiguous(memory_format=torch.channels_last)):
        want, got = F.adaptive_avg_pool2d(image, count), F.adaptive_avg_pool2d(image.to(device), count)
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("norm", [2.0, math.inf])
def test_rows_are_scaled_where_an_index_names_them(norm: float, device: torch.device) -> None:
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 3
    indices = torch.tensor([[0, 5], [5, 2]])
    theirs, ours = weight.clone(), weight.to(device)
    want = F.embedding(indices, theirs, max_norm=1.0, norm_type=norm)
    got = F.embedding(indices.to(device), ours, max_norm=1.0, norm_type=norm)
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close(ours.cpu(), theirs)
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        F.embedding(torch.tensor([6]).to(device), ours, max_norm=1.0)
        torch.accelerator.synchronize()

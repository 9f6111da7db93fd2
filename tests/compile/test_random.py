# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers in compiled functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config


def _draw(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5) + torch.rand_like(x) * torch.randn_like(x) + torch.randint_like(x, 0, 5)


@pytest.mark.core
def test_the_seed_decides(device: torch.device) -> None:
    ones = torch.ones(4000, device=device)
    compiled = torch.compile(_draw, fullgraph=True)
    torch.manual_seed(5)
    first, second = compiled(ones).cpu(), compiled(ones).cpu()
    torch.manual_seed(5)
    again = compiled(ones).cpu()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    # Dropout's mean is 1, the product's 0 and the integers' 2.
    assert 2.8 < first.mean() < 3.2


def test_the_backward_pass_drops_the_same(device: torch.device) -> None:
    x = torch.ones(1000, device=device, requires_grad=True)
    result = torch.compile(lambda x: F.dropout(x, 0.5), fullgraph=True)(x)
    result.sum().backward()
    assert torch.equal(x.grad, result)


@pytest.mark.core
def test_fallback_random_draws_what_eager_draws(device: torch.device) -> None:
    ones = torch.ones(100, device=device)
    with config.patch(fallback_random=True):
        torch.manual_seed(5)
        got = torch.compile(_draw, fullgraph=True)(ones)
    torch.manual_seed(5)
    # Draws are equal, and what is computed of them may be rounded otherwise by another compiler.
    torch.testing.assert_close(got, _draw(ones))

# SPDX-License-Identifier: BSD-3-Clause
"""torch.func over generated kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

from torch_outboard import coverage, reset_coverage


def _mean_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w).softmax(-1).pow(2).sum()


CASES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "products of examples": lambda x, w, i: vmap(lambda row: row.t() @ row)(x),
    "gradients of examples": lambda x, w, i: vmap(grad(_mean_loss), in_dims=(None, 0))(w, x),
    "rows that an index names": lambda x, w, i: vmap(lambda row, at: row[at])(x, i),
    "sums at an index": lambda x, w, i: vmap(lambda row, at: torch.zeros_like(row).index_add(0, at, row[at]))(x, i),
    "norms": lambda x, w, i: vmap(lambda row: F.layer_norm(row, (6,)), in_dims=1, out_dims=1)(x),
    "convolutions": lambda x, w, i: vmap(lambda row, f: F.conv1d(row, f), in_dims=(0, None))(
        x, w[:, None].expand(-1, 5, -1)
    ),
    "Jacobians": lambda x, w, i: (jacrev(lambda w: (x @ w).sin().sum((0, 1)))(w), jacfwd(lambda w: (w * w).sum(1))(w)),
    "a Hessian": lambda x, w, i: hessian(lambda row: (row.exp() * row.sum()).sum())(w[0]),
    "a product with a Jacobian": lambda x, w, i: jvp(lambda w: F.log_softmax(x @ w, -1), (w,), (w + 1,)),
    "a product with a transposed one": lambda x, w, i: vjp(lambda w: torch.cumsum(x @ w, 1), w)[1](
        torch.ones(4, 5, 6).to(x)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, device: torch.device) -> None:
    inputs = torch.randn(4, 5, 6), torch.randn(6, 6), torch.randint(5, (4, 3))
    reset_coverage()
    ours = CASES[name](*(tensor.to(device) for tensor in inputs))
    assert {row.provider for row in coverage()} <= {"generated", "native"}, coverage()
    for result, wanted in zip(tree_leaves(ours), tree_leaves(CASES[name](*inputs)), strict=True):
        assert result.device == device
        torch.testing.assert_close(result.cpu(), wanted, atol=1e-4, rtol=1e-4)


def test_randomness(device: torch.device) -> None:
    x = torch.zeros(3, 400, device=device)
    same = vmap(lambda row: row + torch.rand_like(row), randomness="same")(x)
    different = vmap(lambda row: row + torch.rand_like(row), randomness="different")(x)
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])

# SPDX-License-Identifier: BSD-3-Clause
"""Sparse gradients become dense ones, and are added to parameters, by kernels of the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from torch_outboard.testing.database.calls import poison

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


def run(function: Callable[[torch.device], torch.Tensor], device: torch.device) -> None:
    poison(device)
    torch_outboard.reset_coverage()
    got = function(device)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated"}, torch_outboard.coverage()
    torch.testing.assert_close(got.cpu(), function(torch.device("cpu")))


@pytest.mark.parametrize("shape", [(3, 0), (3, 2)])
def test_gradients_of_gather(device: torch.device, shape: tuple[int, ...]) -> None:
    x, index = torch.rand(10, 5), torch.randint(0, 5, shape)

    def gradient(place: torch.device) -> torch.Tensor:
        leaf = x.to(place, copy=True).requires_grad_()
        torch.gather(leaf, -1, index.to(place), sparse_grad=True).sum().backward()
        assert leaf.grad is not None and leaf.grad.is_sparse
        return leaf.grad.to_dense()

    run(gradient, device)


def test_steps_by_sparse_gradients(device: torch.device) -> None:
    table, where = torch.randn(7, 3), torch.tensor([[1, 3, 1], [6, 1, 0]])

    def trained(place: torch.device) -> torch.Tensor:
        weight = table.to(place, copy=True).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.3)
        for _ in range(2):
            optimizer.zero_grad()
            F.embedding(where.to(place), weight, sparse=True).sin().sum().backward()
            optimizer.step()
        return weight.detach()

    run(trained, device)


def test_sums_of_dense_and_sparse(device: torch.device) -> None:
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.randn(3, 4)

    def added(place: torch.device) -> torch.Tensor:
        sparse = torch.sparse_coo_tensor(indices.to(place), values.to(place), (2, 3, 4))
        number = torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.int64, device=place), values.to(place)[:2, 0])
        return torch.ones(2, 3, 4, device=place).add_(sparse, alpha=0.5) + number.to_dense()

    run(added, device)
    with pytest.raises(RuntimeError, match="same size"):
        torch.ones(3, device=device).add_(torch.sparse_coo_tensor(torch.zeros(1, 0), [], (2,)).to(device))

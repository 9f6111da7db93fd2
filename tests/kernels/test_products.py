# SPDX-License-Identifier: BSD-3-Clause
"""Products of matrices run as generated kernels, in both schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernels.test_provider import run
from torch_outboard import _C
from torch_outboard.kernels.plans import lower
from torch_outboard.kernels.tune import schedule_table

pytestmark = pytest.mark.usefixtures("generated_products")

r = torch.randn
NAN = float("nan")


def whole(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers whose products and sums are exact in the type, so that the order of additions does not matter."""
    return torch.randint(-4, 5, sizes).to(dtype)


def test_operands_lie_in_any_way(device: torch.device) -> None:
    x, y = whole(70, 300, dtype=torch.float32), whole(300, 75, dtype=torch.float32)
    run(lambda x, y: (x @ y, y.t() @ x.t(), x[:, 7:200] @ y[7:200], x[::3, ::2] @ y[::2, 3:]), x, y, device=device)
    run(lambda x, y: x @ y[:1].expand(300, 75), x, y, device=device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8])
def test_types(dtype: torch.dtype, device: torch.device) -> None:
    run(lambda x, y: x @ y, whole(9, 70, dtype=dtype) * 30, whole(70, 20, dtype=dtype), device=device)  # int8 wraps


def test_additions(device: torch.device) -> None:
    x, y = whole(40, 30, dtype=torch.float32), whole(30, 20, dtype=torch.float32)
    run(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), r(40, 1), x, y, device=device)
    run(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), r(1, 1), x[:, :0], y[:0], device=device)
    run(lambda b, x, y: torch.addmm(b, x, y, beta=0), torch.full((20,), NAN), x, y, device=device)
    run(lambda b, x, y: F.linear(x, y.t(), b), r(20).bfloat16(), x.bfloat16(), y.bfloat16(), device=device)


def test_batches(device: torch.device) -> None:
    x, y = whole(3, 9, 30, dtype=torch.float32), whole(3, 30, 20, dtype=torch.float32)
    run(lambda x, y: (x @ y, x.mT[:, :, 1:] @ y.mT[:, :8]), x, y, device=device)
    run(lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2), r(3, 1, 20), x, y, device=device)


def test_results_that_are_given(device: torch.device) -> None:
    x, y = whole(6, 6, dtype=torch.float32), whole(6, 6, dtype=torch.float32)
    run(lambda x, y, out: torch.mm(x, y, out=out), x, y, r(6, 6).t(), device=device)
    x, y = x.to(device), y.to(device)
    want = torch.addmm(y, x, y.t())
    assert torch.equal(y.addmm_(x, y.t()), want)  # which it reads


def test_what_is_wrong_raises(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(r(3, 4).to(device), r(3, 4).to(device))


def test_one_plan_serves_many_sizes(device: torch.device) -> None:
    run(torch.mm, whole(7, 11, dtype=torch.float64), whole(11, 13, dtype=torch.float64), device=device)
    before = _C.built_plans()
    for rows, depth, columns in ((100, 3, 17), (2, 600, 200), (97, 257, 65)):
        run(
            torch.mm, whole(rows, depth, dtype=torch.float64), whole(depth, columns, dtype=torch.float64), device=device
        )
    assert _C.built_plans() == before


def test_the_schedule_for_groups_of_items(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    # With factors that no other test has, since plans are kept.
    def product(b: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.addmm(b, x, y, beta=0.125, alpha=-3), torch.addmm(b, y.t(), x.t(), beta=0.25, alpha=-3)

    monkeypatch.setattr(lower, "is_cpu", lambda device: False)
    for rows, depth in ((70, 34), (3, 1)):
        x, y = whole(rows, depth, dtype=torch.float32), whole(depth, rows, dtype=torch.float32)
        run(product, r(rows, 1), x, y, device=device)


# Tiles of 128 by 128, 64 by 128, 128 by 64 and, where larger ones would be half empty, 64 by 64.
@pytest.mark.usefixtures("own_plans")
@pytest.mark.parametrize(("rows", "columns"), [(120, 250), (60, 250), (250, 3), (130, 65)])
def test_sides_of_tiles(rows: int, columns: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "is_cpu", lambda device: False)
    with schedule_table.use_schedules({"product.tiles float32": {"many": 1, "steps": 16}}):
        for depth in (34, 1):
            x, y = whole(rows, depth, dtype=torch.float32), whole(depth, columns, dtype=torch.float32)
            run(lambda x, y: (x @ y, y.t() @ x.t()), x, y, device=device)

# SPDX-License-Identifier: BSD-3-Clause
"""Wrong calls of large tensors, about which the CPU's kernel is not asked if it knows the class of the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import torch_outboard

aten = torch.ops.aten


def large(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(sizes).to(dtype)


def classes(*sizes: int) -> torch.Tensor:
    return torch.randint(5, sizes)


LOGITS = (2, 5, 300, 300)
# By name, an operator, the arguments of a right call, and by place what is wrong in its place.
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[int, Any]]] = {
    "loss of images": (
        aten.nll_loss2d_forward,
        (large(*LOGITS), classes(2, 300, 300), None, 1, -100),
        {1: classes(2, 300, 299)},
    ),
    "gradient of a loss": (
        aten.nll_loss_backward,
        (torch.ones(()), large(90_000, 5), classes(90_000), None, 1, -100, torch.ones(())),
        {0: torch.ones((), dtype=torch.float64), 6: torch.ones((), dtype=torch.int64)},
    ),
    "shifts": (aten.roll, (large(700, 700), [1, 2], [0, 1]), {1: [1], 2: [0]}),
    "gradient of halves": (aten.glu_backward, (large(600, 300), large(600, 600), 1), {0: large(600, 299)}),
    "windows": (
        aten.im2col,
        (large(1, 3, 400, 400), [3, 3], [1, 1], [0, 0], [3, 3]),
        {0: large(1, 3, 400, 400, dtype=torch.int64), 3: [-1, 0]},
    ),
    "norm": (
        aten.native_layer_norm,
        (large(900, 900), [900], large(900), large(900), 1e-5),
        {2: large(900, dtype=torch.float64), 3: large(900, dtype=torch.int64)},
    ),
    "grid": (
        aten.grid_sampler_2d,
        (classes(1, 3, 400, 400).float(), torch.zeros(1, 400, 400, 2), 0, 0, False),
        {1: large(1, 400, 400, 2, dtype=torch.int64)},
    ),
    "samples": (
        aten.fractional_max_pool3d,
        (large(1, 4, 50, 40, 50), [2, 2, 2], [20, 20, 20], large(1, 4, 3)),
        {3: large(1, 4, 2)},
    ),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls_of_large_tensors(name: str, is_first: bool, device: torch.device) -> None:
    operator, right, changes = CALLS[name]

    def run(arguments: tuple[Any, ...]) -> Any:
        moved = tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, arguments)
        result = operator(*moved)
        return result if isinstance(result, tuple) else (result,)

    def check_right() -> None:
        torch_outboard.reset_coverage()
        results = run(right)
        assert {row.provider for row in torch_outboard.coverage()} == {"generated"}
        expected = operator(*right)
        expected = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close([result.cpu() for result in results], list(expected))

    if not is_first:
        check_right()
    for place, wrong in changes.items():
        arguments = (*right[:place], wrong, *right[place + 1 :])
        with pytest.raises(RuntimeError) as theirs:
            operator(*arguments)
        for _ in range(2):
            with pytest.raises(type(theirs.value)) as ours:
                run(arguments)
            assert str(ours.value).partition("\n")[0] == str(theirs.value).partition("\n")[0]
    check_right()

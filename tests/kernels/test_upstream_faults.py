# SPDX-License-Identifier: BSD-3-Clause
"""Upstream's reports of wrong lowerings, decompositions and printed code of Inductor, and which of them reach kernels.

Generated kernels come from Inductor's decompositions and lowerings, for what no row of the book defines. A report that
can reach them is tried by values, each in one call; for another the table says why it cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

NAN, INF = torch.nan, torch.inf
Call = Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]

_OWN_GRAPH = "eager calls have graphs of one operator: nothing is fused with another, or shares its memory"
_TRITON = "the text is Triton's: kernels are printed by codegen/kernel/overrides.py"
_CPP = "the text is that of Inductor's C++ vectors, which eager kernels do not use"
_TEMPLATE = "products are templates of this package"
_DYNAMO = "Dynamo or AOTAutograd made the graph, which eager calls do not use"
_CHECKED = "the CPU's kernel is asked whether it accepts a call before a plan is built"

# By the number of the report in pytorch/pytorch.
NOT_REACHED: dict[int, str] = {
    100530: _OWN_GRAPH,
    108963: _OWN_GRAPH,
    113636: _OWN_GRAPH,
    114226: _OWN_GRAPH,
    114229: _OWN_GRAPH,
    134041: _CPP,
    136662: _DYNAMO,
    144462: _TRITON,
    151525: _CPP,
    154127: _CPP,
    159154: _CPP,
    163567: _DYNAMO,
    173793: "squares of such numbers overflow: the CPU's own result is no number",
    174073: _OWN_GRAPH,
    179135: _CPP,
    180164: _DYNAMO,
    181694: "rows far from 0 against their spread: the CPU's own results are as far from double precision",
    183575: _OWN_GRAPH,
    183894: _OWN_GRAPH,
    184408: "the division is the language's own, which is rounded correctly; Triton's is approximate",
    185423: _TRITON,
    185546: _DYNAMO,
    186164: "ahead-of-time models read a constant's memory; numbers are read at each call here",
    188225: _OWN_GRAPH,
    189895: _OWN_GRAPH,
    193409: _DYNAMO,
    194706: _CPP,
    194976: _DYNAMO,
    195675: _CHECKED,
    196030: "the bits of a NaN are not part of a value",
    197095: _CHECKED,
    197416: _DYNAMO,
}


def _values(*numbers: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


def _integers(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _put(to: Any) -> torch.Tensor:
    x = to(torch.arange(6.0).view(2, 3))
    index = to(torch.zeros(1, 2, dtype=torch.int64))
    x[index] += x[index]
    return x


def _clamped_in_place(to: Any) -> torch.Tensor:
    x = to(_values(-3, -7, 7, 7))
    x[0::2].clamp_(0, 5)
    x[1::2].clamp_(0, 3)
    return x


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    result = function(x)
    return torch.autograd.grad(result, x, torch.arange(float(result.numel())).view(result.shape).to(x.device))[0]


_ORDER = torch.randn(5, 7, generator=torch.Generator().manual_seed(21))

REACHED: dict[int, Call] = {
    93784: lambda to: (
        torch.maximum(to(_values(NAN, 1, NAN)), to(_values(1, NAN, NAN))),
        to(_values(NAN, 1)).clamp(0.5),
    ),
    97968: lambda to: torch.clamp_max(to(_integers(1, 7)).to(torch.int8), to(_integers(3, 3)).to(torch.int8)),
    100987: lambda to: F.avg_pool2d(to(torch.ones(1, 1, 4, 4)), 3, 2, 0, True),
    113641: _clamped_in_place,
    118266: lambda to: (to(_values(NAN, 4.5)).argmax(), to(_values(1, NAN)).argmin()),
    138908: _put,
    143566: lambda to: (
        to(_integers(1, 2, -3)) << to(_integers(33, -1, 31)),
        to(_integers(-8, 8, -3)) >> to(_integers(99, 1, -1)),
    ),
    151198: lambda to: F.pairwise_distance(to(torch.arange(6.0).view(2, 3)), to(torch.arange(6.0).view(2, 3))),
    168358: lambda to: _gradient(
        lambda x: torch.full((1,), -INF, device=x.device).index_reduce(
            0, to(torch.zeros(3, dtype=torch.int64)), x, "amax", include_self=False
        ),
        to(_values(1, 3, 2)),
    ),
    175966: lambda to: to(torch.arange(11)) * 1_000_000_000,
    180771: lambda to: _gradient(lambda x: torch.slice_scatter(x, x[:2] * 2, 0, 1, 3), to(torch.arange(5.0))),
    182012: lambda to: _gradient(lambda x: torch.diagonal_scatter(x, x[0]), to(torch.ones(3, 3))),
    183082: lambda to: (to(_ORDER).sin().t().argmax(), to(_ORDER).sin().t().argmin()),
    183249: lambda to: F.fractional_max_pool3d(
        to(_ORDER.repeat(5, 1, 1)[None, None]), 2, (3, 2, 4), _random_samples=to(torch.tensor([[[0.1, 0.5, 0.9]]]))
    ),
    184406: lambda to: to(_integers(-(2**31))) // to(_integers(-1)),
    196596: lambda to: (
        torch.addmm(to(_values(NAN, NAN)), to(torch.ones(1, 2)), to(torch.eye(2)), beta=0),
        torch.addmm(to(_values(1, 2)), to(torch.full((1, 2), NAN)), to(torch.eye(2)), alpha=0),
    ),
    197895: lambda to: (to(_values(1, 0.5, 6)) // to(_values(0.1, 0.1, 0.2)), to(_values(1, 6)) // 0.1),
    198119: lambda to: _gradient(lambda x: F.avg_pool2d(x, 3, 2, 0, True), to(torch.ones(1, 1, 4, 4))),
    198201: lambda to: (
        F.interpolate(to(torch.arange(12.0).view(1, 1, 3, 4)), scale_factor=(1.3, 1.5)),
        _gradient(lambda x: F.interpolate(x, scale_factor=(1.3, 2.1)), to(torch.arange(12.0).view(1, 1, 3, 4))),
    ),
}


def test_each_report_is_judged_once() -> None:
    assert not NOT_REACHED.keys() & REACHED.keys() and len(NOT_REACHED) + len(REACHED) >= 40


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize("number", REACHED)
def test_a_fault_of_inductor_is_not_inherited(number: int, device: torch.device) -> None:
    got, expected = REACHED[number](lambda x: x.to(device)), REACHED[number](lambda x: x.clone())
    for ours, theirs in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.usefixtures("nothing_on_the_cpu")
def test_divisions_of_integers_by_zero_raise(device: torch.device) -> None:
    """Report 178013: Inductor's kernels return a number."""
    with pytest.raises(RuntimeError, match="ZeroDivisionError|division by zero"):
        torch.floor_divide(_integers(1).to(device), _integers(0).to(device)).cpu()

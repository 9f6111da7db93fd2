# SPDX-License-Identifier: BSD-3-Clause
"""Numbers beside tensors keep their values in compiled code too: the compiled half of tests/kernels/test_numbers.py.

Many calls that the CPU accepts are compiled in one graph, since a graph takes a second. A result must equal the CPU's
eager result, or that of torch.compile on the CPU: a driver is not at fault for a difference that Inductor makes on
every device. The tests cover a fixed share of the operators; OUTBOARD_TEST_SAMPLES=all covers all, as `make stress`
does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import pytest
import torch
from kernels.numbers import DTYPES, OPERATORS, difference, numbers_of, tensor_of
from kernels.numbers import outcome as eager_outcome
from kernels.test_numbers import SOME, is_compared

from torch_outboard.compile.generators import generators

TAKES_ALL = os.environ.get("OUTBOARD_TEST_SAMPLES") == "all"
CALLS_PER_GRAPH = 60
FLOAT32_MAX = torch.finfo(torch.float32).max

Pair = tuple[str, float]
Outcome = torch.Tensor | Exception

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.database]


def compiled_outcomes(pairs: Sequence[Pair], x: torch.Tensor) -> list[Outcome]:
    """Return each call's result in one graph, or the exception of a call that cannot be compiled."""

    def together(x: torch.Tensor) -> list[torch.Tensor]:
        return [OPERATORS[name](x, number) for name, number in pairs]

    torch._dynamo.reset()
    try:
        results = [result.cpu() for result in torch.compile(together, fullgraph=True, dynamic=False)(x)]
        if x.device.type != "cpu":
            torch.accelerator.synchronize(x.device)
    except Exception as error:  # becomes part of the comparison
        if len(pairs) == 1:
            return [error]
        half = len(pairs) // 2
        return compiled_outcomes(pairs[:half], x) + compiled_outcomes(pairs[half:], x)
    return list(results)


def is_by_reciprocal(name: str, number: float) -> bool:
    """Return True for a divisor beyond float32, 0 as the reciprocal of float32 and 1e-39 as Inductor's.

    Inductor multiplies by the reciprocal of a number, except on the CPU.
    """
    return "div" in name and FLOAT32_MAX < abs(number) < math.inf


def differences_of(pairs: Sequence[Pair], x: torch.Tensor, expected: Sequence[Outcome]) -> dict[int, str]:
    """Return the differences from the expected results, by their indices."""
    got = []
    for begin in range(0, len(pairs), CALLS_PER_GRAPH):
        got += compiled_outcomes(pairs[begin : begin + CALLS_PER_GRAPH], x)
    texts = enumerate(map(difference, got, expected))
    return {place: f"{pairs[place]}: {text}" for place, text in texts if text}


@pytest.mark.parametrize("dtype", DTYPES if TAKES_ALL else [torch.uint8], ids=str)
def test_numbers_compiled(dtype: torch.dtype, device: torch.device) -> None:
    x = tensor_of(dtype)
    # Torch 2.11 writes constants for Triton without the sign of zero.
    loses_sign = torch.__version__.startswith("2.11.") and generators().of(device.index).name == "triton"
    pairs: list[Pair] = []  # no set: 0 and -0.0 are equal, 1 and True too
    expected: list[Outcome] = []
    for name in OPERATORS if TAKES_ALL else SOME[::2]:
        for number in numbers_of(dtype):
            want = eager_outcome(OPERATORS[name], x, number)
            is_left_out = dtype != torch.float64 and is_by_reciprocal(name, number)
            # Of halves by infinity, which is among them: the CPU's is NaN, Inductor's the number.
            is_left_out |= name == "remainder of a number" and dtype in (torch.float16, torch.bfloat16)
            is_left_out |= loses_sign and name == "copysign" and str(number) == "-0.0"
            if is_compared(name, dtype, number) and not is_left_out and not isinstance(want, Exception):
                pairs.append((name, number))
                expected.append(want)
    assert len(pairs) > 50
    differences = differences_of(pairs, x.to(device), expected)
    if differences:
        others = [pairs[place] for place in differences]
        differences = differences_of(others, x.to(device), compiled_outcomes(others, x))
    assert not differences, "\n".join(differences.values())


@pytest.mark.core
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_of_a_nan_that_the_compiler_knows(dtype: torch.dtype, device: torch.device) -> None:
    """To a language's compiler the result may be undefined, so that it stores nothing."""
    functions = (torch.floor, torch.trunc, torch.round, torch.exp, torch.tanh, torch.sigmoid, torch.sinh)
    x = torch.arange(9, dtype=dtype, device=device)
    stale = [torch.full_like(x, 3.25) for _ in functions]
    del stale
    torch._dynamo.reset()
    results = torch.compile(lambda x: [function(x / math.nan) for function in functions], fullgraph=True)(x)
    wrong = [function.__name__ for function, got in zip(functions, results, strict=True) if not got.isnan().all()]
    assert not wrong, wrong


@pytest.mark.core
def test_numbers_that_are_one_in_their_type(device: torch.device) -> None:
    x = torch.tensor([1.0, 0.0, -1.0])
    torch._dynamo.reset()
    result = torch.compile(lambda x: torch.nn.functional.threshold(x, 1e-30, 1e-30), fullgraph=True)(x.to(device))
    assert torch.equal(result.cpu(), torch.nn.functional.threshold(x, 1e-30, 1e-30))

# SPDX-License-Identifier: BSD-3-Clause
"""Numbers beside tensors keep their values until the operator converts them, and are refused if the CPU refuses them.

The tests cover a fixed choice of the operators; OUTBOARD_TEST_SAMPLES=all covers all, as `make stress` does.
"""

from __future__ import annotations

import math
import os

import pytest
import torch

from .numbers import DTYPES, OPERATORS, difference, numbers_of, outcome, tensor_of

TAKES_ALL = os.environ.get("OUTBOARD_TEST_SAMPLES") == "all"

SOME = (
    *("_foreach_addcdiv", "_foreach_clamp_max of numbers", "_foreach_div", "add", "addcmul", "clamp to", "copysign"),
    *("div", "div of no dimensions", "div to float32", "frac", "masked_fill", "mul", "rsub", "xlogy of a number"),
)
SOME_DTYPES = (torch.uint8, torch.int16, torch.float16)

# What has no kernels: operators, whether of integers, and a number or None for all.
NOT_GENERATED: dict[str, tuple[tuple[torch.dtype, ...], type[int | bool]]] = {
    "pow of a number": ((torch.bool,), int),
    "pow": ((torch.bool,), bool),  # Inductor's results are of another type
    "pow_": ((torch.bool,), bool),
    "_foreach_pow": ((torch.bool,), bool),
    "_foreach_pow of numbers": ((torch.bool,), bool),
}
_NARROW = (torch.int8, torch.int16, torch.int32)


def is_compared(name: str, dtype: torch.dtype, number: float) -> bool:
    if torch.__version__ >= "2.15" and name.startswith("_foreach_") and dtype == torch.uint8 and number < 0:
        return False  # negative bounds of bytes, which lists wrap as torch before it
    if torch.__version__ < "2.13" and name in ("clamp from", "clamp to") and math.isnan(number):
        return False  # a bound that is NaN and stands alone has no effect there; with the other bound all is NaN
    dtypes, kind = NOT_GENERATED.get(name, ((), int))
    if dtype in dtypes and isinstance(number, kind):
        return False
    return not _is_an_artefact_of_the_cpu(name, dtype, number)


def _is_an_artefact_of_the_cpu(name: str, dtype: torch.dtype, number: float) -> bool:
    # A float that is a whole number beyond int32, to which the CPU's vectors raise
    # negative numbers as to a fraction.
    if "pow" in name and dtype == torch.int32 and number == 2**31 - 1 + 1.5:
        return True
    # The CPU negates the factor, which is one of the type, and refuses the result, which is none.
    if name == "sub of a product" and dtype in _NARROW and number == torch.iinfo(dtype).min:
        return True
    # C++ does not define how 2**63 becomes an int64, which is the first number beyond it.
    if name == "threshold" and dtype == torch.int64 and isinstance(number, float) and number == 2**63:
        return True
    # The CPU's series multiplies an infinity with 0. The exact result is 0.
    return name == "zeta of a number" and 2**63 - 1 <= number < math.inf


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES if TAKES_ALL else SOME_DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS if TAKES_ALL else SOME)
def test_numbers(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = tensor_of(dtype)
    departures = {}
    for number in numbers_of(dtype):
        if is_compared(name, dtype, number):
            want = outcome(OPERATORS[name], x, number)
            if departs := difference(outcome(OPERATORS[name], x.to(device), number), want):
                departures[number] = departs
    assert not departures


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
@pytest.mark.usefixtures("nothing_on_the_cpu")
def test_integers_to_the_power_of_integers(dtype: torch.dtype, device: torch.device) -> None:
    """They wrap. A negative power is 0, except of 1 and -1."""
    base = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 7, 11]).to(dtype)
    power = torch.tensor([-2, -1, 0, 1, 2, 3, 5, 40, 63]).to(dtype)
    assert torch.equal((base.to(device)[:, None] ** power.to(device)).cpu(), base[:, None] ** power)
    assert torch.equal((3 ** power.to(device)).cpu(), 3**power)

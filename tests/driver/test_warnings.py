# SPDX-License-Identifier: BSD-3-Clause
"""The CPU's warnings come at the call, also the warnings that torch issues once a process."""

from __future__ import annotations

import json

import pytest

from torch_outboard.testing.plugin import RunPython

# A process of its own, since some are said once. It prints what each call warns of,
# and what comes at the next wait.
PROGRAM = """
import json, sys, warnings
import torch, torch_outboard
driver, place = sys.argv[1:]
name = torch_outboard.attach(driver).__name__.rpartition(".")[2]
d = torch.device(name if place == "device" else "cpu")
x, number = torch.arange(3.0).to(d), torch.zeros((), device=d)
mask = torch.tensor([1, 0, 1], dtype=torch.uint8).to(d)
halves = torch.empty(9, dtype=torch.half, device=d)
CALLS = {
    "reading by bytes": lambda: x[mask],
    "reading by bytes, again": lambda: x[mask],
    "adding by bytes": lambda: x.index_put_((mask,), number, accumulate=True),
    "adding by bytes, again": lambda: x.index_put_((mask,), number, accumulate=True),
    "putting by bools": lambda: x.index_put_((mask > 0,), number),
    "complex halves": lambda: torch.empty(3, dtype=torch.complex32, device=d),
    "complex halves, again": lambda: torch.empty(3, dtype=torch.complex32, device=d),
    "a condition of bytes": lambda: torch.where(mask, x, x),
    "a condition of bytes, again": lambda: torch.where(mask, x, x + 1),
    "a mask of bytes that is refused": lambda: x.masked_scatter(mask, x),
    "no freedom": lambda: x[:1].std(),
    "no freedom, again": lambda: x[:1].std(),
    "no freedom of nothing": lambda: torch.var_mean(x[:0], 0),
    "a complex number as a real one": lambda: torch.ones(3, dtype=torch.complex64, device=d).to(torch.float32),
    "a bound that is rounded": lambda: halves.random_(-42, 65504),
    "the same again": lambda: halves.random_(-42, 65504),
    "two bounds that are rounded": lambda: halves.random_(-65504, 65504),
    "one bound": lambda: halves.random_(5000),
    "bounds that are exact": lambda: halves.random_(-9, 2000),
    "a reduction by name": lambda: x.index_reduce_(0, torch.tensor([0], device=d), x[1:2] + 1, "prod"),
    "an output of another size": lambda: torch.add(x, x, out=torch.ones(5, device=d)),
}

def said(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        # Said once of a driver whose compiler is missing.
        warnings.filterwarnings("ignore", "the kernel that was generated for")
        try:
            call()
        except RuntimeError as error:
            return [type(error).__name__, *(str(warning.message).partition(" (Triggered")[0] for warning in found)]
    return [str(warning.message).partition(" (Triggered")[0] for warning in found]

print(json.dumps({name: (said(call), said(torch.accelerator.synchronize)) for name, call in CALLS.items()}))
"""


def test_warnings_come_at_the_call(request: pytest.FixtureRequest, run_python: RunPython) -> None:
    driver = request.config.getoption("--driver")

    def messages_of(place: str) -> dict[str, list[list[str]]]:
        env = {"OUTBOARD_FALLBACK": "silent"}
        warnings_of: dict[str, list[list[str]]] = json.loads(
            run_python(PROGRAM, driver, place, env=env).stdout.splitlines()[-1]
        )
        return warnings_of

    expected, ours = messages_of("cpu"), messages_of("device")
    assert sum(bool(at_the_call) for at_the_call, _ in expected.values()) > 12
    assert ours == expected

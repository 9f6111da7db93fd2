# SPDX-License-Identifier: BSD-3-Clause
"""A wait that fails does not end the work: memory of the host is kept until no queued work can reach it."""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython

# Work takes at least 0.2 s, so that a copy is still queued when the wait has failed.
SLOW = 200_000_000

COPIES = """
import gc, sys, time, warnings, torch, torch_outboard
from torch_outboard import _C
how, calls = sys.argv[1], sys.argv[2]
torch_outboard.attach("sim", fault=f"stream_synchronize:{calls}:INTERNAL,device_synchronize:{calls}:INTERNAL",
                      latency=int(sys.argv[3]))
x = torch.full((1 << 20,), 7.0, device="sim")
uses = {
    "to the host": lambda: x.cpu(),
    "strided": lambda: x.view(1024, 1024)[:, ::2].cpu(),
    "from the host": lambda: x.copy_(torch.full((1 << 20,), 5.0)),
    "pinned": lambda: torch.empty(1 << 20).pin_memory().copy_(x),
}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        uses[how]()
        raise SystemExit("nothing was raised")
    except torch_outboard.DriverError as error:
        assert "injected fault" in str(error)
gc.collect()
others = [torch.zeros(1 << 20) for _ in range(8)]  # they would take the freed memory
while not torch.sim.current_stream().query():  # asks, which does not fail, until the work has ended
    time.sleep(0.001)
assert not any(tensor.any() for tensor in others), "the device wrote into another tensor's memory"
print(sum("may still be running" in str(warning.message) for warning in caught))
"""


@pytest.mark.parametrize("how", ["to the host", "strided", "from the host", "pinned"])
def test_a_wait_that_fails_once_is_repeated(run_python: RunPython, how: str) -> None:
    assert run_python(COPIES, how, "1", str(SLOW)).stdout.strip() == "0"


@pytest.mark.parametrize("how", ["to the host", "from the host"])
def test_memory_is_kept_if_no_wait_succeeds(run_python: RunPython, how: str) -> None:
    assert run_python(COPIES, how, "1+", str(SLOW)).stdout.strip() == "1"


def test_kept_memory_is_freed_once_the_work_is_known_to_be_done(run_python: RunPython) -> None:
    run_python(
        """
import gc, warnings, weakref, numpy, torch, torch_outboard
# As many as the copy itself and its repetition make.
counts = {"stream_synchronize": 3, "device_synchronize": 17}
rules = [f"{entry}:{n}:INTERNAL" for entry, most in counts.items() for n in range(1, most + 1)]
torch_outboard.attach("sim", fault=",".join(rules))
freed = []
def target():
    array = numpy.zeros(1 << 20, numpy.float32)
    weakref.finalize(array, freed.append, True)
    return torch.from_numpy(array)
x = torch.ones(1 << 20, device="sim")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        target().copy_(x)
        raise SystemExit("nothing was raised")
    except torch_outboard.DriverError:
        pass
gc.collect()
assert not freed
torch.sim.synchronize()
torch.sim.synchronize()
gc.collect()
assert freed, "the memory is kept although the device has finished"
"""
    )

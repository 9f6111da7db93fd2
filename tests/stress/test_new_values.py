# SPDX-License-Identifier: BSD-3-Clause
"""A loop with ever new numbers and sizes, by generated kernels: no error, no growth, and the CPU's values."""

from __future__ import annotations

import os

import pytest

from torch_outboard.testing.plugin import RunPython

from .suites import skip_without_device

# Divided among the operators, whose values are all different.
CALLS = int(os.environ.get("OUTBOARD_NEW_VALUES", "100000"))
BAR = 50  # MB

PROGRAM = """
import ctypes, gc, sys
import torch, torch_outboard
import torch.nn.functional as F
driver, count = sys.argv[1], int(sys.argv[2])
torch_outboard.attach(driver, **({"host_access": False} if driver == "opencl" else {}))
d = torch.device(torch_outboard.attached_driver().name, 0)
MATRIX = torch.randn(40, 40)
CALLS = {
    "arange": lambda x, n: torch.arange(n, device=x.device),
    "clamp": lambda x, n: x.clamp(-n * 0.0003, n * 0.0003),
    "interpolate": lambda x, n: F.interpolate(x[None, None, :2, :2], (n, 2), mode="bilinear"),
    "linspace": lambda x, n: torch.linspace(0, n, n + 1, device=x.device),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n * 0.1),
    "pow": lambda x, n: x.abs().pow(3.5 + n * 0.0001),
    "topk": lambda x, n: x.view(-1).repeat(n // 1600 + 1).topk(n).values,
    "tril": lambda x, n: torch.zeros(1, n, device=x.device).tril(n // 2 - n),
}
here = MATRIX.to(d)

def memory():
    gc.collect()
    torch.accelerator.synchronize()
    # Freed memory that the C library keeps in pieces is no growth: buffers of ever new sizes leave much.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

def run(numbers):
    for n in numbers:
        for name, call in CALLS.items():
            got = call(here, n)
            if n % 1000 == 7:
                torch.testing.assert_close(got.cpu(), call(MATRIX, n), rtol=1e-4, atol=1e-5, msg=f"{name} of {n}")

run(range(2, 1500))
before, plans = memory(), torch_outboard._C.built_plans()
run(range(1500, 1500 + count // len(CALLS)))
print(f"{memory() - before:.1f} {torch_outboard._C.built_plans() - plans}")
"""


@pytest.mark.parametrize("driver", ["opencl", "tests.simt_drivers:DiscreteOpenCL"])
def test_new_values(run_python: RunPython, driver: str) -> None:
    skip_without_device(driver)
    answer = run_python(PROGRAM, driver, str(CALLS), env={"OUTBOARD_FALLBACK": "error", "OMP_NUM_THREADS": "1"})
    grown, plans = answer.stdout.split()[-2:]
    assert float(grown) < BAR, f"{grown} MB more"
    assert int(plans) <= 8, "kernels are built for new values"

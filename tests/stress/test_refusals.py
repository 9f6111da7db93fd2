# SPDX-License-Identifier: BSD-3-Clause
"""Wrong calls of every operator that the database reaches: the device refuses the calls that the CPU refuses.

The device refuses no other call.
"""

from __future__ import annotations

import pytest

from stress.suites import run_python, skip_without_device


@pytest.mark.parametrize(
    ("driver", "variables", "options"),
    [
        ("sim", {}, []),
        ("opencl", {"OUTBOARD_OCL_HOST_ACCESS": "0", "OUTBOARD_FALLBACK": "silent"}, ["--refused-only", "--large"]),
    ],
)
def test_the_matrix(driver: str, variables: dict[str, str], options: list[str]) -> None:
    skip_without_device(driver)
    answer = run_python("-m", "tests.operators.refusals", "--driver", driver, *options, **variables)
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]

# SPDX-License-Identifier: BSD-3-Clause
"""The operator database under torch.compile with kernels in each dialect: the first sample of each entry, 0 wrong."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_python, run_suite

HAS_DEVICE = "import sys, torch_outboard; sys.exit(0 if torch_outboard.attach(sys.argv[1]).device_count() else 3)"


@pytest.mark.parametrize("driver", ["HostCpp", "OpenCLC"])
def test_every_entry(driver: str) -> None:
    target = f"tests.simt_drivers:{driver}"
    asked = run_python("-c", HAS_DEVICE, target)
    assert asked.returncode in (0, 3), asked.stderr
    if asked.returncode == 3:
        pytest.skip(f"capability: a device of {driver}")
    run_suite(str(TESTS / "operators" / "test_compiled.py"), f"--driver={target}")

# SPDX-License-Identifier: BSD-3-Clause
"""The operator database under torch.compile with kernels in each dialect: the first sample of each entry, 0 wrong."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_suite, skip_without_device


@pytest.mark.parametrize("driver", ["HostCpp", "OpenCLC"])
def test_every_entry(driver: str) -> None:
    target = f"tests.simt_drivers:{driver}"
    skip_without_device(target)
    run_suite(str(TESTS / "operators" / "test_compiled.py"), f"--driver={target}")

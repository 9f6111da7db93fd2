# SPDX-License-Identifier: BSD-3-Clause
"""Generated kernels report wrong values when the host's do."""

from __future__ import annotations

import pytest
import torch
from driver import test_value_checks as checks
from driver.value_checks import AT_CALL, AT_WAIT


@pytest.mark.parametrize("name", AT_CALL)
@pytest.mark.database
def test_it_is_raised_at_the_call(device: torch.device, name: str) -> None:
    checks.test_it_is_raised_at_the_call(device, name)


@pytest.mark.parametrize("name", [name for name in AT_WAIT if name != "_assert_async"])
@pytest.mark.database
def test_it_is_raised_at_the_next_wait(device: torch.device, name: str) -> None:
    checks.test_it_is_raised_at_the_next_wait(device, name)

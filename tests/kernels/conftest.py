# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures for the provider 'generated', on drivers whose devices run it."""

from __future__ import annotations

import pytest
import torch

from torch_outboard import _C


@pytest.fixture(autouse=True)
def _compiles(device: torch.device) -> None:
    if _C.reaches_memory(device.index):
        pytest.skip("capability: memory that the host can't reach, for which kernels are generated")

# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the tests of mixed precision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_outboard import _C, amp


@pytest.fixture(autouse=True)
def needs_autocast() -> None:
    if not _C.has_autocast():
        pytest.skip("capability: the driver has not opted into autocast")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def low(request: pytest.FixtureRequest, device: torch.device) -> torch.dtype:
    """Return the dtype of autocast regions."""
    if request.param not in torch.get_device_module(device).amp.get_amp_supported_dtype():
        pytest.skip(f"capability: {request.param} among the device's dtypes")
    return request.param


@pytest.fixture
def policies() -> Iterator[object]:
    """Return set_policy, and reset the changed policies afterwards."""
    changed = []

    def set_policy(op: object, policy: str) -> None:
        changed.append(op)
        amp.set_policy(op, policy)

    yield set_policy
    for op in changed:
        amp.set_policy(op, "default")

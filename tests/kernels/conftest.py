# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures for the provider 'generated', on drivers whose devices run it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_outboard import _C

_VARIANTS = itertools.count(1000)  # apart from the numbers of tuning


@pytest.fixture(autouse=True)
def _compiles(device: torch.device) -> None:
    if _C.reaches_memory(device.index):
        pytest.skip("capability: memory that the host can't reach, for which kernels are generated")


@pytest.fixture
def own_plans() -> Iterator[Callable[[], None]]:
    """Use none of the plans of other tests, of which some have the same calls; again none with each call."""

    def renew() -> None:
        _C.set_plan_variant(next(_VARIANTS))

    renew()
    yield renew
    _C.set_plan_variant(0)


@pytest.fixture
def generated_products() -> None:
    """Skip where the driver has kernels for products, unless OUTBOARD_PROVIDERS leaves them out."""
    if "aten::mm.out" in _C.native_operators() and "native" in os.environ.get("OUTBOARD_PROVIDERS", "native"):
        pytest.skip("capability: products by generated kernels, which OUTBOARD_PROVIDERS=generated,host chooses")


@pytest.fixture
def nothing_on_the_cpu() -> Iterator[None]:
    # What has no elements runs on the host without touching memory.
    _C.set_providers(1, 1, 0)
    _C.set_fallback_mode("error")
    try:
        yield
    finally:
        _C.set_providers(1, 2, 1)
        _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))

# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all driver tests."""

from __future__ import annotations

import gc

import pytest

from .support import mark


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Keeps what lives anyway, torch and what it imports, out of the collections that tests ask for: 0.3 s each."""
    gc.collect()
    gc.collect()  # what the first freed may have left garbage of its own, which would be kept for good
    gc.freeze()


@pytest.fixture(autouse=True)
def _marked() -> None:
    """Lets `support.ran` speak of this test alone."""
    mark()

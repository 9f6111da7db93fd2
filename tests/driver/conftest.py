# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all driver tests."""

from __future__ import annotations

import pytest

from .support import mark


@pytest.fixture(autouse=True)
def _marked() -> None:
    """Lets `support.ran` speak of this test alone."""
    mark()

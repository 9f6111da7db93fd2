# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the databases' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Lets kernels run in one thread: what several write to memory that they share is a matter of their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

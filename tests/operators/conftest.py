# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the databases' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run kernels in one thread: concurrent writes to shared memory depend on their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

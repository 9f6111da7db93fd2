# SPDX-License-Identifier: BSD-3-Clause
"""Shutdown of a process with a driver."""

from __future__ import annotations

import atexit
from collections.abc import Callable

from torch_outboard.driver import Driver

__all__ = ["end_before_close", "prepare_exit"]

_ends: list[Callable[[], None]] = []


def prepare_exit(driver: Driver) -> None:
    """Arrange for the builder and the devices to stop before Python exits."""
    if driver.kernel_generator is not None:
        # The plan builder needs this module. A function called by atexit can no longer import it.
        import concurrent.futures.process  # noqa: F401
    atexit.register(_shut_down)


def end_before_close(end: Callable[[], None]) -> None:
    """Arrange for a thread that uses the devices to end before the devices are closed."""
    _ends.append(end)


def _shut_down() -> None:
    """End the threads that use the devices, such as the plan builder, and then close the devices."""
    from torch_outboard import _C

    for end in _ends:
        end()
    _C.shut_down()

# SPDX-License-Identifier: BSD-3-Clause
"""The end of a process with a driver."""

from __future__ import annotations

import atexit
from collections.abc import Callable

from torch_outboard.driver import Driver

__all__ = ["end_first", "prepare_exit"]

_first: list[Callable[[], None]] = []


def prepare_exit(driver: Driver) -> None:
    """Arrange for the builder and the devices to stop before Python ends."""
    if driver.kernel_generator is not None:
        # The builder of plans needs this module, and a function that atexit
        # calls cannot import it any more.
        import concurrent.futures.process  # noqa: F401
    atexit.register(_shut_down)


def end_first(end: Callable[[], None]) -> None:
    """Arrange for a thread that uses the devices to end before their use ends."""
    _first.append(end)


def _shut_down() -> None:
    """End the threads that use the devices, such as the builder of plans, and then the use of the devices."""
    from torch_outboard import _C

    for end in _first:
        end()
    _C.shut_down()

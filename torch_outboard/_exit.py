# SPDX-License-Identifier: BSD-3-Clause
"""The end of a process with a driver."""

from __future__ import annotations

import atexit
import sys

from torch_outboard.driver import Driver

__all__ = ["prepare_exit"]


def prepare_exit(driver: Driver) -> None:
    """Arrange for the builder and the devices to stop before Python ends."""
    if driver.kernel_generator is not None:
        # The builder of plans needs this module, and a function that atexit
        # calls cannot import it any more.
        import concurrent.futures.process  # noqa: F401
    atexit.register(_shut_down)


def _shut_down() -> None:
    """Stop the builder of plans, if any plan was built, and then end the use of the devices."""
    from torch_outboard import _C

    if (builder := sys.modules.get("torch_outboard.kernels.builder")) is not None:
        builder.end()
    _C.shut_down()

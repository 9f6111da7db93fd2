# SPDX-License-Identifier: BSD-3-Clause
"""The skeleton driver to copy: the required entries on plain memory, everything else unsupported."""

from torch_outboard.driver import Driver, Option
from torch_outboard.drivers import library_path

__all__ = ["NullDriver"]


class NullDriver(Driver):
    """Devices with plain host memory that do their work immediately."""

    name = "null"
    library = library_path("null")
    options = {"devices": Option(int, None, "Number of devices.")}

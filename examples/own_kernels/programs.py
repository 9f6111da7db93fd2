# SPDX-License-Identifier: BSD-3-Clause
"""Checks and errors of `program_build` and `kernel_launch`, before the device gets a request."""

from torch_outboard import DriverError, Status

from . import compiler
from .dialect import LANGUAGE

ADDRESS, BYTES, LOCAL = 0, 1, 2  # kinds of arguments
LIMIT = 1024  # items of a group


def compiled(language, code, options):
    """Return the binary of a program; raise DriverError, with a status of driver.h, if it does not build."""
    if language != LANGUAGE:
        raise DriverError(f"programs are in {LANGUAGE!r}, not in {language!r}", Status.INVALID_ARGUMENT)
    try:
        return compiler.build(code.decode(), options)
    except compiler.BuildError as error:
        raise DriverError(str(error), Status.PROGRAM_REFUSED) from error
    except OSError as error:
        raise DriverError(f"the compiler can't be run: {error}", Status.UNAVAILABLE) from error


def items_of(name, grid, block, args, shared_memory):
    """Return the number of items of a launch; raise DriverError for a launch that the devices do not support."""
    if shared_memory or grid[1:] != (1, 1) or block[1:] != (1, 1) or any(kind == LOCAL for kind, _ in args):
        raise DriverError(f"{name}: a launch has one dimension and no group memory", Status.INVALID_ARGUMENT)
    if block[0] > LIMIT:
        raise DriverError(f"{name}: a group has at most {LIMIT} items, not {block[0]}", Status.INVALID_ARGUMENT)
    return grid[0] * block[0]

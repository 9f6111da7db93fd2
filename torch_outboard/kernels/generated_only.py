# SPDX-License-Identifier: BSD-3-Clause
"""A process in which only generated kernels run, for the commands that measure and check them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard._attach import attach
from torch_outboard._errors import NotSupportedError, RegistrationError
from torch_outboard.compile.generators import generators
from torch_outboard.kernels.disk import packs, store

__all__ = ["attach_generated_only"]


def attach_generated_only(driver: str, options: Mapping[str, str]) -> torch.device:
    """Attach a driver whose operators run as generated kernels only, and return its first device.

    Calling an operator without a generated kernel is an error: neither the driver's own kernels nor the CPU run it. The
    process neither reads nor stores plans on disk.

    Raises
    ------
    RegistrationError
        The driver does not exist or cannot be attached.
    NotSupportedError
        The driver has no kernel generator, or no device.
    """
    os.environ.update({store.VARIABLE: "", packs.VARIABLE: ""})
    try:
        module: Any = attach(driver, **options)
    except ImportError as error:
        raise RegistrationError(str(error)) from error
    if not generators().has_eager:
        raise NotSupportedError(
            f"the driver {driver!r} has no kernel generator: set `kernel_generator` in its Driver class to a "
            "name such as 'opencl_c', or to a SimtGenerator with your own dialect"
        )
    if module.device_count() == 0:
        raise NotSupportedError(
            f"the driver {driver!r} found no device here: {_C.probe_error() or 'the driver reports none'}"
        )
    _C.set_providers(0, 1, 0)
    _C.set_build_threads(0)  # a call whose program is refused then raises the refusal itself
    _C.set_fallback_mode("error")
    return torch.device(_C.driver_name(), 0)

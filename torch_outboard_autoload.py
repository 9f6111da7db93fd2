# SPDX-License-Identifier: BSD-3-Clause
"""The entry points that torch calls: at the end of `import torch`, and for a backend that nobody has registered.

This module imports nothing, so that it costs nothing while OUTBOARD_DRIVER is not set.
"""

import os


def autoload() -> None:
    """Attach the driver that OUTBOARD_DRIVER names, if the variable is set, as OUTBOARD_AS_CUDA says."""
    if not os.environ.get("OUTBOARD_DRIVER"):
        return
    from torch_outboard._autoload import autoload_from_environment

    autoload_from_environment()
    if os.environ.get("OUTBOARD_AS_CUDA"):
        from torch_outboard.as_cuda.session import start_from_environment

        start_from_environment()


def attach_for_backend() -> None:
    """Attach the driver that OUTBOARD_DRIVER names. Torch 2.14 calls this for the backend "outboard" if none has.

    Raises RegistrationError if the variable is not set.
    """
    from torch_outboard._autoload import attach_for_backend

    attach_for_backend()

# SPDX-License-Identifier: BSD-3-Clause
"""The entry points that torch calls: at the end of `import torch`, and for a backend that nobody has registered.

vLLM calls another, when it chooses its platform. This module imports nothing, so that it costs nothing while neither
OUTBOARD_DRIVER nor OUTBOARD_VLLM is set.
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


def vllm_platform() -> str | None:
    """Return the class of vLLM's platform if OUTBOARD_VLLM names a driver, else None: vLLM takes its own.

    The class's module attaches the driver. vLLM ignores exceptions of this function, and raises those of the module.
    """
    if not os.environ.get("OUTBOARD_VLLM"):
        return None
    return "torch_outboard.integrations._vllm_platform.OutboardPlatform"

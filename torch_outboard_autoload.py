# SPDX-License-Identifier: BSD-3-Clause
"""Entry points that torch calls at the end of `import torch`, or for a backend that is not registered.

vLLM calls `vllm_platform` when it chooses its platform. This module imports nothing, so that it costs nothing unless
OUTBOARD_DRIVER or OUTBOARD_VLLM is set.
"""

import os


def autoload() -> None:
    """Attach the driver that OUTBOARD_DRIVER names, and start as_cuda() if OUTBOARD_AS_CUDA is set."""
    if not os.environ.get("OUTBOARD_DRIVER"):
        return
    from torch_outboard._autoload import autoload_from_environment

    autoload_from_environment()
    if os.environ.get("OUTBOARD_AS_CUDA"):
        from torch_outboard.as_cuda.session import start_from_environment

        start_from_environment()


def attach_for_backend() -> None:
    """Attach the driver that OUTBOARD_DRIVER names.

    Torch 2.14 calls this function if the backend "outboard" is not registered.

    Raises RegistrationError if the variable is not set.
    """
    from torch_outboard._autoload import attach_for_backend

    attach_for_backend()


def vllm_platform() -> str | None:
    """Return the name of the platform class for vLLM, or None for vLLM's own choice if OUTBOARD_VLLM is not set.

    The class's module attaches the driver, because vLLM ignores exceptions of this function but not of that module.
    """
    if not os.environ.get("OUTBOARD_VLLM"):
        return None
    return "torch_outboard.integrations._vllm_platform.OutboardPlatform"

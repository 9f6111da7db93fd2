# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of the group `torch.backends`, which torch calls at the end of `import torch`.

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

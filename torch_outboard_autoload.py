# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of the group `torch.backends`, which torch calls at the end of `import torch`.

A module of its own that imports nothing, so that it costs nothing while OUTBOARD_DRIVER is not set.
"""

import os


def autoload() -> None:
    """Attaches the driver that OUTBOARD_DRIVER names, if it names one."""
    if not os.environ.get("OUTBOARD_DRIVER"):
        return
    from torch_outboard._autoload import autoload_from_environment

    autoload_from_environment()

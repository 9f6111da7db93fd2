# SPDX-License-Identifier: BSD-3-Clause
"""A warning at the first training step of a rank that trains on the CPU or alone.

Libraries that select devices from a list of vendors silently use the CPU although a device is attached. Under torchrun,
some of them train a separate model on every rank.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["watch_first_step"]

_PACKAGES = ("site-packages", "dist-packages", "torch_outboard", sysconfig.get_paths()["stdlib"])
_DOCS = "`outboard doctor` and docs/integrations.md say more."


def watch_first_step(device: str) -> None:
    """Check the first step of any optimizer in this process, if torchrun's variables announce several ranks.

    The hook stays registered, because torch iterates over the table of hooks while it calls them. At later steps, it
    does nothing.
    """
    if int(os.environ.get("WORLD_SIZE") or "1") < 2 or "LOCAL_RANK" not in os.environ:
        return

    is_first = True

    def check(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal is_first
        if not is_first:
            return
        is_first = False
        problem = _problem(device, optimizer)
        if problem:
            # Warn at the program's own line: libraries silence warnings at torch's lines.
            frame = _own_frame()
            place = frame.f_code.co_filename, frame.f_lineno
            warnings.warn_explicit(f"{problem} {_remedy(device)} {_DOCS}", UserWarning, *place)

    register_optimizer_step_pre_hook(check)


def _problem(device: str, optimizer: torch.optim.Optimizer) -> str:
    """Describe what is wrong with the first step, or return ""."""
    from torch_outboard import _C

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    ranks = f"rank {os.environ.get('RANK', '?')} of {os.environ['WORLD_SIZE']}"
    if parameters and all(parameter.device.type == "cpu" for parameter in parameters):
        return f"The driver {device!r} is attached, and {ranks} trains on the CPU."
    if not torch.distributed.is_initialized():
        return f"There are several processes, but {ranks} has no process group: each process trains its own model."
    own = [parameter for parameter in parameters if parameter.device.type == device]
    if own and not any(op.startswith("c10d::") for op, _, _ in _C.coverage()):
        return (
            f"{ranks.capitalize()} takes its first step without having exchanged anything with the other ranks: each "
            "trains its own model."
        )
    return ""


def _own_frame() -> FrameType:
    """Return the innermost frame of the program itself, or the outermost frame if all belong to packages."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if not any(folder in frame.f_code.co_filename for folder in _PACKAGES):
            return frame
        frame = frame.f_back
    return frame


def _remedy(device: str) -> str:
    """Return the line to add to the program, for the library that is imported."""
    for module, packages in (("huggingface", ("accelerate",)), ("lightning", ("lightning", "pytorch_lightning"))):
        if any(package in sys.modules for package in packages):
            return f"After attach(), add: from torch_outboard.integrations import {module}; {module}.use()."
    return (
        f"Move the model to {device!r}, call torch.distributed.init_process_group(), and wrap the model in "
        "DistributedDataParallel."
    )

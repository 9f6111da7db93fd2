# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: torch estimates run times by querying Triton about the GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["MODULE", "estimate_speeds", "needs_estimate_speeds"]

MODULE = "torch._inductor.utils"
# Gigabytes per second, and teraflops: estimates are only compared with each other.
_NOMINAL = {"get_gpu_dram_gbps": 100, "get_device_tflops": 1}
# Modules that import these functions by name.
_USERS = ("torch.utils._runtime_estimation", "torch._inductor.scheduler")


def needs_estimate_speeds() -> bool:
    """Return True if memory or compute speed comes from Triton, whatever the device."""
    from torch._inductor import utils

    return any(_asks_triton(utils, name) for name in _NOMINAL)


def _asks_triton(utils: ModuleType, name: str) -> bool:
    return mentions(getattr(utils, name), "triton.testing")


def estimate_speeds(utils: ModuleType) -> None:
    """Make torch's run-time estimates use nominal speeds if there is no CUDA.

    AOTAutograd estimates the run time of each node in a backward graph with several streams, and Inductor the run times
    of collectives. Both use triton.testing, which queries torch.cuda. Without Triton, the import fails. There is no
    hook for a device. Upstream: torch/utils/_runtime_estimation.py, which supports no other devices.
    """
    for name, nominal in _NOMINAL.items():
        if not _asks_triton(utils, name):
            continue
        of_torch = getattr(utils, name)
        replaced = _nominal(of_torch, nominal)
        for module in (utils, *filter(None, map(sys.modules.get, _USERS))):
            if getattr(module, name, None) is of_torch:
                setattr(module, name, replaced)


def _nominal(of_torch: Callable[..., Any], nominal: int) -> Callable[..., Any]:
    @functools.wraps(of_torch)
    def speed(*args: Any, **named: Any) -> Any:
        return of_torch(*args, **named) if torch.cuda.is_available() else nominal

    return speed

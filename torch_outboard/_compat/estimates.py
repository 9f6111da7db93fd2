# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: estimates of run times, for which torch asks Triton about the GPU."""

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
# Gigabytes a second, and teraflops: estimates are compared with each other only.
_NOMINAL = {"get_gpu_dram_gbps": 100, "get_device_tflops": 1}
# Modules that import the functions by their names.
_USERS = ("torch.utils._runtime_estimation", "torch._inductor.scheduler")


def needs_estimate_speeds() -> bool:
    """Return True if the speed of the memory or of products comes from Triton, whatever the device."""
    from torch._inductor import utils

    return any(_asks_triton(utils, name) for name in _NOMINAL)


def _asks_triton(utils: ModuleType, name: str) -> bool:
    return mentions(getattr(utils, name), "triton.testing")


def estimate_speeds(utils: ModuleType) -> None:
    """Make torch's estimates of run times take nominal speeds where there is no CUDA.

    AOTAutograd estimates the run time of each node of a backward graph with several streams, and Inductor those of
    collectives, by triton.testing, which asks torch.cuda. Without Triton, the import fails. A device has no hook.
    Upstream: torch/utils/_runtime_estimation.py, which knows no other devices.
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
    def speed(*given: Any, **named: Any) -> Any:
        return of_torch(*given, **named) if torch.cuda.is_available() else nominal

    return speed

# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: estimates of run times, for which torch asks Triton about the GPU."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import torch

from torch_outboard._compat.source import mentions

__all__ = ["MODULE", "estimate_bandwidth", "needs_estimate_bandwidth"]

MODULE = "torch._inductor.utils"
_NAME = "get_gpu_dram_gbps"
# Modules that import the function by its name.
_USERS = ("torch.utils._runtime_estimation", "torch._inductor.scheduler")
_NOMINAL = 100  # gigabytes a second: estimates are compared with each other only


def needs_estimate_bandwidth() -> bool:
    """Return True if the memory's bandwidth comes from Triton, whatever the device."""
    from torch._inductor import utils

    return mentions(utils.get_gpu_dram_gbps, "triton.testing")


def estimate_bandwidth(utils: ModuleType) -> None:
    """Make torch's estimates of transfers take a nominal bandwidth where there is no CUDA.

    AOTAutograd estimates the run time of each node of a backward graph with several streams, and Inductor those of
    collectives, by triton.testing, which asks torch.cuda. Without Triton, the import fails. A device has no hook.
    Upstream: torch/utils/_runtime_estimation.py, which knows no other devices.
    """
    if not needs_estimate_bandwidth():
        return
    of_torch = getattr(utils, _NAME)

    @functools.wraps(of_torch)
    def get_gpu_dram_gbps() -> int:
        return of_torch() if torch.cuda.is_available() else _NOMINAL

    for module in (utils, *filter(None, map(sys.modules.get, _USERS))):
        if getattr(module, _NAME, None) is of_torch:
            setattr(module, _NAME, get_gpu_dram_gbps)

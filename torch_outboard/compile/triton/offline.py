# SPDX-License-Identifier: BSD-3-Clause
"""A driver of Triton's that launches nothing: Inductor asks the active one what kernels are compiled for."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as drivers

from torch_outboard._errors import NotSupportedError
from torch_outboard._triton import TritonTarget

__all__ = ["stand_in"]


class _Offline:
    """Tells the target. Everything else of a driver would be for launches, and raises."""

    def __init__(self, target: TritonTarget) -> None:
        self._target = GPUTarget(target.backend, target.arch, target.warp_size)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotSupportedError(
            f"Triton's launcher is asked for (driver.active.{name}), and kernels for this device are launched by "
            "torch.compile alone: a kernel of your own can be called on no device that Triton has no driver for"
        )


def stand_in(target: TritonTarget) -> None:
    """Makes a driver for the target active where Triton has none."""
    if drivers._active is None and not any(one.driver.is_active() for one in triton.backends.backends.values()):
        drivers.set_active(_Offline(target))

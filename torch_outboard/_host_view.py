# SPDX-License-Identifier: BSD-3-Clause
"""Device memory for libraries that know the CPU only."""

from __future__ import annotations

import torch

__all__ = ["host_view"]


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Gives a CPU tensor over the memory of a device tensor, with no copy: `host_view(x).numpy()`.

    It waits for the device's current stream. What is queued later is not waited for: before the host reads what the
    device writes, or the device what the host writes, synchronise. The memory lives as long as either tensor.

    NotSupportedError where the host cannot reach the driver's memory; use `tensor.cpu()` there. ValueError for a tensor
    of another device or one that is not dense, RuntimeError for one that requires grad.
    """
    from torch_outboard import _C

    return _C.host_view(tensor)

# SPDX-License-Identifier: BSD-3-Clause
"""Device memory as CPU tensors, for libraries that know only the CPU."""

from __future__ import annotations

import torch

__all__ = ["host_view"]


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the memory of a device tensor, without a copy: `host_view(x).numpy()`.

    The call waits for the device's current stream, and not for work queued later. Synchronise before the host reads
    what the device writes, or the device reads what the host writes. The memory lives as long as either tensor.

    Raises
    ------
    NotSupportedError
        The host cannot reach the driver's memory; use `tensor.cpu()`.
    ValueError
        The tensor is on another device or is not dense.
    RuntimeError
        The tensor requires grad.
    """
    from torch_outboard import _C

    return _C.host_view(tensor)

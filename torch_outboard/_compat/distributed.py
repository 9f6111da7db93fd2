# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: torch.distributed."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["choose_backend", "needs_choose_backend"]


def needs_choose_backend() -> bool:
    """Return True if a group without a backend name uses Gloo, or leaves CPU tensors without a backend."""
    if not torch.distributed.is_available():
        return False
    return mentions(torch.distributed.distributed_c10d._new_process_group_helper, "UNDEFINED")


def choose_backend(device: str) -> None:
    """Make init_process_group() without a backend name use the device's default backend for all devices.

    The map of default backends contains the device, but torch sets the group's own default to Gloo. Gloo is then not a
    backend of the group, and init_process_group() raises. Torch 2.15 uses the map, in which CPU tensors have no
    backend.
    """
    if not needs_choose_backend():
        return
    c10d = torch.distributed.distributed_c10d
    of_torch = c10d._new_process_group_helper

    @functools.wraps(of_torch)
    def helper(group_size: int, group_rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if backend == c10d.Backend.UNDEFINED:
            backend = c10d.Backend(c10d.Backend.default_device_backend_map[device])
        return of_torch(group_size, group_rank, ranks, backend, *args, **kwargs)

    c10d._new_process_group_helper = helper  # type: ignore[assignment]

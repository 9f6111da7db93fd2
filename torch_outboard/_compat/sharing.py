# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: torch.multiprocessing shares only storages of the CPU and of CUDA."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

__all__ = ["needs_share_storages", "share_storages"]


def needs_share_storages() -> bool:
    """Return True if torch has no hook for shared storages: https://github.com/pytorch/pytorch/issues/192099."""
    return not hasattr(getattr(torch._C, "_acc", None), "_is_privateuse1_ipc_supported")


def share_storages(device: str, reduce: Callable[[torch.UntypedStorage], Any]) -> None:
    """Make torch.multiprocessing pickle storages of the attached device with `reduce`; torch handles all others."""

    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if storage.device.type == device:
            return reduce(storage)
        return reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]

    ForkingPickler.register(torch.UntypedStorage, reduce_storage)

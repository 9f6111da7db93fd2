# SPDX-License-Identifier: BSD-3-Clause
"""torch.<name>._utils, which torch.load calls to get the index of a storage's device."""

from __future__ import annotations

import torch

from torch_outboard.device._context import device_index

__all__: list[str] = []


def _get_device_index(device: torch.device | int | str | None, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return a device's index like torch's function of the same name, or -1 for the CPU if `allow_cpu` is set."""
    if allow_cpu and device is not None and not isinstance(device, int) and torch.device(device).type == "cpu":
        return -1
    return device_index(device, is_optional=optional)

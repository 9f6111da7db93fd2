# SPDX-License-Identifier: BSD-3-Clause
"""The kind of machine that a kernel's items run on."""

from __future__ import annotations

import torch

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.codegen.prelude import weight_of
from torch_outboard.device.devices import get_device_properties

__all__ = ["dynamic_memory", "groups_share_work", "is_cpu", "is_long", "limits_of"]

# A kernel with this many characters takes long to compile.
_LONG_KERNEL_CHARACTERS = 8000
# Bytes of its memory that a multiprocessor reserves for each group.
_RESERVED_BYTES = 1024


def is_cpu(device: torch.device) -> bool:
    """Return True if a device is a CPU, which runs items one after the other and has vectors."""
    return get_device_properties(device).machine == "cpu"


def groups_share_work(dialect: Dialect, device: torch.device) -> bool:
    """Return True if items of a group share work: if the dialect has groups, except on CPUs with known vectors."""
    return dialect.has_groups and not (dialect.vectors and is_cpu(device))


def dynamic_memory(dialect: Dialect, device: torch.device) -> int:
    """Return the bytes of dynamic local memory per group if two groups share a multiprocessor.

    Return 0 if the language has no dynamic memory, or the driver does not report its size.
    """
    if not dialect.dynamic:
        return 0
    return max(get_device_properties(device).shared_memory_per_multiprocessor // 2 - _RESERVED_BYTES, 0)


def limits_of(dialect: Dialect, device: torch.device) -> GroupLimits:
    """Return the limits of a group of items on a device."""
    return GroupLimits.of(dialect, get_device_properties(device))


def is_long(text: str) -> bool:
    """Return True if a text, including the parts of the prelude that it uses, takes long to compile."""
    return len(text) + weight_of(text) > _LONG_KERNEL_CHARACTERS

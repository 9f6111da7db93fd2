# SPDX-License-Identifier: BSD-3-Clause
"""Limits of a group of items on a device: the only source from which kernels take the sizes of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["GroupLimits"]

# No kernel uses more items or memory, so that all devices with at least this much share the same
# texts.
_MAX_ITEMS, _MAX_MEMORY = 256, 48 << 10
# Local memory assumed if the driver reports none: as much as the smallest GPUs have.
_DEFAULT_MEMORY = 16 << 10


class _Properties(Protocol):
    """The device properties that this module reads."""

    @property
    def max_threads_per_block(self) -> int: ...

    @property
    def shared_memory_per_block(self) -> int: ...


@dataclass(frozen=True)
class GroupLimits:
    """Limits of a group of items on a device. Every kernel takes its sizes from here.

    Attributes
    ----------
    items : int
        The most items in a group, a power of two.
    memory : int
        Bytes of local memory that kernels may declare.
    """

    items: int = _MAX_ITEMS
    memory: int = _MAX_MEMORY

    def items_with(self, bytes_each: int) -> int:
        """Return the most items in a group if each item needs `bytes_each` bytes of the group's memory."""
        return min(self.items, _power_of_two_below(self.memory // bytes_each))

    @staticmethod
    def of(dialect: Dialect, properties: _Properties) -> GroupLimits:
        """Return the limits that the driver reports, or `Dialect.group` items and 16 KiB if it reports none."""
        items = properties.max_threads_per_block or dialect.group
        memory = (properties.shared_memory_per_block or _DEFAULT_MEMORY) if dialect.has_groups else _MAX_MEMORY
        return GroupLimits(_power_of_two_below(min(items, _MAX_ITEMS)), min(memory, _MAX_MEMORY))

    @property
    def is_largest(self) -> bool:
        """True if no kernel would be larger on a larger device."""
        return self == GroupLimits()


def _power_of_two_below(number: int) -> int:
    """Return the greatest power of two that does not exceed a number, or 1 for numbers below 1."""
    return 1 << max(number.bit_length() - 1, 0)

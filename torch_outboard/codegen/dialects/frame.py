# SPDX-License-Identifier: BSD-3-Clause
"""The frame of a kernel as data, for a dialect to write in its language: parameters, and memory of a group."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["LocalArray", "Parameter", "Suffixes"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes
    ----------
    type : str
        The type of a number or of a pointer's elements: "ob_i64", "float".
    is_pointer : bool
        True for a pointer into the device's memory.
    is_written : bool
        True if the kernel writes through the pointer.
    is_alone : bool
        True if no other parameter points to the same memory.
    """

    name: str
    type: str
    is_pointer: bool = False
    is_written: bool = False
    is_alone: bool = False

    @property
    def bytes(self) -> int:
        """The size of an argument in bytes."""
        return 8 if self.is_pointer else _BYTES[self.type]


@dataclass(frozen=True)
class LocalArray:
    """An array in the memory that the items of a group share.

    Attributes
    ----------
    size : str
        The number of elements: digits, or a product of them.
    is_aligned : bool
        True if the array is aligned for loads and stores of four elements.
    offset : int or None
        The byte at which the array begins in the dynamic memory of the launch. None: the kernel declares the memory.
    """

    type: str
    name: str
    size: str
    is_aligned: bool = False
    offset: int | None = None

    @property
    def bytes(self) -> int:
        """The number of bytes that the kernel declares."""
        if self.offset is not None:
            return 0
        return math.prod(int(factor) for factor in self.size.split("*")) * _BYTES[self.type]


_BYTES = {
    **{"bool": 1, "float": 4, "int": 4, "double": 8, "float4": 16, "uint4": 16},
    **{f"ob_{sign}{bits}": bits // 8 for sign in "iu" for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Suffixes:
    """The suffixes of constants, by type."""

    f32: str = "f"
    f64: str = ""
    i64: str = "L"
    u64: str = "UL"

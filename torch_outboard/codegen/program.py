# SPDX-License-Identifier: BSD-3-Clause
"""A kernel in the driver's language, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DeviceProgram"]


@dataclass(frozen=True)
class DeviceProgram:
    """A kernel in the driver's language, as generators hand it to a wrapper's `define_program`.

    Attributes
    ----------
    name : str
        Which profiles and errors show too.
    language, options : str
        For the driver's `program_build`.
    types : tuple of str
        C types of the arguments: pointers, of which those without `const` are written, int64_t, int32_t, int16_t,
        int8_t, float and double; "table" for a pointer to addresses that the kernel uses, which plans of operators
        alone pass; "kept" for an integer that formulas read and the kernel doesn't take. And three that calls don't
        pass: "local" for an argument of local memory, "zero" for a pointer that is 0, and "record" for the three of a
        kernel that checks something, by which it says what is wrong: the address of its stream's record, the launch's
        ticket of 64 bits, the kernel's number of 32 bits (codegen/prelude/failure.h).
    code : str or bytes
        The program: its text, or what a compiler made of it.
    entry : str
        The kernel's name in it.
    grid, block : tuple of str
        Blocks and their threads, in up to three dimensions: formulas over the arguments that are integers, as
        `formula` writes them. A grid of 0 blocks launches nothing.
    local_bytes : str
        Of dynamic local memory of a block, a formula too.
    checks : tuple of str
        What may be wrong, by the numbers that the kernel writes: "index " and an operator's name, for an IndexError,
        "range " and an operator's name, for a RuntimeError of the same words, or "assert " and a message, for a
        RuntimeError.
    """

    name: str
    language: str
    types: tuple[str, ...]
    code: str | bytes
    entry: str
    grid: tuple[str, ...]
    block: tuple[str, ...] = ("1",)
    local_bytes: str = "0"
    options: str = ""
    checks: tuple[str, ...] = ()

    def geometry(self) -> tuple[str, ...]:
        """Gives the seven formulas of a launch: three of the grid, three of the block, one of local memory."""
        return (*_three(self.name, self.grid), *_three(self.name, self.block), self.local_bytes)

    def definition(self, device: int) -> str:
        """Gives the call that makes the launcher, as Python code. It builds the program for the device."""
        code = repr(self.code)
        if isinstance(self.code, str) and _is_quotable(self.code):
            code = f"r'''\n{self.code}'''"
        return (
            f"device_kernel({self.name!r}, {self.language!r}, {list(self.types)!r}, {code}, entry={self.entry!r}, "
            f"grid={self.grid!r}, block={self.block!r}, local_bytes={self.local_bytes!r}, options={self.options!r}, "
            f"{f'checks={self.checks!r}, ' if self.checks else ''}device={device})"
        )


def _three(name: str, formulas: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(formulas) <= 3:
        raise ValueError(f"the kernel {name} has {len(formulas)} dimensions: a launch has one to three")
    return (*formulas, "1", "1")[:3]


def _is_quotable(code: str) -> bool:
    return "'''" not in code and not code.endswith(("'", "\\")) and "\r" not in code

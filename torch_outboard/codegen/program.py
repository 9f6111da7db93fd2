# SPDX-License-Identifier: BSD-3-Clause
"""A kernel in the driver's language, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch_outboard.codegen.letters import program_letters

__all__ = ["DeviceProgram", "KernelRecord"]


class KernelRecord(NamedTuple):
    """A kernel in the driver's language, as passed to _C. csrc/bindings/records.h reads the fields by name.

    Attributes
    ----------
    letters : str
        A letter for each argument (csrc/kernels/argument_kind.h).
    geometry : tuple of str
        Seven formulas: three of the grid, three of the block, one of local memory.
    checks : tuple of str
        The possible failures, as in `DeviceProgram`.
    read_binary : callable, optional
        Returns the pack's program for the device, in the form that `program_build` accepts, or b"" if there is none.
        Called on the thread that builds the kernel, and only if the kernel is built.
    """

    name: str
    language: str
    code: bytes
    options: str
    entry: str
    letters: str
    geometry: tuple[str, ...]
    checks: tuple[str, ...] = ()
    read_binary: Callable[[], bytes] | None = None


@dataclass(frozen=True)
class DeviceProgram:
    """A kernel in the driver's language, as generators pass it to a wrapper's `define_program`.

    Attributes
    ----------
    name : str
        The kernel's name in profiles and errors.
    language, options : str
        Arguments of the driver's `program_build`.
    types : tuple of str
        C types of the arguments: pointers (written unless they have `const`), int64_t, int32_t, int16_t, int8_t, float
        and double. "table" is a pointer to addresses that the kernel uses; only plans of operators pass it. "kept" is
        an integer that only formulas read, not the kernel. Calls do not pass arguments of the remaining three types.
        "local" is an argument of local memory. "zero" is a null pointer. "record" stands for the three arguments of a
        kernel that reports failures (codegen/prelude/failure.h): the address of its stream's record, the launch's
        64-bit ticket, and the kernel's 32-bit number.
    code : str or bytes
        The program: its text, or a compiler's output.
    entry : str
        The kernel's name in the program.
    grid, block : tuple of str
        Blocks and their threads, in up to three dimensions: formulas over the integer arguments, as `formula` writes
        them. A grid of 0 blocks launches nothing.
    local_bytes : str
        Bytes of dynamic local memory per block, also a formula.
    checks : tuple of str
        The possible failures, indexed by the number that the kernel writes. "index " and an operator's name raises an
        IndexError. "range " and an operator's name raises a RuntimeError with the same message. "assert " and a message
        raises a RuntimeError.
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

    def record(self) -> KernelRecord:
        """Return the kernel in the form passed to _C. Raise TypeError for a type that a launch cannot pass."""
        code = self.code.encode() if isinstance(self.code, str) else self.code
        letters = program_letters(self.name, list(self.types))
        return KernelRecord(
            self.name, self.language, code, self.options, self.entry, letters, self.geometry(), tuple(self.checks)
        )

    def geometry(self) -> tuple[str, ...]:
        """Return a launch's seven formulas: three for the grid, three for the block, one for local memory."""
        return (*_dim3(self.name, self.grid), *_dim3(self.name, self.block), self.local_bytes)

    def definition(self, device: int) -> str:
        """Return Python code that creates the launcher. Running it builds the program for the device."""
        code = repr(self.code)
        if isinstance(self.code, str) and _is_quotable(self.code):
            code = f"r'''\n{self.code}'''"
        return (
            f"device_kernel({self.name!r}, {self.language!r}, {list(self.types)!r}, {code}, entry={self.entry!r}, "
            f"grid={self.grid!r}, block={self.block!r}, local_bytes={self.local_bytes!r}, options={self.options!r}, "
            f"{f'checks={self.checks!r}, ' if self.checks else ''}device={device})"
        )


def _dim3(name: str, formulas: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(formulas) <= 3:
        raise ValueError(f"the kernel {name} has {len(formulas)} dimensions; a launch has one to three")
    return (*formulas, "1", "1")[:3]


def _is_quotable(code: str) -> bool:
    return "'''" not in code and not code.endswith(("'", "\\")) and "\r" not in code

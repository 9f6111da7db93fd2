# SPDX-License-Identifier: BSD-3-Clause
"""The letters that stand for the kinds of kernel arguments in a launch; csrc/kernels/argument_kind.h lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch_outboard import _C

__all__ = ["argument_type", "kernel_letters", "passed_types", "program_letters"]


class _Kind(NamedTuple):
    letter: str
    type: str
    meaning: str
    is_passed: bool
    is_on_host: bool


_KINDS = [_Kind(**row) for row in _C.argument_kinds()]
_OF_PROGRAMS = {kind.type: kind.letter for kind in _KINDS}
_OF_PROGRAMS |= {"long": _OF_PROGRAMS["int64_t"], "int": _OF_PROGRAMS["int32_t"]}
# On the host, each argument is one word.
_ON_HOST = {kind.type: kind.letter for kind in _KINDS if kind.is_on_host}
_ON_HOST |= {"long": _ON_HOST["int64_t"], "int": _ON_HOST["int64_t"]}
_NOT_PASSED = {kind.type for kind in _KINDS if not kind.is_passed}


def argument_type(kind: str) -> str:
    """Return the C++ type of a kernel's argument, without a number's const."""
    return kind if kind.endswith("*") else kind.removeprefix("const ")


def kernel_letters(name: str, types: list[str]) -> str:
    """Return a letter for each C++ type. Raise TypeError for a type that a launch cannot pass."""
    return "".join(_letter(name, kind, _ON_HOST) for kind in types)


def program_letters(name: str, types: list[str]) -> str:
    """Return a letter for each type of a device program, which distinguishes the sizes of numbers.

    Raises
    ------
    TypeError
        If a launch cannot pass a type.
    """
    return "".join(_letter(name, kind, _OF_PROGRAMS) for kind in types)


def passed_types(types: tuple[str, ...]) -> list[str]:
    """Return the types of the arguments that calls of a program's kernel pass."""
    return [kind for kind in types if kind not in _NOT_PASSED]


def _letter(name: str, type_name: str, letters: Mapping[str, str]) -> str:
    letter = letters.get(type_name.removeprefix("const "))
    if letter is None and type_name.endswith("*"):
        return letters["const *" if "const" in type_name.split() else "*"]
    if letter is None:
        raise TypeError(f"the kernel {name} has an argument of type {type_name!r}, which launches don't support")
    return letter

# SPDX-License-Identifier: BSD-3-Clause
"""The letters that denote the types of a kernel's arguments in a launch."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["argument_type", "kernel_letters", "passed_types", "program_letters"]

# The letters of csrc/ops/generated/compiled_kernel.h and csrc/kernels/device_kernel.h. On the host, each argument takes
# a word.
_NUMBERS = {"int64_t": "i", "long": "i", "int": "i", "float": "f", "double": "d"}
_NOT_NUMBERS = {"table": "t", "local": "l", "record": "e", "zero": "n", "kept": "k"}
_NARROW = {"int": "j", "int32_t": "j", "int16_t": "h", "int8_t": "b"}
_NUMBERS_OF_PROGRAMS = {**_NUMBERS, **_NARROW, **_NOT_NUMBERS}


def argument_type(kind: str) -> str:
    """Return the C++ type of a kernel's argument without the const of a number."""
    return kind if kind.endswith("*") else kind.removeprefix("const ")


def kernel_letters(name: str, types: list[str]) -> str:
    """Return a letter for each C++ type. Raise TypeError for a type that a launch cannot pass."""
    return "".join(_letter(name, kind, _NUMBERS) for kind in types)


def program_letters(name: str, types: list[str]) -> str:
    """Return a letter for each type of a device program, which distinguishes the sizes of numbers.

    Raises
    ------
    TypeError
        If a launch cannot pass a type.
    """
    return "".join(_letter(name, kind, _NUMBERS_OF_PROGRAMS) for kind in types)


def passed_types(types: tuple[str, ...]) -> list[str]:
    """Return the types of the arguments of a program's kernel that calls pass."""
    return [kind for kind in types if kind not in ("local", "zero", "record")]


def _letter(name: str, type_name: str, numbers: Mapping[str, str]) -> str:
    if type_name.endswith("*"):
        return "r" if "const" in type_name.split() else "w"
    kind = numbers.get(type_name.removeprefix("const "))
    if kind is None:
        raise TypeError(f"the kernel {name} has an argument of type {type_name!r}, which a launch cannot pass")
    return kind

# SPDX-License-Identifier: BSD-3-Clause
"""The letters by which a launch knows the arguments of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["argument_type", "kernel_letters", "passed_types", "program_letters"]

# The letters of csrc/ops/generated/compiled_kernel.h, and of csrc/kernels/device_kernel.h. On the host each argument
# has a word.
_NUMBERS = {"int64_t": "i", "long": "i", "int": "i", "float": "f", "double": "d"}
_NOT_NUMBERS = {"table": "t", "local": "l", "record": "e", "zero": "n", "kept": "k"}
_NARROW = {"int": "j", "int32_t": "j", "int16_t": "h", "int8_t": "b"}
_NUMBERS_OF_PROGRAMS = {**_NUMBERS, **_NARROW, **_NOT_NUMBERS}


def argument_type(kind: str) -> str:
    """Gives the C++ type of a kernel's argument without the const of a number."""
    return kind if kind.endswith("*") else kind.removeprefix("const ")


def kernel_letters(name: str, types: list[str]) -> str:
    """Gives a letter for each C++ type. TypeError for a type that a launch cannot pass."""
    return "".join(_letter(name, kind, _NUMBERS) for kind in types)


def program_letters(name: str, types: list[str]) -> str:
    """The same for the types of a program of the device, where the sizes of numbers count."""
    return "".join(_letter(name, kind, _NUMBERS_OF_PROGRAMS) for kind in types)


def passed_types(types: tuple[str, ...]) -> list[str]:
    """Gives the types of those arguments of a program's kernel that calls pass."""
    return [kind for kind in types if kind not in ("local", "zero", "record")]


def _letter(name: str, type_name: str, numbers: Mapping[str, str]) -> str:
    if type_name.endswith("*"):
        return "r" if "const" in type_name.split() else "w"
    kind = numbers.get(type_name.removeprefix("const "))
    if kind is None:
        raise TypeError(f"the kernel {name} has an argument of type {type_name!r}, which a launch cannot pass")
    return kind

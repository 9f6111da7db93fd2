# SPDX-License-Identifier: BSD-3-Clause
"""The letters by which a launch knows the arguments of a kernel."""

from __future__ import annotations

__all__ = ["argument_type", "kernel_letters"]

# The letters of csrc/ops/compiled_kernel.h.
_NUMBERS = {"int64_t": "i", "long": "i", "int": "i", "float": "f", "double": "d"}


def argument_type(kind: str) -> str:
    """Gives the C++ type of a kernel's argument without the const of a number."""
    return kind if kind.endswith("*") else kind.removeprefix("const ")


def kernel_letters(name: str, types: list[str]) -> str:
    """Gives a letter for each C++ type. TypeError for a type that a launch cannot pass."""
    return "".join(_letter(name, kind) for kind in types)


def _letter(name: str, type_name: str) -> str:
    if type_name.endswith("*"):
        return "r" if type_name.startswith("const ") else "w"
    kind = _NUMBERS.get(type_name.removeprefix("const "))
    if kind is None:
        raise TypeError(f"the kernel {name} has an argument of type {type_name!r}, which a launch cannot pass")
    return kind

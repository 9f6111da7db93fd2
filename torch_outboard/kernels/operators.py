# SPDX-License-Identifier: BSD-3-Clause
"""Lookup of operators by their names in the dispatcher."""

from __future__ import annotations

import functools

import torch

__all__ = ["base_name", "functional_of", "overload_of"]


def overload_of(name: str) -> torch._ops.OpOverload:
    """Return the operator with a name such as "aten::add.Tensor"."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")  # type: ignore[no-any-return]


def base_name(name: str) -> str:
    """Return the name without overload and in-place form: "aten::add" for "aten::add_.Tensor"."""
    return name.partition(".")[0].removesuffix("_")


@functools.cache
def functional_of(name: str) -> torch._ops.OpOverload | None:
    """Return the overload that computes the same result without writing an argument, or None if there is none."""
    operator = overload_of(name)
    if not operator._schema.is_mutable:
        return operator
    packet = getattr(torch.ops.aten, base_name(name).partition("::")[2], None)
    if packet is None:
        return None
    wanted = [
        (argument.name, str(argument.type))
        for argument in operator._schema.arguments
        if not (argument.kwarg_only and argument.is_out)
    ]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        declared = [(argument.name, str(argument.type)) for argument in candidate._schema.arguments]
        if declared == wanted and not candidate._schema.is_mutable:
            return candidate  # type: ignore[no-any-return]
    return None

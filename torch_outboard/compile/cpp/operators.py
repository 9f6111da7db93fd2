# SPDX-License-Identifier: BSD-3-Clause
"""Arguments and results of an operator call, taken from Inductor's node for the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch._inductor import ir

from torch_outboard._errors import NotSupportedError, OutboardError

__all__ = ["Results", "arguments_of", "by_schema", "names_of", "overload_of", "results_of", "to_overload"]

# Names for the values that an operator returns; None for an unused value.
Results: TypeAlias = list[str | None]


def to_overload(op: Any) -> torch._ops.OpOverload:
    if not isinstance(op, torch._ops.OpOverload):
        raise NotSupportedError(f"cpp_wrapper and AOTInductor do not support {op}: use plain torch.compile")
    return op


def overload_of(node: Any) -> torch._ops.OpOverload:
    return to_overload(node.op_overload or node.python_kernel_name)


def arguments_of(node: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    if not hasattr(node, "unflatten_args"):
        return [*node.inputs, *node.constant_args], node.kwargs
    args, kwargs = node.unflatten_args(node.inputs, node.constant_args)
    return args, {**node.kwargs, **kwargs}


def by_schema(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return a value for each argument of the schema. Raise OutboardError if a value is missing."""
    arguments = to_overload(op)._schema.arguments
    values = list(args)
    for argument in arguments[len(values) :]:
        if argument.name not in kwargs and not argument.has_default_value():
            raise OutboardError(f"Inductor calls {op} without a value for its argument {argument.name!r}")
        values.append(kwargs.get(argument.name, argument.default_value))
    return values


def results_of(node: Any) -> Results:
    overload = overload_of(node)
    if not overload._schema.returns or torch.Tag.inplace_view in overload.tags:
        return []
    if getattr(node, "outputs", None):
        return list(names_of(node.outputs))
    return [] if isinstance(node.layout, ir.NoneLayout) else [node.get_name()]


def names_of(outputs: Any) -> Iterator[str | None]:
    """Yield a name for each returned value, including values in lists, or None for an unused value."""
    if isinstance(outputs, (list, tuple)):
        for output in outputs:
            yield from names_of(output)
    elif isinstance(outputs, ir.Buffer) and not isinstance(outputs, ir.MutationOutput):
        yield outputs.get_name()
    else:
        yield None

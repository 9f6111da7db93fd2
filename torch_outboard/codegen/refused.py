# SPDX-License-Identifier: BSD-3-Clause
"""Finds the operators of a graph that a dialect leaves to eager providers, before the graph is lowered.

When Inductor lowers a node, it chooses between a kernel and a call of the operator, but it requests the kernel's text
only later. This module therefore checks in advance whether the dialect supports the features that the text needs:
functions, element types, failure reports and atomic additions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch._inductor.codegen.common import pointwise_overrides_data
from torch.utils._pytree import tree_leaves

from torch_outboard.codegen.dialects.dialect import SUFFIXES, Dialect
from torch_outboard.codegen.kernel.checks import ADDING_OPERATORS, CHECKED_OPERATORS, DIVISION_OPERATORS
from torch_outboard.codegen.kernel.overrides import SimtOverrides

__all__ = ["MISSING_FEATURE", "mark_unsupported"]

# Key in a node's meta: the dialect's missing feature, worded as a reason of
# torch_outboard/kernels/reasons.py.
MISSING_FEATURE = "outboard_missing_feature"


def mark_unsupported(gm: torch.fx.GraphModule, device: str, dialect: Dialect) -> None:
    """Mark the nodes on the device for which the dialect has no kernels, so that Inductor calls their operators."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        values = [node.meta.get("val"), *(input_node.meta.get("val") for input_node in node.all_input_nodes)]
        tensors = [
            leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.device.type == device
        ]
        if tensors and not node.target.is_view and (feature := missing_feature_of(node, tensors, dialect)):
            node.meta["should_fallback"] = True
            node.meta[MISSING_FEATURE] = feature


def missing_feature_of(node: torch.fx.Node, tensors: list[torch.Tensor], dialect: Dialect) -> str:
    """Return the missing feature of the dialect for an operator call, or "" if none is missing."""
    operator = node.target
    assert isinstance(operator, torch._ops.OpOverload)
    if operator.namespace not in ("aten", "prims"):
        return ""
    packet = operator._schema.name.partition("::")[2]
    dtype = tensors[0].dtype
    if packet in _missing():
        return f"generated kernels have no {packet} function [function]"
    if packet in CHECKED_OPERATORS and not dialect.checks:
        return "its kernel checks its arguments, which needs `records` in the dialect [records]"
    if packet in DIVISION_OPERATORS and not dialect.checks and not dtype.is_floating_point:
        return "integer division must report a division by zero, which needs `records` in the dialect [records]"
    if packet in ADDING_OPERATORS and _adds(node) and SUFFIXES.get(dtype) not in dialect.atomics:
        return f"it adds {dtype} atomically, which needs the type in the dialect's `atomics` [atomics]"
    for tensor in tensors:
        # Inductor generates no kernels for complex numbers anyway.
        if not dialect.supports(tensor.dtype) and not tensor.is_complex():
            needs = (
                "float64 needs has_double, int16 and uint16 need has_int16, and other dtypes need a kernel from the "
                "driver"
            )
            return f"the dialect {dialect.name!r} does not support {tensor.dtype}: {needs} [element-type]"
    return ""


def _adds(node: torch.fx.Node) -> bool:
    """Return True if the operator adds to existing values. index_put does so only if `accumulate` is true."""
    if "index_put" not in str(node.target):
        return True
    return bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False))


@functools.cache
def _missing() -> frozenset[str]:
    return frozenset(_names_of_missing())


def _names_of_missing() -> Iterator[str]:
    for name, data in pointwise_overrides_data.items():
        if getattr(getattr(SimtOverrides, name), "is_unimplemented", False):
            yield data.name

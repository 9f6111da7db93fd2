# SPDX-License-Identifier: BSD-3-Clause
"""A traced call: its graph, and the meaning of the graph's inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["Input", "Number", "TracedGraph"]


@dataclass
class Input:
    """A placeholder of the graph.

    A placeholder is a tensor of the call (by number), a number (by its position among the arguments), or an integer (by
    its source, the name that formulas use in the plan). A complex result is also a placeholder, which the graph writes
    (by the number of the output). A complex input is two placeholders, the real and imaginary parts of `whole`; for a
    conjugated view, these are the parts in memory. If all four sources are None, the placeholder is the seed for draws.
    `is_scalar` is true for one element on the CPU, whose value launches pass.
    """

    fake: torch.Tensor | torch.SymInt
    tensor: int | None = None
    number: int | None = None
    symbol: str | None = None
    result: int | None = None
    whole: torch.Tensor | None = None
    is_imaginary: bool = False
    is_conjugated: bool = False
    is_scalar: bool = False


@dataclass(frozen=True)
class Number:
    """An integer result of an operator, determined by the sizes of its call."""

    value: int | torch.SymInt


@dataclass
class TracedGraph:
    """A graph, the meaning of its placeholders, and the use of its outputs.

    Attributes
    ----------
    returns : list
        The operator's results, except the tensors that it writes. Each is the number of an output, None for an
        undefined tensor, a list of numbers, or a Number.
    copies : list of tuple
        Tensors of the call, by number, each with the number of the output that is copied there at the end.
    complex_results : dict
        Outputs, by number, that the graph writes to an input instead of returning them.
    """

    graph: torch.fx.GraphModule
    shape_env: ShapeEnv
    fake_mode: FakeTensorMode
    inputs: list[Input]
    returns: list[Any]
    copies: list[tuple[int, int]] = field(default_factory=list)
    complex_results: dict[int, torch.Tensor] = field(default_factory=dict)

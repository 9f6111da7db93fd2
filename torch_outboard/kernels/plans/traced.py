# SPDX-License-Identifier: BSD-3-Clause
"""The graph of a call, with the meaning of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["Input", "Number", "Traced"]


@dataclass
class Input:
    """A placeholder of the graph.

    It is a tensor of the call by its number, a number by its place among the arguments, or an integer by its source.
    Formulas name the integer by its source in the plan. A complex result is an input too, which the graph writes, by
    the number of the output. A complex input is two, the real and the imaginary parts of `whole`; of a conjugated view
    the parts are those in memory. If all four sources are None, it is the seed for draws.
    """

    fake: torch.Tensor | torch.SymInt
    tensor: int | None = None
    number: int | None = None
    symbol: str | None = None
    result: int | None = None
    whole: torch.Tensor | None = None
    is_imaginary: bool = False
    is_conjugated: bool = False


@dataclass(frozen=True)
class Number:
    """An integer that an operator returns, and that its call's sizes determine."""

    value: int | torch.SymInt


@dataclass
class Traced:
    """A graph, the meaning of its placeholders, and the use of its outputs.

    Attributes
    ----------
    returns : list
        The operator's results besides the tensors that it writes. Each is the number of an output, None for an
        undefined tensor, a list of numbers, or a Number.
    copies : list of tuple
        Tensors of the call by number, with the numbers of the outputs that are copied there at the end.
    complex_results : dict
        The outputs, by number, that the graph does not return: it writes them, as inputs.
    """

    graph: torch.fx.GraphModule
    shape_env: ShapeEnv
    fake_mode: FakeTensorMode
    inputs: list[Input]
    returns: list[Any]
    copies: list[tuple[int, int]] = field(default_factory=list)
    complex_results: dict[int, torch.Tensor] = field(default_factory=dict)

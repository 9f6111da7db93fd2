# SPDX-License-Identifier: BSD-3-Clause
"""A row of the book: the package's knowledge about an operator beyond PyTorch's own definition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts

__all__ = ["Body", "Draw", "PerTensor", "Fill", "Function", "Numbers", "Operator", "RefusalReason", "Update"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class Fill:
    """A formula that fills a tensor from numbers alone; the written tensor determines the number of elements.

    A new end or a new count therefore needs no new plan. The formula takes the type in which reals are computed, the
    written tensor, and the operator's arguments. Numbers named in `read` are tensors without dimensions, which each
    call sets; the others are numbers. No plan reads the numbers named in `ignored`.
    """

    formula: Function
    read: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draw:
    """A formula that draws random numbers. It takes the operator's arguments without the generator.

    The numbers named in `read` are tensors without dimensions, which each call sets.
    """

    formula: Function
    read: tuple[str, ...] = ()


@dataclass(frozen=True)
class Numbers:
    """A formula for calls whose numbers plans take by value. It takes the operator's tensors, then the numbers.

    A call without such numbers is traced as the operator itself.
    """

    formula: Function
    read: tuple[str, ...]


@dataclass(frozen=True)
class Update:
    """An optimizer's formula for one element of each list. Takes and returns values by argument name."""

    formula: Callable[[dict[str, Any]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Body:
    """A function that is traced in place of an untraceable operator, with the operator's arguments.

    Such an operator's schema does not declare what it writes, or the operator is a private part of another operator.
    With `takes_reals`, the first argument is the widest real type in which kernels compute.
    """

    function: Function
    takes_reals: bool = False


@dataclass(frozen=True)
class PerTensor:
    """The operator for one tensor of each list: its name, or a function. Overloads may have different operators.

    The operator takes the first `count` arguments of the operator over lists, or all of them. For an operator that
    reduces each tensor, `reduction` names a function instead.
    """

    operator: str | Function = ""
    by_overload: Mapping[str, str | Function] = field(default_factory=dict)
    count: int | None = None
    reduction: str = ""


@dataclass(frozen=True)
class RefusalReason:
    """A reason why calls have no plan, and the tensor types to which the reason applies; no types means all."""

    reason: str
    dtypes: Collection[torch.dtype] = ()

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        return not self.dtypes or any(tensor.dtype in self.dtypes for tensor in tensors)


@dataclass(frozen=True)
class Operator:
    """Facts about one or several operators, by their names in the dispatcher.

    "aten::pow" stands for all overloads, in place or not; "aten::pow.Scalar" and "aten::sort.default" each stand for
    one overload. A row for one overload takes precedence over the row for all, field by field.

    Attributes
    ----------
    names : str
        The names, separated by blanks.
    computed : Fill, Draw, Numbers, Update or Body
        Traced in place of the operator.
    decomposition : function
        Replaces the operator wherever a graph calls it. If it returns NotImplemented, Inductor's decomposition is used,
        or else the lowering.
    check : function
        Adds assertions for values that the CPU's kernel refuses, before the operator is decomposed.
    template, lowering : str
        The function that writes the operator's kernels, as "module:function": a template in `kernels/templates`, or a
        lowering in `kernels/book`. Both import Inductor, so they are imported only when a plan is built. Without
        either, Inductor's lowering writes the kernel.
    guarded : tuple of str
        Integers that plans treat as sizes, with guards.
    determined : tuple of str
        Numbers that no plan reads because sizes determine them.
    filled : str
        The argument that fills the tensor. A tensor of a higher category is refused, since only its value shows whether
        it fits.
    refused : RefusalReason
        Why calls have no plan, if the book refuses them.
    takes_float : bool
        For halves, the CPU's kernel uses a number as the second operand in float. Other kernels round it first.
    rounds_numbers : bool
        The CPU's kernel rounds a number that the schema declares as a number to the tensor's type.
    promotes : bool
        The operator promotes like operators with torch's tag `pointwise`, but lacks the tag.
    each : PerTensor
        For an operator over lists of tensors: the operator for one tensor.
    has_written_numbers : bool
        The operator over lists writes an exponent, a base or an order into kernels, as the operator for one tensor
        does.
    refuses_list : function of arguments and a type
        For an operator over one tensor: returns True if the CPU's kernel refuses these arguments of the operator over
        lists.
    facts : Facts
        Facts for the core and the code generator. After a change, rebuild the core.
    """

    names: str
    computed: Fill | Draw | Numbers | Update | Body | None = None
    decomposition: Function | None = None
    check: Function | None = None
    template: str = ""
    lowering: str = ""
    guarded: tuple[str, ...] = ()
    determined: tuple[str, ...] = ()
    filled: str = ""
    refused: RefusalReason | None = None
    takes_float: bool = False
    rounds_numbers: bool = False
    promotes: bool = False
    each: PerTensor | None = None
    has_written_numbers: bool = False
    refuses_list: Callable[[Sequence[Any], torch.dtype], bool] | None = None
    facts: Facts | None = None

    def over(self, general: Operator) -> Operator:
        """Return this row for one overload, with missing fields filled from the row for all."""
        values = {field.name: getattr(self, field.name) or getattr(general, field.name) for field in fields(self)}
        return Operator(**values)

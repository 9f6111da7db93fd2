# SPDX-License-Identifier: BSD-3-Clause
"""A row of the book: what the package knows of an operator beyond PyTorch's own definition of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts

__all__ = ["Body", "Draw", "Each", "Fill", "Function", "Numbers", "Operator", "Refused", "Update"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class Fill:
    """A formula that fills a tensor from numbers alone: the written tensor decides how many elements there are.

    A new end or a new count therefore needs no new plan. The formula takes the type in which reals are computed, the
    written tensor, and the operator's arguments: the numbers of `read` as tensors of no dimensions, which each call
    sets, the others as numbers. No plan reads the numbers of `ignored`.
    """

    formula: Function
    read: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draw:
    """A formula that draws random numbers. It takes the operator's arguments without the generator.

    The numbers of `read` are tensors of no dimensions, which each call sets.
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
    """A formula of an optimizer for one element of each list. It takes and returns values by the arguments' names."""

    formula: Callable[[dict[str, Any]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Body:
    """A function that is traced in place of an operator that cannot be traced itself, with its arguments.

    Either the operator's schema does not declare what it writes, or the operator is a private part of another one. If
    `takes_reals`, the first argument is the widest type of reals that kernels compute in.
    """

    function: Function
    takes_reals: bool = False


@dataclass(frozen=True)
class Each:
    """The operator for one tensor of each list: its name, or a function. Overloads may have another one.

    It takes the first `count` arguments of the operator over lists, or all. `reduction` names a function in place of
    it, for an operator that reduces each tensor.
    """

    operator: str | Function = ""
    by_overload: Mapping[str, str | Function] = field(default_factory=dict)
    count: int | None = None
    reduction: str = ""


@dataclass(frozen=True)
class Refused:
    """A reason why calls have no plan, and the types of a tensor for which it holds; all if there are none."""

    reason: str
    dtypes: Collection[torch.dtype] = ()

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        return not self.dtypes or any(one.dtype in self.dtypes for one in tensors)


@dataclass(frozen=True)
class Operator:
    """What is known of one operator or of several, by their names in the dispatcher.

    "aten::pow" stands for all overloads, in place or not; "aten::pow.Scalar" and "aten::sort.default" for one overload.
    A row for one overload goes before the row for all, field by field.

    Attributes
    ----------
    names : str
        The names, separated by blanks.
    computed : Fill, Draw, Numbers, Update or Body
        What is traced in place of the operator.
    decomposition : function
        Replaces the operator wherever a graph calls it. If it returns NotImplemented, Inductor's decomposition does, or
        else the lowering.
    check : function
        Asserts values that the CPU's kernel refuses, before the operator is decomposed.
    template, lowering : str
        What makes kernels of the operator, as "module:function": a function of `kernels/templates`, or one of
        `kernels/book` that lowers. Both import Inductor, so they are imported when a plan is built. Without either, a
        kernel comes from Inductor's lowering.
    guarded : tuple of str
        Integers that plans treat as sizes, with guards.
    determined : tuple of str
        Numbers that no plan reads, because sizes determine them.
    filled : str
        The argument that is filled in: a tensor of a higher category is refused, since its value decides if it fits.
    refused : Refused
        Why calls have no plan.
    takes_float : bool
        For halves, the CPU's kernel takes a number as the second operand in float. Others round it first.
    rounds_numbers : bool
        The CPU's kernel rounds a number that the schema declares as a number to the tensor's type.
    promotes : bool
        It promotes as operators with torch's tag `pointwise` do, without the tag.
    each : Each
        Of an operator over lists of tensors, the operator for one tensor.
    has_written_numbers : bool
        An operator over lists writes an exponent, a base or an order into kernels, as the one for one tensor does.
    refuses_list : function of arguments and a type
        Of an operator for one tensor: the CPU's kernel refuses these arguments of the operator over lists.
    facts : Facts
        What the core and the code generator know of it. A change of it is a change of the core, which must be built.
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
    refused: Refused | None = None
    takes_float: bool = False
    rounds_numbers: bool = False
    promotes: bool = False
    each: Each | None = None
    has_written_numbers: bool = False
    refuses_list: Callable[[Sequence[Any], torch.dtype], bool] | None = None
    facts: Facts | None = None

    def over(self, general: Operator) -> Operator:
        """Return this row for one overload, completed by the row for all."""
        given = {one.name: getattr(self, one.name) or getattr(general, one.name) for one in fields(self)}
        return Operator(**given)

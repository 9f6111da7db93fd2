# SPDX-License-Identifier: BSD-3-Clause
"""The rows of the book by operator: which row applies to a call, and the consequences."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torch_outboard.kernels import route
from torch_outboard.kernels.book import (
    arithmetic,
    assertions,
    attention,
    copies,
    distances,
    embedding_bags,
    fills,
    grid_sampling,
    images,
    indexing,
    jagged,
    linear_algebra,
    lists,
    losses,
    norms,
    optimizers,
    ordering,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    shapes,
)
from torch_outboard.kernels.book.row import Draw, Fill, Function, Numbers, Operator, Update
from torch_outboard.kernels.operators import base_name, overload_of
from torch_outboard.kernels.refusal import ClassRefusal, OperatorRefusal

__all__ = [
    "SUBJECTS",
    "by_value",
    "check_refused",
    "decompositions",
    "guarded",
    "lowerings",
    "named_function",
    "operator_of",
    "recording_decompositions",
    "templates",
    "without_readers",
]

SUBJECTS = (
    *(
        arithmetic,
        assertions,
        attention,
        copies,
        distances,
        embedding_bags,
        fills,
        grid_sampling,
        images,
        indexing,
        jagged,
        linear_algebra,
    ),
    *(lists, losses, norms, optimizers, ordering, pooling, products, random, recurrent, reductions, shapes),
)

_NONE = Operator("")


def _rows() -> Iterator[tuple[str, Operator]]:
    for row in itertools.chain.from_iterable(subject.OPERATORS for subject in SUBJECTS):
        for name in row.names.split():
            yield name, row


@functools.cache
def _book() -> dict[str, Operator]:
    book: dict[str, Operator] = {}
    for name, row in _rows():
        if name in book:
            raise ValueError(f"the operator {name} has two rows in the book: merge them")
        book[name] = row
    return book


@functools.cache
def operator_of(name: str) -> Operator:
    """Return the book's row for an operator of the dispatcher, such as "aten::add.Tensor"."""
    of_one = _book().get(name if "." in name else f"{name}.default", _NONE)
    return of_one.over(_book().get(base_name(name), _NONE))


# Numbers of a call.


def _places(name: str, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(place for place, argument in enumerate(overload_of(name)._schema.arguments) if argument.name in names)


def guarded(name: str) -> tuple[int, ...]:
    """Return the positions of the integers that an operator's plans guard."""
    return _places(name, operator_of(name).guarded)


def without_readers(name: str) -> tuple[int, ...]:
    """Return the positions of the numbers that no plan of the operator reads."""
    row = operator_of(name)
    return _places(name, row.computed.ignored if isinstance(row.computed, Fill) else row.determined)


def by_value(name: str) -> tuple[int, ...]:
    """Return the positions, in the schema, of the numbers that an operator's plans take by value.

    Numbers that no plan reads are included: calls with other values of them share a plan.
    """
    row = operator_of(name)
    match row.computed:
        case Fill() as fill:
            return _places(name, (*fill.read, *fill.ignored))
        case Update():
            arguments = overload_of(name)._schema.arguments
            return tuple(place for place, argument in enumerate(arguments) if str(argument.type) == "float")
        case Draw() | Numbers() as known if not row.determined:
            return _read_by(known, name)
    return without_readers(name)


def _read_by(known: Draw | Numbers, name: str) -> tuple[int, ...]:
    arguments = overload_of(name)._schema.arguments
    # torch itself implements the overloads that take a number in place of a tensor with these
    # overloads.
    tensors = [argument for argument in arguments if str(argument.type) == "Tensor" and not argument.kwarg_only]
    places = [
        place
        for place, argument in enumerate(arguments)
        if argument.name in known.read and str(argument.type) != "Tensor"
    ]
    is_whole = len(tensors) + len(known.read) == known.formula.__code__.co_argcount
    return tuple(places) if is_whole and len(places) == len(known.read) else ()


def check_refused(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise Refusal if the book refuses calls with tensors of these types."""
    refused = operator_of(name).refused
    if refused is not None and refused.holds(tensors):
        raise (ClassRefusal if refused.dtypes else OperatorRefusal)(refused.reason)


# How a graph's operators are computed.


@functools.cache
def decompositions() -> dict[Any, Function]:
    """Return the table for `make_fx`: Inductor's table with the book's changes, without operators that it lowers."""
    from torch._inductor.decomposition import select_decomp_table

    of_inductor = select_decomp_table()
    ours = {
        overload_of(name): _decomposition(name, row, of_inductor.get(overload_of(name)))
        for name, row in _book().items()
        if row.decomposition or row.check
    }
    lowered = {overload_of(name) for name, row in _book().items() if row.lowering}
    return {op: body for op, body in {**of_inductor, **ours}.items() if op not in lowered or op in ours}


def recording_decompositions() -> Mapping[Any, Function]:
    """Return `decompositions()`, which record their calls while routes are recorded.

    The book's own decompositions already do so; this function wraps Inductor's.
    """
    table = decompositions()
    if not route.is_recording():
        return table
    ours = {overload_of(name) for name, row in _book().items() if row.decomposition or row.check}
    return {op: body if op in ours else route.wrap(op, route.OF_INDUCTOR, body) for op, body in table.items()}


def _decomposition(name: str, row: Operator, of_inductor: Function | None) -> Function:
    """Return a function that runs the check, then the first decomposition that does not decline."""
    candidates = (("decomposition", row.decomposition), (route.OF_INDUCTOR, of_inductor))
    known = [(how, body) for how, body in candidates if body is not None]

    def decomposition(*args: Any, **named: Any) -> Any:
        if row.check is not None:
            route.run_decomposition(name, "check", row.check, args, named)
        for how, body in known:
            result = route.run_decomposition(name, how, body, args, named)
            if result is not NotImplemented:
                return result
        return NotImplemented  # Inductor lowers the operator

    return decomposition


@functools.cache
def templates() -> Mapping[Any, Function]:
    """Return the templates by overload: each takes a TemplateCall and returns the names of its results."""
    return _named(lambda row: row.template)


@functools.cache
def lowerings() -> Mapping[Any, Function]:
    """Return the book's lowerings by overload."""
    return _named(lambda row: row.lowering)


def _named(field: Callable[[Operator], str]) -> dict[Any, Function]:
    texts = {name: field(row) for name, row in _book().items() if field(row)}
    # Import the functions first: their modules define operators.
    functions = {name: named_function(text) for name, text in texts.items()}
    return {overload_of(name): function for name, function in functions.items()}


def named_function(text: str) -> Function:
    """Return the function that a row names as "module:function"."""
    module, _, name = text.partition(":")
    is_of_book = module in ("lowerings", "list_reductions", "max_pools")
    package = __package__ if is_of_book else "torch_outboard.kernels.templates"
    return getattr(importlib.import_module(f"{package}.{module}"), name)  # type: ignore[no-any-return]

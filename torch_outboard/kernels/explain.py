# SPDX-License-Identifier: BSD-3-Clause
"""How an operator runs, and why: `outboard kernels explain`."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard._attach import attached_driver
from torch_outboard._compat.imports import import_inductor
from torch_outboard._settings import chain_of, providers_of
from torch_outboard.kernels import route
from torch_outboard.kernels.book import table
from torch_outboard.kernels.book.complex_numbers import formula_of
from torch_outboard.kernels.book.row import Draw, Fill, Numbers, Operator
from torch_outboard.kernels.operators import base_name, functional_of, overload_of

__all__ = ["Note", "Run", "chosen_operator", "name_of", "notes_of", "place_of", "run_call"]


@dataclass(frozen=True)
class Note:
    """A sentence about an operator, the provider that it is about, and the file and line that decide it."""

    of: str
    text: str
    place: str = ""


@dataclass
class Run:
    """How a call was run: operator calls by provider, routes of plans, reasons for missing plans, and an error."""

    chain: str
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    routes: list[route.Route] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    error: str = ""


def chosen_operator(text: str) -> str:
    """Return the dispatcher's name for an operator that a user wrote as "add.Tensor", "aten::relu" or "aten.relu".

    Raises ValueError, with suggestions, if no operator has the name or several overloads share it.
    """
    name = text.strip().removeprefix("torch.ops.")
    if "::" not in name:
        space, _, rest = name.partition(".")
        name = f"{space}::{rest}" if space in ("aten", "outboard", "prims") and rest else f"aten::{name}"
    name = name.removesuffix(".default")
    known = _overloads()
    base = name.partition(".")[0]
    if base not in known:
        if function := _function_named(text.strip()):
            raise ValueError(
                f"{function} is a composite in Python of other operators, so it has no kernel. Explain the operators "
                "that it calls: torch_outboard.coverage() lists them."
            )
        near = difflib.get_close_matches(base, known, n=5, cutoff=0.7)
        also = f"; did you mean {', '.join(near)}?" if near else ": write it as aten::add.Tensor"
        raise ValueError(f"unknown operator {base}{also}")
    if name in known[base]:
        return name
    if name == base and len(known[base]) == 1:
        return known[base][0]
    why = "has several overloads" if name == base else "has no such overload"
    raise ValueError(f"{name} {why}: choose one of {', '.join(known[base])}")


def _function_named(text: str) -> str:
    """Return the full name of torch's Python function that a user wrote as "multilabel_soft_margin_loss", or ""."""
    name = re.split(r"[.:]+", text)[-1]
    for module in (torch.nn.functional, torch, torch.special, torch.linalg, torch.fft):
        if inspect.isfunction(getattr(module, name, None)):
            return f"{module.__name__}.{name}"
    return ""


@functools.cache
def _overloads() -> dict[str, list[str]]:
    overloads: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        # Skip TorchScript-only functions: the dispatcher does not have them.
        if torch._C._dispatch_has_kernel(name):
            overloads.setdefault(schema.name, []).append(name)
    return {base: sorted(set(names)) for base, names in overloads.items()}


# Places in files.


def place_of(function: Any) -> str:
    """Return a function's file and line, such as "torch/_inductor/lowering.py:120", or "" if it has none.

    In a chain of wrappers, the innermost Python function counts, because some wrappers, such as t_copy, wrap a C++
    function. Wrappers that convert arguments and fill `out` count only if there is no other function.
    """
    code = None
    while function is not None:
        function = function.func if isinstance(function, functools.partial) else function
        here = getattr(function, "__code__", None)
        if here is not None and (code is None or not here.co_filename.endswith("_prims_common/wrappers.py")):
            code = here
        function = getattr(function, "__wrapped__", None)
    return "" if code is None else f"{_short_path(code.co_filename)}:{code.co_firstlineno}"


def name_of(function: Any) -> str:
    """Return a function's name, or "" if it has none."""
    function = function.func if isinstance(function, functools.partial) else function
    name = getattr(function, "__name__", "")
    return "" if name.startswith("<") else name


def _short_path(path: str) -> str:
    for folder in (Path(__file__).resolve().parents[1], Path(torch.__file__).parent):
        if Path(path).is_relative_to(folder):
            return f"{folder.name}/{Path(path).relative_to(folder).as_posix()}"
    return path


def _row_named(name: str) -> tuple[Operator, str] | None:
    """Return the row that lists a name, spelled as in the book, and the row's place."""
    for subject in table.SUBJECTS:
        for row in subject.OPERATORS:
            if name in row.names.split():
                return row, f"{_short_path(inspect.getfile(subject))}{_line_of(name, inspect.getsource(subject))}"
    return None


def _place_in_book(place: str) -> str:
    """Return the file and line of a row that the core names; other places are returned unchanged."""
    located = _row_named(place) if "::" in place else None
    return place if located is None else located[1]


def _line_of(name: str, source: str) -> str:
    lines = source.splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if re.search(rf'["\s]{re.escape(name)}["\s]', line)]
    return f":{numbers[-1]}" if numbers else ""


# Known before a call.


def notes_of(name: str) -> list[Note]:
    """Return the notes on an operator, in the order in which they decide."""
    known = [Note(of, text, _place_in_book(place)) for of, text, place in _C.describe_operator(name)]
    before = [provider for provider in known if provider.of in ("operator", "checks", "native", "generated")]
    return [*before, *_of_book(name), *(provider for provider in known if provider not in before)]


def _of_book(name: str) -> Iterator[Note]:
    functional = functional_of(name)
    names = [name, *([] if functional is None else [_name_of(functional)])]
    for place, key in enumerate(dict.fromkeys(names)):
        yield from _of_rows(key, is_functional=place > 0)
    if functional is not None:
        yield from _of_graph(functional)


def _of_rows(name: str, is_functional: bool) -> Iterator[Note]:
    """Yield notes from the rows of an operator, or of its functional form, which replaces it in graphs."""
    keys = [name if "." in name else f"{name}.default", *([] if is_functional else [base_name(name)])]
    for key in keys:
        if located := _row_named(key):
            row, place = located
            yield from (Note("generated", text, where or place) for text, where in _statements_of(row))


def _statements_of(row: Operator) -> Iterator[tuple[str, str]]:
    """Yield each statement of a row, with its place if it has its own."""
    computed = row.computed
    if computed is not None:
        function = computed.function if hasattr(computed, "function") else computed.formula
        kind = type(computed).__name__.lower()
        how = f"is traced as {name_of(function)} ({kind})"
        if isinstance(computed, (Draw, Fill, Numbers)) and computed.read:
            how += f", with {', '.join(computed.read)} by value"
        yield how, place_of(function)
    for text, function in (("values are checked by", row.check), ("is decomposed by", row.decomposition)):
        if function is not None:
            yield f"{text} {name_of(function)}", place_of(function)
    for text in filter(None, (row.template, row.lowering)):
        kind = "a template" if text == row.template else "our own lowering"
        yield f"has {kind}, {text}", place_of(table.named_function(text))
    if row.refused is not None:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in row.refused.dtypes)
        yield f"is refused{f' for {kinds}' if kinds else ''}: {row.refused.reason}", ""
    if row.each is not None:
        yield f"runs for each tensor of its lists: {row.each.operator or row.each.reduction or 'by overload'}", ""
    flags = {
        f"{', '.join(row.guarded)}: symbols of plans, with guards": bool(row.guarded),
        f"{', '.join(row.determined)}: not read by plans, because sizes determine them": bool(row.determined),
        f"{row.filled} is filled in, and must fit the tensor": bool(row.filled),
        "for half types, numbers are converted to float": row.takes_float,
        "for half types, numbers are rounded first": row.rounds_numbers,
        "promotes like pointwise operators": row.promotes,
        "its numbers become constants of kernels": row.has_written_numbers,
        "lists with some types or numbers are refused": row.refuses_list is not None,
    }
    yield from ((text, "") for text, holds in flags.items() if holds)


def _of_graph(functional: torch._ops.OpOverload) -> Iterator[Note]:
    """Yield how a graph computes the functional form if the book has no template or decomposition for it."""
    import_inductor()  # completes Inductor's tables
    from torch._inductor import lowering
    from torch._inductor.decomposition import select_decomp_table

    row = table.operator_of(_name_of(functional))
    known = select_decomp_table().get(functional)
    also = " if that declines" if row.decomposition is not None else ""
    formula = formula_of(functional)
    if formula is not None:
        yield Note("generated", f"is computed by formula {name_of(formula)} if a tensor is complex", place_of(formula))
        also += " if no tensor is complex"
    if known is not None:
        yield Note("generated", f"is decomposed by Inductor's {name_of(known)}{also}", place_of(known))
    elif row.template or row.lowering or row.each:
        return
    elif functional in lowering.lowerings:
        yield Note("generated", f"is lowered by Inductor{also}", place_of(lowering.lowerings[functional]))
    elif row.computed is None and row.decomposition is None:
        yield Note("generated", "neither the book nor Inductor defines it, unless PyTorch composes it from others")


def _name_of(overload: torch._ops.OpOverload) -> str:
    return str(overload._schema.name) + (f".{overload._overloadname}" if overload._overloadname != "default" else "")


# A call.


def run_call(name: str, positional: Sequence[Any], named: dict[str, Any], device: torch.device) -> Run:
    """Call an operator with arguments on the device, and return how it was run.

    An error of the call or of its queued work is part of the answer.
    """
    run = Run(_chain(device))
    operator: Callable[..., Any] = overload_of(name)
    _C.reset_coverage()
    with route.record_routes() as routes:
        try:
            operator(*positional, **named)
            torch.accelerator.synchronize(device)
        except Exception as error:  # noqa: BLE001 - the command reports whatever the call raises
            run.error = f"{type(error).__name__}: {error}"
    run.routes = list(routes)
    run.calls = list(_C.coverage())
    run.refused = dict(_C.refused_operators())
    return run


def _chain(device: torch.device) -> str:
    """Return the providers that a device's calls try in turn, and why."""
    driver = attached_driver()
    assert driver is not None
    why = "OUTBOARD_PROVIDERS or the driver names them"
    if providers_of(driver) is None:
        why = f"the host {'reaches' if _C.reaches_memory(device.index) else 'cannot reach'} the device's memory"
    return f"{', '.join([*chain_of(driver, device.index), 'fallback'])} ({why})"

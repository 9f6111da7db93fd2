# SPDX-License-Identifier: BSD-3-Clause
"""Reductions of a row by one item, in several independent accumulators that are combined after the loop.

Each accumulator is an array with one element per lane. Inside the loop over the row, a loop over the lanes lets
compilers vectorize without changing the order of additions. Each lane sums a part of the row, which is more accurate
than a single accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch._inductor.utils import IndentedBuffer

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, NARROW
from torch_outboard.codegen.kernel.values import cast, literal, suffix

__all__ = ["RowBody", "accumulated_in", "joiner", "reduce", "scan", "sort", "start_of"]


class RowBody(Protocol):
    """The parts of a kernel that reductions use."""

    cse: Any
    before: IndentedBuffer  # before the loop over the row
    compute: IndentedBuffer  # in the loop
    after: IndentedBuffer  # after the loop
    is_sequential: bool  # the loop must run in order, in one lane

    def row_index(self) -> str:
        """Return the number of the element in its row."""

    def row_size(self) -> int:
        """Return the number of elements in a row. Raise NotImplementedError if the number is symbolic."""

    def fresh_name(self, name: str) -> str:
        """Return a name that the kernel has not used."""

    def swap_buffers(self, lb: IndentedBuffer) -> AbstractContextManager[None]:
        """Redirect statements to another buffer."""

    def accumulator(self, dtype: torch.dtype, start: str) -> str:
        """Declare an accumulator with one element per lane, and return its name."""

    def loop_carried(self, dtype: torch.dtype) -> Any:
        """Declare a variable that persists from one element of the row to the next."""

    def join_lanes(self, arrays: list[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]) -> None:
        """Emit the code that combines the accumulators' lanes after the loop. `lines` combines lane b into lane a."""

    def result(self, dtype: torch.dtype, array: str, kept: torch.dtype) -> Any:
        """Declare the variable of a reduction's result, available after the loop, from an accumulator's lanes."""

    def codegen_body(self) -> None:
        """Write the loop so far, so that later statements begin a new part."""


_LIMITS = {
    torch.bool: (False, True),
    torch.int64: (-(2**63), 2**63 - 1),
    torch.uint64: (0, 2**64 - 1),
    torch.float32: (float("-inf"), float("inf")),
    torch.float64: (float("-inf"), float("inf")),
}


def accumulated_in(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which values of a type are accumulated."""
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    if dtype == torch.bool:
        return torch.bool
    return torch.uint64 if dtype in (torch.uint64, torch.uint32) else torch.int64


def reduce(kernel: RowBody, dtype: torch.dtype, source: torch.dtype, kind: str, value: Any) -> Any:
    """Emit a reduction of `value` over the row, and return the variables that hold the result after the loop."""
    if kind not in _KINDS:
        raise NotImplementedError(f"the code generator 'simt' has no reduction {kind!r}")
    return _KINDS[kind](kernel, dtype, source, kind, value)


def _simple(kernel: RowBody, dtype: torch.dtype, source: torch.dtype, kind: str, value: Any) -> Any:
    # A sum of bools counts them. For other integers, the result's type determines the signedness.
    kept = accumulated_in(source if kind in ("max", "min", "fmax") else dtype)
    if kind == "any":
        kept = torch.bool
    elif kept == torch.bool and kind in ("sum", "prod", "xor_sum"):
        kept = torch.int64
    array = kernel.accumulator(kept, literal(start_of(kind, kept), kept))
    join = joiner(kind, kept)
    kernel.compute.writeline(f"{array}[lane] = {join(f'{array}[lane]', cast(value, kept))};")
    kernel.join_lanes([(array, kept)], lambda a, b: [f"{array}[{a}] = {join(f'{array}[{a}]', f'{array}[{b}]')};"])
    return kernel.result(dtype, array, kept)


def start_of(kind: str, kept: torch.dtype) -> Any:
    """Return the initial value of an accumulator, a number."""
    start: Any = {"sum": 0, "prod": 1, "xor_sum": 0, "any": False, "fmax": float("nan")}.get(kind)
    if start is None or (kind == "fmax" and not kept.is_floating_point):
        low, high = _LIMITS[kept]
        start = high if kind == "min" else low
    return start


def joiner(kind: str, kept: torch.dtype) -> Callable[[str, str], str]:
    """Return a function that combines two accumulators, as an expression."""
    name = suffix(kept)
    if kind == "any":
        return lambda a, b: f"{a} || {b}"
    if kind == "xor_sum":
        return lambda a, b: f"{a} ^ {b}"
    if kind in ("sum", "prod"):
        if kept.is_floating_point:
            return lambda a, b: f"{a} {'+' if kind == 'sum' else '*'} {b}"
        return lambda a, b: f"ob_{'add' if kind == 'sum' else 'mul'}_{name}({a}, {b})"
    if kept == torch.bool:
        return lambda a, b: f"{a} {'&&' if kind == 'min' else '||'} {b}"
    helper = {"max": "maximum", "min": "minimum", "fmax": "fmax" if kept.is_floating_point else "maximum"}[kind]
    return lambda a, b: f"ob_{helper}_{name}({b}, {a})"


def _place(kernel: RowBody, dtype: torch.dtype, source: torch.dtype, kind: str, value: Any) -> Any:
    """Emit the index of the greatest or least element: the first of equal elements, and the first of several NaNs."""
    kept = accumulated_in(source)
    if kept == torch.bool:
        kept = torch.int64
    value, place = value if isinstance(value, tuple) else (value, kernel.row_index())
    low, high = _LIMITS[kept]
    best = kernel.accumulator(kept, literal(low if kind == "argmax" else high, kept))
    where = kernel.accumulator(torch.int64, literal(2**63 - 1, torch.int64))
    before = f"ob_is_before_{kind[3:]}_{suffix(kept)}"
    new = kernel.cse.generate(kernel.compute, cast(value, kept), dtype=kept, shape=())
    kernel.compute.writeline(
        f"if ({before}({new}, {place}, {best}[lane], {where}[lane])) "
        f"{{ {best}[lane] = {new}; {where}[lane] = {place}; }}"
    )
    kernel.join_lanes(
        [(best, kept), (where, torch.int64)],
        lambda a, b: [
            f"if ({before}({best}[{b}], {where}[{b}], {best}[{a}], {where}[{a}])) "
            f"{{ {best}[{a}] = {best}[{b}]; {where}[{a}] = {where}[{b}]; }}"
        ],
    )
    return kernel.result(dtype, where, torch.int64)


def _welford_join(kind: str, mean: str, square: str, weight: str) -> Callable[[str, str], list[str]]:
    def join(a: str, b: str) -> list[str]:
        return [
            "{",
            f"  const {kind} ob_total = {weight}[{a}] + {weight}[{b}];",
            f"  const {kind} ob_share = ob_total == 0 ? 0 : {weight}[{b}] / ob_total;",
            f"  const {kind} ob_delta = {mean}[{b}] - {mean}[{a}];",
            f"  {mean}[{a}] += ob_delta * ob_share;",
            f"  {square}[{a}] += {square}[{b}] + ob_delta * ob_delta * {weight}[{a}] * ob_share;",
            f"  {weight}[{a}] = ob_total;",
            "}",
        ]

    return join


def _welford(kernel: RowBody, dtype: torch.dtype, source: torch.dtype, kind: str, value: Any) -> Any:
    """Emit the mean, the sum of squared differences from the mean, and the weight."""
    kept = accumulated_in(dtype)
    number = COMPUTE_TYPES[kept]
    mean, square, weight = (kernel.accumulator(kept, "0") for _ in range(3))
    if kind == "welford_reduce":
        kernel.compute.writelines(
            [
                "{",
                f"  const {number} ob_value = {cast(value, kept)};",
                f"  const {number} ob_delta = ob_value - {mean}[lane];",
                # All lanes of a turn have the same count, and this form shows that to the compiler.
                # A division is slow.
                f"  {mean}[lane] += ob_delta * (1 / ({number})(turn + 1));",
                f"  {square}[lane] += ob_delta * (ob_value - {mean}[lane]);",
                f"  {weight}[lane] = ({number})(turn + 1);",
                "}",
            ]
        )
    else:
        their_mean, their_square, their_weight = (cast(part, kept) for part in value)
        kernel.compute.writelines(
            [
                "{",
                f"  const {number} ob_total = {weight}[lane] + {their_weight};",
                f"  const {number} ob_share = ob_total == 0 ? 0 : {their_weight} / ob_total;",
                f"  const {number} ob_delta = {their_mean} - {mean}[lane];",
                f"  {mean}[lane] += ob_delta * ob_share;",
                f"  {square}[lane] += {their_square} + ob_delta * ob_delta * {weight}[lane] * ob_share;",
                f"  {weight}[lane] = ob_total;",
                "}",
            ]
        )
    kernel.join_lanes([(state, kept) for state in (mean, square, weight)], _welford_join(number, mean, square, weight))
    return tuple(kernel.result(dtype, state, kept) for state in (mean, square, weight))


_KINDS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sum", "prod", "xor_sum", "any", "max", "min", "fmax"), _simple),
    **dict.fromkeys(("argmax", "argmin"), _place),
    **dict.fromkeys(("welford_reduce", "welford_combine"), _welford),
}


def scan(kernel: RowBody, dtypes: tuple[torch.dtype, ...], combine: Callable[..., Any], values: Any) -> Any:
    """Emit a scan: combine each element of the row, in order, with the result for the elements before it."""
    kernel.is_sequential = True
    kinds = [torch.float32 if dtype in NARROW else dtype for dtype in dtypes]
    new = [
        kernel.cse.generate(kernel.compute, cast(value, kind), dtype=kind, shape=())
        for value, kind in zip(values, kinds, strict=True)
    ]
    kept = [kernel.loop_carried(kind) for kind in kinds]
    lines = IndentedBuffer()
    with kernel.swap_buffers(lines):
        joined = [
            kernel.cse.generate(kernel.compute, cast(value, kind), dtype=kind, shape=())
            for value, kind in zip(combine(tuple(kept), tuple(new)), kinds, strict=True)
        ]
        for state, value in zip(kept, joined, strict=True):
            kernel.compute.writeline(f"{state} = {value};")
    first = " ".join(f"{state} = {value};" for state, value in zip(kept, new, strict=True))
    kernel.compute.writeline(f"if ({kernel.row_index()} == 0) {{ {first} }} else {{")
    with kernel.compute.indent():
        kernel.compute.splice(lines)
    kernel.compute.writeline("}")
    results = []
    for state, kind in zip(kept, kinds, strict=True):
        result = kernel.cse.newvar(dtype=kind, shape=())
        kernel.compute.writeline(f"const {COMPUTE_TYPES[kind]} {result} = {state};")
        results.append(result)
    return tuple(results)


def sort(kernel: RowBody, dtypes: tuple[torch.dtype, ...], values: Any, descending: bool) -> Any:
    """Emit a stable sort of the row by its first value: a loop that collects the row, then the sort.

    An item sorts its row in private arrays. Inductor requests sorts for rows of at most 512 elements.
    """
    kernel.is_sequential = True
    kinds = [torch.float32 if dtype in NARROW else dtype for dtype in dtypes]
    size, index = kernel.row_size(), kernel.row_index()
    arrays = []
    for value, kind in zip(values, kinds, strict=True):
        name = kernel.fresh_name("row")
        kernel.before.writeline(f"{COMPUTE_TYPES[kind]} {name}[{size}];")
        kernel.compute.writeline(f"{name}[{index}] = {cast(value, kind)};")
        arrays.append(name)
    keys = arrays[0]
    new, previous = f"{keys}_new", f"{keys}[place - 1]"
    before = f"{new} {'>' if descending else '<'} {previous}"
    if kinds[0].is_floating_point:
        first, last = (new, previous) if descending else (previous, new)
        before = f"({before} || ({first} != {first} && {last} == {last}))"
    kernel.after.writeline(f"for (int next = 1; next < {size}; ++next) {{")
    for name, kind in zip(arrays, kinds, strict=True):
        kernel.after.writeline(f"  const {COMPUTE_TYPES[kind]} {name}_new = {name}[next];")
    kernel.after.writeline("  int place = next;")
    moves = " ".join(f"{name}[place] = {name}[place - 1];" for name in arrays)
    kernel.after.writeline(f"  for (; place > 0 && {before}; --place) {{ {moves} }}")
    kernel.after.writeline("  " + " ".join(f"{name}[place] = {name}_new;" for name in arrays))
    kernel.after.writeline("}")
    kernel.codegen_body()
    return tuple(
        kernel.cse.generate(kernel.compute, f"{name}[{index}]", dtype=kind, shape=())
        for name, kind in zip(arrays, kinds, strict=True)
    )

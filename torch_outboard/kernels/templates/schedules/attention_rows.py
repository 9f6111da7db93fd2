# SPDX-License-Identifier: BSD-3-Clause
"""Rows in attention with matrix units: heads as operands, numbers per row, and weights as a left operand."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.templates.heads import Attention, Rows
from torch_outboard.kernels.templates.product import Operand, filled, stored
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array

__all__ = [
    "TO_POWER",
    "LaneFragment",
    "by_columns",
    "by_rows",
    "combined",
    "dropped",
    "dropped_slopes",
    "in_registers",
    "scores",
    "store_results",
]

# Turns exp into exp2: exp(x) = exp2(x * this).
TO_POWER = f"(float){1 / math.log(2)!r}"


def by_rows(rows: Rows) -> Operand:
    """Return a head's rows as an operand's lines, with columns as steps."""
    name = rows.name
    return Operand(
        declare=rows.declare,
        of_line=(("ob_i64", f"{name}_line", f"{name}_from + line * {rows.stride('row')}"),),
        of_step="",
        place=f"{name}[{name}_line + step * {rows.stride('column')}]",
        dtype=rows.tensor.dtype,
        is_dense_along_steps=rows.is_dense_along("column"),
        multiples=tuple(rows.stride(axis) for axis in ("batch", "head", "row")),
        pointer=name,
        stride=rows.stride_and_text("row"),
    )


def by_columns(rows: Rows) -> Operand:
    """Return a head's columns as an operand's lines, with rows as steps."""
    name = rows.name
    place = f"{name}_line + step * {rows.stride('row')}"
    return Operand(
        declare=rows.declare,
        of_line=(("ob_i64", f"{name}_line", f"{name}_from + line * {rows.stride('column')}"),),
        of_step="",
        place=f"{name}[{place}]",
        dtype=rows.tensor.dtype,
        is_dense_along_steps=False,
        adjacent=f"{name}[{place} + lane]" if rows.is_dense_along("column") else "",
        multiples=tuple(rows.stride(axis) for axis in ("batch", "head", "row")),
        pointer=name,
        stride=rows.stride_and_text("row"),
    )


def combined(unit: MatrixUnit, numbers: str, count: str, how: str) -> str:
    """Return the statements that combine the numbers of all lanes that share rows; each lane then has the result.

    `how` is an expression in `own` and `other`.
    """
    lanes = unit.result.lanes_of_row(unit.lanes)
    bits = [bit for bit in (1 << at for at in range(16)) if bit < lanes]
    if unit.exchange:
        steps = "".join(
            f"""
      {{
        const float own = {numbers}[number], other = {filled(unit.exchange, {"VALUE": "own", "BIT": str(bit)})};
        {numbers}[number] = {how};
      }}"""
            for bit in bits
        )
        return f"    $UNROLL\n    for (int number = 0; number < {count}; ++number) {{{steps}\n    }}\n"
    return f"""\
    OB_BARRIER;
    for (int number = 0; number < {count}; ++number) of_items[item * ({count}) + number] = {numbers}[number];
    OB_BARRIER;
    for (int number = 0; number < {count}; ++number)
      for (int bits = 1; bits < {lanes}; ++bits) {{
        const float own = {numbers}[number], other = of_items[(item ^ bits) * ({count}) + number];
        {numbers}[number] = {how};
      }}
"""


def scores(attention: Attention, unit: MatrixUnit, score: str) -> dict[str, str]:
    """Return the placeholder texts of scores and weights: `score` is the text of a product of a query and a key.

    `WEIGHT` is 2 to the power of the score minus `base`. If the scale is positive and finite and there is no mask,
    `WEIGHT` also applies the scale, because the greatest unscaled score then has the greatest weight. Otherwise `SCORE`
    applies it.
    """
    has_mask, factor = attention.mask is not None, f"({attention.scale} * {TO_POWER})"
    is_late = not has_mask and re.fullmatch(r"\(float\)(?!-)[0-9.e-]*[1-9][0-9.e-]*", attention.scale) is not None
    added = f" + {attention.mask_at('query', 'key')} * {TO_POWER}" if has_mask else ""
    value = f"OB_LIB(fma)({score}, {factor}, -base)" if is_late else f"{score} - base"
    return {
        "HAS_MASK": "1" if has_mask else "0",
        "IS_SCALED": "0" if is_late else "1",
        "FACTOR": factor,
        "SCORE": score if is_late else f"{score} * {factor}{added}",
        "WEIGHT": filled(unit.power, {"VALUE": value}),
    }


def dropped(attention: Attention, query_and_key: str, then: str) -> str:
    """Return loops over a lane's weights that run the statement `then` for each; it may read `place` and `is_kept`.

    If a lane has several weights that share a Philox draw, they are adjacent.
    """
    if attention.dropout is None:
        return ""
    return f"""\
    {{
      ob_philox_4 drawn = {{0, 0, 0, 0}};
      ob_u64 drawn_at = ~(ob_u64)0;
      $UNROLL
      for (int number = 0; number < $DOWN * $EACH; ++number) {{
        const int i = number / $EACH, result = number % $EACH;
        $UNROLL
        for (int j = 0; j < $ACROSS; ++j) {{
          $UNROLL
          for (int line = 0; line < $LINES; ++line) {{
            const int index = line * $EACH + result, place = (i * $ACROSS + j) * $RESULTS + index;
            const int row = part_row + i * $UNIT_ROWS + ($RESULT_ROW);
            const int column = j * $UNIT_COLUMNS + ($RESULT_COLUMN);
            const ob_i64 {query_and_key};
            const ob_u64 next_drawn = ob_drop_place(batch * $HEADS + head, $QUERIES, $KEYS, query, key);
            if (next_drawn != drawn_at) {{
              drawn = ob_philox(drop_from, next_drawn);
              drawn_at = next_drawn;
            }}
            const bool is_kept = ob_drop_word(drawn, query, key) >= $LEAST_KEPT;
            {then}
          }}
        }}
      }}
    }}
"""


def dropped_slopes(attention: Attention, count: int) -> dict[str, str]:
    """Return the placeholder texts with which gradients drop a lane's `count` slopes, and then the weights."""
    if attention.dropout is None:
        return {"DROP_SLOPES": "", "KEPT_WEIGHT": "weight"}
    zeros = ", ".join(["0"] * ((count + 31) // 32))
    then = (
        "slopes[place] = is_kept ? slopes[place] * $KEPT_SCALE : 0; kept[place / 32] |= (ob_u32)is_kept << place % 32;"
    )
    return {
        "DROP_SLOPES": f"    ob_u32 kept[] = {{{zeros}}};\n{dropped(attention, '$QUERY_AND_KEY', then)}",
        "KEPT_WEIGHT": "((kept[place / 32] >> place % 32) & 1) ? weight : 0",
    }


@dataclass(frozen=True)
class LaneFragment:
    """A left fragment whose elements are all results held by the same lane.

    Attributes
    ----------
    places : tuple of tuple of int
        For each element, the number of the result fragment along the steps, and the element's number in that fragment.
    """

    unit: MatrixUnit
    places: tuple[tuple[int, int], ...]

    def text(self, results: str, into: str, across: int, dtype: torch.dtype, first: str = "at") -> str:
        """Return the loop that builds left fragments from the results, starting at column `first`."""
        left = self.unit.left
        stores = []
        for register in range(left.count):
            numbers = range(register * left.packed, (register + 1) * left.packed)
            values = [self._value(number, results, across, first) for number in numbers]
            if self.unit.pair and len(values) == 2:
                bits = filled(self.unit.pair, {"LOW": values[0], "HIGH": values[1]})
            else:
                bits = " | ".join(self._bits(value, lane, dtype) for lane, value in enumerate(values))
            stores.append(f"        {into}[i * {left.count} + {register}] = {bits};\n")
        return f"      $UNROLL\n      for (int i = 0; i < $DOWN; ++i) {{\n{''.join(stores)}      }}\n"

    def _value(self, number: int, results: str, across: int, first: str) -> str:
        """Return the result that becomes element `number`."""
        block, element = self.places[number]
        return f"{results}[(i * {across} + ({first}) / {self.unit.n} + {block}) * {self.unit.result.count} + {element}]"

    def _bits(self, value: str, lane: int, dtype: torch.dtype) -> str:
        """Return the bits of a rounded result as element `one` of a register."""
        left = self.unit.left
        rounded = stored("const ob_u16 part", value, dtype) if dtype.itemsize == 2 else ""
        text = rounded.partition("=")[2].strip(" ;") if rounded else value
        bits = filled(self.unit.element, {"ELEMENT": f"({STORAGE_TYPES[dtype]})({text})"})
        return f"({left.kind})({bits})" + (f" << {lane * 32 // left.packed}" if lane else "")


def in_registers(unit: MatrixUnit) -> LaneFragment | None:
    """Return how a lane's results form left fragments, or None if they do not."""
    if unit.m * unit.k * unit.n == 0 or unit.k % unit.n:
        return None
    places = []
    for element in range(unit.left.elements):
        found = {_place(unit, lane, element) for lane in range(unit.lanes)}
        if len(found) != 1 or None in found:
            return None
        places.append(found.pop())
    return LaneFragment(unit, tuple(place for place in places if place is not None))


def _place(unit: MatrixUnit, lane: int, element: int) -> tuple[int, int] | None:
    row, step = unit.left.place(lane, element)
    for index in range(unit.result.elements):
        if unit.result.place(lane, index) == (row, step % unit.n):
            return step // unit.n, index
    return None


def store_results(unit: MatrixUnit, array: Array, dtype: torch.dtype, results: str, across: int) -> str:
    """Return the loops that store results in the group's memory, rounded to `dtype`."""
    store = stored(f"{array.name}[{array.at('row', 'column')}]", "value", dtype)
    return f"""\
    $UNROLL
    for (int i = 0; i < $DOWN; ++i) {{
      $UNROLL
      for (int j = 0; j < {across}; ++j) {{
        $UNROLL
        for (int index = 0; index < $RESULTS; ++index) {{
          const int row = part_row + i * $UNIT_ROWS + ($RESULT_ROW);
          const int column = j * $UNIT_COLUMNS + ($RESULT_COLUMN);
          const float value = {results}[(i * {across} + j) * $RESULTS + index];
          {store}
        }}
      }}
    }}
"""

# SPDX-License-Identifier: BSD-3-Clause
"""The way of operands from the group's memory to a matrix unit's registers, and what the unit does with them."""

from __future__ import annotations

from dataclasses import dataclass

from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.templates.product import filled

__all__ = ["Array", "fragments", "multiplied", "place_of_lane"]


@dataclass(frozen=True)
class Array:
    """A matrix in the group's memory, as rows of chunks of 16 bytes.

    The chunks of a row change places by the row's number, so that eight adjacent rows have the same chunk in different
    banks. Rows whose chunks cannot change places have an odd number of chunks instead.
    """

    kind: str
    name: str
    rows: int
    length: int
    chunk: int

    @property
    def chunks(self) -> int:
        """The chunks of a row."""
        count = (self.length + self.chunk - 1) // self.chunk
        return count if self._change(count) else count | 1

    @staticmethod
    def _change(count: int) -> int:
        """Return how many adjacent chunks of a row change places among each other; 0 if none do."""
        return 8 if count % 8 == 0 else count if count in (2, 4) else 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.rows * self.chunks * self.chunk

    def at(self, row: str, column: str, is_chunk: bool = False) -> str:
        """Return the place of an element; with `is_chunk`, of the first one of a chunk."""
        change, chunk = self._change(self.chunks), self.chunk
        number = f"({column}) / {chunk}"
        if change:
            turned = f"({row}) % 8" if change == 8 else f"({row}) / {8 // change} % {change}"
            number = f"({number} ^ {turned})"
        rest = "" if is_chunk else f" + ({column}) % {chunk}"
        return f"({row}) * {self.chunks * chunk} + {number} * {chunk}{rest}"

    def further(self, place: str, rows: str, columns: str) -> str:
        """Return the place of a chunk that lies rows and columns further than another one.

        The rows are a multiple of eight, which keeps the places of chunks. No bit is set in both numbers of chunks, of
        the columns and of the other chunk's column: their sum changes places as the bits of each do.
        """
        each = self._change(self.chunks) * self.chunk
        if each:
            place = f"({place} ^ (ob_u32)({columns}) % {each})"
            columns = f"({columns}) / {each} * {each}"
        return f"{place} + ({rows}) * {self.chunks * self.chunk} + {columns}"


def fragments(
    unit: MatrixUnit,
    is_left: bool,
    array: Array,
    place: tuple[str, str],
    count: str,
    into: str,
    slot: str = "",
    is_across: bool = False,
    lane: str = "",
) -> str:
    """Return the loop that loads fragments of adjacent lines from a group's array, from a line and a step on.

    With `is_across`, the elements of a step are adjacent. The place may name the fragment's number `block`. `lane`
    names the lane's place of the line at step 0.
    """
    what, loads = (unit.left, unit.load_left) if is_left else (unit.right, unit.load_right)
    size = unit.m if is_left else unit.n
    load = loads[is_across]

    def at(line: str, step: str, is_chunk: bool) -> str:
        if lane:
            further = f"block * {size}", place[1]
            return slot + array.further(lane, *(reversed(further) if is_across else further))
        line, step = f"{place[0]} + block * {size} + ({line})", f"{place[1]} + ({step})"
        return f"{slot}{array.at(*((step, line) if is_across else (line, step)), is_chunk)}"

    if load:
        words = {"INTO": f"{into} + block * {what.count}", "ARRAY": array.name, "AT": at(load.line, load.step, True)}
        body = f"        {filled(load.text, words)}\n"
    else:
        line, step = (what.row, what.column) if is_left else (what.column, what.row)
        value = filled(unit.element, {"ELEMENT": f"{array.name}[{at(line, step, False)}]"})
        register = f"into[index / {what.packed}]"
        if what.packed == 1:
            store = f"into[index] = {value};"
        else:
            shift = f"index % {what.packed} * {32 // what.packed}"
            store = (
                f"const {what.kind} bits = ({what.kind}){value} << {shift}; "
                f"{register} = index % {what.packed} ? {register} | bits : bits;"
            )
        body = f"""\
        {what.kind}* into = {into} + block * {what.count};
        $UNROLL
        for (int index = 0; index < {what.elements}; ++index) {{ {store} }}
"""
    return f"""\
      $UNROLL
      for (int block = 0; block < {count}; block += {load.fragments if load else 1}) {{
{body}      }}
"""


def place_of_lane(
    name: str, unit: MatrixUnit, is_left: bool, array: Array, line: str, lines: int, is_across: bool = False
) -> tuple[str, str]:
    """Return the declaration of a lane's place of a line at step 0, for `fragments`, and its name.

    From there, each fragment's place is one instruction away. The line is a multiple of `lines`, which the fragments
    don't exceed. Both are "" if places can't be counted from there.
    """
    load = (unit.load_left if is_left else unit.load_right)[is_across]
    apart = unit.k if is_across else unit.m if is_left else unit.n
    has_powers = not unit.k & (unit.k - 1) and not lines & (lines - 1)
    if load is None or apart % 8 or unit.k % array.chunk or not has_powers:
        return "", ""
    first, step = f"{line} + ({load.line})", load.step
    at = array.at(*((step, first) if is_across else (first, step)), is_chunk=True)
    return f"  const ob_u32 {name} = {at};\n", name


def multiplied(
    unit: MatrixUnit, sums: str, down: int, across: int, left: str = "left_part", right: str = "right_part"
) -> str:
    """Return the loops that add the products of a lane's fragments to its sums.

    Every other row goes backwards, so that adjacent multiplications have a fragment in common, which the unit keeps.
    """
    words = {
        "SUMS": f"{sums} + (i * {across} + column) * {unit.result.count}",
        "LEFT": f"{left} + i * {unit.left.count}",
        "RIGHT": f"{right} + column * {unit.right.count}",
    }
    return f"""\
      $UNROLL
      for (int i = 0; i < {down}; ++i) {{
        $UNROLL
        for (int j = 0; j < {across}; ++j) {{
          const int column = i % 2 ? {across - 1} - j : j;
          {filled(unit.multiply, words)}
        }}
      }}
"""

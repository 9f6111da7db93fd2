# SPDX-License-Identifier: BSD-3-Clause
"""Loading operands from the group's memory into a matrix unit's registers, and multiplying them there."""

from __future__ import annotations

from dataclasses import dataclass

from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.templates.product import filled

__all__ = ["Array", "distribute_sums", "fragments", "multiplied", "place_of_lane", "zeros"]


@dataclass(frozen=True)
class Array:
    """A matrix in the group's memory, as rows of 16-byte chunks.

    The chunks of a row are permuted by the row's number, so that a given chunk of eight adjacent rows lies in eight
    different banks. If the chunks cannot be permuted, rows have an odd number of chunks instead.

    Attributes
    ----------
    kind : str
        The type of an entry.
    chunk : int
        Elements per chunk.
    is_plain : bool
        Whether chunks must not be permuted, because an instruction loads whole rows.
    each : int
        Elements per entry: one, or all elements of a chunk.
    """

    kind: str
    name: str
    rows: int
    length: int
    chunk: int
    is_plain: bool = False
    each: int = 1

    @property
    def chunks(self) -> int:
        """The number of chunks per row."""
        count = (self.length + self.chunk - 1) // self.chunk
        return count if self._swizzle_width(count) else count | 1

    def _swizzle_width(self, count: int) -> int:
        """Return how many adjacent chunks of a row are permuted among each other, or 0."""
        if self.is_plain:
            return 0
        return 8 if count % 8 == 0 else count if count in (2, 4) else 0

    @property
    def entries_per_row(self) -> int:
        """The number of entries per row."""
        return self.chunks * self.chunk // self.each

    @property
    def size(self) -> int:
        """The total number of entries."""
        return self.rows * self.entries_per_row

    def at(self, row: str, column: str, is_chunk: bool = False) -> str:
        """Return the index of an element's entry, or of a chunk's first one with `is_chunk`."""
        swizzle, chunk = self._swizzle_width(self.chunks), self.chunk
        assert is_chunk or self.each == 1
        number = f"({column}) / {chunk}"
        if swizzle:
            turned = f"({row}) % 8" if swizzle == 8 else f"({row}) / {8 // swizzle} % {swizzle}"
            number = f"({number} ^ {turned})"
        rest = "" if is_chunk else f" + ({column}) % {chunk}"
        entries = "" if self.each == chunk else f" * {chunk}"
        return f"({row}) * {self.entries_per_row} + {number}{entries}{rest}"

    def offset_chunk(self, place: str, rows: str, columns: str) -> str:
        """Return the position of a chunk that is some rows and columns away from another chunk.

        The rows must be a multiple of eight, which preserves the permutation. The column offset and the other chunk's
        column, both counted in chunks, must have no bit in common; the permutation, an XOR, then applies to each
        separately.
        """
        each = self._swizzle_width(self.chunks) * self.chunk
        if each:
            place = f"({place} ^ (ob_u32)({columns}) % {each})"
            columns = f"({columns}) / {each} * {each}"
        columns = f"({columns}) / {self.each}" if self.each > 1 else columns
        return f"{place} + ({rows}) * {self.entries_per_row} + {columns}"


def _registers(array: str, index: str, is_joint: bool) -> str:
    """Return a pointer into a lane's array of registers, or the variable there for joint matrices.

    `array` is the array's name, or its name, " + ", and an index.
    """
    name, _, first = array.partition(" + ")
    place = f"{first} + {index}" if first else index
    return f"{name}[{place}]" if is_joint else f"{name} + {place}"


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
    """Return the loop that loads fragments of adjacent lines from a group's array, starting at a line and a step.

    With `is_across`, the elements of a step are adjacent. The place may use the fragment's number `block`. `lane` is
    the name of the lane's position at that line and step 0.
    """
    what, loads = (unit.left, unit.load_left) if is_left else (unit.right, unit.load_right)
    size = unit.m if is_left else unit.n
    load = loads[is_across]

    def at(line: str, step: str, is_chunk: bool) -> str:
        if lane:
            further = f"block * {size}", place[1]
            return slot + array.offset_chunk(lane, *(reversed(further) if is_across else further))
        line, step = f"{place[0]} + block * {size} + ({line})", f"{place[1]} + ({step})"
        return f"{slot}{array.at(*((step, line) if is_across else (line, step)), is_chunk)}"

    if load:
        words = {
            "INTO": _registers(into, f"block * {what.count}", what.is_joint),
            "ARRAY": array.name,
            "AT": at(load.line, load.step, True),
            "APART": str(array.entries_per_row),
        }
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
    """Return the declaration of a lane's position at a line and step 0, and the variable's name.

    Each fragment's position is computed from the lane's position with one instruction. The line must be a multiple of
    `lines`, and the fragments span at most `lines`. Both strings are "" if positions cannot be derived this way.
    """
    load = (unit.load_left if is_left else unit.load_right)[is_across]
    apart = unit.k if is_across else unit.m if is_left else unit.n
    has_powers = not unit.k & (unit.k - 1) and not lines & (lines - 1)
    if load is None or array.is_plain or apart % 8 or unit.k % array.chunk or not has_powers:
        return "", ""
    first, step = f"{line} + ({load.line})", load.step
    at = array.at(*((step, first) if is_across else (first, step)), is_chunk=True)
    return f"  const ob_u32 {name} = {at};\n", name


def multiplied(
    unit: MatrixUnit, sums: str, down: int, across: int, left: str = "left_part", right: str = "right_part"
) -> str:
    """Return the loops that add the products of a lane's fragments to its sums.

    Every other row runs backwards, so that consecutive multiplications share a fragment, which the unit keeps.
    """
    is_joint, count = unit.sums is not None, 1 if unit.sums else unit.result.count
    words = {
        "SUMS": _registers(sums, f"(i * {across} + column) * {count}", is_joint),
        "LEFT": _registers(left, f"i * {unit.left.count}", is_joint),
        "RIGHT": _registers(right, f"column * {unit.right.count}", is_joint),
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


def zeros(unit: MatrixUnit, sums: str, count: str) -> str:
    """Return the declaration of `count` matrices of sums, which are zeros."""
    kind, zero, size = (unit.sums.kind, unit.sums.zero, count) if unit.sums else ("float", "0", f"{count} * $RESULTS")
    return f"""\
  {kind} {sums}[{size}];
  $UNROLL
  for (int i = 0; i < {size}; ++i) {sums}[i] = {zero};
"""


def distribute_sums(unit: MatrixUnit, sums: str, into: str, count: str) -> str:
    """Return the loop that distributes jointly held sums to the array `into` of each lane.

    They pass through the group's array of floats `dealt`, which has room for a matrix of each unit.
    """
    assert unit.sums is not None
    size, part = unit.m * unit.n, f"item / {unit.lanes} * {unit.m * unit.n}"
    store = filled(unit.sums.store, {"SUMS": f"{sums}[number]", "ARRAY": "dealt", "AT": part})
    return f"""\
  $UNROLL
  for (int number = 0; number < {count}; ++number) {{
    {unit.sums.barrier}
    {store}
    {unit.sums.barrier}
    $UNROLL
    for (int index = 0; index < {size // unit.lanes}; ++index)
      {into}[number * {size // unit.lanes} + index] = dealt[{part} + ($RESULT_ROW) * {unit.n} + ($RESULT_COLUMN)];
  }}
"""

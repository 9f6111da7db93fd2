# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for devices with matrix units: tiles in the group's memory, multiplied by the unit.

A group has a tile of 64 by 64 results, or 128 by 128 if there are many. The lanes of a unit have a part of the tile,
whose sums are in their registers. Both operands' elements of some steps lie in the group's memory twice: one half is
multiplied while the next steps are brought to the other half. They lie there as they are in memory: the unit converts.

Where adjacent elements in memory belong to adjacent steps or lines, an item brings 16 bytes at a time. Bytes that are
not aligned, at an edge or of no memory are brought element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES, Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import Fragment, MatrixUnit, unit_of
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.product import Operand, Product, ceil_div, filled

__all__ = ["multiply"]

_GROUP = 256
_SMALL, _LARGE = 64, 128
_BYTES = 16  # that an item brings at a time


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launch of a product."""
    schedule = call.schedule("matrix")
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # else the way does not serve the call
    has_many = _tiles(product, _LARGE, has_numbers=True) >= schedule["many"]
    tiling = _Tiling.of(unit, _LARGE if has_many else _SMALL, schedule["steps"])
    kernel = Kernel(f"{product.name}_of_units", unit.header + product.before)
    sizes = product.sizes(kernel)
    product.left.declare(kernel)
    product.right.declare(kernel)
    declare, end = product.end
    declare(kernel)
    sides = (
        _Side("left", product.left, "first_row", "$ROWS", tiling, call.dialect),
        _Side("right", product.right, "first_column", "$COLUMNS", tiling, call.dialect),
    )
    words = {
        **sizes,
        **tiling.words(),
        "UNROLL": call.dialect.unroll,
        "FIND": "".join(side.find() for side in sides),
        "BEGIN": "".join(side.begin() for side in sides),
        "FINISH": "".join(side.finish() for side in sides),
        "WAIT": unit.copies.wait if unit.copies else "",
        "LOAD_LEFT": sides[0].load(unit.left, unit.load_left),
        "LOAD_RIGHT": sides[1].load(unit.right, unit.load_right),
        "MULTIPLY": unit.multiply,
        "SUMS": "sums + (i * $ACROSS + j) * $RESULTS",
        "LEFT": "left_part + i * $LEFT_COUNT",
        "RIGHT": "right_part + j * $RIGHT_COUNT",
        "END": end,
    }
    kernel.arrays = [side.array() for side in sides]
    kernel.text, kernel.group = filled(_TEXT, words), tiling.group
    kernel.groups = _tiles(product, tiling.tile)
    call.launch(kernel)


def _tiles(product: Product, tile: int, has_numbers: bool = False) -> Any:
    """Return the number of tiles, as an expression or for the sizes of the call that the plan is built for."""
    count = product.batch * ceil_div(product.rows, tile) * ceil_div(product.columns, tile)
    return V.graph.sizevars.optimization_hint(simplified(count), fallback=0) if has_numbers else count


@dataclass(frozen=True)
class _Tiling:
    """How a group shares a tile.

    Attributes
    ----------
    tile : int
        Rows and columns of the tile.
    steps : int
        Steps along k that are brought at a time.
    group : int
        Items of the group.
    rows, columns : int
        The part of a unit's lanes.
    """

    unit: MatrixUnit
    tile: int
    steps: int
    group: int
    rows: int
    columns: int

    @staticmethod
    def of(unit: MatrixUnit, tile: int, halves: int) -> _Tiling:
        """Return the tiling with the most items, whose parts are nearest to squares; `halves` are steps of 2 bytes.

        Raises Refusal if the unit does not divide the tile.
        """
        steps = max(halves * 2 // unit.dtype.itemsize, _BYTES // unit.dtype.itemsize)
        steps = (steps + unit.k - 1) // unit.k * unit.k
        found = []
        for rows in range(unit.m, tile + 1, unit.m):
            for columns in range(unit.n, tile + 1, unit.n):
                group = tile // rows * (tile // columns) * unit.lanes
                if tile % rows == 0 and tile % columns == 0 and group <= _GROUP:
                    found.append((-group, abs(rows - columns), rows, columns))
        if not found or steps % (_BYTES // unit.dtype.itemsize):
            raise Refusal(
                f"the matrix unit {unit.name!r} of {unit.m} by {unit.n} by {unit.k} and {unit.lanes} lanes does not "
                f"divide tiles of {tile}"
            )
        group, _, rows, columns = min(found)
        return _Tiling(unit, tile, steps, -group, rows, columns)

    @property
    def chunk(self) -> int:
        """The elements that an item brings at a time."""
        return _BYTES // self.unit.dtype.itemsize

    def words(self) -> dict[str, str]:
        unit = self.unit
        return {
            "TILE": str(self.tile),
            "STEPS": str(self.steps),
            "LANES": str(unit.lanes),
            "PARTS_DOWN": str(self.tile // self.rows),
            "PART_ROWS": str(self.rows),
            "PART_COLUMNS": str(self.columns),
            "DOWN": str(self.rows // unit.m),
            "ACROSS": str(self.columns // unit.n),
            "UNIT_ROWS": str(unit.m),
            "UNIT_COLUMNS": str(unit.n),
            "UNIT_STEPS": str(unit.k),
            "RESULTS": str(unit.result.count),
            "RESULT_ROW": unit.result.row,
            "RESULT_COLUMN": unit.result.column,
            "LEFT_KIND": unit.left.kind,
            "LEFT_COUNT": str(unit.left.count),
            "RIGHT_KIND": unit.right.kind,
            "RIGHT_COUNT": str(unit.right.count),
        }


@dataclass(frozen=True)
class _Side:
    """An operand's way from memory to the group's memory, and from there to the unit's registers.

    A line of the tile is a row of the left operand, or a column of the right one. Its elements are adjacent in the
    group's memory, unless adjacent elements in the device's memory belong to adjacent lines.
    """

    name: str
    operand: Operand
    first: str
    size: str
    tiling: _Tiling
    dialect: Dialect

    @property
    def is_across(self) -> bool:
        """Whether adjacent elements belong to adjacent lines."""
        return self.operand.beside != ""

    @property
    def has_chunks(self) -> bool:
        """Whether an item brings several adjacent elements at a time."""
        return self.operand.condition == "" and (self.is_across or self.operand.is_dense_along_steps)

    @property
    def kind(self) -> str:
        return STORAGE_TYPES[self.operand.dtype]

    @property
    def pitch(self) -> int:
        """The distance of lines or steps in the group's memory; 16 bytes more, so that they use different banks."""
        return (self.tiling.tile if self.is_across else self.tiling.steps) + self.tiling.chunk

    @property
    def half(self) -> int:
        """The elements of one half of the group's array."""
        return self.pitch * (self.tiling.steps if self.is_across else self.tiling.tile)

    def array(self) -> LocalArray:
        return LocalArray(self.kind, f"{self.name}_tile", str(2 * self.half), is_aligned=True)

    @property
    def count(self) -> int:
        """The loads of all items for some steps."""
        return self.tiling.tile * self.tiling.steps // (self.tiling.chunk if self.has_chunks else 1)

    @property
    def loads(self) -> int:
        """The loads of an item."""
        return (self.count + self.tiling.group - 1) // self.tiling.group

    @property
    def lines(self) -> int:
        """The lines of which an item keeps the numbers."""
        return 1 if not self.has_chunks and self.tiling.group % self.tiling.tile == 0 else self.loads

    def place(self) -> str:
        """Return the statements that locate a load in the tile: its number, its first line and its first step."""
        tile, chunk = self.tiling.tile, self.tiling.chunk
        if not self.has_chunks:
            line, step = f"at_load % {tile}", f"at_load / {tile}"
        elif self.is_across:
            line, step = f"at_load % {tile // chunk} * {chunk}", f"at_load / {tile // chunk}"
        else:
            each = self.tiling.steps // chunk
            line, step = f"at_load / {each}", f"at_load % {each} * {chunk}"
        return f"const int at_load = item + load * {self.tiling.group}; const int at_line = {line}, at_step = {step};"

    def find(self) -> str:
        """Return the loop that computes the numbers of the lines that an item loads."""
        return f"""\
  {self.operand.arrays(self.lines)}
  for (int load = 0; load < {self.lines}; ++load) {{
    {self.place()}
    // What is beyond the last line is computed and not stored.
    const ob_i64 line = {self.first} + at_line < {self.size} ? {self.first} + at_line : {self.size} - 1;
    {self.operand.computed()}
    {self.operand.lines("load")}
  }}
  {"" if self.copies else self._registers()}
"""

    @property
    def copies(self) -> bool:
        return self.tiling.unit.copies is not None and self.has_chunks

    def _registers(self) -> str:
        kind = self.dialect.four("ob_u32") if self.has_chunks else self.kind
        return f"{kind} {self.name}_next[{self.loads}];"

    def begin(self) -> str:
        """Return the loop that begins to bring the steps from `from_step` on, to the half `other`."""
        if not self.has_chunks:
            return self._loop(self._fetch_element())
        wide = self.dialect.load_16_bytes(self.operand.place)
        into = f"{self.name}_next[load]"
        if self.copies:
            copies = self.tiling.unit.copies
            assert copies is not None
            bring = filled(copies.copy, {"TO": f"{self.name}_tile + {self._at()}", "FROM": f"&{self.operand.place}"})
            return self._loop(self._chunk(bring, self._put(f"{self.name}_tile", "words")))
        four = self.dialect.four("ob_u32")
        parts = " ".join(f"next.{part} = words[{i}];" for i, part in enumerate("xyzw"))
        return self._loop(self._chunk(f"{into} = {wide};", f"{four} next; {parts} {into} = next;"))

    def finish(self) -> str:
        """Return the loop that stores what `begin` has left in registers."""
        if self.copies:
            return ""
        value = f"{self.name}_next[load]"
        if not self.has_chunks:
            return self._loop(f"{self.name}_tile[{self._at()}] = {value};")
        return self._loop(self.dialect.store_four("ob_u32", f"{self.name}_tile", self._at(), value))

    def _put(self, tile: str, words: str) -> str:
        four = self.dialect.four("ob_u32")
        parts = " ".join(f"next.{part} = {words}[{i}];" for i, part in enumerate("xyzw"))
        return f"{four} next; {parts} {self.dialect.store_four('ob_u32', tile, self._at(), 'next')}"

    def _at(self) -> str:
        """Return the place of a load in the group's array."""
        at = ("at_step", "at_line") if self.is_across else ("at_line", "at_step")
        return f"other * {self.half} + {at[0]} * {self.pitch} + {at[1]}"

    def _loop(self, body: str) -> str:
        partial = self.loads * self.tiling.group != self.count
        return f"""\
      $UNROLL
      for (int load = 0; load < {self.loads}; ++load) {{
        {self.place()}
        {f"if (at_load < {self.count}) " if partial else ""}{{
          {body}
        }}
      }}
"""

    def _fetch_element(self) -> str:
        return f"""const ob_i64 step = from_step + at_step;
          {self.operand.again("0" if self.lines == 1 else "load")}
          {self.kind} element = 0;
          if (step < $DEPTH) {{
            {self.operand.of_step}
            element = {self.operand.raw()};
          }}
          {self.name}_next[load] = element;"""

    def _chunk(self, bring: str, put: str) -> str:
        """Return the statements that bring 16 bytes at once, or else make four words of single elements."""
        chunk, size = self.tiling.chunk, self.operand.dtype.itemsize
        if self.is_across:
            fits = f"{self.first} + at_line + {chunk} <= {self.size} && step < $DEPTH"
            single = f"const ob_i64 line = {self.first} + at_line + one; const ob_i64 step = from_step + at_step;"
        else:
            fits = f"{self.first} + at_line < {self.size} && step + {chunk} <= $DEPTH"
            single = f"const ob_i64 line = {self.first} + at_line; const ob_i64 step = from_step + at_step + one;"
        word = "(ob_u32)element << one % 2 * 16" if size == 2 else "OB_AS_U32(element)"
        return f"""const ob_i64 step = from_step + at_step;
          {self.operand.again("load")}
          {self.operand.of_step}
          if ({fits} && ((size_t)(&{self.operand.place}) & {_BYTES - 1}) == 0) {{
            {bring}
          }} else {{
            ob_u32 words[4] = {{0, 0, 0, 0}};
            $UNROLL
            for (int one = 0; one < {chunk}; ++one) {{
              {single}
              if (line < {self.size} && step < $DEPTH) {{
                {self.operand.computed()}
                {self.operand.of_step}
                const {self.kind} element = {self.operand.raw()};
                words[one{" / 2" if size == 2 else ""}] |= {word};
              }}
            }}
            {put}
          }}"""

    def load(self, fragment: Fragment, texts: tuple[str, str]) -> str:
        """Return the statements that load a fragment; `block` is its number in the part of the unit's lanes."""
        unit = self.tiling.unit
        first, size = ("part_row", unit.m) if self.name == "left" else ("part_column", unit.n)
        pitches = (1, self.pitch) if self.is_across else (self.pitch, 1)
        tile = f"{self.name}_tile + turn * {self.half} + ({first} + block * {size}) * {pitches[0]} + at * {pitches[1]}"
        into = f"{self.name}_part + block * {fragment.count}"
        if text := texts[self.is_across]:
            return filled(text, {"INTO": into, "TILE": tile, "PITCH": str(self.pitch)})
        line, step = (fragment.row, fragment.column)[:: 1 if self.name == "left" else -1]
        element = f"(tile[({line}) * {pitches[0]} + ({step}) * {pitches[1]}])"
        value = filled(unit.element, {"ELEMENT": element})
        if fragment.packed == 1:
            store = f"into[index] = {value};"
        else:
            bits = 32 // fragment.packed
            store = (
                f"const {fragment.kind} bits = ({fragment.kind}){value} << index % {fragment.packed} * {bits}; "
                f"into[index / {fragment.packed}] = index % {fragment.packed} ? into[index / {fragment.packed}] | bits "
                ": bits;"
            )
        return f"""OB_LOCAL_AT const {self.kind}* tile = {tile};
        {fragment.kind}* into = {into};
        $UNROLL
        for (int index = 0; index < {fragment.elements}; ++index) {{ {store} }}"""


_TEXT = """\
  const int item = OB_ITEM_OF_GROUP;
  const int lane = item % $LANES;
  const int part_row = item / $LANES % $PARTS_DOWN * $PART_ROWS;
  const int part_column = item / $LANES / $PARTS_DOWN * $PART_COLUMNS;
  const ob_i64 number = OB_GROUP_NUMBER;
  const ob_i64 tiles_down = ($ROWS + $TILE - 1) / $TILE;
  const ob_i64 tiles_across = ($COLUMNS + $TILE - 1) / $TILE;
  const ob_i64 first_row = number % tiles_down * $TILE;
  const ob_i64 first_column = number / tiles_down % tiles_across * $TILE;
  const ob_i64 batch = number / tiles_down / tiles_across;
  float sums[$DOWN * $ACROSS * $RESULTS];
  $UNROLL
  for (int i = 0; i < $DOWN * $ACROSS * $RESULTS; ++i) sums[i] = 0;
$FIND
  int turn = 0;
  {
    const ob_i64 from_step = 0;
    const int other = turn;
$BEGIN
$FINISH
  }
  for (ob_i64 first_step = 0; first_step < $DEPTH; first_step += $STEPS) {
    $WAIT
    OB_BARRIER;
    const ob_i64 from_step = first_step + $STEPS;
    const int other = 1 - turn;
    if (from_step < $DEPTH) {
$BEGIN
    }
    $UNROLL
    for (int at = 0; at < $STEPS; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
      $UNROLL
      for (int block = 0; block < $DOWN; ++block) {
        $LOAD_LEFT
      }
      $UNROLL
      for (int block = 0; block < $ACROSS; ++block) {
        $LOAD_RIGHT
      }
      $UNROLL
      for (int i = 0; i < $DOWN; ++i) {
        $UNROLL
        for (int j = 0; j < $ACROSS; ++j) {
          $MULTIPLY
        }
      }
    }
    if (from_step < $DEPTH) {
$FINISH
    }
    turn = other;
  }
  $UNROLL
  for (int i = 0; i < $DOWN; ++i) {
    $UNROLL
    for (int j = 0; j < $ACROSS; ++j) {
      $UNROLL
      for (int index = 0; index < $RESULTS; ++index) {
        const ob_i64 row = first_row + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
        const ob_i64 column = first_column + part_column + j * $UNIT_COLUMNS + ($RESULT_COLUMN);
        if (row < $ROWS && column < $COLUMNS) {
          const float value = sums[(i * $ACROSS + j) * $RESULTS + index];
          $END
        }
      }
    }
  }
"""

# SPDX-License-Identifier: BSD-3-Clause
"""What schedules with matrix units share: how a group divides a tile, and how operands reach the unit's registers.

Elements lie in the group's memory as they are in the device's memory: the unit converts. Where adjacent elements in
memory belong to adjacent steps or lines, an item brings 16 bytes at a time. Bytes that are not aligned, or not all of
the tensor, are brought element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES, Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.product import Operand, filled

__all__ = ["Side", "Tiling", "fragment"]

_GROUP = 256
_BYTES = 16  # that an item brings at a time


@dataclass(frozen=True)
class Tiling:
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
    def of(unit: MatrixUnit, tile: int, halves: int) -> Tiling:
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
        return Tiling(unit, tile, steps, -group, rows, columns)

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
class Side:
    """An operand's way from memory to the group's memory, and from there to the unit's registers.

    A line of the tile is a row of the left operand, or a column of the right one. Its elements are adjacent in the
    group's memory, unless adjacent elements in the device's memory belong to adjacent lines.

    Attributes
    ----------
    lines_from : tuple of two str
        The first line of the tile, and the number of lines of the operand.
    tile, steps : int
        The lines of the tile, and the steps along k that are brought at a time.
    halves : int
        How often the group's memory has a tile.
    depth : str
        The number of steps of the operand.
    """

    name: str
    operand: Operand
    lines_from: tuple[str, str]
    tiling: Tiling
    dialect: Dialect
    tile: int
    steps: int
    is_left: bool
    halves: int = 2
    depth: str = "$DEPTH"

    @property
    def first(self) -> str:
        """The first line of the tile."""
        return self.lines_from[0]

    @property
    def size(self) -> str:
        """The number of lines of the operand."""
        return self.lines_from[1]

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
        return (self.tile if self.is_across else self.steps) + self.tiling.chunk

    @property
    def half(self) -> int:
        """The elements of one half of the group's array."""
        return self.pitch * (self.steps if self.is_across else self.tile)

    def array(self) -> LocalArray:
        return LocalArray(self.kind, f"{self.name}_tile", str(self.halves * self.half), is_aligned=True)

    @property
    def count(self) -> int:
        """The loads of all items for some steps."""
        return self.tile * self.steps // (self.tiling.chunk if self.has_chunks else 1)

    @property
    def loads(self) -> int:
        """The loads of an item."""
        return (self.count + self.tiling.group - 1) // self.tiling.group

    @property
    def lines(self) -> int:
        """The lines of which an item keeps the numbers."""
        return 1 if not self.has_chunks and self.tiling.group % self.tile == 0 else self.loads

    def place(self) -> str:
        """Return the statements that locate a load in the tile: its number, its first line and its first step."""
        tile, chunk = self.tile, self.tiling.chunk
        if not self.has_chunks:
            line, step = f"at_load % {tile}", f"at_load / {tile}"
        elif self.is_across:
            line, step = f"at_load % {tile // chunk} * {chunk}", f"at_load / {tile // chunk}"
        else:
            each = self.steps // chunk
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
        half = f"other * {self.half} + " if self.halves > 1 else ""
        return f"{half}{at[0]} * {self.pitch} + {at[1]}"

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
          if (step < {self.depth}) {{
            {self.operand.of_step}
            element = {self.operand.raw()};
          }}
          {self.name}_next[load] = element;"""

    def _chunk(self, bring: str, put: str) -> str:
        """Return the statements that bring 16 bytes at once, or else make four words of single elements."""
        chunk, size = self.tiling.chunk, self.operand.dtype.itemsize
        if self.is_across:
            fits = f"{self.first} + at_line + {chunk} <= {self.size} && step < {self.depth}"
            single = f"const ob_i64 line = {self.first} + at_line + one; const ob_i64 step = from_step + at_step;"
        else:
            fits = f"{self.first} + at_line < {self.size} && step + {chunk} <= {self.depth}"
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
              if (line < {self.size} && step < {self.depth}) {{
                {self.operand.computed()}
                {self.operand.of_step}
                const {self.kind} element = {self.operand.raw()};
                words[one{" / 2" if size == 2 else ""}] |= {word};
              }}
            }}
            {put}
          }}"""

    def load(self, line: str, step: str = "at") -> str:
        """Return the statements that load a fragment of the half `turn`, from a line and a step of the tile on."""
        array = f"{self.name}_tile{f' + turn * {self.half}' if self.halves > 1 else ''}"
        return fragment(self.tiling.unit, self.is_left, self.kind, array, (line, step), self.pitch, self.is_across)


def fragment(
    unit: MatrixUnit,
    is_left: bool,
    kind: str,
    array: str,
    place: tuple[str, str],
    pitch: int,
    is_across: bool = False,
) -> str:
    """Return the statements that load a fragment from a group's array, from a line and a step on.

    `block` is the fragment's number among those of a lane. With `is_across`, the elements of a step are adjacent.
    """
    what, texts = (unit.left, unit.load_left) if is_left else (unit.right, unit.load_right)
    pitches = (1, pitch) if is_across else (pitch, 1)
    tile = f"{array} + ({place[0]}) * {pitches[0]} + ({place[1]}) * {pitches[1]}"
    into = f"{'left' if is_left else 'right'}_part + block * {what.count}"
    if text := texts[is_across]:
        return filled(text, {"INTO": into, "TILE": tile, "PITCH": str(pitch)})
    line, step = (what.row, what.column) if is_left else (what.column, what.row)
    element = f"(tile[({line}) * {pitches[0]} + ({step}) * {pitches[1]}])"
    value = filled(unit.element, {"ELEMENT": element})
    register = f"into[index / {what.packed}]"
    if what.packed == 1:
        store = f"into[index] = {value};"
    else:
        shift = f"index % {what.packed} * {32 // what.packed}"
        store = (
            f"const {what.kind} bits = ({what.kind}){value} << {shift}; "
            f"{register} = index % {what.packed} ? {register} | bits : bits;"
        )
    return f"""OB_LOCAL_AT const {kind}* tile = {tile};
        {what.kind}* into = {into};
        $UNROLL
        for (int index = 0; index < {what.elements}; ++index) {{ {store} }}"""

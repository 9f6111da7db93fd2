# SPDX-License-Identifier: BSD-3-Clause
"""Parts shared by schedules with matrix units: dividing a tile within a group, and loading operands into its memory.

The group's memory holds elements in the same type as the device's memory: the unit converts them. If adjacent elements
in memory belong to adjacent steps or lines, an item loads 16 bytes at a time. Unaligned chunks are shifted out of
aligned chunks, or loaded element by element if registers are scarce.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES, Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel
from torch_outboard.kernels.templates.channels import NARROW, holds
from torch_outboard.kernels.templates.product import Operand, filled
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array, fragments, place_of_lane

__all__ = ["DECLARED", "Side", "Tiling", "lay_out", "wide"]

# Bytes of the group's memory that a kernel may declare.
DECLARED = 48 << 10
# Items per group: enough for four processors, each with a matrix unit.
_GROUP = 128
_BYTES = 16  # bytes that an item loads at a time


@dataclass(frozen=True)
class Tiling:
    """How a group shares a tile.

    Attributes
    ----------
    height, width : int
        Rows and columns of the tile.
    steps : int
        Steps along k that are loaded at a time.
    group : int
        Items of the group.
    rows, columns : int
        The part of the tile that a unit's lanes compute.
    """

    unit: MatrixUnit
    height: int
    width: int
    steps: int
    group: int
    rows: int
    columns: int

    @staticmethod
    def of(unit: MatrixUnit, tile: tuple[int, int], halves: int) -> Tiling:
        """Return the tiling with 128 items, or nearly as many, whose parts are closest to squares.

        `halves` is the number of steps for 2-byte elements. Raises Refusal if the unit does not divide the tile.
        """
        chunk = _BYTES // unit.dtype.itemsize
        steps = max(halves * 2 // unit.dtype.itemsize, chunk)
        steps = (steps + unit.k - 1) // unit.k * unit.k
        down, across = (
            size * max(load.fragments for load in loads if load) if any(loads) else size
            for size, loads in ((unit.m, unit.load_left), (unit.n, unit.load_right))
        )
        found = []
        height, width = tile
        for rows in range(down, height + 1, down):
            for columns in range(across, width + 1, across):
                group = height // rows * (width // columns) * unit.lanes
                if height % rows == 0 and width % columns == 0 and group <= 2 * _GROUP:
                    found.append((abs(group - _GROUP), abs(rows - columns), rows, columns, group))
        if not found or steps % chunk:
            raise CallRefusal(
                f"the matrix unit {unit.name!r} of {unit.m} by {unit.n} by {unit.k} and {unit.lanes} lanes doesn't "
                f"divide tiles of {height} by {width} [matrix-unit]"
            )
        _, _, rows, columns, group = min(found)
        return Tiling(unit, height, width, steps, group, rows, columns)

    @property
    def chunk(self) -> int:
        """The number of elements that an item loads at a time."""
        return _BYTES // self.unit.dtype.itemsize

    @property
    def numbers(self) -> int:
        """The number of floats of group memory through which the units distribute jointly held sums to their lanes."""
        return self.group // self.unit.lanes * self.unit.m * self.unit.n

    def words(self) -> dict[str, str]:
        unit = self.unit
        return {
            "HEIGHT": str(self.height),
            "WIDTH": str(self.width),
            "STEPS": str(self.steps),
            "LANES": str(unit.lanes),
            "PARTS_DOWN": str(self.height // self.rows),
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


def wide(pointer: str, multiples: tuple[str, ...], count: int, bytes_: int) -> str:
    """Return the condition that a pointer is aligned and numbers are multiples of `count`; "0" if it cannot hold."""
    known = [multiple for multiple in multiples if multiple.isdigit()]
    if any(int(multiple) % count for multiple in known):
        return "0"
    conditions = [f"({multiple}) % {count} == 0" for multiple in dict.fromkeys(multiples) if not multiple.isdigit()]
    return " && ".join([f"((size_t){pointer} & {bytes_ - 1}) == 0", *conditions])


@dataclass(frozen=True)
class Side:
    """Loads an operand into the group's memory, and from there into the unit's registers.

    A line of the tile is a row of the left operand or a column of the right operand. A line's elements are adjacent in
    the group's memory, unless adjacent elements in the device's memory belong to adjacent lines.

    Attributes
    ----------
    lines_from : tuple of two str
        The first line of the tile, and the number of lines of the operand.
    tile, steps : int
        The lines of the tile, and the steps along k that are loaded at a time.
    slots : int
        How many tiles the group's memory holds.
    depth : str
        The number of steps of the operand.
    until : str
        The step at which the group stops.
    slot : int
        The elements of a slot, if other sides share the slots.
    counts : bool
        Whether an item keeps the position of its first load, and derives all others from it in bytes. Requires
        `can_count`, and an operand whose stride in bytes fits 32 bits.
    shifts : bool
        Whether registers are left for shifting unaligned chunks out of aligned ones. Otherwise they are loaded by
        element.
    """

    name: str
    operand: Operand
    lines_from: tuple[str, str]
    tiling: Tiling
    dialect: Dialect
    tile: int
    steps: int
    is_left: bool
    slots: int = 3
    depth: str = "$DEPTH"
    until: str = "$DEPTH"
    slot: int = 0
    shifts: bool = False
    counts: bool = False

    @property
    def first(self) -> str:
        """The first line of the tile, as text."""
        return self.lines_from[0]

    @property
    def size(self) -> str:
        """The number of lines of the operand, as text."""
        return self.lines_from[1]

    @property
    def is_across(self) -> bool:
        """Whether adjacent elements belong to adjacent lines."""
        return self.operand.adjacent != ""

    @property
    def has_chunks(self) -> bool:
        """Whether an item loads several adjacent elements at a time."""
        return self.operand.has_chunks

    @property
    def kind(self) -> str:
        return STORAGE_TYPES[self.operand.dtype]

    @property
    def array(self) -> Array:
        """One tile in the group's memory."""
        rows, length = (self.steps, self.tile) if self.is_across else (self.tile, self.steps)
        is_plain = self.tiling.unit.sums is not None
        # Entries of 16 bytes are aligned in every language.
        has_fours = is_plain and self.has_chunks
        kind, each = (self.dialect.four("ob_u32"), self.tiling.chunk) if has_fours else (self.kind, 1)
        return Array(kind, f"{self.name}_tile", rows, length, self.tiling.chunk, is_plain, each)

    @property
    def bytes(self) -> int:
        """The total bytes of the tiles in the group's memory."""
        return self.slots * self.array.size * self.array.each * self._size

    def memory(self, offset: int | None = None) -> LocalArray:
        return LocalArray(
            self.array.kind, self.array.name, str(self.slots * self.array.size), is_aligned=True, offset=offset
        )

    @property
    def count(self) -> int:
        """The number of loads by all items for one set of steps."""
        return self.tile * self.steps // (self.tiling.chunk if self.has_chunks else 1)

    @property
    def loads(self) -> int:
        """The number of loads per item."""
        return (self.count + self.tiling.group - 1) // self.tiling.group

    @property
    def lines(self) -> int:
        """The number of lines whose numbers an item keeps."""
        across = self.tile // self.tiling.chunk if self.has_chunks else self.tile
        return 1 if (self.is_across or not self.has_chunks) and self.tiling.group % across == 0 else self.loads

    @property
    def _each(self) -> int:
        """The number of loads per line, or per step if adjacent elements belong to adjacent lines."""
        if not self.has_chunks:
            return self.tile
        return (self.tile if self.is_across else self.steps) // self.tiling.chunk

    @property
    def _apart(self) -> int:
        """The number of lines, or steps, between consecutive loads of an item."""
        return self.tiling.group // self._each

    @property
    def _size(self) -> int:
        """The size of an element in bytes."""
        return self.operand.dtype.itemsize

    def place(self) -> str:
        """Return the statements that locate a load in the tile: its number, its first line and its first step."""
        chunk, group, each = self.tiling.chunk if self.has_chunks else 1, self.tiling.group, self._each
        inner, outer = f"at_load % {each} * {chunk}", f"at_load / {each}"
        if group % each == 0:  # then all loads share the computation, up to a constant
            inner, outer = f"item % {each} * {chunk}", f"item / {each} + load * {group // each}"
        line, step = (inner, outer) if self.is_across or not self.has_chunks else (outer, inner)
        return f"const ob_u32 at_load = item + load * {group}, at_line = {line}, at_step = {step};"

    def declared(self) -> str:
        """Return the declarations that `begin` and `finish` use: the condition for 16-byte loads, and registers."""
        return f"  {self._finds_width()}\n  {'' if self.copies else self._registers()}\n"

    def find(self) -> str:
        """Return the statements that compute the numbers of an item's lines; "" if the side counts positions."""
        if self.counts:
            return ""
        return f"""\
  {self.operand.arrays(self.lines)}
  $UNROLL
  for (int load = 0; load < {self.lines}; ++load) {{
    {self.place()}
    const ob_i64 line = {self._line()};
    {self.operand.computed()}
    {self.operand.lines("load")}
  }}
"""

    def _line(self) -> str:
        """Return the line of a load. Lines past the last are computed but not stored."""
        count = self.operand.lines_in_memory or self.size
        end, last = (count, f"{count} - {self.tiling.chunk}") if self.is_across else (self.size, f"{self.size} - 1")
        return f"{self.first} + at_line < {end} ? {self.first} + at_line : {last}"

    @property
    def can_count(self) -> bool:
        """Whether an item's loads are a multiple of eight lines or steps apart."""
        return self.has_chunks and self.tiling.group % (8 * self._each) == 0

    def counting(self, *sizes: Any) -> Side:
        """Return a side that counts positions, if possible; `sizes` are counted too and must fit 32 bits."""
        if not self.can_count or self.operand.stride is None:
            return self
        numbers = (*sizes, self.operand.stride[0] * self._size)
        return replace(self, counts=all(holds(sympy.Le(number, NARROW)) for number in numbers))

    def find_first(self, first: str = "", from_step: str = "from_step") -> str:
        """Return the statements that point to the item's first load and count the remaining lines.

        `first` is the first tile's first line, if it differs. The result is "" if the side does not count positions.
        """
        if not self.counts:
            return ""
        assert self.operand.stride is not None
        name, pointer, first = self.name, self._pointer("ob_u8"), first or self.first
        return f"""\
  const ob_u32 {name}_bytes = (ob_u32)({self.operand.stride[1]}) * {self._size};
  const ob_u64 {name}_apart = (ob_u64){name}_bytes * {self._apart};
  {pointer} {name}_at;
  ob_u32 {name}_to;
  {"" if self.is_across else f"int {name}_rest;"}
  {{
    const int load = 0;
    {self.place()}
    {name}_to = {self._to()};
    {"" if self.is_across else f"{name}_rest = (int)({self.size} - {first}) - (int)at_line;"}
    const ob_i64 line = {self._line() if self.is_across else f"{first} + at_line"}, step = {from_step} + at_step;
    {self.operand.computed()}
    {name}_at = ({pointer})&{self.operand.place};
  }}
"""

    def advance_lines(self) -> str:
        """Return the statements that advance to the next lines."""
        at = f"{self.name}_at"
        lines = f"{at} = {at} + (ob_u64){self.tile} * {self.name}_bytes; {self.name}_rest -= {self.tile};"
        return f"    {lines}\n" if self.counts else ""

    def advance(self) -> str:
        """Return the statement that advances to the next steps."""
        steps = f"(ob_u64){self.steps} * {self.name}_bytes" if self.is_across else str(self.steps * self._size)
        return f"    {self.name}_at = {self.name}_at + {steps};\n" if self.counts else ""

    def _finds_width(self) -> str:
        if not self.has_chunks:
            return ""
        count = (self.operand.lines_in_memory or self.size) if self.is_across else self.depth
        multiples = (*self.operand.multiples, count)
        condition = wide(self.operand.pointer, multiples, self.tiling.chunk, _BYTES)
        return f"const bool {self.name}_is_wide = {condition};"

    @property
    def copies(self) -> bool:
        return self.tiling.unit.copies is not None and self.has_chunks

    def _registers(self) -> str:
        kind = self.dialect.four("ob_u32") if self.has_chunks else self.kind
        return f"{kind} {self.name}_next[{self.loads}];"

    def begin_wide(self) -> str:
        """Return `begin` for sides that load 16 bytes at once, without branches."""
        return self._loop(self._fetch_chunk())

    def begin(self) -> str:
        """Return the loop that starts loading the steps from `from_step` on into the slot `other`."""
        if not self.has_chunks:
            return self._loop(self._fetch_element())
        if self._is_plain:
            put = self._store_shifted() if self.shifts else self._store_assembled()
        else:
            put = self._store_elements() if self.array.each == 1 else self._store_assembled()
        return f"""\
      if ({self.name}_is_wide) {{
{self._loop(self._fetch_chunk())}
      }} else {{
{put}
      }}
"""

    @property
    def _is_plain(self) -> bool:
        """Whether all elements of a chunk exist and the text of an element's position is short."""
        return self.operand.of_step == "" and self.operand.condition == ""

    def _store_elements(self) -> str:
        """Return the loop that loads single elements in turn."""
        chunk = self.tiling.chunk
        line, step = ("at_line + in_chunk", "at_step") if self.is_across else ("at_line", "at_step + in_chunk")
        return f"""\
        for (int each = 0; each < {self.loads * chunk}; ++each) {{
          const int load = each / {chunk}, in_chunk = each % {chunk};
          {self.place()}
          {self._fits()}{{
            const ob_i64 line = {self.first} + {line}, step = from_step + {step};
            {self.kind} element = 0;
            if (line < {self.size} && step < {self.until}) {{
              {self.operand.computed()}
              {self.operand.of_step}
              element = {self.operand.raw()};
            }}
            {self.array.name}[{self._at()} + in_chunk] = element;
          }}
        }}"""

    def finish(self) -> str:
        """Return the loop that stores the data that `begin` left in registers."""
        if self.copies:
            return ""
        value = f"{self.name}_next[load]"
        if not self.has_chunks:
            return self._loop(f"{self.array.name}[{self._at()}] = {value};")
        store = self._loop(self._store_chunk(value))
        return store if self._keeps_all else f"      if ({self.name}_is_wide) {{\n{store}      }}\n"

    @property
    def _keeps_all(self) -> bool:
        """Whether unaligned chunks wait in registers too, so that `begin` does not write to the group's memory."""
        return not self.copies and (self._is_plain or self.array.each > 1)

    def _keep_or_store_chunk(self, value: str) -> str:
        """Return the statement that keeps or stores an unaligned chunk, given as four words."""
        return f"{self.name}_next[load] = {value};" if self._keeps_all else self._store_chunk(value)

    def _store_chunk(self, value: str) -> str:
        """Return the statement that stores 16 bytes, given as four words."""
        if self.array.each > 1:
            return f"{self.array.name}[{self._at()}] = {value};"
        return self.dialect.store_four("ob_u32", self.array.name, self._at(), value)

    def _pointer(self, kind: str) -> str:
        return self.dialect.pointer(kind, is_written=False)

    def _at(self) -> str:
        """Return the position of a load in the group's array."""
        at = self.array.offset_chunk(f"{self.name}_to", f"load * {self._apart}", "0") if self.counts else self._to()
        return f"other * {self.slot or self.array.size} + {at}" if self.slots > 1 else at

    def _to(self) -> str:
        """Return the position of a load in a tile."""
        return self.array.at(*(("at_step", "at_line") if self.is_across else ("at_line", "at_step")), self.has_chunks)

    def _fits(self) -> str:
        return f"if (at_load < {self.count}) " if self.loads * self.tiling.group != self.count else ""

    def _loop(self, body: str) -> str:
        return f"""\
      $UNROLL
      for (int load = 0; load < {self.loads}; ++load) {{
        {self.place()}
        {self._fits()}{{
          {body}
        }}
      }}
"""

    def _fetch_element(self) -> str:
        return f"""const ob_i64 step = from_step + at_step;
          {self.operand.reload("0" if self.lines == 1 else "load")}
          {self.kind} element = 0;
          if (step < {self.until}) {{
            {self.operand.of_step}
            element = {self.operand.raw()};
          }}
          {self.name}_next[load] = element;"""

    def _fetch_chunk(self) -> str:
        """Return the statements that load 16 bytes at once: all or none of an item's steps are before the end."""
        operand, copies = self.operand, self.tiling.unit.copies
        place = "*from" if self.counts else operand.place
        condition = f" && {operand.condition}" if operand.condition else ""
        if copies is not None:
            words = {"ARRAY": self.array.name, "AT": self._at(), "BYTES": str(self._size)}
            bring = filled(copies.copy, {**words, "FROM": f"&{place}", "IS_WANTED": "is_wanted"})
        else:
            four = self.dialect.four("ob_u32")
            bring = f"{four} next = {{0, 0, 0, 0}}; if (is_wanted) next = {self.dialect.load_16_bytes(place)}; "
            bring += f"{self.name}_next[load] = next;"
        if self.counts:
            return f"{self._counted()}\n          {bring}"
        return f"""const ob_i64 step = from_step + at_step;
          {operand.reload("0" if self.lines == 1 else "load")}
          {operand.of_step}
          const bool is_wanted = step < {self.until}{condition};
          {bring}"""

    def _counted(self) -> str:
        """Return the statements that compute a chunk's position: a turn's loads differ by an instruction or two."""
        name = self.name
        has_line = "" if self.is_across else f" && load * {self._apart} < {name}_rest"
        return f"""\
{self._pointer(self.kind)} from = ({self._pointer(self.kind)})({name}_at + load * {name}_apart);
          const bool is_wanted = (int)at_step < {self.until} - from_step{has_line};"""

    def _store_shifted(self) -> str:
        """Return the loop that loads 16 bytes from any position, by shifting the two aligned chunks around it.

        A chunk that contains no element of the operand is not read.
        """
        chunk, size, four = self.tiling.chunk, self._size, self.dialect.four("ob_u32")
        rest = f"step < {self.until} ? {self.size} - line : 0" if self.is_across else f"{self.until} - step"
        words = ", ".join(f"{part}.{lane}" for part in ("low", "high") for lane in "xyzw")
        return f"""\
        $UNROLL
        for (int load = 0; load < {self.loads}; ++load) {{
          {self.place()}
          {self._fits()}{{
            const ob_i64 wanted = {self.first} + at_line, step = from_step + at_step;
            const ob_i64 line = wanted < {self.size} ? wanted : {self.size} - 1, rest = {rest};
            const ob_u32 bytes = rest < {chunk} ? rest > 0 ? (ob_u32)rest * {size} : 0 : {_BYTES};
            {self.operand.computed()}
            {self._pointer(self.kind)} from = &{self.operand.place};
            const ob_u32 ahead = (ob_u32)((size_t)from % {_BYTES});
            from = {self.dialect.before(self.kind, "from", f"ahead / {size}")};
            {four} low = {{0, 0, 0, 0}}, high = {{0, 0, 0, 0}};
            if (bytes > 0) low = {self.dialect.load_16_bytes("from[0]")};
            if (ahead + bytes > {_BYTES}) high = {self.dialect.load_16_bytes(f"from[{chunk}]")};
            ob_u32 words[8] = {{{words}}};
            ob_shift_16(words, ahead, bytes);
            const {four} next = {{words[0], words[1], words[2], words[3]}};
            {self._keep_or_store_chunk("next")}
          }}
        }}"""

    def _store_assembled(self) -> str:
        """Return the loop that loads chunks as four words, each assembled from single elements."""
        chunk, size = self.tiling.chunk, self._size
        line, step = ("at_line + in_chunk", "at_step") if self.is_across else ("at_line", "at_step + in_chunk")
        word = "(ob_u32)element << in_chunk % 2 * 16" if size == 2 else "OB_AS_U32(element)"
        four = self.dialect.four("ob_u32")
        parts = " ".join(f"next.{part} = words[{i}];" for i, part in enumerate("xyzw"))
        return f"""\
        {"$UNROLL" if self._keeps_all else ""}
        for (int load = 0; load < {self.loads}; ++load) {{
          {self.place()}
          {self._fits()}{{
            ob_u32 words[4] = {{0, 0, 0, 0}};
            $UNROLL
            for (int in_chunk = 0; in_chunk < {chunk}; ++in_chunk) {{
              const ob_i64 line = {self.first} + {line}, step = from_step + {step};
              if (line < {self.size} && step < {self.until}) {{
                {self.operand.computed()}
                {self.operand.of_step}
                const {self.kind} element = {self.operand.raw()};
                words[in_chunk{" / 2" if size == 2 else ""}] |= {word};
              }}
            }}
            {four} next;
            {parts}
            {self._keep_or_store_chunk("next")}
          }}
        }}"""

    def load(self, line: str, count: str, into: str, step: str = "at", lane: str = "") -> str:
        """Return the loop that loads `count` fragments from slot `turn`, starting at a line and a step of the tile.

        `lane` is the name that `place_of_lane` returned for this line, if any.
        """
        slot = f"turn * {self.slot or self.array.size} + " if self.slots > 1 else ""
        shared = self.tiling.unit, self.is_left, self.array, (line, step), count, into, slot, self.is_across
        return fragments(*shared, lane=lane)

    def place_of_lane(self, line: str) -> tuple[str, str]:
        """Return the declaration of a lane's position at a part's first line, and its name; "" if there is none."""
        lines = 0 if line == "0" else self.tiling.rows if self.is_left else self.tiling.columns
        shared = self.tiling.unit, self.is_left, self.array, line, lines
        return place_of_lane(f"{self.name}_lane", *shared, self.is_across)


def lay_out(kernel: Kernel, *sides: Side, numbers: int = 0) -> None:
    """Declare the memory of sides, and of a float array `numbers`. Memory beyond the declarable limit is dynamic."""
    count = sum(side.bytes for side in sides)
    is_dynamic = count + numbers * 4 > DECLARED
    for number, side in enumerate(sides):
        kernel.arrays.append(side.memory(sum(before.bytes for before in sides[:number]) if is_dynamic else None))
    if numbers:
        kernel.arrays.append(LocalArray("float", "numbers", str(numbers), offset=count if is_dynamic else None))
    kernel.local_bytes = count + numbers * 4 if is_dynamic else 0

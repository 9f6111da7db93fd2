# SPDX-License-Identifier: BSD-3-Clause
"""Attention's gradients for devices with matrix units: one launch for queries, and one for keys and values.

Both use the same kernel with the sides exchanged. A group keeps the rows of its side in its memory, and iterates over
tiles of the other side's rows:

    side      rows kept        tiles            scores                slopes from        sums
    queries   query, grad      key, value       query · key           grad · value       slopes · key
    keys      key, value       query, grad      key · query           value · grad       slopes · query, weights · grad

The unit computes the products for scores and slopes; its lanes then hold the weights and slopes of some rows. Both are
rounded to the element type, and are the left operands of the sums. For large heads, the lanes of several units share
the columns of the sums, and each unit computes the weights. There are no atomic additions, so results are
deterministic.

Each query has two numbers, its logsumexp and its delta. A lane keeps its rows' numbers in registers, or the group loads
a tile's numbers into its memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import MatrixUnit, unit_of
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.heads import Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import ceil_div, filled, partly_filled
from torch_outboard.kernels.templates.schedules.attention_matrix_parts import parts_of, sum_of_parts
from torch_outboard.kernels.templates.schedules.attention_rows import (
    TO_POWER,
    by_rows,
    dropped_slopes,
    in_registers,
    scores,
    store_results,
)
from torch_outboard.kernels.templates.schedules.matrix_epilogues import stores
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array, fragments, multiplied, place_of_lane
from torch_outboard.kernels.templates.schedules.matrix_sides import DECLARED, Side, Tiling, lay_out
from torch_outboard.kernels.templates.schedules.parts import range_of_split

__all__ = ["SideKernel", "Sizes", "differentiate_sides"]

_ROWS = 64
# Columns (of both sums) for which a lane's registers have room.
_COLUMNS = 256
# Registers of a lane for sums, scores and slopes.
_REGISTERS = 192
# Fewer groups than this leave a large device partly idle.
_ENOUGH_GROUPS = 512
# Slots, rows and columns of tiles.
_TILES = ((2, 64, 64), (2, 64, 32), (1, 64, 32), (1, 32, 32), (1, 32, 16), (1, 16, 16))
# The same with the unit's matrices stacked: lanes then load half as much for each multiplication.
# Used if there are at least this many such tiles.
_LARGE_ROWS, _ENOUGH_LARGE_TILES = 128, 256
_LARGE_TILES = ((2, 2, _LARGE_ROWS, 64), (2, 2, _LARGE_ROWS, 32))


@dataclass(frozen=True)
class Sizes:
    """How a group shares its rows.

    Attributes
    ----------
    down : int
        Number of the unit's matrices stacked in the rows of a unit's lanes.
    rows, columns : int
        Rows that a group keeps, and rows of a tile.
    shares : int
        Number of units whose lanes share the columns of sums.
    head, value_head : int
        Columns of queries and keys, and of values, including the zeros after them.
    slots : int
        Two if one tile is loaded while another is multiplied.
    """

    unit: MatrixUnit
    down: int
    rows: int
    columns: int
    shares: int
    head: int
    value_head: int
    slots: int

    @staticmethod
    def of(unit: MatrixUnit, attention: Attention, memory: int, *, of_keys: bool) -> Sizes:
        """Return the sizes for a head. Raises Refusal if the unit does not divide tiles.

        `memory` is the dynamic memory per group if two groups share a multiprocessor. If the shares need so many items
        that registers suffice for only one group, that group gets the memory of both.
        """
        shares = 1 if attention.head + attention.value_head <= _COLUMNS else 2
        heads, size = (attention.key_heads, attention.keys) if of_keys else (attention.heads, attention.queries)
        tiles = [(1, slots, rows, columns) for slots, rows, columns in _TILES]
        # Elements of a mask, and random words of dropout, also take registers.
        may_be_large = unit.copies is not None and attention.mask is None and attention.dropout is None
        if may_be_large and holds(sympy.Ge(attention.batch * heads * FloorDiv(size, _LARGE_ROWS), _ENOUGH_LARGE_TILES)):
            tiles = [*_LARGE_TILES, *tiles]
        return Sizes._first(unit, attention, tiles, shares, shares * memory, of_keys)

    @staticmethod
    def of_mask(unit: MatrixUnit, attention: Attention) -> Sizes:
        """Return the sizes for a mask's gradient, which shares no sums and has no second slot."""
        tiles = [(1, 1, 64, 64), *[(1, *tile) for tile in _TILES if tile[0] == 1]]
        return Sizes._first(unit, attention, tiles, 1, 0, of_keys=False)

    @staticmethod
    def _first(
        unit: MatrixUnit,
        attention: Attention,
        tiles: Sequence[tuple[int, ...]],
        shares: int,
        memory: int,
        of_keys: bool,
    ) -> Sizes:
        """Return the first tiles that the unit divides and that fit in the group's memory and a lane's registers."""
        chunk = 16 // unit.dtype.itemsize
        across = unit.n * max([load.fragments for load in unit.load_right if load], default=1)
        head, value_head = (
            (size + step - 1) // step * step
            for size, step in (
                (size, math.lcm(unit.k, chunk, across * shares)) for size in (attention.head, attention.value_head)
            )
        )
        sums = (head + value_head if of_keys else head) // shares
        has_rows = unit.result.rows_of_lane(unit.lanes) > 0
        for down, slots, rows, columns in tiles:
            found = Sizes(unit, down, rows, columns, shares, head, value_head, slots)
            fits = found.bytes + (found.numbers * 4 if of_keys else 0) <= max(DECLARED, memory)
            registers = unit.m * down * (sums + 2 * columns) // unit.lanes
            divides = rows % (unit.m * down) == columns % unit.k == columns % across == 0
            has_room = down == 1 or registers <= _REGISTERS
            if has_rows and fits and divides and has_room and found.tiling().group <= 256:
                return found
        raise CallRefusal(
            f"the matrix unit {unit.name!r} of {unit.m} by {unit.n} by {unit.k} and {unit.lanes} lanes doesn't "
            f"divide tiles of {_ROWS} by {_ROWS} [matrix-unit]"
        )

    @property
    def bytes(self) -> int:
        """The bytes of group memory for rows and tiles."""
        chunk = 16 // self.unit.dtype.itemsize
        counts = (self.rows, *[self.columns] * self.slots)
        arrays = (Array("", "", count, wide, chunk) for count in counts for wide in (self.head, self.value_head))
        return sum(array.size for array in arrays) * self.unit.dtype.itemsize

    @property
    def numbers(self) -> int:
        """How many numbers of queries the group's memory holds: two per query of a tile."""
        return 2 * self.columns * self.slots

    def tiling(self) -> Tiling:
        part = self.unit.m * self.down
        group = self.rows // part * self.shares * self.unit.lanes
        return Tiling(self.unit, self.rows, self.columns, self.head, group, part, self.columns)


def differentiate_sides(call: TemplateCall, attention: Attention, gradients: Gradients) -> None:
    """Write the launches of the gradients of queries, and of keys and values."""
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # otherwise this way would not serve the call
    call.schedule("matrix")
    if gradients.of_query is not None:
        sizes = Sizes.of(unit, attention, call.dynamic_memory, of_keys=False)
        call.launch(SideKernel(call, attention, gradients, sizes, of_keys=False).kernel())
    if gradients.of_key is not None or gradients.of_value is not None:
        sizes = Sizes.of(unit, attention, call.dynamic_memory, of_keys=True)
        _differentiate_keys(call, attention, gradients, sizes)


def _differentiate_keys(call: TemplateCall, attention: Attention, gradients: Gradients, sizes: Sizes) -> None:
    """Write the launch for keys and values, or two launches if groups share the queries of a few key heads."""
    groups = attention.batch * attention.key_heads * ceil_div(attention.keys, sizes.rows)
    if not (holds(sympy.Gt(attention.heads, attention.key_heads)) and holds(sympy.Le(groups, _ENOUGH_GROUPS))):
        call.launch(SideKernel(call, attention, gradients, sizes, of_keys=True).kernel())
        return
    members = FloorDiv(attention.heads, attention.key_heads)
    one = sympy.Integer(1)
    splits = simplified(sympy.Max(one, sympy.Min(members, FloorDiv(2 * _ENOUGH_GROUPS, sympy.Max(one, groups)))))
    sums, launches, parts = {}, [], []
    for name, columns in (("of_key", attention.head), ("of_value", attention.value_head)):
        result = getattr(gradients, name)
        if result is not None:
            size = attention.keys, sympy.Integer(columns)
            sums[name] = part = parts_of(call, result, size, splits)
            parts.append(part)
            launches.append(sum_of_parts(call, f"ob_attention_{name}", result, size, part, splits))
    kernel = SideKernel(call, attention, replace(gradients, **sums), sizes, of_keys=True, splits=splits).kernel()
    call.launch(kernel, *launches)
    for part in parts:
        call.free(part.tensor)


@dataclass(frozen=True)
class SideKernel:
    """The gradients of one side. Without `splits`, a group processes all query heads that share a key head."""

    call: TemplateCall
    given: Attention
    gradients: Gradients
    sizes: Sizes
    of_keys: bool
    splits: Any = sympy.Integer(1)

    def kernel(self) -> Kernel:
        attention, gradients, sizes, unit = self.given, self.gradients, self.sizes, self.sizes.unit
        tiling = sizes.tiling()
        kernel = Kernel(
            f"ob_attention_of_{'keys' if self.of_keys else 'queries'}_of_units", unit.header, group=tiling.group
        )
        others = [gradients.grad, gradients.logsumexp, gradients.delta, *(rows for rows, *_ in self._results())]
        words = attention.declare(kernel, attention.query, attention.key, attention.value, *others)
        kept, tiles = (self.keys(), self.queries()) if self.of_keys else (self.queries(), self.keys())
        lay_out(kernel, *kept, *tiles, numbers=sizes.numbers if self.of_keys else 0)
        arrays = [
            Array(kept[0].kind, name, sizes.rows, sizes.columns, tiling.chunk) for name in ("weights", "slopes_of")
        ]
        if not in_registers(unit):
            kernel.arrays += [LocalArray(array.kind, array.name, str(array.size), is_aligned=True) for array in arrays]
        words |= self.words() | self.load_words(kept, tiles) | self._sums(tiles, arrays)
        words |= {
            "GROUP_HEADS": "$HEADS / $GROUP" if self.of_keys else "$HEADS",
            "OF_SPLIT": range_of_split("$GROUP" if self.of_keys else "1"),
            "SHARES": str(sizes.shares),
            "RESULTS_BEGIN": " ".join(
                f"const ob_i64 {rows.name}_from = {rows.begin('of_head')};" for rows, *_ in self._results()
            ),
        }
        words["SPLITS"] = kernel.number("splits", self.splits)
        words["BATCH"] = "1" if words["SPLITS"] == "1" else kernel.number("batches", attention.batch)
        kernel.text = filled(_TEXT, words)
        heads, size = (attention.key_heads, attention.keys) if self.of_keys else (attention.heads, attention.queries)
        kernel.groups = self.splits * attention.batch * heads * ceil_div(size, sizes.rows)
        return kernel

    def words(self) -> dict[str, str]:
        """Return the placeholder texts of weights and slopes."""
        gradients, sizes, unit = self.gradients, self.sizes, self.sizes.unit
        lines, across = unit.result.rows_of_lane(unit.lanes), sizes.columns // unit.n
        group = sizes.tiling().group
        return (
            sizes.tiling().words()
            | scores(self.given, unit, "scores[place]")
            | dropped_slopes(self.given, sizes.down * across * unit.result.count)
            | {
                "UNROLL": self.call.dialect.unroll,
                "OF_KEYS": "1" if self.of_keys else "0",
                "KEPT": "$KEYS" if self.of_keys else "$QUERIES",
                "OTHERS": "$QUERIES" if self.of_keys else "$KEYS",
                "KEPT_TILE": str(sizes.rows),
                "OTHER_TILE": str(sizes.columns),
                "PADDED": str(sizes.head),
                "VALUE_PADDED": str(sizes.value_head),
                "LINES": str(lines),
                "EACH": str(unit.result.count // lines),
                "BEGINS": self._begins(),
                "COMPUTE": _COMPUTE,
                "QUERY_AND_KEY": "query = first_other + column, key = first_kept + row"
                if self.of_keys
                else "query = first_kept + row, key = first_other + column",
                "BASE": "numbers[number]" if self.of_keys else "base_of[line]",
                "DELTA_HERE": "numbers[number + 1]" if self.of_keys else "delta_of[line]",
                "NUMBER": "const int number = 2 * (turn * $OTHER_TILE + column);" if self.of_keys else "",
                "NUMBERS_OF_KEPT": "" if self.of_keys else _OF_KEPT,
                "ITEMS": str(group),
                "BROUGHT": str((sizes.columns + group - 1) // group),
                "LOGSUMEXP": gradients.logsumexp.load("logsumexp_from", "query"),
                "DELTA": gradients.delta.load("delta_from", "query"),
                "TO_POWER": TO_POWER,
                "MULTIPLY_SCORES": multiplied(unit, "scores", sizes.down, across),
                "MULTIPLY_SLOPES": multiplied(unit, "slopes", sizes.down, across),
            }
        )

    def queries(self) -> list[Side]:
        """Return the sides for queries and for the result's gradients."""
        return [self._side(rows, "$QUERIES", True) for rows in (self.given.query, self.gradients.grad)]

    def keys(self) -> list[Side]:
        """Return the sides for keys and values."""
        return [self._side(rows, "$KEYS", False) for rows in (self.given.key, self.given.value)]

    def _side(self, rows: Rows, size: str, of_queries: bool) -> Side:
        sizes, is_wide = self.sizes, rows.name in ("grad", "value")
        is_kept = of_queries != self.of_keys
        depth = "$VALUE_HEAD" if is_wide else "$HEAD"
        side = Side(
            rows.name,
            by_rows(rows),
            ("first_kept" if is_kept else "next", size),
            sizes.tiling(),
            self.call.dialect,
            sizes.rows if is_kept else sizes.columns,
            sizes.value_head if is_wide else sizes.head,
            is_kept,
            1 if is_kept else sizes.slots,
            depth,
            depth,
        )
        return side if is_kept else side.counting(*rows.tensor.size)

    def _results(self) -> list[tuple[Rows, str, str, str]]:
        """Return the targets, each with its sums, their factor, and its number of columns."""
        gradients, scale = self.gradients, self.given.scale
        of_kept = "" if self.given.dropout is None else "$KEPT_SCALE"
        if not self.of_keys:
            return [(gradients.of_query, "first_sums", scale, "$HEAD")] if gradients.of_query else []
        keys = [(gradients.of_key, "first_sums", scale, "$HEAD")] if gradients.of_key else []
        return keys + ([(gradients.of_value, "second_sums", of_kept, "$VALUE_HEAD")] if gradients.of_value else [])

    def load_words(self, kept: list[Side], tiles: list[Side]) -> dict[str, str]:
        """Return the placeholder texts that load rows into the group's memory."""
        copies = self.sizes.unit.copies
        places = [side.place_of_lane("part_row") for side in kept] + [side.place_of_lane("0") for side in tiles]
        (_, left), (_, other_left), (_, right), (_, other_right) = places
        declare, bring, put = _NUMBERS if self.of_keys else ("", "", "")
        return {
            "DECLARE": "".join(side.declared() + side.find_first("first_tile", "0") for side in (*kept, *tiles))
            + "".join(place for place, _ in places)
            + declare,
            "BRING_KEPT": "".join(side.find() + side.begin() + side.finish() for side in kept),
            "BEGIN": "".join(side.find() + side.begin() + side.advance_lines() for side in tiles) + bring,
            "FINISH": "".join(side.finish() for side in tiles) + put,
            "COMMIT": copies.commit if copies else "",
            "WAIT": filled(copies.wait, {"LATER": "0"}) if copies else "",
            "LOOP": _TWO_SLOTS if self.sizes.slots == 2 else _ONE_SLOT,
            "LOAD_KEPT": kept[0].load("part_row", "$DOWN", "left_part", lane=left),
            "LOAD_TILE": tiles[0].load("0", "$ACROSS", "right_part", lane=right),
            "LOAD_OTHER_KEPT": kept[1].load("part_row", "$DOWN", "left_part", lane=other_left),
            "LOAD_OTHER_TILE": tiles[1].load("0", "$ACROSS", "right_part", lane=other_right),
        }

    def _sums(self, tiles: list[Side], arrays: list[Array]) -> dict[str, str]:
        """Return the placeholder texts of the sums."""
        sizes, unit, dtype = self.sizes, self.sizes.unit, self.given.query.tensor.dtype
        across = sizes.columns // unit.n
        held = in_registers(unit)
        first, second = (size // sizes.shares // unit.n for size in (sizes.head, sizes.value_head))
        has_first = not self.of_keys or self.gradients.of_key is not None
        has_second = self.of_keys and self.gradients.of_value is not None
        products, declared, stored = "", "", ""
        for has, sums, results, side, array, wide in (
            (has_first, "first_sums", "slopes", tiles[0], arrays[1], first),
            (has_second, "second_sums", "scores", tiles[1], arrays[0], second),
        ):
            if not has:
                continue
            count = f"{sizes.down * wide * unit.result.count}"
            declared += f"  float {sums}[{count}];\n  $UNROLL\n  for (int i = 0; i < {count}; ++i) {sums}[i] = 0;\n"
            left = held.text(results, "left_part", across, dtype) if held else ""
            left = left or fragments(unit, True, array, ("part_row", "at"), "$DOWN", "left_part")
            slot = f"turn * {side.array.size} + " if sizes.slots > 1 else ""
            first_column = f"share * {wide * unit.n}"
            shared = unit, False, side.array
            place, lane = place_of_lane(
                f"{side.name}_column_lane", *shared, first_column, wide * unit.n, is_across=True
            )
            declared += place
            right = fragments(*shared, (first_column, "at"), str(wide), "right_part", slot, is_across=True, lane=lane)
            products += f"""\
    $UNROLL
    for (int at = 0; at < $OTHER_TILE; at += $UNIT_STEPS) {{
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[{wide} * $RIGHT_COUNT];
{left}{right}{multiplied(unit, sums, sizes.down, wide)}
    }}
"""
        for rows, sums, factor, size in self._results():
            stored += _stored(sizes, rows, sums, factor, size, first if sums == "first_sums" else second)
        stores = ""
        if not held:
            named = zip(arrays, ("scores", "slopes"), strict=True)
            stores = "".join(store_results(unit, array, dtype, name, across) for array, name in named)
            stores = f"    OB_BARRIER;\n{stores}    OB_BARRIER;\n"
        return {
            "SUMS_DECLARED": declared,
            "PUT": stores,
            "PRODUCTS": products,
            "STORE_ALL": stored,
        }

    def _begins(self) -> str:
        """Return the statements that compute where one turn's heads begin."""
        attention, gradients = self.given, self.gradients
        heads = {
            attention.query: "head",
            gradients.grad: "head",
            attention.key: "key_head",
            attention.value: "key_head",
        }
        heads |= {gradients.logsumexp: "head", gradients.delta: "head"}
        return " ".join(f"const ob_i64 {rows.name}_from = {rows.begin(head)};" for rows, head in heads.items())


def _stored(sizes: Sizes, rows: Rows, sums: str, factor: str, size: str, across: int) -> str:
    """Return the statements that store the sums of a gradient."""
    unit, epilogue = sizes.unit, rows.epilogue(f"value * {factor}" if factor else "value")
    words = stores(epilogue, unit, ("row", "column"), across)
    words |= {"ROW": "row", "COLUMN": "column", "ROWS": "$KEPT", "COLUMNS": size, "DOWN": str(sizes.down)}
    text = partly_filled("$STORE", words).replace("sums[", f"{sums}[")
    return f"  {{\n  const int first_column = share * {across * unit.n}, part_column = 0;\n{text}  }}\n"


_OF_KEPT = """\
    float base_of[$DOWN * $LINES], delta_of[$DOWN * $LINES];
    $UNROLL
    for (int line = 0; line < $DOWN * $LINES; ++line) {
      const int index = line % $LINES * $EACH;
      const ob_i64 row = first_kept + part_row + line / $LINES * $UNIT_ROWS + ($RESULT_ROW);
      const ob_i64 query = row < $QUERIES ? row : $QUERIES - 1;
      const float logsumexp_of = $LOGSUMEXP;
      // Where no key takes part, all scores are $MASKED_SCORE.
      base_of[line] = logsumexp_of == $MASKED_SCORE ? 0 : logsumexp_of * $TO_POWER;
      delta_of[line] = $DELTA;
    }
"""

# The next tile's numbers are read before this tile is multiplied, and stored afterwards.
_NUMBERS = (
    """\
    float brought[2 * $BROUGHT];
""",
    """\
      $UNROLL
      for (int i = 0; i < $BROUGHT; ++i) {
        const ob_u32 column = item + i * $ITEMS;
        const ob_i64 query = next + column < $QUERIES ? next + column : $QUERIES - 1;
        if (column < $OTHER_TILE) {
          const float logsumexp_of = $LOGSUMEXP;
          // Where no key takes part, all scores are $MASKED_SCORE.
          brought[2 * i] = logsumexp_of == $MASKED_SCORE ? 0 : logsumexp_of * $TO_POWER;
          brought[2 * i + 1] = $DELTA;
        }
      }
""",
    """\
      $UNROLL
      for (int i = 0; i < $BROUGHT; ++i) {
        const ob_u32 column = item + i * $ITEMS;
        if (column < $OTHER_TILE) {
          numbers[2 * (other * $OTHER_TILE + column)] = brought[2 * i];
          numbers[2 * (other * $OTHER_TILE + column) + 1] = brought[2 * i + 1];
        }
      }
""",
)

_COMPUTE = """\
    float scores[$DOWN * $ACROSS * $RESULTS], slopes[$DOWN * $ACROSS * $RESULTS];
    $UNROLL
    for (int i = 0; i < $DOWN * $ACROSS * $RESULTS; ++i) {
      scores[i] = 0;
      slopes[i] = 0;
    }
    $UNROLL
    for (int at = 0; at < $PADDED; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_KEPT
$LOAD_TILE
$MULTIPLY_SCORES
    }
    $UNROLL
    for (int at = 0; at < $VALUE_PADDED; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_OTHER_KEPT
$LOAD_OTHER_TILE
$MULTIPLY_SLOPES
    }
$DROP_SLOPES
    const int ahead = (int)(first_other - first_kept);
    const int others = $OTHERS - first_other < $OTHER_TILE ? (int)($OTHERS - first_other) : $OTHER_TILE;
    // Rows behind the last one are not stored. Only tiles at the end, or of the causal diagonal, have numbers that take
    // no part.
    const bool is_on_diagonal =
        $OF_KEYS ? (int)part_row + $PART_ROWS > ahead + 1 : ahead + $OTHER_TILE > (int)part_row + 1;
    if (others < $OTHER_TILE || ($IS_CAUSAL && is_on_diagonal) || $HAS_MASK || $IS_SCALED) {
      const int rows = $KEPT - first_kept < $KEPT_TILE ? (int)($KEPT - first_kept) : $KEPT_TILE;
      $UNROLL
      for (int number = 0; number < $DOWN * $ACROSS; ++number) {
        $UNROLL
        for (int index = 0; index < $RESULTS; ++index) {
          const int row = part_row + number / $ACROSS * $UNIT_ROWS + ($RESULT_ROW);
          const int column = number % $ACROSS * $UNIT_COLUMNS + ($RESULT_COLUMN);
          const int place = number * $RESULTS + index;
          const ob_i64 $QUERY_AND_KEY;
          const bool is_later = $OF_KEYS ? row > ahead + column : ahead + column > row;
          scores[place] = row < rows && column < others && !($IS_CAUSAL && is_later) ? $SCORE : $MASKED_SCORE;
        }
      }
    }
    $UNROLL
    for (int j = 0; j < $ACROSS; ++j) {
      $UNROLL
      for (int result = 0; result < $EACH; ++result) {
        const int index = result;
        const int column = j * $UNIT_COLUMNS + ($RESULT_COLUMN);
        $NUMBER
        $UNROLL
        for (int line = 0; line < $DOWN * $LINES; ++line) {
          const int place = (line / $LINES * $ACROSS + j) * $RESULTS + line % $LINES * $EACH + result;
          const float base = $BASE;
          const float weight = $WEIGHT;
          scores[place] = $KEPT_WEIGHT;
          slopes[place] = weight * (slopes[place] - $DELTA_HERE);
        }
      }
    }
$PUT
$PRODUCTS
"""

_TWO_SLOTS = """\
    int turn = 0, other = 0;
    {
      const ob_i64 next = first_tile;
      const int from_step = 0;
$BRING_KEPT
      if (next < end) {
$BEGIN
$FINISH
      }
      $COMMIT
    }
    for (ob_i64 first_other = first_tile; first_other < end; first_other += $OTHER_TILE) {
    $WAIT
    OB_BARRIER;
    const ob_i64 next = first_other + $OTHER_TILE;
    const int from_step = 0;
    other = 1 - turn;
    if (next < end) {
$BEGIN
    }
    $COMMIT
$COMPUTE
    if (next < end) {
$FINISH
    }
    turn = other;
    }
"""

_ONE_SLOT = """\
    {
      const int from_step = 0;
$BRING_KEPT
    }
    for (ob_i64 first_other = first_tile; first_other < end; first_other += $OTHER_TILE) {
    const ob_i64 next = first_other;
    const int from_step = 0, turn = 0, other = 0;
    OB_BARRIER;
$BEGIN
$FINISH
    $COMMIT
    $WAIT
    OB_BARRIER;
$COMPUTE
    }
"""

_TEXT = """\
  const ob_u32 item = OB_ITEM_OF_GROUP;
  const ob_u32 lane = item % $LANES;
  const ob_u32 share = item / $LANES % $SHARES;
  const ob_u32 part_row = item / $LANES / $SHARES * $PART_ROWS;
  const ob_i64 tiles = ($KEPT + $KEPT_TILE - 1) / $KEPT_TILE;
  $ORDER
  const ob_i64 of_batch = outer / ($GROUP_HEADS), of_head = outer % ($GROUP_HEADS);
  const ob_i64 split = $SPLITS == 1 ? 0 : of_batch / $BATCH;
  // Where it is causal, the last queries and the first keys take longest.
  const ob_i64 first_kept = ($OF_KEYS ? rank : tiles - 1 - rank) * $KEPT_TILE;
  const ob_i64 first_tile = $OF_KEYS && $IS_CAUSAL ? first_kept / $OTHER_TILE * $OTHER_TILE : 0;
  const ob_i64 last = first_kept + $KEPT_TILE;
  const ob_i64 end = !$OF_KEYS && $IS_CAUSAL && last < $OTHERS ? last : $OTHERS;
$SUMS_DECLARED
  $OF_SPLIT
  for (ob_i64 member = from_count; member < to_count; ++member) {
    const ob_i64 batch = of_batch - split * $BATCH;
    const ob_i64 head = $OF_KEYS ? of_head * $GROUP + member : of_head;
    const ob_i64 key_head = $OF_KEYS ? of_head : of_head / $GROUP;
    $BEGINS
    $MASK_BEGIN
    $DROP_BEGIN
$DECLARE
    OB_BARRIER;
$NUMBERS_OF_KEPT
$LOOP
    // A causal part may have no tiles.
    $COMMIT
    $WAIT
  }
  const ob_i64 batch = of_batch;
  $RESULTS_BEGIN
  const ob_i64 first_row = first_kept;
$STORE_ALL"""

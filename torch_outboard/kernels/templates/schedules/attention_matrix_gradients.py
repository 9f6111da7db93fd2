# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of attention for devices with matrix units, in a launch for queries and one for keys and values.

Both are one kernel with its sides exchanged. A group keeps the rows of its side in its memory, and goes through the
rows of the other side by tiles:

    side      rows kept        tiles            scores                slopes from        sums
    queries   query, grad      key, value       query · key           grad · value       slopes · key
    keys      key, value       query, grad      key · query           value · grad       slopes · query, weights · grad

The unit multiplies scores and slopes, whose lanes then hold the weights and the slopes of some rows. Both are rounded
to the type of the elements, and are the left operands of the sums. The lanes of several units share the columns of the
sums of large heads, and compute the weights each. Nothing is added by atomics: results are always the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import MatrixUnit, unit_of
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall
from torch_outboard.kernels.templates.heads import Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import ceil_div, filled
from torch_outboard.kernels.templates.schedules.attention_rows import by_rows, in_registers, put
from torch_outboard.kernels.templates.schedules.matrix_ends import stores
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array, fragments, multiplied, place_of_lane
from torch_outboard.kernels.templates.schedules.matrix_sides import Side, Tiling

__all__ = ["SideKernel", "Sizes", "differentiate_sides"]

_ROWS = 64
_BYTES = 48 << 10  # of a group's memory
_LOG2_E = 1 / math.log(2)
# The sums of a lane's rows that its registers have room for: columns of both sums.
_COLUMNS = 256


@dataclass(frozen=True)
class Sizes:
    """How a group shares its rows.

    Attributes
    ----------
    rows, columns : int
        The rows that a group keeps, and those of a tile.
    shares : int
        How many units' lanes share the columns of sums.
    head, value_head : int
        The columns of queries and keys, and of values, with the zeros behind them.
    slots : int
        Two if a tile is brought while another one is multiplied.
    """

    unit: MatrixUnit
    rows: int
    columns: int
    shares: int
    head: int
    value_head: int
    slots: int

    @staticmethod
    def of(unit: MatrixUnit, given: Attention, *, has_sums: bool = True) -> Sizes:
        """Return the sizes for a head. Raises Refusal if the unit does not divide tiles.

        Without sums, there is nothing to share and no second slot.
        """
        chunk = 16 // unit.dtype.itemsize
        across = unit.n * max([one.fragments for one in unit.load_right if one], default=1)
        shares = 1 if given.head + given.value_head <= _COLUMNS or not has_sums else 2
        head, value_head = (
            (size + step - 1) // step * step
            for size, step in (
                (size, math.lcm(unit.k, chunk, across * shares)) for size in (given.head, given.value_head)
            )
        )
        tiles = ((2, 64, 64), (2, 64, 32), (1, 64, 32), (1, 32, 32), (1, 32, 16), (1, 16, 16))
        for slots, rows, columns in tiles if has_sums else ((1, 64, 64), *tiles[2:]):
            size = sum(
                Array("", "", one, wide, chunk).size
                for one in (rows, *[columns] * slots)
                for wide in (head, value_head)
            )
            fits = size * unit.dtype.itemsize <= _BYTES
            divides = rows % unit.m == columns % unit.k == columns % across == 0
            if (
                fits
                and divides
                and rows // unit.m * shares * unit.lanes <= 256
                and unit.result.rows_of_lane(unit.lanes)
            ):
                return Sizes(unit, rows, columns, shares, head, value_head, slots)
        raise Refusal(
            f"the matrix unit {unit.name!r} of {unit.m} by {unit.n} by {unit.k} and {unit.lanes} lanes does not "
            f"divide tiles of {_ROWS} by {_ROWS}"
        )

    def tiling(self) -> Tiling:
        group = self.rows // self.unit.m * self.shares * self.unit.lanes
        return Tiling(self.unit, self.rows, self.columns, self.head, group, self.unit.m, self.columns)


def differentiate_sides(call: TemplateCall, given: Attention, gradients: Gradients) -> None:
    """Write the launches of the gradients of queries, and of keys and values."""
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # else the way does not serve the call
    call.schedule("matrix")
    sizes = Sizes.of(unit, given)
    if gradients.of_query is not None:
        kernel = SideKernel(call, given, gradients, sizes, of_keys=False).kernel()
        kernel.groups = given.batch * given.heads * ceil_div(given.queries, sizes.rows)
        call.launch(kernel)
    if gradients.of_key is not None or gradients.of_value is not None:
        kernel = SideKernel(call, given, gradients, sizes, of_keys=True).kernel()
        kernel.groups = given.batch * given.key_heads * ceil_div(given.keys, sizes.rows)
        call.launch(kernel)


@dataclass(frozen=True)
class SideKernel:
    """The gradients of one side."""

    call: TemplateCall
    given: Attention
    gradients: Gradients
    sizes: Sizes
    of_keys: bool

    def kernel(self) -> Kernel:
        given, gradients, sizes, unit = self.given, self.gradients, self.sizes, self.sizes.unit
        tiling = sizes.tiling()
        kernel = Kernel(
            f"ob_attention_of_{'keys' if self.of_keys else 'queries'}_of_units", unit.header, group=tiling.group
        )
        others = [gradients.grad, gradients.logsumexp, gradients.delta, *(one for one, *_ in self._results())]
        words = given.declare(kernel, given.query, given.key, given.value, *others)
        kept, tiles = (self.keys(), self.queries()) if self.of_keys else (self.queries(), self.keys())
        kernel.arrays = [one.memory() for one in (*kept, *tiles)]
        arrays = [
            Array(kept[0].kind, name, sizes.rows, sizes.columns, tiling.chunk) for name in ("weights", "slopes_of")
        ]
        if not in_registers(unit):
            kernel.arrays += [LocalArray(one.kind, one.name, str(one.size), is_aligned=True) for one in arrays]
        words |= self.words() | self.brought(kept, tiles) | self._sums(tiles, arrays)
        words |= {
            "GROUP_HEADS": "$HEADS / $GROUP" if self.of_keys else "$HEADS",
            "MEMBERS": "$GROUP" if self.of_keys else "1",
            "SHARES": str(sizes.shares),
            "RESULTS_BEGIN": " ".join(
                f"const ob_i64 {one.name}_from = {one.begin('of_head')};" for one, *_ in self._results()
            ),
        }
        kernel.text = filled(_TEXT, words)
        return kernel

    def words(self) -> dict[str, str]:
        """Return the words of weights and slopes."""
        gradients, sizes, unit = self.gradients, self.sizes, self.sizes.unit
        lines, across = unit.result.rows_of_lane(unit.lanes), sizes.columns // unit.n
        mask = f" + {self.given.mask_at('query', 'key')} * $TO_POWER" if self.given.mask is not None else ""
        return sizes.tiling().words() | {
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
            "OF_LINE": "const ob_i64 query = first_other + column, key = first_kept + row;"
            if self.of_keys
            else "const float base = base_of[line], delta_here = delta_of[line]; "
            "const ob_i64 query = first_kept + row, key = first_other + column;",
            "NUMBERS": _OF_OTHERS if self.of_keys else "",
            "NUMBERS_OF_KEPT": "" if self.of_keys else _OF_KEPT,
            "LOGSUMEXP": gradients.logsumexp.load("logsumexp_from", "query"),
            "DELTA": gradients.delta.load("delta_from", "query"),
            "TO_POWER": f"(float){_LOG2_E!r}",
            "MULTIPLY_SCORES": multiplied(unit, "scores", 1, across),
            "MULTIPLY_SLOPES": multiplied(unit, "slopes", 1, across),
            "SCORE": f"scores[place] * ({self.given.scale} * $TO_POWER){mask}",
            "WEIGHT": filled(unit.power, {"VALUE": "score - base"}),
            "DOWN": "1",
        }

    def queries(self) -> list[Side]:
        """Return the ways of queries and of the result's gradients."""
        return [self._side(one, "$QUERIES", True) for one in (self.given.query, self.gradients.grad)]

    def keys(self) -> list[Side]:
        """Return the ways of keys and values."""
        return [self._side(one, "$KEYS", False) for one in (self.given.key, self.given.value)]

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
        """Return the targets, each with its sums, the factor of its sums and its number of columns."""
        gradients, scale = self.gradients, self.given.scale
        if not self.of_keys:
            return [(gradients.of_query, "first_sums", scale, "$HEAD")] if gradients.of_query else []
        keys = [(gradients.of_key, "first_sums", scale, "$HEAD")] if gradients.of_key else []
        return keys + ([(gradients.of_value, "second_sums", "", "$VALUE_HEAD")] if gradients.of_value else [])

    def brought(self, kept: list[Side], tiles: list[Side]) -> dict[str, str]:
        """Return the words by which the group's memory gets its rows."""
        copies = self.sizes.unit.copies
        places = [one.place_of_lane("part_row") for one in kept] + [one.place_of_lane("0") for one in tiles]
        (_, left), (_, other_left), (_, right), (_, other_right) = places
        return {
            "DECLARE": "".join(one.declared() + one.find_first("first_tile", "0") for one in (*kept, *tiles))
            + "".join(place for place, _ in places),
            "BRING_KEPT": "".join(one.find() + one.begin() + one.finish() for one in kept),
            "BEGIN": "".join(one.find() + one.begin() + one.advance_lines() for one in tiles),
            "FINISH": "".join(one.finish() for one in tiles),
            "COMMIT": copies.commit if copies else "",
            "WAIT": filled(copies.wait, {"LATER": "0"}) if copies else "",
            "LOOP": _TWO_SLOTS if self.sizes.slots == 2 else _ONE_SLOT,
            "LOAD_KEPT": kept[0].load("part_row", "1", "left_part", lane=left),
            "LOAD_TILE": tiles[0].load("0", "$ACROSS", "right_part", lane=right),
            "LOAD_OTHER_KEPT": kept[1].load("part_row", "1", "left_part", lane=other_left),
            "LOAD_OTHER_TILE": tiles[1].load("0", "$ACROSS", "right_part", lane=other_right),
        }

    def _sums(self, tiles: list[Side], arrays: list[Array]) -> dict[str, str]:
        """Return the words of the sums."""
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
            count = f"{wide * unit.result.count}"
            declared += f"  float {sums}[{count}];\n  $UNROLL\n  for (int i = 0; i < {count}; ++i) {sums}[i] = 0;\n"
            left = held.text(results, "left_part", across, dtype) if held else ""
            left = left or fragments(unit, True, array, ("part_row", "at"), "1", "left_part")
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
      $LEFT_KIND left_part[$LEFT_COUNT];
      $RIGHT_KIND right_part[{wide} * $RIGHT_COUNT];
{left}{right}{multiplied(unit, sums, 1, wide)}
    }}
"""
        for rows, sums, factor, size in self._results():
            stored += _stored(unit, rows, sums, factor, size, first if sums == "first_sums" else second)
        puts = ""
        if not held:
            puts = "".join(
                put(unit, array, dtype, one, across) for array, one in zip(arrays, ("scores", "slopes"), strict=True)
            )
            puts = f"    OB_BARRIER;\n{puts}    OB_BARRIER;\n"
        return {
            "SUMS_DECLARED": declared,
            "PUT": puts,
            "PRODUCTS": products,
            "STORE_ALL": stored,
        }

    def _begins(self) -> str:
        """Return the statements for where the heads of one turn begin."""
        given, gradients = self.given, self.gradients
        heads = {given.query: "head", gradients.grad: "head", given.key: "key_head", given.value: "key_head"}
        heads |= {gradients.logsumexp: "head", gradients.delta: "head"}
        return " ".join(f"const ob_i64 {one.name}_from = {one.begin(head)};" for one, head in heads.items())


def _stored(unit: MatrixUnit, rows: Rows, sums: str, factor: str, size: str, across: int) -> str:
    """Return the statements that store the sums of a gradient."""
    end = rows.end(f"value * {factor}" if factor else "value")
    words = stores(end, unit, ("row", "column"), across)
    words |= {"ROW": "row", "COLUMN": "column", "ROWS": "$KEPT", "COLUMNS": size, "DOWN": "1"}
    text = words.pop("STORE")
    text = re.sub(r"\$([A-Z_]+)", lambda found: words.get(found[1], found[0]), text).replace("sums[", f"{sums}[")
    return f"  {{\n  const int first_column = share * {across * unit.n}, part_column = 0;\n{text}  }}\n"


_OF_KEPT = """\
    float base_of[$LINES], delta_of[$LINES];
    $UNROLL
    for (int line = 0; line < $LINES; ++line) {
      const int index = line * $EACH;
      const ob_i64 row = first_kept + part_row + ($RESULT_ROW);
      const ob_i64 query = row < $QUERIES ? row : $QUERIES - 1;
      const float logsumexp_of = $LOGSUMEXP;
      // Where no key takes part, all scores are $NONE.
      base_of[line] = logsumexp_of == $NONE ? 0 : logsumexp_of * $TO_POWER;
      delta_of[line] = $DELTA;
    }
"""

_OF_OTHERS = """\
        const ob_i64 query = first_other + column < $QUERIES ? first_other + column : $QUERIES - 1;
        const float logsumexp_of = $LOGSUMEXP;
        // Where no key takes part, all scores are $NONE.
        const float base = logsumexp_of == $NONE ? 0 : logsumexp_of * $TO_POWER;
        const float delta_here = $DELTA;
"""

_COMPUTE = """\
    float scores[$ACROSS * $RESULTS], slopes[$ACROSS * $RESULTS];
    $UNROLL
    for (int i = 0; i < $ACROSS * $RESULTS; ++i) {
      scores[i] = 0;
      slopes[i] = 0;
    }
    $UNROLL
    for (int at = 0; at < $PADDED; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_KEPT
$LOAD_TILE
$MULTIPLY_SCORES
    }
    $UNROLL
    for (int at = 0; at < $VALUE_PADDED; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_OTHER_KEPT
$LOAD_OTHER_TILE
$MULTIPLY_SLOPES
    }
    const int ahead = (int)(first_other - first_kept);
    const int others = $OTHERS - first_other < $OTHER_TILE ? (int)($OTHERS - first_other) : $OTHER_TILE;
    const int rows = $KEPT - first_kept < $KEPT_TILE ? (int)($KEPT - first_kept) : $KEPT_TILE;
    $UNROLL
    for (int j = 0; j < $ACROSS; ++j) {
      $UNROLL
      for (int one = 0; one < $EACH; ++one) {
        const int index = one;
        const int column = j * $UNIT_COLUMNS + ($RESULT_COLUMN);
$NUMBERS
        $UNROLL
        for (int line = 0; line < $LINES; ++line) {
          const int index = line * $EACH + one, place = j * $RESULTS + index;
          const int row = part_row + ($RESULT_ROW);
          $OF_LINE
          const bool is_later = $OF_KEYS ? row > ahead + column : ahead + column > row;
          const float score = row < rows && column < others && !($IS_CAUSAL && is_later) ? $SCORE : $NONE;
          const float weight = $WEIGHT;
          scores[place] = weight;
          slopes[place] = weight * (slopes[place] - delta_here);
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
    const int from_step = 0;
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
  const ob_u32 part_row = item / $LANES / $SHARES * $UNIT_ROWS;
  const ob_i64 tiles = ($KEPT + $KEPT_TILE - 1) / $KEPT_TILE;
  const ob_i64 number = OB_GROUP_NUMBER;
  const ob_i64 batch = number / tiles / ($GROUP_HEADS), of_head = number / tiles % ($GROUP_HEADS);
  // Those that take longest first: where it is causal, the last queries, and the first keys.
  const ob_i64 first_kept = ($OF_KEYS ? number % tiles : tiles - 1 - number % tiles) * $KEPT_TILE;
  const ob_i64 first_tile = $OF_KEYS && $IS_CAUSAL ? first_kept / $OTHER_TILE * $OTHER_TILE : 0;
  const ob_i64 last = first_kept + $KEPT_TILE;
  const ob_i64 end = !$OF_KEYS && $IS_CAUSAL && last < $OTHERS ? last : $OTHERS;
$SUMS_DECLARED
  for (ob_i64 member = 0; member < $MEMBERS; ++member) {
    const ob_i64 head = $OF_KEYS ? of_head * $GROUP + member : of_head;
    const ob_i64 key_head = $OF_KEYS ? of_head : of_head / $GROUP;
    $BEGINS
    $MASK_BEGIN
$DECLARE
    OB_BARRIER;
$NUMBERS_OF_KEPT
$LOOP
    // A causal part may have no tiles.
    $COMMIT
    $WAIT
  }
  $RESULTS_BEGIN
  const ob_i64 first_row = first_kept;
$STORE_ALL"""

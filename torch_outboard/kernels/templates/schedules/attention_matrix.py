# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of attention for devices with matrix units.

A group processes up to 128 queries of a head, and iterates over tiles of keys. The lanes of a unit share some rows of
queries, and all keys of a tile; queries, scores and sums stay in registers. Tiles of keys and of values take turns in
three slots of the group's memory: one is multiplied while the others are filled. Weights, rounded to the type of the
values, are the left operand of the second product. If the lanes do not hold the weights in the layout of a left
operand, the weights pass through the group's memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import MatrixUnit, unit_of
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall
from torch_outboard.kernels.templates.heads import Attention, Rows
from torch_outboard.kernels.templates.product import Operand, ceil_div, filled
from torch_outboard.kernels.templates.schedules.attention_matrix_masks import differentiate
from torch_outboard.kernels.templates.schedules.attention_rows import (
    by_columns,
    by_rows,
    combined,
    dropped,
    in_registers,
    scores,
    store_results,
)
from torch_outboard.kernels.templates.schedules.matrix_epilogues import stores
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array, fragments, multiplied
from torch_outboard.kernels.templates.schedules.matrix_sides import Side, Tiling

__all__ = ["attend", "differentiate"]

_QUERIES, _GROUP = 128, 256
_SLOTS = 3
_SLOT_BYTES = 1 << 14  # three slots take 48 KiB


@dataclass(frozen=True)
class _Sizes:
    """How a group shares its queries and keys.

    Attributes
    ----------
    down : int
        Number of the unit's matrices stacked in the rows of a unit's lanes: two if the registers suffice, because a
        tile of keys then serves twice as many queries.
    parts : int
        Number of units whose lanes form a group.
    keys : int
        Keys per tile.
    head, value_head : int
        Columns of queries and keys, and of values, including the zeros after them.
    """

    unit: MatrixUnit
    down: int
    parts: int
    keys: int
    head: int
    value_head: int

    @staticmethod
    def of(unit: MatrixUnit, head: int, value_head: int, most: int) -> _Sizes:
        """Return the sizes for a head, with `most` keys or fewer. Raises Refusal if the unit does not divide tiles."""
        chunk = 16 // unit.dtype.itemsize
        across = unit.n * max([load.fragments for load in unit.load_right if load], default=1)
        head = _padded(head, math.lcm(unit.k, chunk))
        value_head = _padded(value_head, math.lcm(across, chunk))
        widest = max(head, value_head)
        down = 2 if widest <= 128 else 1
        if 64 < widest <= 128:
            most = min(most, 32)  # registers left by two matrices hold that many scores
        parts = min(_QUERIES // (unit.m * down), _GROUP // unit.lanes)
        keys = next(
            (
                keys
                for keys in (64, 32, 16)
                if keys <= most
                and keys * widest * unit.dtype.itemsize <= _SLOT_BYTES
                and keys % unit.k == keys % across == 0
            ),
            0,
        )
        if parts == 0 or keys == 0 or not unit.result.rows_of_lane(unit.lanes):
            raise CallRefusal(
                f"the matrix unit {unit.name!r} of {unit.m} by {unit.n} by {unit.k} and {unit.lanes} lanes doesn't "
                f"divide tiles of {_QUERIES} by {max(keys, 16)} [matrix-unit]"
            )
        return _Sizes(unit, down, parts, keys, head, value_head)

    @property
    def rows(self) -> int:
        """The rows of a unit's lanes."""
        return self.unit.m * self.down

    @property
    def queries(self) -> int:
        """The number of queries in a group."""
        return self.rows * self.parts

    def tiling(self) -> Tiling:
        return Tiling(self.unit, self.queries, self.keys, self.head, self.parts * self.unit.lanes, self.rows, self.keys)

    @property
    def slot(self) -> int:
        """The number of elements in a slot."""
        arrays = (
            Array("", "", self.keys, size, 16 // self.unit.dtype.itemsize) for size in (self.head, self.value_head)
        )
        return max(array.size for array in arrays)

    @property
    def piece(self) -> int:
        """The number of query columns that the slots hold at a time."""
        chunk = 16 // self.unit.dtype.itemsize
        step = math.lcm(self.unit.k, chunk)
        pieces = (size for size in range(self.head, 0, -step) if self.head % size == 0)
        return next(size for size in pieces if Array("", "", self.queries, size, chunk).size <= _SLOTS * self.slot)


def _padded(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


def attend(call: TemplateCall, attention: Attention, result: Rows, logsumexp: Rows) -> None:
    """Write the launch of attention."""
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # otherwise this way would not serve the call
    sizes = _Sizes.of(unit, attention.head, attention.value_head, call.schedule("matrix")["keys"])
    tiling = sizes.tiling()
    kernel = Kernel("ob_attention_of_units", unit.header, group=tiling.group)
    words = attention.declare(kernel, attention.query, attention.key, attention.value, result, logsumexp)

    def side(
        name: str, operand: Operand, lines: tuple[str, str], tile: int, steps: int, depth: str, slots: int = _SLOTS
    ) -> Side:
        is_left = name == "query"
        return Side(name, operand, lines, tiling, call.dialect, tile, steps, is_left, slots, depth, depth, sizes.slot)

    query = side(
        "query", by_rows(attention.query), ("first_query", "$QUERIES"), sizes.queries, sizes.piece, "$HEAD", slots=1
    )
    key = side("key", by_rows(attention.key), ("next_key", "$KEYS"), sizes.keys, sizes.head, "$HEAD")
    value = side("value", by_columns(attention.value), ("0", "$VALUE_HEAD"), sizes.value_head, sizes.keys, "$KEYS")
    key, value = key.counting(attention.keys), value.counting()
    rows_of_lane, kind = unit.result.rows_of_lane(unit.lanes), key.kind
    kernel.arrays = [LocalArray(kind, "slots", str(_SLOTS * sizes.slot), is_aligned=True)]
    words |= tiling.words() | _load_words(query, key, value) | _sums(call, unit, sizes, attention)
    words |= {
        "UNROLL": call.dialect.unroll,
        "KIND": kind,
        "QUERY_TILE": str(sizes.queries),
        "KEY_TILE": str(sizes.keys),
        "PIECE": str(sizes.piece),
        "PADDED": str(sizes.head),
        "SLOT": str(sizes.slot),
        "LINES": str(rows_of_lane),
        "EACH": str(unit.result.count // rows_of_lane),
        "SHARED": str(unit.result.lanes_of_row(unit.lanes)),
        "VALUE_ACROSS": str(sizes.value_head // unit.n),
        "BEGINS": _begins(attention, result),
        "STORE_LOGSUMEXP": logsumexp.store(
            logsumexp.begin(), "query", "0", f"(most[line] + OB_LIB(log2)(total[line])) * (float){math.log(2)!r}"
        ),
    }
    kernel.arrays += _memory(unit, tiling, kind, sizes)
    words |= _ends(unit, result, sizes.value_head // unit.n)
    kernel.text = filled(_ATTEND, words)
    kernel.groups = attention.batch * attention.heads * ceil_div(attention.queries, sizes.queries)
    call.launch(kernel)


def _memory(unit: MatrixUnit, tiling: Tiling, kind: str, sizes: _Sizes) -> list[LocalArray]:
    """Return the group memory for units without exchanges, or with another layout of weights."""
    arrays = []
    if not unit.exchange:
        count = tiling.group * sizes.down * unit.result.rows_of_lane(unit.lanes)
        arrays.append(LocalArray("float", "of_items", str(count)))
    if not in_registers(unit):
        array = Array(kind, "weights", sizes.queries, sizes.keys, tiling.chunk)
        arrays.append(LocalArray(kind, "weights", str(array.size), is_aligned=True))
    return arrays


def _load_words(query: Side, key: Side, value: Side) -> dict[str, str]:
    """Return the placeholder texts that load tiles into the group's memory."""
    unit = query.tiling.unit
    copies, held = unit.copies, query.tiling.rows // unit.m * unit.left.count
    (query_place, query_lane), *others = (
        query.place_of_lane("part_row"),
        key.place_of_lane("0"),
        value.place_of_lane("0"),
    )
    (key_place, key_lane), (value_place, value_lane) = others
    return {
        "DECLARE": query.declared() + key.declared() + value.declared() + query_place + key_place + value_place,
        "FIND_QUERY": query.find(),
        "BRING_QUERY": query.begin() + query.finish(),
        "FIND_FIRST": key.find_first("0", "0") + value.find_first(from_step="0"),
        "FIND_KEY": key.find(),
        "BEGIN_KEY": key.begin() + key.advance_lines(),
        "FINISH_KEY": key.finish(),
        "FIND_VALUE": value.find(),
        "BEGIN_VALUE": value.begin() + value.advance(),
        "FINISH_VALUE": value.finish(),
        "COMMIT": copies.commit if copies else "",
        "WAIT": filled(copies.wait, {"LATER": str(_SLOTS - 2)}) if copies else "",
        "WAIT_ALL": filled(copies.wait, {"LATER": "0"}) if copies else "",
        "LOAD_QUERY": query.load(
            "part_row", "$DOWN", f"query_part + (first + at) / {unit.k} * {held}", lane=query_lane
        ),
        "LOAD_KEY": key.load("0", "$ACROSS", "right_part", lane=key_lane),
        "LOAD_VALUE": value.load("0", "$VALUE_ACROSS", "right_part", lane=value_lane),
    }


def _sums(call: TemplateCall, unit: MatrixUnit, sizes: _Sizes, attention: Attention) -> dict[str, str]:
    """Return the placeholder texts of the products and of the weights between them."""
    across, wide = sizes.keys // unit.n, sizes.value_head // unit.n
    words = scores(attention, unit, "*score")
    weights = Array("", "weights", sizes.queries, sizes.keys, 16 // unit.dtype.itemsize)
    dtype = attention.value.tensor.dtype
    kept = in_registers(unit)
    return words | {
        "MULTIPLY_SCORES": multiplied(
            unit, "scores", sizes.down, across, left=f"query_part + at / {unit.k} * {sizes.down * unit.left.count}"
        ),
        "MULTIPLY_SUMS": multiplied(unit, "sums", sizes.down, wide),
        "BASE": "greatest" if words["IS_SCALED"] == "1" else "greatest * $FACTOR",
        "GREATEST": combined(unit, "greatest_of", "$DOWN * $LINES", "OB_LIB(fmax)(own, other)"),
        "TOTAL": combined(unit, "total", "$DOWN * $LINES", "(own + other)"),
        "RESCALED": filled(unit.power, {"VALUE": "most[line] - base"}),
        "DROP_WEIGHTS": dropped(
            attention, "query = first_query + row, key = first_key + column", "if (!is_kept) scores[place] = 0;"
        ),
        "PUT_WEIGHTS": "" if kept else store_results(unit, weights, dtype, "scores", across) + "    OB_BARRIER;\n",
        "LOAD_WEIGHTS": kept.text("scores", "left_part", across, dtype)
        if kept
        else fragments(unit, True, weights, ("part_row", "at"), "$DOWN", "left_part"),
    }


def _ends(unit: MatrixUnit, result: Rows, across: int) -> dict[str, str]:
    """Return the placeholder texts that store results."""
    epilogue = result.epilogue("value * inverse[i * $LINES + index / $EACH]", "query")
    return stores(epilogue, unit, ("query", "column"), across) | {
        "ROW": "query",
        "COLUMN": "column",
        "ROWS": "$QUERIES",
        "COLUMNS": "$VALUE_HEAD",
    }


def _begins(attention: Attention, result: Rows) -> str:
    """Return the statements that compute where heads begin."""
    heads = {attention.query: "head", result: "head", attention.key: "key_head", attention.value: "key_head"}
    return " ".join(f"const ob_i64 {rows.name}_from = {rows.begin(head)};" for rows, head in heads.items())


_ATTEND = """\
  OB_LOCAL_AT $KIND* query_tile = slots;
  OB_LOCAL_AT $KIND* key_tile = slots;
  OB_LOCAL_AT $KIND* value_tile = slots;
  const ob_u32 item = OB_ITEM_OF_GROUP;
  const ob_u32 lane = item % $LANES;
  const ob_u32 part_row = item / $LANES * $PART_ROWS;
  const ob_i64 tiles = ($QUERIES + $QUERY_TILE - 1) / $QUERY_TILE;
  $ORDER
  const ob_i64 batch = outer / $HEADS, head = outer % $HEADS, key_head = head / $GROUP;
  // Where it is causal, the last ones take longest.
  const ob_i64 first_query = (tiles - 1 - rank) * $QUERY_TILE;
  const ob_i64 end = $IS_CAUSAL && first_query + $QUERY_TILE < $KEYS ? first_query + $QUERY_TILE : $KEYS;
  $BEGINS
  $MASK_BEGIN
  $DROP_BEGIN
$DECLARE
  $LEFT_KIND query_part[$PADDED / $UNIT_STEPS * $DOWN * $LEFT_COUNT];
  {
$FIND_QUERY
    $UNROLL
    for (int first = 0; first < $PADDED; first += $PIECE) {
      const int from_step = first;
      OB_BARRIER;
$BRING_QUERY
      $COMMIT
      $WAIT_ALL
      OB_BARRIER;
      $UNROLL
      for (int at = 0; at < $PIECE; at += $UNIT_STEPS) {
$LOAD_QUERY
      }
    }
    OB_BARRIER;
  }
  float sums[$DOWN * $VALUE_ACROSS * $RESULTS];
  $UNROLL
  for (int i = 0; i < $DOWN * $VALUE_ACROSS * $RESULTS; ++i) sums[i] = 0;
  float most[$DOWN * $LINES], total[$DOWN * $LINES];
  $UNROLL
  for (int line = 0; line < $DOWN * $LINES; ++line) {
    most[line] = $MASKED_SCORE;
    total[line] = 0;
  }
$FIND_FIRST
$FIND_VALUE
  {
    const ob_i64 next_key = 0;
    const int other = 0, from_step = 0;
$FIND_KEY
$BEGIN_KEY
$FINISH_KEY
    $COMMIT
  }
  {
    const int other = 1;
    const ob_i64 from_step = 0;
$BEGIN_VALUE
$FINISH_VALUE
    $COMMIT
  }
  int turn = 0, other = 2;
  for (ob_i64 first_key = 0; first_key < end; first_key += $KEY_TILE) {
    const ob_i64 next_key = first_key + $KEY_TILE;
    float scores[$DOWN * $ACROSS * $RESULTS];
    $UNROLL
    for (int i = 0; i < $DOWN * $ACROSS * $RESULTS; ++i) scores[i] = 0;
    $WAIT
    OB_BARRIER;
    if (next_key < end) {
      const int from_step = 0;
$FIND_KEY
$BEGIN_KEY
    }
    $COMMIT
    $UNROLL
    for (int at = 0; at < $PADDED; at += $UNIT_STEPS) {
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_KEY
$MULTIPLY_SCORES
    }
    if (next_key < end) {
$FINISH_KEY
    }
    turn = turn == 2 ? 0 : turn + 1;
    other = other == 2 ? 0 : other + 1;
    // Only tiles at the end of the keys or of their causal part have keys that take no part.
    const bool is_partial = next_key > $KEYS || ($IS_CAUSAL && next_key > first_query + part_row);
    if (is_partial || $HAS_MASK || $IS_SCALED) {
      $UNROLL
      for (int i = 0; i < $DOWN; ++i) {
        $UNROLL
        for (int index = 0; index < $RESULTS; ++index) {
          const ob_i64 query = first_query + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
          const ob_i64 left = ($IS_CAUSAL && query < $KEYS ? query + 1 : $KEYS) - first_key;
          const int count = query < $QUERIES && left > 0 ? (left < $KEY_TILE ? (int)left : $KEY_TILE) : 0;
          $UNROLL
          for (int j = 0; j < $ACROSS; ++j) {
            const int column = j * $UNIT_COLUMNS + ($RESULT_COLUMN);
            const ob_i64 key = first_key + column;
            float* score = scores + (i * $ACROSS + j) * $RESULTS + index;
            *score = column < count ? $SCORE : $MASKED_SCORE;
          }
        }
      }
    }
    float greatest_of[$DOWN * $LINES];
    $UNROLL
    for (int i = 0; i < $DOWN; ++i) {
      $UNROLL
      for (int line = 0; line < $LINES; ++line) {
        float greatest = $MASKED_SCORE;
        $UNROLL
        for (int j = 0; j < $ACROSS; ++j) {
          $UNROLL
          for (int index = 0; index < $EACH; ++index) {
            greatest = OB_LIB(fmax)(greatest, scores[(i * $ACROSS + j) * $RESULTS + line * $EACH + index]);
          }
        }
        greatest_of[i * $LINES + line] = greatest;
      }
    }
$GREATEST
    $UNROLL
    for (int i = 0; i < $DOWN; ++i) {
      $UNROLL
      for (int index = 0; index < $LINES; ++index) {
        const int line = i * $LINES + index;
        const float greatest = greatest_of[line];
        const float scaled = $BASE;
        const float next = OB_LIB(fmax)(scaled, most[line]);
        // Where no key is left so far, all weights are 0.
        const float base = next == $MASKED_SCORE ? 0 : next;
        const float factor = $RESCALED;
        most[line] = next;
        float sum = 0;
        $UNROLL
        for (int j = 0; j < $ACROSS; ++j) {
          $UNROLL
          for (int result = 0; result < $EACH; ++result) {
            float* score = scores + (i * $ACROSS + j) * $RESULTS + index * $EACH + result;
            *score = $WEIGHT;
            sum += *score;
          }
        }
        total[line] = total[line] * factor + sum;
        $UNROLL
        for (int j = 0; j < $VALUE_ACROSS; ++j) {
          $UNROLL
          for (int result = 0; result < $EACH; ++result)
            sums[(i * $VALUE_ACROSS + j) * $RESULTS + index * $EACH + result] *= factor;
        }
      }
    }
$DROP_WEIGHTS
$PUT_WEIGHTS
    $WAIT
    OB_BARRIER;
    if (next_key < end) {
      const ob_i64 from_step = next_key;
$BEGIN_VALUE
    }
    $COMMIT
    $UNROLL
    for (int at = 0; at < $KEY_TILE; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[$VALUE_ACROSS * $RIGHT_COUNT];
$LOAD_WEIGHTS
$LOAD_VALUE
$MULTIPLY_SUMS
    }
    if (next_key < end) {
$FINISH_VALUE
    }
    turn = turn == 2 ? 0 : turn + 1;
    other = other == 2 ? 0 : other + 1;
  }
$TOTAL
  float inverse[$DOWN * $LINES];
  $UNROLL
  for (int i = 0; i < $DOWN; ++i) {
    $UNROLL
    for (int index = 0; index < $RESULTS; index += $EACH) {
      const int line = i * $LINES + index / $EACH;
      const ob_i64 query = first_query + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
      inverse[line] = total[line] == 0 ? 0 : $KEPT_SCALE / total[line];
      if (lane % $SHARED == 0 && query < $QUERIES) { $STORE_LOGSUMEXP }
    }
  }
  const ob_i64 first_row = first_query;
  const int first_column = 0, part_column = 0;
$STORE"""

# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of attention for devices with matrix units. Its gradients are those of the tiles.

A group has 64 queries of a head, and goes through the keys 64 at a time. The unit multiplies queries and keys; the
scores go through the group's memory, where items compute the weights of their rows. The unit multiplies the weights,
rounded to the type of the values, and the values. Sums stay in the registers of the unit's lanes.
"""

from __future__ import annotations

from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import unit_of
from torch_outboard.kernels.templates.call import Kernel, TemplateCall
from torch_outboard.kernels.templates.heads import Attention, Rows
from torch_outboard.kernels.templates.product import Operand, ceil_div, filled, stored
from torch_outboard.kernels.templates.schedules.attention_tiles import differentiate
from torch_outboard.kernels.templates.schedules.matrix_sides import Array, Side, Tiling, fragments, multiplied

__all__ = ["attend", "differentiate"]

_TILE = 64
_PITCH = _TILE + 4  # of scores


def attend(call: TemplateCall, given: Attention, result: Rows, logsumexp: Rows) -> None:
    """Write the launch of attention."""
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # else the way does not serve the call
    tiling = Tiling.of(unit, (_TILE, _TILE), call.schedule("matrix")["steps"])
    wide = (given.value_head + _TILE - 1) // _TILE * _TILE
    kernel = Kernel("ob_attention_of_units", unit.header, group=tiling.group)
    words = given.declare(kernel, given.query, given.key, given.value, result, logsumexp)

    def side(name: str, operand: Operand, lines: tuple[str, str], tile: int, steps: int, depth: str) -> Side:
        is_left = name == "query"
        return Side(name, operand, lines, tiling, call.dialect, tile, steps, is_left, slots=1, depth=depth, until=depth)

    # Wide values are brought in fewer rows, so that they fit beside the scores.
    steps = tiling.steps if wide <= 2 * _TILE else max(unit.k, tiling.steps // 2)
    query = side("query", _by_rows(given.query), ("first_query", "$QUERIES"), _TILE, tiling.steps, "$HEAD")
    key = side("key", _by_rows(given.key), ("first_key", "$KEYS"), _TILE, tiling.steps, "$HEAD")
    value = side("value", _by_columns(given.value), ("0", "$VALUE_HEAD"), wide, steps, "$KEYS")
    weights, across = Array(value.kind, "weights", _TILE, _TILE, tiling.chunk), tiling.columns // unit.n
    # Items that share a row of scores.
    beside = max(1, tiling.group // _TILE)
    kernel.arrays = [
        *(one.memory() for one in (query, key, value)),
        LocalArray(value.kind, "weights", str(weights.size), is_aligned=True),
        LocalArray("float", "score_tile", str(_TILE * _PITCH), is_aligned=True),
        LocalArray("float", "of_items", str(_TILE * beside)),
        LocalArray("float", "of_rows", str(_TILE)),
    ]
    words |= tiling.words() | _brought(query, key, value)
    words |= {
        "TILE": str(_TILE),
        "UNROLL": call.dialect.unroll,
        "PITCH": str(_PITCH),
        "GROUP_ITEMS": str(tiling.group),
        "BESIDE": str(beside),
        "ROWS_OF_ITEM": str(_TILE * beside // tiling.group),
        "BLOCKS": str(wide // _TILE),
        "BEGINS": _begins(given, result),
        "LOAD_QUERY": query.load("part_row", "$DOWN"),
        "LOAD_KEY": key.load("part_column", "$ACROSS"),
        "LOAD_WEIGHTS": fragments(unit, True, weights, ("part_row", "first + at"), "$DOWN"),
        "LOAD_VALUE": fragments(
            unit,
            False,
            value.array,
            (f"block / {across} * ({_TILE} - {tiling.columns}) + part_column", "at"),
            "$ACROSS * $BLOCKS",
            is_across=value.is_across,
        ),
        "MULTIPLY_SCORES": multiplied(unit, "scores", tiling.rows // unit.m, across),
        "MULTIPLY_SUMS": multiplied(unit, "sums", tiling.rows // unit.m, across * wide // _TILE),
        "SCORE": _score(given),
        "STORE_WEIGHT": stored(f"weights[{weights.at('row', 'column')}]", "weight", given.value.tensor.dtype),
        "STORE": result.store("result_from", "query", "column", "sum"),
        "STORE_LOGSUMEXP": logsumexp.store(logsumexp.begin(), "query", "0", "base + OB_LIB(log)(sum_of_weights)"),
    }
    kernel.text = filled(_ATTEND, words)
    kernel.groups = given.batch * given.heads * ceil_div(given.queries, _TILE)
    call.launch(kernel)


def _brought(query: Side, key: Side, value: Side) -> dict[str, str]:
    """Return the words by which the group's memory gets its tiles."""
    copies = query.tiling.unit.copies
    return {
        "FIND_QUERY": query.find(),
        "FIND_KEY": key.find(),
        "FIND_VALUE": value.find(),
        "BRING_PAIR": query.begin() + key.begin() + query.finish() + key.finish(),
        "BRING_VALUE": value.begin() + value.finish(),
        "VALUE_STEPS": str(value.steps),
        "WAIT": copies.commit + filled(copies.wait, {"LATER": "0"}) if copies else "",
    }


def _begins(given: Attention, result: Rows) -> str:
    """Return the statements for where heads begin."""
    heads = {given.query: "head", result: "head", given.key: "key_head", given.value: "key_head"}
    return " ".join(f"const ob_i64 {one.name}_from = {one.begin(head)};" for one, head in heads.items())


def _by_rows(rows: Rows) -> Operand:
    """Return a head's rows as lines, whose steps are the columns."""
    name = rows.name
    return Operand(
        declare=rows.declare,
        of_line=(("ob_i64", f"{name}_line", f"{name}_from + line * {rows.stride('row')}"),),
        of_step="",
        place=f"{name}[{name}_line + step * {rows.stride('column')}]",
        dtype=rows.tensor.dtype,
        is_dense_along_steps=rows.is_dense_along("column"),
        multiples=tuple(rows.stride(one) for one in ("batch", "head", "row")),
        pointer=name,
    )


def _by_columns(rows: Rows) -> Operand:
    """Return a head's columns as lines, whose steps are the rows."""
    name = rows.name
    place = f"{name}_line + step * {rows.stride('row')}"
    return Operand(
        declare=rows.declare,
        of_line=(("ob_i64", f"{name}_line", f"{name}_from + line * {rows.stride('column')}"),),
        of_step="",
        place=f"{name}[{place}]",
        dtype=rows.tensor.dtype,
        is_dense_along_steps=False,
        beside=f"{name}[{place} + lane]" if rows.is_dense_along("column") else "",
        multiples=tuple(rows.stride(one) for one in ("batch", "head", "row")),
        pointer=name,
    )


def _score(given: Attention) -> str:
    """Return the statements for a score of the tile; outside the tensor or the causal part, the score is $NONE."""
    condition = "query < $QUERIES && key < $KEYS" + (" && key <= query" if given.is_causal else "")
    mask = f" + {given.mask_at('query', 'key')}" if given.mask is not None else ""
    return f"""\
        const ob_i64 query = first_query + row, key = first_key + column;
        const float score = {condition} ? score_tile[row * $PITCH + column] * $SCALE{mask} : $NONE;"""


_ATTEND = """\
  const int item = OB_ITEM_OF_GROUP;
  const int lane = item % $LANES;
  const int part_row = item / $LANES % $PARTS_DOWN * $PART_ROWS;
  const int part_column = item / $LANES / $PARTS_DOWN * $PART_COLUMNS;
  const ob_i64 tiles = ($QUERIES + $TILE - 1) / $TILE;
  const ob_i64 number = OB_GROUP_NUMBER, batch = number / tiles / $HEADS, head = number / tiles % $HEADS;
  const ob_i64 key_head = head / $GROUP;
  // The last ones first: where it is causal, they take longest.
  const ob_i64 first_query = (tiles - 1 - number % tiles) * $TILE;
  const ob_i64 end = $IS_CAUSAL && first_query + $TILE < $KEYS ? first_query + $TILE : $KEYS;
  $BEGINS
  $MASK_BEGIN
  float sums[$DOWN * $ACROSS * $BLOCKS * $RESULTS];
  $UNROLL
  for (int i = 0; i < $DOWN * $ACROSS * $BLOCKS * $RESULTS; ++i) sums[i] = 0;
  float most[$ROWS_OF_ITEM], total[$ROWS_OF_ITEM];
  for (int i = 0; i < $ROWS_OF_ITEM; ++i) {
    most[i] = $NONE;
    total[i] = 0;
  }
$FIND_QUERY
$FIND_VALUE
  for (ob_i64 first_key = 0; first_key < end; first_key += $TILE) {
$FIND_KEY
    float scores[$DOWN * $ACROSS * $RESULTS];
    $UNROLL
    for (int i = 0; i < $DOWN * $ACROSS * $RESULTS; ++i) scores[i] = 0;
    for (ob_i64 from_step = 0; from_step < $HEAD; from_step += $STEPS) {
      OB_BARRIER;
$BRING_PAIR
      $WAIT
      OB_BARRIER;
      $UNROLL
      for (int at = 0; at < $STEPS; at += $UNIT_STEPS) {
        $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
        $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_QUERY
$LOAD_KEY
$MULTIPLY_SCORES
      }
    }
    $UNROLL
    for (int i = 0; i < $DOWN; ++i) {
      $UNROLL
      for (int j = 0; j < $ACROSS; ++j) {
        $UNROLL
        for (int index = 0; index < $RESULTS; ++index) {
          const int row = part_row + i * $UNIT_ROWS + ($RESULT_ROW);
          const int column = part_column + j * $UNIT_COLUMNS + ($RESULT_COLUMN);
          score_tile[row * $PITCH + column] = scores[(i * $ACROSS + j) * $RESULTS + index];
        }
      }
    }
    OB_BARRIER;
    for (int i = 0; i < $ROWS_OF_ITEM; ++i) {
      const int row = item / $BESIDE + i * ($GROUP_ITEMS / $BESIDE);
      float greatest = $NONE;
      for (int column = item % $BESIDE; column < $TILE; column += $BESIDE) {
$SCORE
        score_tile[row * $PITCH + column] = score;
        greatest = score > greatest ? score : greatest;
      }
      of_items[row * $BESIDE + item % $BESIDE] = greatest;
    }
    OB_BARRIER;
    for (int i = 0; i < $ROWS_OF_ITEM; ++i) {
      const int row = item / $BESIDE + i * ($GROUP_ITEMS / $BESIDE);
      float greatest = most[i];
      for (int one = 0; one < $BESIDE; ++one) {
        const float other = of_items[row * $BESIDE + one];
        greatest = other > greatest ? other : greatest;
      }
      // Where no key is left so far, all weights are 0.
      const float base = greatest == $NONE ? 0 : greatest;
      const float factor = OB_LIB(exp)(most[i] - base);
      most[i] = greatest;
      total[i] *= factor;
      for (int column = item % $BESIDE; column < $TILE; column += $BESIDE) {
        const float weight = OB_LIB(exp)(score_tile[row * $PITCH + column] - base);
        total[i] += weight;
        $STORE_WEIGHT
      }
      if (item % $BESIDE == 0) of_rows[row] = factor;
    }
    OB_BARRIER;
    $UNROLL
    for (int i = 0; i < $DOWN; ++i) {
      $UNROLL
      for (int index = 0; index < $RESULTS; ++index) {
        const float factor = of_rows[part_row + i * $UNIT_ROWS + ($RESULT_ROW)];
        $UNROLL
        for (int j = 0; j < $ACROSS * $BLOCKS; ++j) sums[(i * $ACROSS * $BLOCKS + j) * $RESULTS + index] *= factor;
      }
    }
    for (int first = 0; first < $TILE; first += $VALUE_STEPS) {
      const ob_i64 from_step = first_key + first;
      if (first > 0) OB_BARRIER;
$BRING_VALUE
      $WAIT
      OB_BARRIER;
      $UNROLL
      for (int at = 0; at < $VALUE_STEPS; at += $UNIT_STEPS) {
        $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
        $RIGHT_KIND right_part[$ACROSS * $BLOCKS * $RIGHT_COUNT];
$LOAD_WEIGHTS
$LOAD_VALUE
$MULTIPLY_SUMS
      }
    }
  }
  OB_BARRIER;
  for (int i = 0; i < $ROWS_OF_ITEM; ++i)
    of_items[(item / $BESIDE + i * ($GROUP_ITEMS / $BESIDE)) * $BESIDE + item % $BESIDE] = total[i];
  OB_BARRIER;
  for (int i = 0; i < $ROWS_OF_ITEM; ++i) {
    const int row = item / $BESIDE + i * ($GROUP_ITEMS / $BESIDE);
    float sum_of_weights = 0;
    for (int one = 0; one < $BESIDE; ++one) sum_of_weights += of_items[row * $BESIDE + one];
    const ob_i64 query = first_query + row;
    const float base = most[i] == $NONE ? 0 : most[i];
    if (item % $BESIDE == 0) {
      of_rows[row] = sum_of_weights == 0 ? 0 : 1 / sum_of_weights;
      if (query < $QUERIES) { $STORE_LOGSUMEXP }
    }
  }
  OB_BARRIER;
  $UNROLL
  for (int i = 0; i < $DOWN; ++i) {
    $UNROLL
    for (int j = 0; j < $ACROSS * $BLOCKS; ++j) {
      $UNROLL
      for (int index = 0; index < $RESULTS; ++index) {
        const int row = part_row + i * $UNIT_ROWS + ($RESULT_ROW);
        const int column = j / $ACROSS * $TILE + part_column + j % $ACROSS * $UNIT_COLUMNS + ($RESULT_COLUMN);
        const ob_i64 query = first_query + row;
        if (query < $QUERIES && column < $VALUE_HEAD) {
          const float sum = sums[(i * $ACROSS * $BLOCKS + j) * $RESULTS + index] * of_rows[row];
          $STORE
        }
      }
    }
  }
"""

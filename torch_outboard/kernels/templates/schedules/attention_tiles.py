# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of attention for GPUs: tiles in a group's memory, as for products.

A group of 256 items processes 64 queries of a head, or 64 keys for the gradients of keys and values. It iterates over
the other side, 64 rows at a time. An item computes 4 by 4 scores of each tile, and holds the sums of the same four
rows, in four of every 64 columns. Both operands of a product are loaded into local memory sixteen steps at a time, and
weights pass through it too. If a group has fewer items or less memory, a tile has fewer queries and keys, and fewer
steps are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.kernels.templates.call import Kernel, TemplateCall
from torch_outboard.kernels.templates.heads import Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import ceil_div, filled

__all__ = ["attend", "differentiate"]

# Items along a side of a tile, best first, and the numbers of steps to try for each.
_SIDES, _STEPS = (16, 8, 4), (16, 8, 4)


@dataclass(frozen=True)
class _Tile:
    """A tile of `side` by `side` items with four rows and four columns each."""

    side: int
    steps: int

    @staticmethod
    def of(call: TemplateCall, head: int, *, has_items: bool = False) -> _Tile:
        """Return the best tile that fits the device, including a head's sums, or else one that `launch` refuses."""
        most = call.schedule("tiles")["steps"]
        tiles = [_Tile(side, steps) for side in _SIDES for steps in _STEPS if steps <= most]

        def fits(tile: _Tile) -> bool:
            arrays = [*tile.arrays(head), *([tile.of_items] if has_items else [])]
            return tile.group <= call.limits.items and sum(array.bytes for array in arrays) <= call.limits.memory

        return next(filter(fits, tiles), tiles[-1])

    @property
    def group(self) -> int:
        return self.side**2

    @property
    def rows(self) -> int:
        return 4 * self.side

    @property
    def pitch(self) -> int:
        return self.rows + 4

    def wide(self, head: int) -> int:
        """Return the number of columns of sums for which a group reserves room."""
        return (head + self.rows - 1) // self.rows * self.rows

    def arrays(self, head: int) -> list[LocalArray]:
        """Return the group's memory, including the sums of a head."""
        sizes = {
            **dict.fromkeys(("left_tile", "right_tile"), f"{self.steps} * {self.pitch}"),
            "weights": f"{self.rows} * {self.pitch}",
            "wide_tile": f"{self.steps} * {self.wide(head)}",
        }
        return [LocalArray("float", name, size, is_aligned=True) for name, size in sizes.items()]

    @property
    def of_items(self) -> LocalArray:
        """The memory through which the items of a row exchange numbers."""
        return LocalArray("float", "of_items", f"{self.rows} * {self.side + 1}")


def attend(call: TemplateCall, attention: Attention, result: Rows, logsumexp: Rows) -> None:
    """Write the launch of attention."""
    tile = _Tile.of(call, attention.value_head, has_items=True)
    kernel = Kernel("ob_attention", group=tile.group)
    tensors = (attention.query, attention.key, attention.value, result, logsumexp)
    words = _words(call, attention, kernel, tile, attention.value_head, *tensors)
    kernel.arrays.append(tile.of_items)
    words |= {
        "BEGINS": _begins(head=(attention.query, result), key_head=(attention.key, attention.value)),
        "PRODUCT": _product("scores", (attention.query, "query"), (attention.key, "key"), attention.head),
        "SCORE": _score(attention, "down + i", "across + j"),
        "SUMS": _cleared("sums", tile, attention.value_head),
        "PUT": _store_tile("scores"),
        "SUM": _sum(call.dialect, "sums", (attention.value, "key"), tile, attention.value_head),
        "KEPT_WEIGHT": attention.kept("scores[i * 4 + j]", "first_query + down + i", "first_key + across + j"),
        "STORE": _store(result, "query", "sums", tile, attention.value_head, "sum * shares[i]"),
        "STORE_LOGSUMEXP": logsumexp.store(logsumexp.begin(), "query", "0", "base + OB_LIB(log)(sum_of_weights)"),
    }
    kernel.text = filled(_ATTEND, words)
    kernel.groups = attention.batch * attention.heads * ceil_div(attention.queries, tile.rows)
    call.launch(kernel)


def differentiate(call: TemplateCall, attention: Attention, gradients: Gradients) -> None:
    """Write the launches of the gradients of queries, and of keys and values."""
    kernels = []
    if gradients.of_query is not None:
        kernels.append(_of_queries(call, attention, gradients, gradients.of_query))
    if gradients.of_key is not None or gradients.of_value is not None:
        kernels.append(_of_keys(call, attention, gradients))
    if kernels:
        call.launch(*kernels)


def _of_queries(call: TemplateCall, attention: Attention, gradients: Gradients, target: Rows) -> Kernel:
    grad, logsumexp, delta = gradients.grad, gradients.logsumexp, gradients.delta
    tile = _Tile.of(call, attention.head)
    kernel = Kernel("ob_attention_of_queries", group=tile.group)
    tensors = (attention.query, attention.key, attention.value, grad, logsumexp, delta, target)
    words = _words(call, attention, kernel, tile, attention.head, *tensors)
    words |= {
        "BEGINS": _begins(head=(attention.query, grad, target), key_head=(attention.key, attention.value)),
        "PRODUCT": _product("scores", (attention.query, "query"), (attention.key, "key"), attention.head),
        "GRAD_PRODUCT": _product("slopes", (grad, "query"), (attention.value, "key"), attention.value_head),
        "SCORE": _score(attention, "down + i", "across + j"),
        "SUMS": _cleared("sums", tile, attention.head),
        "PUT": _store_tile("slopes"),
        "SUM": _sum(call.dialect, "sums", (attention.key, "key"), tile, attention.head),
        "KEPT_SLOPE": attention.kept("slopes[i * 4 + j]", "query", "key", "$KEPT_SCALE"),
        "LOGSUMEXP": logsumexp.load(logsumexp.begin(), "query"),
        "DELTA": delta.load(delta.begin(), "query"),
        "STORE": _store(target, "query", "sums", tile, attention.head, "sum * $SCALE"),
    }
    kernel.text = filled(_OF_QUERIES, words)
    kernel.groups = attention.batch * attention.heads * ceil_div(attention.queries, tile.rows)
    return kernel


def _of_keys(call: TemplateCall, attention: Attention, gradients: Gradients) -> Kernel:
    grad, logsumexp, delta = gradients.grad, gradients.logsumexp, gradients.delta
    of_key, of_value = gradients.of_key, gradients.of_value
    drops = attention.dropout is not None
    targets = [target for target in (of_key, of_value) if target is not None]
    sums = {"key_sums": (of_key, attention.head), "value_sums": (of_value, attention.value_head)}
    wanted = [(name, target, head) for name, (target, head) in sums.items() if target is not None]
    widest = max(head for _, _, head in wanted)
    tile = _Tile.of(call, widest)
    kernel = Kernel("ob_attention_of_keys", group=tile.group)
    tensors = (attention.query, attention.key, attention.value, grad, logsumexp, delta, *targets)
    words = _words(call, attention, kernel, tile, widest, *tensors)
    words |= {
        "BEGINS": _begins(key_head=(attention.key, attention.value, *targets)),
        "OF_HEAD": _begins(head=(attention.query, grad)),
        "SUMS": "\n".join(_cleared(name, tile, head) for name, _, head in wanted),
        "PRODUCT": _product("scores", (attention.key, "key"), (attention.query, "query"), attention.head),
        "GRAD_PRODUCT": _product("slopes", (attention.value, "key"), (grad, "query"), attention.value_head),
        "SCORE": _score(attention, "across + j", "down + i"),
        "LOGSUMEXP": logsumexp.load(logsumexp.begin(), "query"),
        "DELTA": delta.load(delta.begin(), "query"),
        "KEEP": f"kept[i * 4 + j] = {attention.kept('1', 'query', 'key', '$KEPT_SCALE')};" if drops else "",
        "KEPT_DECLARED": "float kept[16];" if drops else "",
        "KEPT_SLOPE": "slopes[i] * kept[i]" if drops else "slopes[i]",
        "PUT_WEIGHTS": ((_KEEP + _store_tile("weights_kept")) if drops else _store_tile("scores")) if of_value else "",
        "SUM_VALUE": _sum(call.dialect, "value_sums", (grad, "query"), tile, attention.value_head) if of_value else "",
        "PUT_SLOPES": _store_tile("slopes") if of_key else "",
        "SUM_KEY": _sum(call.dialect, "key_sums", (attention.query, "query"), tile, attention.head) if of_key else "",
        "STORE": "\n".join(
            _store(target, "key", name, tile, head, "sum * $SCALE" if target is of_key else "sum")
            for name, target, head in wanted
        ),
    }
    kernel.text = filled(_OF_KEYS, words)
    kernel.groups = attention.batch * attention.key_heads * ceil_div(attention.keys, tile.rows)
    return kernel


# Parts that several kernels share.


def _words(
    call: TemplateCall, attention: Attention, kernel: Kernel, tile: _Tile, head: int, *tensors: Rows
) -> dict[str, str]:
    """Declare the tensors and the group's memory, with room for a head's sums, and return the placeholder texts."""
    dialect = call.dialect
    kernel.arrays = tile.arrays(head)
    return attention.declare(kernel, *tensors) | {
        "TILE": str(tile.rows),
        "SIDE": str(tile.side),
        "STEPS": str(tile.steps),
        "PITCH": str(tile.pitch),
        "ITEMS_PITCH": str(tile.side + 1),
        "COLUMNS": str(tile.wide(head) // tile.side),
        "GROUP_ITEMS": str(tile.group),
        "LOCALS": _LOCALS,
        "UNROLL": dialect.unroll,
        "FOUR": dialect.four("float"),
        "LEFT_FOUR": dialect.load_four("float", "left_tile", "at * $PITCH + down"),
        "RIGHT_FOUR": dialect.load_four("float", "right_tile", "at * $PITCH + across"),
        "WEIGHTS_FOUR": dialect.load_four("float", "weights", "(first + at) * $PITCH + down"),
        "PUT_FOUR": dialect.store_four("float", "weights", "(across + j) * $PITCH + down", "four"),
    }


def _begins(**tensors: tuple[Rows, ...]) -> str:
    """Return the statements that compute where heads begin, by the name of the head's number."""
    return " ".join(
        f"const ob_i64 {tensor.name}_from = {tensor.begin(head)};" for head, rows in tensors.items() for tensor in rows
    )


def _cleared(sums: str, tile: _Tile, head: int) -> str:
    count = 4 * tile.wide(head) // tile.side
    return f"""\
  float {sums}[{count}];
  $UNROLL
  for (int i = 0; i < {count}; ++i) {sums}[i] = 0;"""


def _product(into: str, left: tuple[Rows, str], right: tuple[Rows, str], head: int) -> str:
    """Return the loops that multiply each left row of the tile with each right row."""
    return f"""\
    float {into}[16];
    $UNROLL
    for (int i = 0; i < 16; ++i) {into}[i] = 0;
    for (int first = 0; first < {head}; first += $STEPS) {{
      OB_BARRIER;
{_load_tile("left_tile", *left, head)}
{_load_tile("right_tile", *right, head)}
      OB_BARRIER;
      $UNROLL
      for (int at = 0; at < $STEPS; ++at) {{
        const $FOUR l = $LEFT_FOUR;
        const $FOUR r = $RIGHT_FOUR;
{_outer(into, "4", "0")}
      }}
    }}"""


def _load_tile(tile: str, rows: Rows, of: str, head: int) -> str:
    """Return the loop that loads some columns of a tile's rows into local memory, column by column; 0 outside."""
    limit = "$QUERIES" if of == "query" else "$KEYS"
    return f"""\
      $UNROLL
      for (int load = 0; load < $TILE * $STEPS / $GROUP_ITEMS; ++load) {{
        const int line = (item + load * $GROUP_ITEMS) / $STEPS, step = first + item % $STEPS;
        const ob_i64 row = first_{of} + line;
        {tile}[item % $STEPS * $PITCH + line] =
            row < {limit} && step < {head} ? {rows.load(f"{rows.name}_from", "row", "step")} : 0;
      }}"""


def _sum(dialect: Dialect, sums: str, right: tuple[Rows, str], tile: _Tile, head: int) -> str:
    """Return the loops that add the products of the tile's weights with consecutive rows."""
    rows, of = right
    wide, limit = tile.wide(head), "$QUERIES" if of == "query" else "$KEYS"
    wide_four = dialect.load_four("float", "wide_tile", f"at * {wide} + part * $TILE + across")
    return f"""\
    for (int first = 0; first < $TILE; first += $STEPS) {{
      OB_BARRIER;
      $UNROLL
      for (int load = 0; load < {wide} * $STEPS / $GROUP_ITEMS; ++load) {{
        const int column = (item + load * $GROUP_ITEMS) % {wide}, step = (item + load * $GROUP_ITEMS) / {wide};
        const ob_i64 row = first_{of} + first + step;
        wide_tile[step * {wide} + column] =
            row < {limit} && column < {head} ? {rows.load(f"{rows.name}_from", "row", "column")} : 0;
      }}
      OB_BARRIER;
      $UNROLL
      for (int at = 0; at < $STEPS; ++at) {{
        const $FOUR l = $WEIGHTS_FOUR;
        $UNROLL
        for (int part = 0; part < {wide // tile.rows}; ++part) {{
          const $FOUR r = {wide_four};
{_outer(sums, str(wide // tile.side), "part * 4")}
        }}
      }}
    }}"""


def _outer(into: str, pitch: str, first: str) -> str:
    """Return the statements that add the 4 by 4 products of two sets of four elements."""
    return "\n".join(
        f"          {into}[{i} * {pitch} + {first} + {j}] ="
        f" OB_LIB(fma)(l.{left}, r.{right}, {into}[{i} * {pitch} + {first} + {j}]);"
        for i, left in enumerate("xyzw")
        for j, right in enumerate("xyzw")
    )


def _score(attention: Attention, query: str, key: str) -> str:
    """Return the statements that compute a score of the tile: $MASKED_SCORE outside the tensor or the causal part."""
    condition = "query < $QUERIES && key < $KEYS" + (" && key <= query" if attention.is_causal else "")
    mask = f" + {attention.mask_at('query', 'key')}" if attention.mask is not None else ""
    return f"""\
        const ob_i64 query = first_query + {query}, key = first_key + {key};
        const float score = {condition} ? scores[i * 4 + j] * $SCALE{mask} : $MASKED_SCORE;"""


def _store_tile(values: str) -> str:
    """Return the loop that stores an item's part of the tile, column by column."""
    return f"""\
    $UNROLL
    for (int j = 0; j < 4; ++j) {{
      $FOUR four;
      four.x = {values}[j];
      four.y = {values}[4 + j];
      four.z = {values}[8 + j];
      four.w = {values}[12 + j];
      $PUT_FOUR
    }}"""


def _store(rows: Rows, of: str, sums: str, tile: _Tile, head: int, value: str) -> str:
    """Return the loops that store an item's sums."""
    columns, limit = tile.wide(head) // tile.side, "$QUERIES" if of == "query" else "$KEYS"
    return f"""\
  $UNROLL
  for (int i = 0; i < 4; ++i) {{
    const ob_i64 {of} = first_{of} + down + i;
    $UNROLL
    for (int j = 0; j < {columns}; ++j) {{
      const int column = j / 4 * $TILE + across + j % 4;
      if ({of} < {limit} && column < {head}) {{
        const float sum = {sums}[i * {columns} + j];
        {rows.store(f"{rows.name}_from", of, "column", value)}
      }}
    }}
  }}"""


_LOCALS = """\
  const int item = OB_ITEM_OF_GROUP;
  const int across = item % $SIDE * 4, down = item / $SIDE * 4;
"""

_QUERIES = """\
$LOCALS
  const ob_i64 tiles = ($QUERIES + $TILE - 1) / $TILE;
  $ORDER
  const ob_i64 batch = outer / $HEADS, head = outer % $HEADS, key_head = head / $GROUP;
  // Where it is causal, the last ones take longest.
  const ob_i64 first_query = (tiles - 1 - rank) * $TILE;
  const ob_i64 end = $IS_CAUSAL && first_query + $TILE < $KEYS ? first_query + $TILE : $KEYS;
  $BEGINS
  $MASK_BEGIN
  $DROP_BEGIN
"""

_ATTEND = (
    _QUERIES
    + """\
$SUMS
  float most[4], total[4];
  $UNROLL
  for (int i = 0; i < 4; ++i) {
    most[i] = $MASKED_SCORE;
    total[i] = 0;
  }
  for (ob_i64 first_key = 0; first_key < end; first_key += $TILE) {
$PRODUCT
    $UNROLL
    for (int i = 0; i < 4; ++i) {
      float greatest = $MASKED_SCORE;
      $UNROLL
      for (int j = 0; j < 4; ++j) {
$SCORE
        scores[i * 4 + j] = score;
        greatest = score > greatest ? score : greatest;
      }
      of_items[(down + i) * $ITEMS_PITCH + item % $SIDE] = greatest;
    }
    OB_BARRIER;
    $UNROLL
    for (int i = 0; i < 4; ++i) {
      float greatest = most[i];
      for (int neighbour = 0; neighbour < $SIDE; ++neighbour) {
        const float other = of_items[(down + i) * $ITEMS_PITCH + neighbour];
        greatest = other > greatest ? other : greatest;
      }
      // Where no key is left so far, all weights are 0.
      const float base = greatest == $MASKED_SCORE ? 0 : greatest;
      const float factor = OB_LIB(exp)(most[i] - base);
      most[i] = greatest;
      total[i] *= factor;
      $UNROLL
      for (int j = 0; j < 4; ++j) {
        scores[i * 4 + j] = OB_LIB(exp)(scores[i * 4 + j] - base);
        total[i] += scores[i * 4 + j];
        scores[i * 4 + j] = $KEPT_WEIGHT;
      }
      $UNROLL
      for (int j = 0; j < $COLUMNS; ++j) sums[i * $COLUMNS + j] *= factor;
    }
$PUT
$SUM
  }
  OB_BARRIER;
  $UNROLL
  for (int i = 0; i < 4; ++i) of_items[(down + i) * $ITEMS_PITCH + item % $SIDE] = total[i];
  OB_BARRIER;
  float shares[4];
  $UNROLL
  for (int i = 0; i < 4; ++i) {
    float sum_of_weights = 0;
    for (int neighbour = 0; neighbour < $SIDE; ++neighbour)
      sum_of_weights += of_items[(down + i) * $ITEMS_PITCH + neighbour];
    shares[i] = sum_of_weights == 0 ? 0 : $KEPT_SCALE / sum_of_weights;
    const ob_i64 query = first_query + down + i;
    const float base = most[i] == $MASKED_SCORE ? 0 : most[i];
    if (item % $SIDE == 0 && query < $QUERIES) { $STORE_LOGSUMEXP }
  }
$STORE
"""
)

_OF_QUERIES = (
    _QUERIES
    + """\
$SUMS
  float base[4], deltas[4];
  $UNROLL
  for (int i = 0; i < 4; ++i) {
    const ob_i64 query = first_query + down + i < $QUERIES ? first_query + down + i : $QUERIES - 1;
    base[i] = $LOGSUMEXP;
    base[i] = base[i] == $MASKED_SCORE ? 0 : base[i];
    deltas[i] = $DELTA;
  }
  for (ob_i64 first_key = 0; first_key < end; first_key += $TILE) {
$PRODUCT
$GRAD_PRODUCT
    $UNROLL
    for (int i = 0; i < 4; ++i) {
      $UNROLL
      for (int j = 0; j < 4; ++j) {
$SCORE
        slopes[i * 4 + j] = OB_LIB(exp)(score - base[i]) * ($KEPT_SLOPE - deltas[i]);
      }
    }
$PUT
$SUM
  }
$STORE
"""
)

_KEEP = """\
      float weights_kept[16];
      $UNROLL
      for (int i = 0; i < 16; ++i) weights_kept[i] = scores[i] * kept[i];
"""

_OF_KEYS = """\
$LOCALS
  const ob_i64 tiles = ($KEYS + $TILE - 1) / $TILE, key_heads = $HEADS / $GROUP;
  $ORDER
  const ob_i64 batch = outer / key_heads, key_head = outer % key_heads;
  const ob_i64 first_key = rank * $TILE;
  $BEGINS
  $DROP_BEGIN
$SUMS
  for (ob_i64 head = key_head * $GROUP; head < (key_head + 1) * $GROUP; ++head) {
    $OF_HEAD
    $MASK_BEGIN
    // Where it is causal, no query before the first key sees one.
    for (ob_i64 first_query = $IS_CAUSAL ? first_key : 0; first_query < $QUERIES; first_query += $TILE) {
$PRODUCT
      float deltas[4];
      $KEPT_DECLARED
      $UNROLL
      for (int j = 0; j < 4; ++j) {
        float base;
        {
          const ob_i64 query = first_query + across + j < $QUERIES ? first_query + across + j : $QUERIES - 1;
          base = $LOGSUMEXP;
          base = base == $MASKED_SCORE ? 0 : base;
          deltas[j] = $DELTA;
        }
        $UNROLL
        for (int i = 0; i < 4; ++i) {
$SCORE
          scores[i * 4 + j] = OB_LIB(exp)(score - base);
          $KEEP
        }
      }
$PUT_WEIGHTS
$SUM_VALUE
$GRAD_PRODUCT
      $UNROLL
      for (int i = 0; i < 16; ++i) slopes[i] = scores[i] * ($KEPT_SLOPE - deltas[i % 4]);
$PUT_SLOPES
$SUM_KEY
    }
  }
$STORE
"""

# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of attention for GPUs: tiles in the memory of a group of items, as for products.

A group of 256 items has 64 queries of a head, or 64 keys where their gradients are computed. It goes through the other
side 64 at a time. An item has 4 by 4 scores of such a tile. Of the sums, it has the same four rows, and four of each 64
columns. Both operands of a product are loaded to local memory sixteen steps at a time; weights go through it too.
"""

from __future__ import annotations

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.kernels.templates.call import Kernel, TemplateCall
from torch_outboard.kernels.templates.heads import Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import ceil_div, filled

__all__ = ["attend", "differentiate"]

_TILE = 64
_PITCH = _TILE + 4
_GROUP = 256


def attend(call: TemplateCall, given: Attention, result: Rows, logsumexp: Rows) -> None:
    """Write the launch of attention."""
    kernel = Kernel("ob_attention", group=_GROUP)
    words = _words(call, given, kernel, _wide(given.value_head), given.query, given.key, given.value, result, logsumexp)
    kernel.arrays.append(LocalArray("float", "of_items", f"{_TILE} * 17"))
    words |= {
        "BEGINS": _begins(head=(given.query, result), key_head=(given.key, given.value)),
        "PRODUCT": _product("scores", (given.query, "query"), (given.key, "key"), given.head),
        "SCORE": _score(given, "down + i", "across + j"),
        "SUMS": _cleared("sums", given.value_head),
        "PUT": _put("scores"),
        "SUM": _sum(call.dialect, "sums", (given.value, "key"), given.value_head),
        "KEPT_WEIGHT": given.kept("scores[i * 4 + j]", "first_query + down + i", "first_key + across + j"),
        "STORE": _store(result, "query", "sums", given.value_head, "sum * shares[i]"),
        "STORE_LOGSUMEXP": logsumexp.store(logsumexp.begin(), "query", "0", "base + OB_LIB(log)(sum_of_weights)"),
    }
    kernel.text = filled(_ATTEND, words)
    kernel.groups = given.batch * given.heads * ceil_div(given.queries, _TILE)
    call.launch(kernel)


def differentiate(call: TemplateCall, given: Attention, gradients: Gradients) -> None:
    """Write the launches of the gradients of queries, and of keys and values."""
    kernels = []
    if gradients.of_query is not None:
        kernels.append(_of_queries(call, given, gradients, gradients.of_query))
    if gradients.of_key is not None or gradients.of_value is not None:
        kernels.append(_of_keys(call, given, gradients))
    if kernels:
        call.launch(*kernels)


def _of_queries(call: TemplateCall, given: Attention, gradients: Gradients, target: Rows) -> Kernel:
    grad, logsumexp, delta = gradients.grad, gradients.logsumexp, gradients.delta
    kernel = Kernel("ob_attention_of_queries", group=_GROUP)
    tensors = (given.query, given.key, given.value, grad, logsumexp, delta, target)
    words = _words(call, given, kernel, _wide(given.head), *tensors)
    words |= {
        "BEGINS": _begins(head=(given.query, grad, target), key_head=(given.key, given.value)),
        "PRODUCT": _product("scores", (given.query, "query"), (given.key, "key"), given.head),
        "GRAD_PRODUCT": _product("slopes", (grad, "query"), (given.value, "key"), given.value_head),
        "SCORE": _score(given, "down + i", "across + j"),
        "SUMS": _cleared("sums", given.head),
        "PUT": _put("slopes"),
        "SUM": _sum(call.dialect, "sums", (given.key, "key"), given.head),
        "KEPT_SLOPE": given.kept("slopes[i * 4 + j]", "query", "key", "$KEPT_SCALE"),
        "LOGSUMEXP": logsumexp.load(logsumexp.begin(), "query"),
        "DELTA": delta.load(delta.begin(), "query"),
        "STORE": _store(target, "query", "sums", given.head, "sum * $SCALE"),
    }
    kernel.text = filled(_OF_QUERIES, words)
    kernel.groups = given.batch * given.heads * ceil_div(given.queries, _TILE)
    return kernel


def _of_keys(call: TemplateCall, given: Attention, gradients: Gradients) -> Kernel:
    grad, logsumexp, delta = gradients.grad, gradients.logsumexp, gradients.delta
    of_key, of_value = gradients.of_key, gradients.of_value
    kernel, drops = Kernel("ob_attention_of_keys", group=_GROUP), given.dropout is not None
    targets = [one for one in (of_key, of_value) if one is not None]
    sums = {"key_sums": (of_key, given.head), "value_sums": (of_value, given.value_head)}
    wanted = [(name, one, head) for name, (one, head) in sums.items() if one is not None]
    tensors = (given.query, given.key, given.value, grad, logsumexp, delta, *targets)
    words = _words(call, given, kernel, max(_wide(head) for _, _, head in wanted), *tensors)
    words |= {
        "BEGINS": _begins(key_head=(given.key, given.value, *targets)),
        "OF_HEAD": _begins(head=(given.query, grad)),
        "SUMS": "\n".join(_cleared(name, head) for name, _, head in wanted),
        "PRODUCT": _product("scores", (given.key, "key"), (given.query, "query"), given.head),
        "GRAD_PRODUCT": _product("slopes", (given.value, "key"), (grad, "query"), given.value_head),
        "SCORE": _score(given, "across + j", "down + i"),
        "LOGSUMEXP": logsumexp.load(logsumexp.begin(), "query"),
        "DELTA": delta.load(delta.begin(), "query"),
        "KEEP": f"kept[i * 4 + j] = {given.kept('1', 'query', 'key', '$KEPT_SCALE')};" if drops else "",
        "KEPT_DECLARED": "float kept[16];" if drops else "",
        "KEPT_SLOPE": "slopes[i] * kept[i]" if drops else "slopes[i]",
        "PUT_WEIGHTS": ((_KEEP + _put("weights_kept")) if drops else _put("scores")) if of_value else "",
        "SUM_VALUE": _sum(call.dialect, "value_sums", (grad, "query"), given.value_head) if of_value else "",
        "PUT_SLOPES": _put("slopes") if of_key else "",
        "SUM_KEY": _sum(call.dialect, "key_sums", (given.query, "query"), given.head) if of_key else "",
        "STORE": "\n".join(
            _store(one, "key", name, head, "sum * $SCALE" if one is of_key else "sum") for name, one, head in wanted
        ),
    }
    kernel.text = filled(_OF_KEYS, words)
    kernel.groups = given.batch * given.key_heads * ceil_div(given.keys, _TILE)
    return kernel


# Parts that the kernels share.


def _words(call: TemplateCall, given: Attention, kernel: Kernel, wide: int, *tensors: Rows) -> dict[str, str]:
    """Declare the tensors and the group's memory, with `wide` columns of sums, and return their words."""
    steps, dialect = call.schedule("tiles")["steps"], call.dialect
    sizes = {
        **dict.fromkeys(("left_tile", "right_tile"), f"{steps} * {_PITCH}"),
        "weights": f"{_TILE} * {_PITCH}",
        "wide_tile": f"{steps} * {wide}",
    }
    kernel.arrays = [LocalArray("float", name, size, is_aligned=True) for name, size in sizes.items()]
    return given.declare(kernel, *tensors) | {
        "TILE": str(_TILE),
        "STEPS": str(steps),
        "PITCH": str(_PITCH),
        "WIDE": str(wide),
        "GROUP_ITEMS": str(_GROUP),
        "LOCALS": _LOCALS,
        "UNROLL": dialect.unroll,
        "FOUR": dialect.four("float"),
        "LEFT_FOUR": dialect.load_four("float", "left_tile", "at * $PITCH + down"),
        "RIGHT_FOUR": dialect.load_four("float", "right_tile", "at * $PITCH + across"),
        "WEIGHTS_FOUR": dialect.load_four("float", "weights", "(first + at) * $PITCH + down"),
        "PUT_FOUR": dialect.store_four("float", "weights", "(across + j) * $PITCH + down", "four"),
    }


def _wide(head: int) -> int:
    """Return the number of columns of sums that a group has room for."""
    return (head + _TILE - 1) // _TILE * _TILE


def _begins(**tensors: tuple[Rows, ...]) -> str:
    """Return the statements for where heads begin, by the names of the heads' numbers."""
    return " ".join(
        f"const ob_i64 {one.name}_from = {one.begin(head)};" for head, rows in tensors.items() for one in rows
    )


def _cleared(sums: str, head: int) -> str:
    count = _wide(head) // 4
    return f"""\
  float {sums}[{count}];
  $UNROLL
  for (int i = 0; i < {count}; ++i) {sums}[i] = 0;"""


def _product(into: str, left: tuple[Rows, str], right: tuple[Rows, str], head: int) -> str:
    """Return the loops for the products of the tile's rows: of each left row with each right row."""
    return f"""\
    float {into}[16];
    $UNROLL
    for (int i = 0; i < 16; ++i) {into}[i] = 0;
    for (int first = 0; first < {head}; first += $STEPS) {{
      OB_BARRIER;
{_bring("left_tile", *left, head)}
{_bring("right_tile", *right, head)}
      OB_BARRIER;
      $UNROLL
      for (int at = 0; at < $STEPS; ++at) {{
        const $FOUR l = $LEFT_FOUR;
        const $FOUR r = $RIGHT_FOUR;
{_outer(into, "4", "0")}
      }}
    }}"""


def _bring(tile: str, rows: Rows, of: str, head: int) -> str:
    """Return the loop that loads some columns of a tile's rows to local memory, column by column; 0 outside."""
    limit = "$QUERIES" if of == "query" else "$KEYS"
    return f"""\
      $UNROLL
      for (int load = 0; load < $TILE * $STEPS / $GROUP_ITEMS; ++load) {{
        const int line = (item + load * $GROUP_ITEMS) / $STEPS, step = first + item % $STEPS;
        const ob_i64 row = first_{of} + line;
        {tile}[item % $STEPS * $PITCH + line] =
            row < {limit} && step < {head} ? {rows.load(f"{rows.name}_from", "row", "step")} : 0;
      }}"""


def _sum(dialect: Dialect, sums: str, right: tuple[Rows, str], head: int) -> str:
    """Return the loops that add the products of the tile's weights with rows below one another."""
    rows, of = right
    wide, limit = _wide(head), "$QUERIES" if of == "query" else "$KEYS"
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
        for (int part = 0; part < {wide // _TILE}; ++part) {{
          const $FOUR r = {wide_four};
{_outer(sums, str(wide // 16), "part * 4")}
        }}
      }}
    }}"""


def _outer(into: str, pitch: str, first: str) -> str:
    """Return the statements that add the products of four elements with four."""
    return "\n".join(
        f"          {into}[{i} * {pitch} + {first} + {j}] ="
        f" OB_LIB(fma)(l.{one}, r.{other}, {into}[{i} * {pitch} + {first} + {j}]);"
        for i, one in enumerate("xyzw")
        for j, other in enumerate("xyzw")
    )


def _score(given: Attention, query: str, key: str) -> str:
    """Return the statements for a score of the tile; outside the tensor or the causal part, the score is $NONE."""
    condition = "query < $QUERIES && key < $KEYS" + (" && key <= query" if given.is_causal else "")
    mask = f" + {given.mask_at('query', 'key')}" if given.mask is not None else ""
    return f"""\
        const ob_i64 query = first_query + {query}, key = first_key + {key};
        const float score = {condition} ? scores[i * 4 + j] * $SCALE{mask} : $NONE;"""


def _put(values: str) -> str:
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


def _store(rows: Rows, of: str, sums: str, head: int, value: str) -> str:
    """Return the loops that store an item's sums."""
    wide, limit = _wide(head), "$QUERIES" if of == "query" else "$KEYS"
    return f"""\
  $UNROLL
  for (int i = 0; i < 4; ++i) {{
    const ob_i64 {of} = first_{of} + down + i;
    $UNROLL
    for (int j = 0; j < {wide // 16}; ++j) {{
      const int column = j / 4 * $TILE + across + j % 4;
      if ({of} < {limit} && column < {head}) {{
        const float sum = {sums}[i * {wide // 16} + j];
        {rows.store(f"{rows.name}_from", of, "column", value)}
      }}
    }}
  }}"""


_LOCALS = """\
  const int item = OB_ITEM_OF_GROUP;
  const int across = item % 16 * 4, down = item / 16 * 4;
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
    most[i] = $NONE;
    total[i] = 0;
  }
  for (ob_i64 first_key = 0; first_key < end; first_key += $TILE) {
$PRODUCT
    $UNROLL
    for (int i = 0; i < 4; ++i) {
      float greatest = $NONE;
      $UNROLL
      for (int j = 0; j < 4; ++j) {
$SCORE
        scores[i * 4 + j] = score;
        greatest = score > greatest ? score : greatest;
      }
      of_items[(down + i) * 17 + item % 16] = greatest;
    }
    OB_BARRIER;
    $UNROLL
    for (int i = 0; i < 4; ++i) {
      float greatest = most[i];
      for (int one = 0; one < 16; ++one) {
        const float other = of_items[(down + i) * 17 + one];
        greatest = other > greatest ? other : greatest;
      }
      // Where no key is left so far, all weights are 0.
      const float base = greatest == $NONE ? 0 : greatest;
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
      for (int j = 0; j < $WIDE / 16; ++j) sums[i * ($WIDE / 16) + j] *= factor;
    }
$PUT
$SUM
  }
  OB_BARRIER;
  $UNROLL
  for (int i = 0; i < 4; ++i) of_items[(down + i) * 17 + item % 16] = total[i];
  OB_BARRIER;
  float shares[4];
  $UNROLL
  for (int i = 0; i < 4; ++i) {
    float sum_of_weights = 0;
    for (int one = 0; one < 16; ++one) sum_of_weights += of_items[(down + i) * 17 + one];
    shares[i] = sum_of_weights == 0 ? 0 : $KEPT_SCALE / sum_of_weights;
    const ob_i64 query = first_query + down + i;
    const float base = most[i] == $NONE ? 0 : most[i];
    if (item % 16 == 0 && query < $QUERIES) { $STORE_LOGSUMEXP }
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
    base[i] = base[i] == $NONE ? 0 : base[i];
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
          base = base == $NONE ? 0 : base;
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

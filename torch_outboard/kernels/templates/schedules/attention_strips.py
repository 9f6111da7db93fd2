# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of attention for CPUs: strips of six rows by panels of two vectors, as for products.

Vector lanes are queries (or keys, for the gradients of keys and values), so maxima and sums are computed per lane.
Earlier launches pack the other operand of products in the order in which it is read, whatever its strides and type. An
item keeps some panels and their sums in its own memory, and iterates over blocks of rows.
"""

from __future__ import annotations

from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.heads import FLOAT, Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import ceil_div, filled
from torch_outboard.kernels.templates.schedules.strips import STRIP, pack, panel_of, tile

__all__ = ["attend", "differentiate"]

_PANEL = panel_of(FLOAT)
_LARGE_HEAD = 128
_MIN_WIDTH = 32  # lanes of the widest panel


def attend(call: TemplateCall, attention: Attention, result: Rows, logsumexp: Rows) -> None:
    """Write the launches of attention."""
    packs, packed = _packs(call, attention, {"key": (attention.key, "row"), "value": (attention.value, "column")})
    kernel = Kernel("ob_attention", tile(call.dialect, FLOAT))
    words = _words(call, attention, kernel, packed, attention.query, result, logsumexp)
    words |= {
        "PACK_QUERY": _panel("query_part", attention.query, "query_from", attention.head, "QUERIES"),
        "PRODUCT": _tiles("key_packed", "pair", attention.head, "first_key", "query_part"),
        "MASK": _mask(attention, "first_key", "KEYS", "first_query", "QUERIES", is_lane_query=True),
        "SUM": _sum("value_packed", "pair", attention.value_head, "KEYS", "first_key", "scores", "sums"),
        "QUERY_BEGIN": attention.query.begin(),
        "RESULT_BEGIN": result.begin(),
        "KEPT_WEIGHT": attention.kept("weight", "first_query + panel * $PANEL + lane", "first_key + row"),
        "STORE": result.store("result_from", "query", "at", f"{_summed('sums', attention.value_head)} * share"),
        "STORE_LOGSUMEXP": logsumexp.store(logsumexp.begin(), "query", "0", "base + OB_LIB(log)(total[lane])"),
    }
    kernel.text = filled(_ATTEND, words)
    kernel.groups = attention.batch * attention.heads * ceil_div(attention.queries, int(words["WIDTH"]))
    call.launch(*packs, kernel)
    _free(call, packed)


def differentiate(call: TemplateCall, attention: Attention, gradients: Gradients) -> None:
    """Write the launches of the gradients of queries, and of keys and values."""
    if gradients.of_query is not None:
        _of_queries(call, attention, gradients, gradients.of_query)
    if gradients.of_key is not None or gradients.of_value is not None:
        _of_keys(call, attention, gradients)


def _of_queries(call: TemplateCall, attention: Attention, gradients: Gradients, target: Rows) -> None:
    grad, logsumexp, delta = gradients.grad, gradients.logsumexp, gradients.delta
    operands = {
        "key": (attention.key, "row"),
        "key_columns": (attention.key, "column"),
        "value": (attention.value, "row"),
    }
    packs, packed = _packs(call, attention, operands)
    kernel = Kernel("ob_attention_of_queries", tile(call.dialect, FLOAT))
    words = _words(call, attention, kernel, packed, attention.query, grad, logsumexp, delta, target)
    words |= {
        "PACK_QUERY": _panel("query_part", attention.query, "query_from", attention.head, "QUERIES"),
        "PACK_GRAD": _panel("grad_part", grad, "grad_from", attention.value_head, "QUERIES", is_scaled=False),
        "PRODUCT": _tiles("key_packed", "pair", attention.head, "first_key", "query_part"),
        "GRAD_PRODUCT": _tiles("value_packed", "pair", attention.value_head, "first_key", "grad_part", "slopes"),
        "MASK": _mask(attention, "first_key", "KEYS", "first_query", "QUERIES", is_lane_query=True),
        "SUM": _sum("key_columns_packed", "pair", attention.head, "KEYS", "first_key", "slopes", "sums"),
        "QUERY_BEGIN": attention.query.begin(),
        "GRAD_BEGIN": grad.begin(),
        "KEPT_SLOPE": attention.kept(
            "slopes[row * $PANEL + lane]", "first_query + panel * $PANEL + lane", "first_key + row", "$KEPT_SCALE"
        ),
        "LOGSUMEXP": logsumexp.load(logsumexp.begin(), "query"),
        "DELTA": delta.load(delta.begin(), "query"),
        "TARGET_BEGIN": target.begin(),
        "STORE": target.store("target_from", "query", "at", f"{_summed('sums', attention.head)} * $SCALE"),
    }
    kernel.text = filled(_OF_QUERIES, words)
    kernel.groups = attention.batch * attention.heads * ceil_div(attention.queries, int(words["WIDTH"]))
    call.launch(*packs, kernel)
    _free(call, packed)


def _of_keys(call: TemplateCall, attention: Attention, gradients: Gradients) -> None:
    grad, logsumexp, delta = gradients.grad, gradients.logsumexp, gradients.delta
    of_key, of_value = gradients.of_key, gradients.of_value
    operands = {"query": (attention.query, "row"), "grad": (grad, "row")}
    operands |= {"query_columns": (attention.query, "column")} if of_key else {}
    operands |= {"grad_columns": (grad, "column")} if of_value else {}
    packs, packed = _packs(call, attention, operands)
    kernel = Kernel("ob_attention_of_keys", tile(call.dialect, FLOAT))
    targets = [target for target in (of_key, of_value) if target is not None]
    words = _words(call, attention, kernel, packed, attention.key, attention.value, logsumexp, delta, *targets)
    sums = {"key_sums": (of_key, attention.head), "value_sums": (of_value, attention.value_head)}
    words |= {
        "PACK_KEY": _panel("key_part", attention.key, "key_from", attention.head, "KEYS"),
        "PACK_VALUE": _panel(
            "value_part", attention.value, "value_from", attention.value_head, "KEYS", is_scaled=False
        ),
        "PRODUCT": _tiles("query_packed", "outer", attention.head, "first_query", "key_part"),
        "GRAD_PRODUCT": _tiles("grad_packed", "outer", attention.value_head, "first_query", "value_part", "slopes"),
        "MASK": _mask(attention, "first_query", "QUERIES", "first_key", "KEYS", is_lane_query=False),
        "SUM_KEY": _sum("query_columns_packed", "outer", attention.head, "QUERIES", "first_query", "slopes", "key_sums")
        if of_key
        else "",
        "SUM_VALUE": _sum(
            "grad_columns_packed", "outer", attention.value_head, "QUERIES", "first_query", "scores", "value_sums"
        )
        if of_value
        else "",
        "KEY_BEGIN": attention.key.begin("key_head"),
        "VALUE_BEGIN": attention.value.begin("key_head"),
        "KEPT": attention.kept("1", "first_query + row", "first_key + panel * $PANEL + lane", "$KEPT_SCALE"),
        "LOGSUMEXP": logsumexp.load(logsumexp.begin(), "first_query + row"),
        "DELTA": delta.load(delta.begin(), "first_query + row"),
        "ARRAYS": " ".join(
            f"float {name}[$WIDTH * {_rounded(head)}] OB_OF_VECTORS;" for name, (target, head) in sums.items() if target
        ),
        "CLEAR": " ".join(
            f"for (int i = 0; i < panels * {_rounded(head)} * {_PANEL}; ++i) {name}[i] = 0;"
            for name, (target, head) in sums.items()
            if target
        ),
        "STORE": "\n".join(
            f"    for (int at = 0; at < {head}; ++at) {{ "
            + target.store(
                target.begin("key_head"), "key", "at", _summed(name, head) + (" * $SCALE" if target is of_key else "")
            )
            + " }"
            for name, (target, head) in sums.items()
            if target
        ),
    }
    kernel.text = filled(_OF_KEYS, words)
    kernel.groups = attention.batch * attention.key_heads * ceil_div(attention.keys, int(words["WIDTH"]))
    call.launch(*packs, kernel)
    _free(call, packed)


# Parts that several kernels share.


def _packs(
    call: TemplateCall, attention: Attention, operands: dict[str, tuple[Rows, str]]
) -> tuple[list[Kernel], dict[str, Tensor]]:
    """Return kernels that pack operands by rows or by columns, and the packed tensors."""
    kernels: list[Kernel] = []
    packed: dict[str, Tensor] = {}
    texts: dict[tuple[object, ...], int] = {}
    for name, (rows, line) in operands.items():
        sizes = {"row": rows.tensor.size[2], "column": rows.tensor.size[3]}
        size = (rows.tensor.size[0] * rows.tensor.size[1], sizes[line], sizes["column" if line == "row" else "row"])
        kernel, packed[f"{name}_packed"] = pack(call, "", Rows("given", rows.tensor).operand(line), FLOAT, size)
        # Kernels with the same text are one kernel.
        kernel.name = f"ob_attention_pack{texts.setdefault((kernel.text, *kernel.parameters), len(texts))}"
        kernels.append(kernel)
    return kernels, packed


def _free(call: TemplateCall, packed: dict[str, Tensor]) -> None:
    for tensor in packed.values():
        call.free(tensor)


def _words(
    call: TemplateCall, attention: Attention, kernel: Kernel, packed: dict[str, Tensor], *others: Rows
) -> dict[str, str]:
    for name, tensor in packed.items():
        kernel.pointer(name, tensor)
    schedule = call.schedule("strips")
    width = schedule["width"] if max(attention.head, attention.value_head) <= _LARGE_HEAD else schedule["width"] // 2
    width = max(width, _MIN_WIDTH)
    return attention.declare(kernel, *others) | {
        "ITEM": call.dialect.item,
        "FIRST": "ob_number == 0",
        "PANEL": _PANEL,
        "WIDTH": str(width),
        "BLOCK": str(schedule["block"]),
        "STRIP": str(STRIP),
        "HEAD_ROWS": str(_rounded(attention.head)),
        "VALUE_ROWS": str(_rounded(attention.value_head)),
    }


def _rounded(size: int) -> int:
    return (size + STRIP - 1) // STRIP * STRIP


def _panel(part: str, rows: Rows, begin: str, head: int, lines: str, is_scaled: bool = True) -> str:
    """Return the loops that load an item's lanes; lanes past the last line repeat the last line."""
    first = "first_query" if lines == "QUERIES" else "first_key"
    value = rows.load(begin, "line", "at") + (" * $SCALE" if is_scaled else "")
    return f"""\
  for (int lane = 0; lane < panels * $PANEL; ++lane) {{
    const ob_i64 line = {first} + lane < ${lines} ? {first} + lane : ${lines} - 1;
    for (int at = 0; at < {head}; ++at) {part}[(lane / $PANEL * {head} + at) * $PANEL + lane % $PANEL] = {value};
  }}"""


def _tiles(packed: str, outer: str, head: int, first: str, part: str, into: str = "scores") -> str:
    """Return the loops that multiply a block's rows with a panel."""
    lines = "$KEYS" if first == "first_key" else "$QUERIES"
    return f"""\
      for (int i = 0; i < (steps + $STRIP - 1) / $STRIP * $STRIP * $PANEL; ++i) {into}[i] = 0;
      ob_strips({packed} + ({outer} * (({lines} + $STRIP - 1) / $STRIP) + {first} / $STRIP) * {head * STRIP},
                {head * STRIP}, {part} + panel * {head} * $PANEL, {into}, (steps + $STRIP - 1) / $STRIP, {head});"""


def _sum(packed: str, outer: str, head: int, steps: str, first: str, part: str, into: str) -> str:
    """Return the loop that adds the products of columns with the rows of a block."""
    strips = _rounded(head) // STRIP
    return f"""\
      ob_strips({packed} + ({outer} * {strips} * ${steps} + {first}) * $STRIP, ${steps} * $STRIP, {part},
                {into} + panel * {strips} * $STRIP * $PANEL, {strips}, steps);"""


def _summed(sums: str, head: int) -> str:
    return f"{sums}[(lane / $PANEL * {_rounded(head)} + at) * $PANEL + lane % $PANEL]"


def _mask(attention: Attention, row: str, rows: str, lane: str, lanes: str, *, is_lane_query: bool) -> str:
    """Return the loops that add the mask to a panel's scores, and exclude keys after the query if causal."""
    text = ""
    if attention.mask is not None:
        line = f"({lane} + panel * $PANEL + lane < ${lanes} ? {lane} + panel * $PANEL + lane : ${lanes} - 1)"
        places = (line, f"{row} + row") if is_lane_query else (f"{row} + row", line)
        loops = ["for (int lane = 0; lane < $PANEL; ++lane)", "for (int row = 0; row < steps; ++row)"]
        # A query's mask elements are adjacent in memory.
        first, second = loops if is_lane_query else reversed(loops)
        text += f"""\
      {first}
        {second} scores[row * $PANEL + lane] += {attention.mask_at(*places)};
"""
    if attention.is_causal:
        last, at = f"{row} + steps - 1 > {lane} + panel * $PANEL", f"{row} + row > {lane} + panel * $PANEL + lane"
        if not is_lane_query:
            last, at = f"{row} < {lane} + panel * $PANEL + $PANEL - 1", f"{row} + row < {lane} + panel * $PANEL + lane"
        text += f"""\
      if ({last})
        for (int row = 0; row < steps; ++row)
          for (int lane = 0; lane < $PANEL; ++lane)
            if ({at}) scores[row * $PANEL + lane] = $MASKED_SCORE;
"""
    return text


_QUERIES = """\
  const ob_i64 ob_number = $ITEM;
  if (ob_number >= ob_groups) return;
  const ob_i64 blocks = ($QUERIES + $WIDTH - 1) / $WIDTH;
  const ob_i64 outer = ob_number / blocks, batch = outer / $HEADS, head = outer % $HEADS;
  const ob_i64 pair = batch * ($HEADS / $GROUP) + head / $GROUP;
  // The last ones first: where it is causal, they take longest.
  const ob_i64 first_query = (blocks - 1 - ob_number % blocks) * $WIDTH;
  const int lanes = $QUERIES - first_query < $WIDTH ? (int)($QUERIES - first_query) : $WIDTH;
  const int panels = (lanes + $PANEL - 1) / $PANEL;
  const ob_i64 end = $IS_CAUSAL && first_query + lanes < $KEYS ? first_query + lanes : $KEYS;
  const ob_i64 query_from = $QUERY_BEGIN;
  $MASK_BEGIN
  $DROP_BEGIN
  float query_part[$WIDTH * $HEAD] OB_OF_VECTORS;
$PACK_QUERY
"""

_ATTEND = (
    _QUERIES
    + """\
  const ob_i64 result_from = $RESULT_BEGIN;
  float scores[$BLOCK * $PANEL] OB_OF_VECTORS;
  float sums[$WIDTH * $VALUE_ROWS] OB_OF_VECTORS;
  float most[$WIDTH], total[$WIDTH];
  for (int i = 0; i < panels * $VALUE_ROWS * $PANEL; ++i) sums[i] = 0;
  for (int lane = 0; lane < $WIDTH; ++lane) {
    most[lane] = $MASKED_SCORE;
    total[lane] = 0;
  }
  for (ob_i64 first_key = 0; first_key < end; first_key += $BLOCK) {
    const int steps = end - first_key < $BLOCK ? (int)(end - first_key) : $BLOCK;
    for (int panel = 0; panel < panels; ++panel) {
      if ($IS_CAUSAL && first_key >= first_query + (panel + 1) * $PANEL) continue;
$PRODUCT
$MASK
      float base[$PANEL], sum[$PANEL], factor[$PANEL];
      for (int lane = 0; lane < $PANEL; ++lane) {
        base[lane] = most[panel * $PANEL + lane];
        sum[lane] = 0;
      }
      for (int row = 0; row < steps; ++row)
        for (int lane = 0; lane < $PANEL; ++lane) {
          const float score = scores[row * $PANEL + lane];
          base[lane] = score > base[lane] ? score : base[lane];
        }
      for (int lane = 0; lane < $PANEL; ++lane) {
        const float before = most[panel * $PANEL + lane];
        most[panel * $PANEL + lane] = base[lane];
        // Where no key is left so far, all weights are 0.
        base[lane] = base[lane] == $MASKED_SCORE ? 0 : base[lane];
        factor[lane] = OB_LIB(exp)(before - base[lane]);
      }
      for (int row = 0; row < steps; ++row)
        for (int lane = 0; lane < $PANEL; ++lane) {
          const float weight = OB_LIB(exp)(scores[row * $PANEL + lane] - base[lane]);
          scores[row * $PANEL + lane] = $KEPT_WEIGHT;
          sum[lane] += weight;
        }
      for (int lane = 0; lane < $PANEL; ++lane)
        total[panel * $PANEL + lane] = total[panel * $PANEL + lane] * factor[lane] + sum[lane];
      for (int at = 0; at < $VALUE_ROWS; ++at)
        for (int lane = 0; lane < $PANEL; ++lane)
          sums[(panel * $VALUE_ROWS + at) * $PANEL + lane] *= factor[lane];
$SUM
    }
  }
  for (int lane = 0; lane < lanes; ++lane) {
    const ob_i64 query = first_query + lane;
    const float base = most[lane] == $MASKED_SCORE ? 0 : most[lane];
    const float share = total[lane] == 0 ? 0 : $KEPT_SCALE / total[lane];
    for (int at = 0; at < $VALUE_HEAD; ++at) { $STORE }
    $STORE_LOGSUMEXP
  }
"""
)

_OF_QUERIES = (
    _QUERIES
    + """\
  const ob_i64 grad_from = $GRAD_BEGIN, target_from = $TARGET_BEGIN;
  float grad_part[$WIDTH * $VALUE_HEAD] OB_OF_VECTORS;
$PACK_GRAD
  float base[$WIDTH], delta_part[$WIDTH];
  for (int lane = 0; lane < panels * $PANEL; ++lane) {
    const ob_i64 query = lane < lanes ? first_query + lane : $QUERIES - 1;
    base[lane] = $LOGSUMEXP;
    base[lane] = base[lane] == $MASKED_SCORE ? 0 : base[lane];
    delta_part[lane] = $DELTA;
  }
  float scores[$BLOCK * $PANEL] OB_OF_VECTORS, slopes[$BLOCK * $PANEL] OB_OF_VECTORS;
  float sums[$WIDTH * $HEAD_ROWS] OB_OF_VECTORS;
  for (int i = 0; i < panels * $HEAD_ROWS * $PANEL; ++i) sums[i] = 0;
  for (ob_i64 first_key = 0; first_key < end; first_key += $BLOCK) {
    const int steps = end - first_key < $BLOCK ? (int)(end - first_key) : $BLOCK;
    for (int panel = 0; panel < panels; ++panel) {
      if ($IS_CAUSAL && first_key >= first_query + (panel + 1) * $PANEL) continue;
$PRODUCT
$GRAD_PRODUCT
$MASK
      for (int row = 0; row < steps; ++row)
        for (int lane = 0; lane < $PANEL; ++lane) {
          const float weight = OB_LIB(exp)(scores[row * $PANEL + lane] - base[panel * $PANEL + lane]);
          slopes[row * $PANEL + lane] = weight * ($KEPT_SLOPE - delta_part[panel * $PANEL + lane]);
        }
$SUM
    }
  }
  for (int lane = 0; lane < lanes; ++lane) {
    const ob_i64 query = first_query + lane;
    for (int at = 0; at < $HEAD; ++at) { $STORE }
  }
"""
)

_OF_KEYS = """\
  const ob_i64 ob_number = $ITEM;
  if (ob_number >= ob_groups) return;
  const ob_i64 blocks = ($KEYS + $WIDTH - 1) / $WIDTH;
  const ob_i64 batch = ob_number / blocks / ($HEADS / $GROUP), key_head = ob_number / blocks % ($HEADS / $GROUP);
  const ob_i64 first_key = ob_number % blocks * $WIDTH;
  const int lanes = $KEYS - first_key < $WIDTH ? (int)($KEYS - first_key) : $WIDTH;
  const int panels = (lanes + $PANEL - 1) / $PANEL;
  const ob_i64 key_from = $KEY_BEGIN, value_from = $VALUE_BEGIN;
  float key_part[$WIDTH * $HEAD] OB_OF_VECTORS, value_part[$WIDTH * $VALUE_HEAD] OB_OF_VECTORS;
$PACK_KEY
$PACK_VALUE
  float scores[$BLOCK * $PANEL] OB_OF_VECTORS, slopes[$BLOCK * $PANEL] OB_OF_VECTORS;
  $ARRAYS
  $CLEAR
  $DROP_BEGIN
  for (ob_i64 head = key_head * $GROUP; head < (key_head + 1) * $GROUP; ++head) {
    const ob_i64 outer = batch * $HEADS + head;
    $MASK_BEGIN
    // Where it is causal, no query before the first key sees one.
    for (ob_i64 first_query = $IS_CAUSAL ? first_key / $BLOCK * $BLOCK : 0; first_query < $QUERIES;
         first_query += $BLOCK) {
      const int steps = $QUERIES - first_query < $BLOCK ? (int)($QUERIES - first_query) : $BLOCK;
      float base[$BLOCK], delta_part[$BLOCK];
      for (int row = 0; row < steps; ++row) {
        base[row] = $LOGSUMEXP;
        base[row] = base[row] == $MASKED_SCORE ? 0 : base[row];
        delta_part[row] = $DELTA;
      }
      for (int panel = 0; panel < panels; ++panel) {
        if ($IS_CAUSAL && first_query + steps <= first_key + panel * $PANEL) continue;
$PRODUCT
$GRAD_PRODUCT
$MASK
        for (int row = 0; row < steps; ++row)
          for (int lane = 0; lane < $PANEL; ++lane) {
            const float weight = OB_LIB(exp)(scores[row * $PANEL + lane] - base[row]);
            const float kept = $KEPT;
            scores[row * $PANEL + lane] = weight * kept;
            slopes[row * $PANEL + lane] = weight * (slopes[row * $PANEL + lane] * kept - delta_part[row]);
          }
$SUM_VALUE
$SUM_KEY
      }
    }
  }
  for (int lane = 0; lane < lanes; ++lane) {
    const ob_i64 key = first_key + lane;
$STORE
  }
"""

# SPDX-License-Identifier: BSD-3-Clause
"""Scattering values to the rows of a matrix in a fixed order: values are sorted by row, one segment per row.

Atomic sums round in a different order each time, and there are no atomics for products and extremes. With values sorted
by target row, an item combines the values of one result element one after the other. The order is the CPU kernels'
order, so results are deterministic. The time for a segment is proportional to its length.
"""

from __future__ import annotations

import torch

from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import SumType, filled, loaded, stored

__all__ = ["combine_sorted", "combined"]

_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "combine_sorted(Tensor base, Tensor rows, Tensor order, Tensor values, str kind, bool include_self) -> Tensor"
)
_library.impl("combine_sorted", lambda base, *_: torch.empty_like(base), "Meta")  # type: ignore[no-untyped-call]

# Combines rows of `values` into rows of `base`. `rows` (int64, ascending) has the target row of
# each entry of `order`; `order` (int64) has the entry's row in `values`. If `include_self` is
# false, the old row of `base` is ignored.
combined = torch.ops.outboard.combine_sorted.default


_STATEMENTS = {
    "set": "sum = value;",
    "sum": "sum += value;",
    "mean": "sum += value;",
    "prod": "sum *= value;",
    "amax": "if (value > sum || value != value) sum = value;",
    "amin": "if (value < sum || value != value) sum = value;",
}
_OF_BOOLS = {"sum": "amax", "prod": "amin"}


def combine_sorted(call: TemplateCall) -> list[str | None]:
    base, values = call.tensor("base"), call.tensor("values")
    (layout,) = call.results
    assert layout is not None
    result = call.allocate(layout)

    copy = Kernel("ob_copy_rows")
    count = base.size[0] * base.size[1]
    copy.spread(call, count)
    copy.pointer("base", base)
    copy.pointer("result", result, is_written=True)
    words = {"ITEM": call.dialect.item, "COLUMNS": copy.number("columns", base.size[1])}
    words["COUNT"] = copy.number("count", count)
    copy.text = filled(_COPY, {**words, **_strides(copy, "base", base), **_strides(copy, "result", result)})

    call.launch(copy, _combine(call, base, values, result))
    return [result.name]


def _combine(call: TemplateCall, base: Tensor, values: Tensor, result: Tensor) -> Kernel:
    rows, order = call.tensor("rows"), call.tensor("order")
    kind, includes_self = call.arguments["kind"], call.arguments["include_self"]
    if base.dtype == torch.bool:
        kind = _OF_BOOLS.get(kind, kind)
    sums = _type_of_sums(base.dtype, kind)

    kernel = Kernel("ob_combine_rows")
    kernel.spread(call, rows.size[0] * values.size[1])
    for name, tensor in (("rows", rows), ("order", order), ("values", values)):
        kernel.pointer(name, tensor)
    kernel.pointer("result", result, is_written=True)
    words = {
        "ITEM": call.dialect.item,
        "SUM": sums.kind,
        "FROM_SELF": "1" if includes_self and kind != "set" else "0",
        "TAKE": _STATEMENTS[kind],
        "VALUE": loaded("values[order[at] * $VALUES_ROW + column * $VALUES_COLUMN]", values.dtype, sums),
        "OLD": loaded("result[to]", result.dtype, sums),
        "MEAN": (_MEAN if base.dtype.is_floating_point else _WHOLE_MEAN) if kind == "mean" else "",
        "STORE": stored("result[to]", "sum", result.dtype),
        "COUNT": kernel.number("count", rows.size[0]),
        "COLUMNS": kernel.number("columns", values.size[1]),
    }
    kernel.text = filled(
        _COMBINE, {**words, **_strides(kernel, "values", values), **_strides(kernel, "result", result)}
    )
    return kernel


def _type_of_sums(dtype: torch.dtype, kind: str) -> SumType:
    """Return the type in which values are combined.

    Integers use 64 bits: their low bits are right even if sums wrap. Extremes need the sign.
    """
    if dtype.is_floating_point:
        return SumType.of(dtype)
    if kind in ("sum", "prod"):
        return SumType(torch.int64, "u64", "ob_u64", 8)
    return SumType(torch.int64, "i64", "ob_i64", 8)


def _strides(kernel: Kernel, name: str, tensor: Tensor) -> dict[str, str]:
    return {
        f"{name.upper()}_ROW": kernel.number(f"{name}_row", tensor.stride[0]),
        f"{name.upper()}_COLUMN": kernel.number(f"{name}_column", tensor.stride[1]),
    }


_COPY = """\
  const ob_i64 item = $ITEM;
  if (item >= $COUNT) return;
  const ob_i64 row = item / $COLUMNS, column = item % $COLUMNS;
  result[row * $RESULT_ROW + column * $RESULT_COLUMN] = base[row * $BASE_ROW + column * $BASE_COLUMN];
"""

_COMBINE = """\
  const ob_i64 item = $ITEM;
  if (item >= $COUNT * $COLUMNS) return;
  const ob_i64 first = item / $COLUMNS, column = item % $COLUMNS, row = rows[first];
  if (first > 0 && rows[first - 1] == row) return;
  const ob_i64 to = row * $RESULT_ROW + column * $RESULT_COLUMN;
  ob_i64 at = first, taken = 1;
  $SUM sum = $FROM_SELF ? $OLD : $VALUE;
  for (at += 1 - $FROM_SELF; at < $COUNT && rows[at] == row; ++at, ++taken) {
    const $SUM value = $VALUE;
    $TAKE
  }
$MEAN  $STORE
"""

_MEAN = """\
  sum /= ($SUM)taken;
"""

# Round down, as torch's division does.
_WHOLE_MEAN = """\
  sum = sum / taken - (sum % taken < 0);
"""

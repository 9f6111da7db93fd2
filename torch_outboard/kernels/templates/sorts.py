# SPDX-License-Identifier: BSD-3-Clause
"""Stable sorts of a matrix's rows: insertion sorts of short runs, then merges that double the runs until one is left.

Elements are mapped to unsigned integers in the same order: reals by their bits, with a single zero, and all NaNs after
infinity. Kernels therefore compare integers, and invert them for descending order. The merges move the integers with
the elements' positions in their rows; the elements themselves are gathered at the end.

In a merge, each item computes a part of the result. It bisects to find where its part begins in both runs (merge path,
Odeh et al. 2012), so all parts have the same length, whatever the runs contain.
"""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.dialect import SUFFIXES
from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import ceil_div, filled

__all__ = ["sort"]

_RUN = 16  # elements that an item sorts by insertion
_PART = 32  # elements that an item merges; at most the length of two runs
# Merges come in pairs, so that the last merge writes to the source of the first merge. A merge of a
# single run is a copy.
_PAIRS = 14  # enough for 2 ** 32 elements


def sort(call: TemplateCall) -> list[str | None]:
    """Write the steps of a sort along the second dimension of a matrix with any strides."""
    given = call.tensor("self")
    values, indices = (call.allocate(_known(result)) for result in call.results)
    rows, length = given.size
    kind, key = ("ob_u64", torch.int64) if given.dtype.itemsize == 8 else ("ob_u32", torch.int32)
    sorted_, spare = (
        [call.allocate(Layout(dtype, given.size, (length, sympy.Integer(1)))) for dtype in (key, torch.int64)]
        for _ in range(2)
    )

    begin = Kernel("ob_sort_runs", _key_of(given.dtype, kind, is_descending=bool(call.arguments["descending"])))
    begin.spread(call, rows * ceil_div(length, _RUN))
    begin.pointer("keys", sorted_[0], is_written=True, element=kind)
    begin.pointer("places", sorted_[1], is_written=True)
    _finish(call, begin, _RUNS, given, kind)

    merges: list[Kernel] = []
    for pair in range(_PAIRS):
        needed = sympy.Min(1, FloorDiv(sympy.Max(length - 1, 0), _RUN * 4**pair))
        for half, (source, target) in enumerate(((sorted_, spare), (spare, sorted_))):
            merge = Kernel("ob_sort_merge")
            merge.spread(call, rows * ceil_div(length, _PART))
            merge.groups *= needed
            merge.pointer("keys", source[0], element=kind)
            merge.pointer("places", source[1])
            merge.pointer("merged_keys", target[0], is_written=True, element=kind)
            merge.pointer("merged_places", target[1], is_written=True)
            merge.parameter("width", sympy.Integer(_RUN * 2 ** (2 * pair + half)))
            _finish(call, merge, _MERGE, given, kind)
            merges.append(merge)

    end = Kernel("ob_sort_values")
    end.spread(call, rows * length)
    end.pointer("places", sorted_[1])
    end.pointer("values", values, is_written=True, element=_bits(given.dtype))
    end.pointer("indices", indices, is_written=True)
    _finish(call, end, _VALUES, given, kind, values, indices)

    call.launch(begin, *merges, end)
    for tensor in (*sorted_, *spare):
        call.free(tensor)
    return [values.name, indices.name]


def _known(layout: Layout | None) -> Layout:
    assert layout is not None
    return layout


def _bits(dtype: torch.dtype) -> str:
    return f"ob_u{8 * dtype.itemsize}"


def _finish(call: TemplateCall, kernel: Kernel, text: str, source: Tensor, kind: str, *results: Tensor) -> None:
    """Declare the text's inputs besides the kernel's own arrays, and fill in the text."""
    words = {"KIND": kind, "RUN": str(_RUN), "PART": str(_PART), "ITEM": call.dialect.item}
    words["ROWS"] = kernel.number("rows", source.size[0])
    words["LENGTH"] = kernel.number("length", source.size[1])
    if "given[" in text:
        kernel.pointer("given", source, element=_bits(source.dtype))
        words["ROW"], words["COLUMN"] = _strides(kernel, "given", source)
    for name, result in zip(("VALUES", "INDICES"), results, strict=False):
        words[f"{name}_ROW"], words[f"{name}_COLUMN"] = _strides(kernel, name.lower(), result)
    kernel.text = filled(text, words)


def _strides(kernel: Kernel, name: str, tensor: Tensor) -> tuple[str, str]:
    return kernel.number(f"{name}_row", tensor.stride[0]), kernel.number(f"{name}_column", tensor.stride[1])


def _key_of(dtype: torch.dtype, kind: str, *, is_descending: bool) -> str:
    """Return the helper that maps an element's bits to an ordered integer."""
    bits = 8 * dtype.itemsize
    sign, ones = f"(({kind})1 << {bits - 1})", f"({kind})0x{(1 << bits) - 1:x}u"
    if dtype == torch.bool:
        text = "key = key != 0;"
    elif dtype.is_floating_point:
        # The bits of infinity, without the sign; all larger values are NaNs.
        infinity = ((1 << bits) - 1 >> 1) & ~((1 << _fraction_bits(dtype)) - 1)
        text = (
            f"if ((key & ~{sign}) > ({kind})0x{infinity:x}u) key = {ones};\n"
            f"  else if (key == {sign} || key == 0) key = {sign};\n"
            f"  else key = (key & {sign}) ? (~key & {ones}) : (key | {sign});"
        )
    elif dtype.is_signed:
        text = f"key ^= {sign};"
    else:
        text = ""
    if is_descending:
        text += f"\n  key = ~key & {ones};"
    return f"OB_DEVICE {kind} ob_sort_key({kind} key) {{\n  {text}\n  return key;\n}}\n"


def _fraction_bits(dtype: torch.dtype) -> int:
    return {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[SUFFIXES[dtype]]


_RUNS = """\
  const ob_i64 item = $ITEM, runs = ($LENGTH + $RUN - 1) / $RUN;
  if (item >= $ROWS * runs) return;
  const ob_i64 row = item / runs, first = item % runs * $RUN;
  const int count = $LENGTH - first < $RUN ? (int)($LENGTH - first) : $RUN;
  $KIND run[$RUN];
  int order[$RUN];
  for (int i = 0; i < count; ++i) {
    const $KIND key = ob_sort_key(given[row * $ROW + (first + i) * $COLUMN]);
    int at = i;
    for (; at > 0 && run[at - 1] > key; --at) {
      run[at] = run[at - 1];
      order[at] = order[at - 1];
    }
    run[at] = key;
    order[at] = i;
  }
  for (int i = 0; i < count; ++i) {
    keys[row * $LENGTH + first + i] = run[i];
    places[row * $LENGTH + first + i] = first + order[i];
  }
"""

_MERGE = """\
  const ob_i64 item = $ITEM, parts = ($LENGTH + $PART - 1) / $PART;
  if (item >= $ROWS * parts) return;
  const ob_i64 row = item / parts * $LENGTH, first = item % parts * $PART;
  const ob_i64 last = first + $PART < $LENGTH ? first + $PART : $LENGTH;
  const ob_i64 base = first / (2 * width) * (2 * width);
  const ob_i64 middle = base + width < $LENGTH ? base + width : $LENGTH;
  const ob_i64 end = middle + width < $LENGTH ? middle + width : $LENGTH;
  // Of the results before this part, those from the left run: between `low` and `high`.
  const ob_i64 before = first - base;
  ob_i64 low = before > end - middle ? before - (end - middle) : 0;
  ob_i64 high = before < middle - base ? before : middle - base;
  while (low < high) {
    const ob_i64 guess = low + (high - low) / 2;
    if (keys[row + base + guess] <= keys[row + middle + before - 1 - guess]) low = guess + 1;
    else high = guess;
  }
  ob_i64 left = base + low, right = middle + before - low;
  for (ob_i64 to = first; to < last; ++to) {
    // Of equal ones the left comes first.
    const bool is_left = right >= end || (left < middle && keys[row + left] <= keys[row + right]);
    const ob_i64 from = row + (is_left ? left++ : right++);
    merged_keys[row + to] = keys[from];
    merged_places[row + to] = places[from];
  }
"""

_VALUES = """\
  const ob_i64 item = $ITEM;
  if (item >= $ROWS * $LENGTH) return;
  const ob_i64 row = item / $LENGTH, column = item % $LENGTH, place = places[item];
  values[row * $VALUES_ROW + column * $VALUES_COLUMN] = given[row * $ROW + place * $COLUMN];
  indices[row * $INDICES_ROW + column * $INDICES_COLUMN] = place;
"""

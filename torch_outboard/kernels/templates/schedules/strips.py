# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for CPUs: explicit vectors, and operands packed in the order in which they are read.

The first launch writes the left operand as strips of six rows, step after step; the second launch computes. An item of
the second launch processes a block of 96 rows and four panels of columns, or more if there are many items. It packs 256
steps of its columns, whatever their strides and type, into its own memory, which stays in the L2 cache. Then it
multiplies strips by panels of two vectors with their sums in registers, two strips at a time if there are enough
registers. Only the compiler knows the vector width, not the host: the number of columns in a block is fixed, and the
width determines how many panels they form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.product import Operand, Product, SumType, ceil_div, filled

__all__ = ["STRIP", "multiply", "pack", "panel_of", "tile"]

STRIP = 6  # rows; two vectors of columns take 12 of 16 registers for sums
_PACKED_STEPS = 256  # steps that an item of the first launch writes by default
_ENOUGH_ITEMS = 24  # beyond this, items are larger and read their operands less often
_NARROW_PANEL_BYTES = 64  # the unit of a schedule's `panels`


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launches of a product."""
    sums, schedule = product.sums, call.schedule("strips")
    steps = schedule["steps"]
    size = (product.batch, product.rows, product.depth)
    packing, packed = pack(call, f"{product.name}_pack", product.left, sums, size, product.before, chunk=steps)
    kernel = Kernel(f"{product.name}_of_strips", tile(call.dialect, sums) + product.before)
    kernel.pointer("packed", packed, element=sums.kind)
    sizes = product.sizes(kernel)
    product.right.declare(kernel)
    product.epilogue.declare(kernel)
    block, width = schedule["block"], _NARROW_PANEL_BYTES // sums.size * schedule["panels"]
    for larger in (4, 2):
        if holds(sympy.Ge(_items(product, larger * block, 2 * width), _ENOUGH_ITEMS)):
            block, width = larger * block, 2 * width
            break
    words = {
        **sizes,
        "ITEM": call.dialect.item,
        "KIND": sums.kind,
        "SUFFIX": sums.suffix,
        "STRIP": str(STRIP),
        "BLOCK": str(block),
        "WIDTH": str(width),
        "PANEL": panel_of(sums),
        "STEPS": str(steps),
        "COMPUTED": product.right.computed(),
        "KEPT": product.right.lines("lane"),
        "ARRAYS": product.right.arrays(width),
        "PACK": _pack_columns(product.right, sums),
        "END": product.epilogue.store,
    }
    kernel.text = filled(_MAIN, words)
    kernel.groups = _items(product, block, width)
    call.launch(packing, kernel)
    call.free(packed)


def _items(product: Product, block: int, width: int) -> Any:
    return product.batch * ceil_div(product.rows, block) * ceil_div(product.columns, width)


def pack(
    call: TemplateCall,
    name: str,
    operand: Operand,
    sums: SumType,
    size: Sequence[Any],
    before: str = "",
    *,
    chunk: int | None = None,
) -> tuple[Kernel, Tensor]:
    """Return a kernel that writes an operand as strips, and the tensor it writes; `size` is (batches, lines, steps).

    The element of a line and step is at `((batch * strips + line / 6) * steps + step) * 6 + line % 6`. With `chunk`,
    the same `chunk` steps of all strips are stored together, so that a reader of these steps reads sequentially. Lines
    after the last repeat the last line instead of being 0.
    """
    batch, lines, steps = size
    strips = ceil_div(lines, STRIP)
    packed = call.allocate(Layout(sums.dtype, [batch * strips * steps * STRIP], [sympy.Integer(1)]))
    kernel = Kernel(name, before)
    kernel.pointer("packed", packed, is_written=True, element=sums.kind)
    operand.declare(kernel)
    words = {
        "ROWS": kernel.number("rows", lines),
        "DEPTH": kernel.number("depth", steps),
        "ITEM": call.dialect.item,
        "STRIP": str(STRIP),
        "STEPS": str(chunk or _PACKED_STEPS),
        "TO": "batch * strips * $DEPTH + " + ("strips * first_step + strip * steps" if chunk else _TO),
        "ARRAYS": operand.arrays(STRIP),
        "COMPUTED": operand.computed(),
        "KEPT": operand.lines("lane"),
        "LOOPS": _loops(operand, sums, str(STRIP), f"packed[to + at * {STRIP} + lane]"),
    }
    kernel.text = filled(_PACK, words)
    kernel.groups = batch * strips * ceil_div(steps, chunk or _PACKED_STEPS)
    return kernel, packed


def panel_of(sums: SumType) -> str:
    """Return the number of columns in a panel, as a constant expression. It divides the columns in 128 bytes."""
    return f"(2 * OB_WIDE_BYTES / {sums.size})"


def _loops(operand: Operand, sums: SumType, lanes: str, place: str) -> str:
    """Return the loops that load elements of some lines; the inner loop follows the memory order."""
    step = f"const ob_i64 step = first_step + at; {operand.of_step}"
    body = f"{operand.reload('lane')}{place} = {operand.element(sums)};"
    if operand.is_dense_along_steps:
        return f"""\
    for (int lane = 0; lane < {lanes}; ++lane) {{
      {operand.reload("lane")}
      for (int at = 0; at < steps; ++at) {{ {step} {place} = {operand.element(sums)}; }}
    }}
"""
    return f"""\
    for (int at = 0; at < steps; ++at) {{
      {step}
      for (int lane = 0; lane < {lanes}; ++lane) {{ {body} }}
    }}
"""


def _pack_columns(operand: Operand, sums: SumType) -> str:
    place = "part[(lane / $PANEL * $STEPS + at) * $PANEL + lane % $PANEL]"
    loops = _loops(operand, sums, "lanes", place)
    if operand.is_dense_along_steps:
        return loops
    by_panel = f"""\
    for (int at = 0; at < steps; ++at) {{
      const ob_i64 step = first_step + at;
      {operand.of_step}
      for (int first = 0; first < lanes; first += $PANEL)
        OB_VECTORS(1)
        for (int lane = first; lane < first + $PANEL; ++lane) {{
          {operand.reload("lane")}
          part[(first / $PANEL * $STEPS + at) * $PANEL + lane - first] = {operand.element(sums)};
        }}
    }}
"""
    if not operand.adjacent:
        return by_panel
    return f"""\
    if (lanes == block_columns) {{
      {operand.reload("0")}
      for (int at = 0; at < steps; ++at) {{
        const ob_i64 step = first_step + at;
        {operand.of_step}
        for (int first = 0; first < lanes; first += $PANEL)
          OB_VECTORS(1)
          for (int lane = first; lane < first + $PANEL; ++lane)
            part[(first / $PANEL * $STEPS + at) * $PANEL + lane - first] = {operand.adjacent_element(sums)};
      }}
    }} else {{
{by_panel}
    }}
"""


_TO = "strip * $DEPTH + first_step"

_PACK = """\
  const ob_i64 ob_number = $ITEM;
  if (ob_number >= ob_groups) return;
  const ob_i64 strips = ($ROWS + $STRIP - 1) / $STRIP;
  const ob_i64 strip = ob_number % strips;
  const ob_i64 chunks = ($DEPTH + $STEPS - 1) / $STEPS;
  const ob_i64 first_step = ob_number / strips % chunks * $STEPS;
  const ob_i64 batch = ob_number / strips / chunks;
  const int steps = $DEPTH - first_step < $STEPS ? (int)($DEPTH - first_step) : $STEPS;
  const ob_i64 to = ($TO) * $STRIP;
  $ARRAYS
  for (int lane = 0; lane < $STRIP; ++lane) {
    // What is beyond the last row is computed and not stored.
    const ob_i64 line = strip * $STRIP + lane < $ROWS ? strip * $STRIP + lane : $ROWS - 1;
    $COMPUTED
    $KEPT
  }
$LOOPS"""

_MAIN = """\
  const ob_i64 ob_number = $ITEM;
  if (ob_number >= ob_groups) return;
  const ob_i64 blocks = ($ROWS + $BLOCK - 1) / $BLOCK;
  const ob_i64 stripes = ($COLUMNS + $WIDTH - 1) / $WIDTH;
  const ob_i64 first_row = ob_number % blocks * $BLOCK;
  const ob_i64 first_column = ob_number / blocks % stripes * $WIDTH;
  const ob_i64 batch = ob_number / blocks / stripes;
  const int block_rows = $ROWS - first_row < $BLOCK ? (int)($ROWS - first_row) : $BLOCK;
  const int block_columns = $COLUMNS - first_column < $WIDTH ? (int)($COLUMNS - first_column) : $WIDTH;
  const int panels = (block_columns + $PANEL - 1) / $PANEL;
  const int lanes = panels * $PANEL;
  const ob_i64 strips = ($ROWS + $STRIP - 1) / $STRIP;
  $KIND part[$STEPS * $WIDTH] OB_OF_VECTORS;
  $KIND sums[$BLOCK * $WIDTH] OB_OF_VECTORS;
  for (int i = 0; i < panels * $BLOCK * $PANEL; ++i) sums[i] = 0;
  $ARRAYS
  for (int lane = 0; lane < lanes; ++lane) {
    const ob_i64 line = lane < block_columns ? first_column + lane : $COLUMNS - 1;
    $COMPUTED
    $KEPT
  }
  for (ob_i64 first_step = 0; first_step < $DEPTH; first_step += $STEPS) {
    const int steps = $DEPTH - first_step < $STEPS ? (int)($DEPTH - first_step) : $STEPS;
$PACK
    for (int panel = 0; panel < panels; ++panel)
      for (int near = 0; near < steps; near += OB_NEAR_STEPS)
        ob_strips(packed + (strips * (batch * $DEPTH + first_step) + first_row / $STRIP * steps + near) * $STRIP,
                  steps * $STRIP, part + (panel * $STEPS + near) * $PANEL, sums + panel * $BLOCK * $PANEL,
                  (block_rows + $STRIP - 1) / $STRIP, steps - near < OB_NEAR_STEPS ? steps - near : OB_NEAR_STEPS);
  }
  for (int panel = 0; panel < panels; ++panel) {
    const int first = panel * $PANEL;
    const int count = block_columns - first < $PANEL ? block_columns - first : $PANEL;
    for (int i = 0; i < block_rows; ++i) {
      const ob_i64 row = first_row + i;
      OB_VECTORS(1)
      for (int j = 0; j < count; ++j) {
        const ob_i64 column = first_column + first + j;
        const $KIND value = sums[(panel * $BLOCK + i) * $PANEL + j];
        $END
      }
    }
  }
"""


# If a dialect names no wider vectors, vectors have 32 bytes. The next steps of a panel take 16 KiB,
# which stay in the L1 cache while strips stream past.
_WIDE = (
    "#ifndef OB_WIDE_BYTES",
    "#define OB_WIDE_BYTES 32",
    "#define OB_WIDE(name) ob_vec_##name",
    "#define OB_WIDE_DEVICE OB_DEVICE",
    "#endif",
    "#define OB_OF_VECTORS OB_ALIGNED(OB_WIDE_BYTES)",
    "#define OB_NEAR_STEPS (8192 / OB_WIDE_BYTES)",
)


def tile(dialect: Dialect, sums: SumType) -> str:
    """Return `ob_strips(left, apart, right, sums, strips, steps)`, which adds the products of strips and a panel.

    `apart` is the distance between strips in `left`. All loops over rows and vectors are unrolled, so that sums stay in
    registers: the sums of two strips with 64-byte vectors, for which there are 32 registers. The sums restart at 0 for
    each part of the steps, which loses fewer digits than one long sum.
    """
    left = dialect.pointer(sums.kind, is_written=False)
    words = {"LEFT": left, "KIND": sums.kind, "STRIP": str(STRIP), "PANEL": panel_of(sums)}
    one, two = (_tile(name, left, sums, strips) for name, strips in (("ob_one_strip", 1), ("ob_two_strips", 2)))
    return "\n".join([*_WIDE, one, "#if OB_WIDE_BYTES == 64", two, "#endif", filled(_STRIPS, words)])


_STRIPS = """\
OB_WIDE_DEVICE void ob_strips($LEFT left, const ob_i64 apart, const $KIND* right, $KIND* sums, int strips, int steps) {
  int at = 0;
#if OB_WIDE_BYTES == 64
  for (; at + 1 < strips; at += 2)
    ob_two_strips(left + at * apart, apart, right, sums + at * $STRIP * $PANEL, steps);
#endif
  for (; at < strips; ++at) ob_one_strip(left + at * apart, right, sums + at * $STRIP * $PANEL, steps);
}
"""


def _tile(name: str, left: str, sums: SumType, strips: int) -> str:
    kind, suffix, panel = sums.kind, sums.suffix, panel_of(sums)
    pairs = [(row, vector) for row in range(strips * STRIP) for vector in range(2)]
    vector, added = f"const OB_WIDE({suffix})", f"OB_WIDE(add_product_{suffix})"
    apart = " const ob_i64 apart," if strips > 1 else ""
    lines = [
        f"OB_WIDE_DEVICE void {name}({left} left,{apart} const {kind}* right, {kind}* sums, int steps) {{",
        *(f"  OB_WIDE({suffix}) s{row}_{column} = OB_WIDE(splat_{suffix})(0);" for row, column in pairs),
        "  for (int at = 0; at < steps; ++at) {",
        f"    {vector} r0 = OB_WIDE(load_{suffix})(right + at * {panel});",
        f"    {vector} r1 = OB_WIDE(load_{suffix})(right + at * {panel} + {panel} / 2);",
    ]
    for row in range(strips * STRIP):
        place = f"at * {STRIP} + {row % STRIP}" + (" + apart" if row >= STRIP else "")
        lines.append(f"    const {kind} l{row} = left[{place}];")
        lines += [f"    s{row}_{column} = {added}(l{row}, r{column}, s{row}_{column});" for column in range(2)]
    lines.append("  }")
    for row, column in pairs:
        place = f"sums + {row * 2 + column} * ({panel} / 2)"
        lines.append(f"  OB_WIDE(store_{suffix})(OB_WIDE(load_{suffix})({place}) + s{row}_{column}, {place});")
    return "\n".join([*lines, "}", ""])

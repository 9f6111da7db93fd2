# SPDX-License-Identifier: BSD-3-Clause
"""Long sums in parts: groups share the steps of a product, and a second launch adds their sums in a fixed order."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import Epilogue, Product, filled, partly_filled

__all__ = ["add_parts", "allocate_parts", "epilogue_of_parts", "range_of_split", "sum_of_parts"]

_NAMES = ("row", "column")


def range_of_split(count: str, kind: str = "ob_i64") -> str:
    """Return the statements that declare `from_count` and `to_count`, the split's range of `count` things.

    The count, such as "$DEPTH", may be an expression; `kind` is the type of the results. If the count is not a multiple
    of the splits, the first splits have one more each. The text must declare `split`, and replace $SPLITS.
    """
    return partly_filled(_RANGE, {"COUNT": f"({kind})({count})", "KIND": kind})


def allocate_parts(call: TemplateCall, product: Product, splits: Any) -> Tensor:
    count = product.batch * product.rows * product.columns
    return call.allocate(Layout(torch.float32, [splits * count], [sympy.Integer(1)]))


def epilogue_of_parts(part: Tensor, names: tuple[str, str] = _NAMES) -> Epilogue:
    """Return the stores of one split's sums. `names` are the names of the product's rows and columns."""
    return Epilogue(
        declare=lambda kernel: kernel.pointer("part", part, is_written=True),
        value="value",
        place=f"part[((split * $BATCH + batch) * $ROWS + {names[0]}) * $COLUMNS + {names[1]}]",
        dtype=torch.float32,
        dense=names[1],
        multiples=("$COLUMNS",),
        pointer="part",
    )


def sum_of_parts(
    call: TemplateCall, product: Product, part: Tensor, splits: Any, names: tuple[str, str] = _NAMES
) -> Kernel:
    """Return the launch that adds all parts' sums and stores the results."""
    kernel = Kernel(f"{product.name}_of_parts", product.before)
    words = product.sizes(kernel)
    product.epilogue.declare(kernel)
    words |= {"END": product.epilogue.store, "ROW": names[0], "COLUMN": names[1]}
    words |= {"OUTER": "batch", "OUTERS": "$BATCH", "OF_OUTER": words["OF_BATCH"]}
    add_parts(call, kernel, part, product.batch * product.rows * product.columns, splits, words)
    return kernel


def add_parts(call: TemplateCall, kernel: Kernel, part: Tensor, count: Any, splits: Any, words: dict[str, str]) -> None:
    """Write the sum over all splits of each of `count` results, whose parts are consecutive, and its store, $END."""
    kernel.pointer("part", part)
    words = words | {
        "ITEM": call.dialect.item,
        "UNROLL": call.dialect.unroll,
        "SPLITS": kernel.number("splits", splits),
    }
    kernel.text = filled(_SUM, words)
    kernel.spread(call, count, call.dialect.group)


# Compute the next split in 32 bits. If `split` is derived from the group's number, NVIDIA's SPIR-V
# compiler (580.159) computes a 64-bit `split + 1` wrongly, as the number of another group.
_RANGE = """\
const ob_u32 this_split = (ob_u32)split, next_split = this_split + 1;
  const $KIND of_split = $COUNT / ($KIND)$SPLITS, longer = $COUNT - of_split * ($KIND)$SPLITS;
  const $KIND from_count = of_split * this_split + (this_split < longer ? this_split : longer);
  const $KIND to_count = of_split * next_split + (next_split < longer ? next_split : longer);"""

_SUM = """\
  const ob_i64 number = $ITEM, count = $OUTERS * $ROWS * $COLUMNS;
  if (number >= count) return;
  const ob_i64 $COLUMN = number % $COLUMNS, $ROW = number / $COLUMNS % $ROWS, $OUTER = number / $COLUMNS / $ROWS;
$OF_OUTER  float value = 0;
  ob_i64 split = 0;
  // Eight loads do not wait for each other.
  for (; split + 8 <= $SPLITS; split += 8) {
    float parts[8];
    $UNROLL
    for (int i = 0; i < 8; ++i) parts[i] = part[(split + i) * count + number];
    $UNROLL
    for (int i = 0; i < 8; ++i) value += parts[i];
  }
  for (; split < $SPLITS; ++split) value += part[split * count + number];
  $END
"""

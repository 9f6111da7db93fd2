# SPDX-License-Identifier: BSD-3-Clause
"""Depthwise convolutions (one channel per group) of tensors with adjacent channels in memory.

An item loads 16 bytes of adjacent channels at a time. It computes adjacent pixels, so that it loads an element of the
source once for several results. Unaligned data is loaded element by element. For the weight's gradient, an item
processes a row of the window and some rows of pixels, and a second launch adds the sums of all items.

The first of these kernels also computes convolutions with groups of two, four or eight channels, if 16 bytes hold whole
groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES, Dialect
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor, simplified
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.convolution_shape import NamedTensor, Shape, biased, declares
from torch_outboard.kernels.templates.product import Product, SumType, ceil_div, filled, loaded, stored
from torch_outboard.kernels.templates.schedules.matrix_sides import wide
from torch_outboard.kernels.templates.schedules.parts import allocate_parts, range_of_split, sum_of_parts

__all__ = ["convolve", "takes", "weights"]

_BYTES = 16  # bytes that an item loads at a time
# Pixels per item: the larger number that still leaves this many items.
_PIXELS, _ENOUGH_ITEMS = (4, 2), 1 << 16
# The most positions in a window's last dimension (an item keeps their weights in registers), and
# the most pixels that an item reads in a row.
_MAX_TAPS, _MAX_PLACES = 9, 32
# Items that add up the gradient of a weight, and the maximum number of parts of a sum.
_ADDING, _PARTS = 1 << 15, 512


def takes(call: TemplateCall, shape: Shape, *images: Tensor, is_spread: bool = False, has_groups: bool = False) -> bool:
    """Return whether the kernels support a convolution of images or, with `is_spread`, a transposed convolution.

    With a stride of 1, a transposed convolution also reads windows, with their positions in reverse order. With
    `has_groups`, groups of several channels are supported too.
    """
    if not shape.is_direct or (is_spread and any(step != 1 for step in shape.stride)):
        return False
    weight, known, guarded = call.tensor("weight"), V.graph.sizevars.statically_known_equals, V.graph.sizevars.guard_int
    # These numbers are already constants: the shape fixed them before it created the texts of
    # sizes.
    of_group = guarded(FloorDiv(weight.size[0], shape.groups)), guarded(weight.size[1])
    chunk, taps = _BYTES // weight.dtype.itemsize, guarded(weight.size[-1])
    return (
        of_group[0] == of_group[1]
        and (of_group[0] == 1 or (has_groups and chunk % of_group[0] == 0))
        and weight.dtype.itemsize in (2, 4)
        and shape.groups * of_group[0] % chunk == 0
        and all(known(image.stride[1], 1) for image in images)
        and taps <= _MAX_TAPS
        and (taps - 1) * shape.dilation[-1] + (_PIXELS[0] - 1) * shape.stride[-1] < _MAX_PLACES
        and shape.kind == "ob_i32"
    )


def convolve(
    call: TemplateCall,
    shape: Shape,
    source: NamedTensor,
    weight: NamedTensor,
    out: NamedTensor,
    bias: Tensor | None,
    *,
    is_spread: bool,
) -> None:
    """Write the launch. All three tensors have adjacent channels; the weight's are its first dimension."""
    kernel = Kernel("ob_depthwise_convolution")
    declare_end, value = biased(out, bias, "(first + in_chunk)", shape.sums)
    declares(source, weight)(kernel)
    declare_end(kernel)
    window, last = _window(weight), shape.rank - 1
    of_group = int(V.graph.sizevars.guard_int(weight.tensor.size[1]))
    each = shape.groups * of_group // _chunk(source)
    pixels = _pixels(out, each)
    kernel.before = _Chunks(call.dialect, source.tensor.dtype, shape.sums).helpers
    words = _words(call, shape, window, pixels, source, weight, out) | {
        "BEGINS": "\n  ".join(_begins(shape, window, is_spread)),
        "LOOPS": _loops(shape, source, weight, window, is_spread),
        "TAP": f"{window[last] - 1} - tap" if is_spread else "tap",
        "TAP_STRIDE": weight.stride(2 + last),
        "VALUE": value,
        "EACH": str(each),
        "SUMS": _OF_CHANNELS + _BY_PLACES if of_group == 1 else _OF_GROUPS,
        "BEGIN": f"y{last}",
        "SUM": "sums[pixel][in_chunk]",
        "FACTOR": "weights[ahead / $DILATION][in_chunk]",
        "OF_GROUP": str(of_group),
        "OTHER_STRIDE": weight.stride(1),
    }
    kernel.text = filled(_TEXT, words)
    count = out.tensor.size[0] * prod(out.grid[:-1], start=sympy.Integer(1)) * ceil_div(out.grid[-1], pixels) * each
    kernel.spread(call, count, 128)
    call.launch(kernel)


def weights(call: TemplateCall, shape: Shape, grid: NamedTensor, image: NamedTensor, product: Product) -> None:
    """Write the launches of the weight's gradient, a product with one row."""
    kernel = Kernel("ob_depthwise_weights")
    declares(grid, image)(kernel)
    window, last = _window(call.tensor("weight")), shape.rank - 1
    outer, each = prod(window[:-1]), shape.groups // _chunk(image)
    rows = grid.tensor.size[0] * prod(grid.grid[:-1], start=sympy.Integer(1))
    splits = simplified(sympy.Max(1, sympy.Min(rows, min(_PARTS, max(1, _ADDING // (outer * each))))))
    part = allocate_parts(call, product, splits)
    kernel.pointer("part", part, is_written=True)
    kernel.before = _Chunks(call.dialect, image.tensor.dtype, shape.sums).helpers
    taps, made, inside, from_ = "outer", [], ["1"], ["batch * " + image.stride(0) + " + first"]
    for i in reversed(range(last)):
        made.append(f"const ob_i32 k{i} = {taps} % {window[i]};")
        taps = f"{taps} / {window[i]}"
    for i in range(last):
        at = f"q{i} * {shape.stride[i]} - {shape.padding[i]} + k{i} * {shape.dilation[i]}"
        inside.append(image.has(f"({at})", 2 + i))
        from_.append(f"({at}) * {image.stride(2 + i)}")
    words = _words(call, shape, window, _PIXELS[0], image, grid, grid) | {
        "SPLITS": kernel.number("splits", splits),
        "OF_SPLIT": range_of_split("$BATCHES * ($ROWS)"),
        "OUTER": str(outer),
        "OF_OUTER": "\n  ".join(made),
        "INSIDE": " && ".join(inside),
        "FROM": " + ".join(from_),
        "SUMS": _BY_PLACES,
        "BEGIN": f"q * {shape.stride[last]} - {shape.padding[last]}",
        "SUM": "sums[ahead / $DILATION][in_chunk]",
        "FACTOR": "gradients[pixel][in_chunk]",
        "EACH": str(each),
        "GROUPS": str(shape.groups),
    }
    kernel.text = filled(_WEIGHTS, words)
    kernel.spread(call, splits * outer * each, 128)
    call.launch(kernel, sum_of_parts(call, product, part, splits))
    call.free(part)


def _chunk(image: NamedTensor) -> int:
    return _BYTES // image.tensor.dtype.itemsize


def _window(weight: NamedTensor | Tensor) -> list[int]:
    tensor = weight.tensor if isinstance(weight, NamedTensor) else weight
    return [int(V.graph.sizevars.guard_int(size)) for size in tensor.size[2:]]


def _words(
    call: TemplateCall,
    shape: Shape,
    window: list[int],
    pixels: int,
    source: NamedTensor,
    other: NamedTensor,
    grid: NamedTensor,
) -> dict[str, str]:
    """Return the placeholder texts of both kernels. Items compute `pixels` of the grid from the source's windows."""
    chunk, last = _chunk(source), shape.rank - 1
    others = [*source.others(1), *grid.others(1), *(other.others(0) if other is not grid else ())]
    pointers = dict.fromkeys((source.name, other.name, grid.name))
    return {
        "ITEM": call.dialect.item,
        "UNROLL": call.dialect.unroll,
        "CHUNK": str(chunk),
        "PIXELS": str(pixels),
        "LAST": str(last),
        "WIDTH": grid.size(2 + last),
        "BATCHES": grid.size(0),
        "ROWS": " * ".join(grid.size(dim) for dim in range(2, 2 + last)) or "1",
        "OF_ROW": "\n  ".join(
            f"const ob_i32 q{i} = row % (ob_i32){grid.size(2 + i)}; row /= (ob_i32){grid.size(2 + i)};"
            for i in reversed(range(last))
        ),
        "WIDE": " && ".join(
            wide(pointer, tuple(others) if i == 0 else (), chunk, _BYTES) for i, pointer in enumerate(pointers)
        ),
        "BATCH_STRIDE": source.stride(0),
        "TAPS": str(window[last]),
        "PLACES": str((pixels - 1) * shape.stride[last] + (window[last] - 1) * shape.dilation[last] + 1),
        "APART": str(shape.stride[last]),
        "DILATION": str(shape.dilation[last]),
        "SOURCE": source.name,
        "GRID": grid.name,
        "HAS": source.has("x", 2 + last),
        "STEP": source.stride(2 + last),
        "TO": " + ".join([f"batch * {grid.stride(0)} + first", *(f"q{i} * {grid.stride(2 + i)}" for i in range(last))]),
        "TO_STEP": grid.stride(2 + last),
    }


def _pixels(out: NamedTensor, each: int) -> int:
    """Return the number of pixels per item."""
    pixels = out.tensor.size[0] * prod(out.grid, start=sympy.Integer(1)) * each
    return next((count for count in _PIXELS if holds(sympy.Ge(pixels, count * _ENOUGH_ITEMS))), 1)


def _begins(shape: Shape, window: list[int], is_spread: bool) -> list[str]:
    """Return the statements that compute where an item's first window begins."""
    return [
        f"const ob_i32 y{i} = q{i} + {shape.padding[i] - (window[i] - 1) * shape.dilation[i]};"
        if is_spread
        else f"const ob_i32 y{i} = q{i} * {shape.stride[i]} - {shape.padding[i]};"
        for i in range(shape.rank)
    ]


def _loops(shape: Shape, source: NamedTensor, weight: NamedTensor, window: list[int], is_spread: bool) -> str:
    """Return the loops over the window's rows, restricted to rows inside the source."""
    text, from_, weight_from = "", [], []
    for i in range(shape.rank - 1):
        tap = f"({window[i] - 1} - k{i})" if is_spread else f"k{i}"
        text += f"for (int k{i} = 0; k{i} < {window[i]}; ++k{i})\n  "
        text += f"if ({source.has(f'y{i} + k{i} * {shape.dilation[i]}', 2 + i)})\n  "
        from_.append(f"(y{i} + k{i} * {shape.dilation[i]}) * {source.stride(2 + i)}")
        weight_from.append(f"{tap} * {weight.stride(2 + i)}")
    return f"""{text}{{
    const ob_i32 row_from = {" + ".join(["from", *from_])};
    const ob_i32 weight_from = {" + ".join(["first", *weight_from])};"""


@dataclass(frozen=True)
class _Chunks:
    """How a language moves 16 bytes of elements between memory and registers."""

    dialect: Dialect
    dtype: torch.dtype
    sums: SumType

    @property
    def helpers(self) -> str:
        kind, four = STORAGE_TYPES[self.dtype], self.dialect.four("ob_u32")
        is_half, count = self.dtype.itemsize == 2, _BYTES // self.dtype.itemsize
        words = "word[0] = four.x; word[1] = four.y; word[2] = four.z; word[3] = four.w;"
        element = "(ob_u16)(word[in_chunk / 2] >> in_chunk % 2 * 16)" if is_half else "OB_AS_F32(word[in_chunk])"
        joined = "(ob_u32)kept[{0}] | (ob_u32)kept[{1}] << 16" if is_half else "OB_AS_U32(kept[{0}])"
        parts = [joined.format(2 * i, 2 * i + 1) if is_half else joined.format(i) for i in range(4)]
        return filled(
            _HELPERS,
            {
                "KIND": kind,
                "READ": self.dialect.pointer(kind, is_written=False),
                "WRITTEN": self.dialect.pointer(kind, is_written=True),
                "FOUR": four,
                "CHUNK": str(count),
                "UNROLL": self.dialect.unroll,
                "LOAD": f"const {four} four = {self.dialect.load_16_bytes('from[0]')}; {words}",
                "OF_WORD": loaded(element, self.dtype, self.sums),
                "ELEMENT": loaded("from[in_chunk]", self.dtype, self.sums),
                "KEEP": stored("kept[in_chunk]", "from[in_chunk]", self.dtype),
                "PARTS": " ".join(f"four.{lane} = {part};" for lane, part in zip("xyzw", parts, strict=True)),
            },
        )


_HELPERS = """\
OB_DEVICE void ob_load_chunk(OB_OWN(float, into, $CHUNK), $READ from, bool is_wide) {
  if (is_wide) {
    ob_u32 word[4];
    $LOAD
    $UNROLL
    for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) into[in_chunk] = $OF_WORD;
  } else {
    $UNROLL
    for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) into[in_chunk] = $ELEMENT;
  }
}
OB_DEVICE void ob_store_chunk($WRITTEN to, OB_OWN(float, from, $CHUNK), bool is_wide) {
  $KIND kept[$CHUNK];
  $UNROLL
  for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) $KEEP
  if (is_wide) {
    $FOUR four;
    $PARTS
    *(OB_GLOBAL $FOUR*)to = four;
  } else {
    $UNROLL
    for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) to[in_chunk] = kept[in_chunk];
  }
}
"""

# An element of the source is loaded once for all pixels.
_BY_PLACES = """\
    $UNROLL
    for (int place = 0; place < $PLACES; ++place) {
      const ob_i32 x = $BEGIN + place;
      if ($HAS) {
        float elements[$CHUNK];
        ob_load_chunk(elements, $SOURCE + (row_from + x * $STEP), is_wide);
        $UNROLL
        for (int pixel = 0; pixel < $PIXELS; ++pixel) {
          const int ahead = place - pixel * $APART;
          if (ahead >= 0 && ahead % $DILATION == 0 && ahead / $DILATION < $TAPS) {
            $UNROLL
            for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) $SUM = OB_LIB(fma)($FACTOR, elements[in_chunk], $SUM);
          }
        }
      }
    }"""

_OF_CHANNELS = """\
    float weights[$TAPS][$CHUNK];
    $UNROLL
    for (int tap = 0; tap < $TAPS; ++tap)
      ob_load_chunk(weights[tap], weight + (weight_from + ($TAP) * $TAP_STRIDE), is_wide);
"""

# The weights of a window position are loaded once for all pixels.
_OF_GROUPS = """\
    $UNROLL
    for (int tap = 0; tap < $TAPS; ++tap) {
      float weights[$OF_GROUP][$CHUNK];
      $UNROLL
      for (int of_group = 0; of_group < $OF_GROUP; ++of_group)
        ob_load_chunk(
            weights[of_group], weight + (weight_from + of_group * $OTHER_STRIDE + ($TAP) * $TAP_STRIDE), is_wide);
      $UNROLL
      for (int pixel = 0; pixel < $PIXELS; ++pixel) {
        const ob_i32 x = y$LAST + pixel * $APART + tap * $DILATION;
        if ($HAS) {
          float elements[$CHUNK];
          ob_load_chunk(elements, $SOURCE + (row_from + x * $STEP), is_wide);
          $UNROLL
          for (int of_group = 0; of_group < $OF_GROUP; ++of_group) {
            $UNROLL
            for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk)
              sums[pixel][in_chunk] =
                  OB_LIB(fma)(weights[of_group][in_chunk], elements[in_chunk / $OF_GROUP * $OF_GROUP + of_group],
                              sums[pixel][in_chunk]);
          }
        }
      }
    }"""

# Adjacent items process adjacent channels.
_TEXT = """\
  const ob_i64 number = $ITEM;
  const ob_i32 across = ($WIDTH + $PIXELS - 1) / $PIXELS;
  if (number >= (ob_i64)$BATCHES * ($ROWS) * across * $EACH) return;
  const ob_i32 first = (ob_i32)number % $EACH * $CHUNK;
  ob_i32 row = (ob_i32)number / $EACH;
  const ob_i32 q$LAST = row % across * $PIXELS;
  row /= across;
  $OF_ROW
  const ob_i32 batch = row, from = batch * $BATCH_STRIDE + first;
  $BEGINS
  const bool is_wide = $WIDE;
  float sums[$PIXELS][$CHUNK];
  $UNROLL
  for (int pixel = 0; pixel < $PIXELS; ++pixel) {
    $UNROLL
    for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) sums[pixel][in_chunk] = 0;
  }
  $LOOPS
$SUMS
  }
  $UNROLL
  for (int pixel = 0; pixel < $PIXELS; ++pixel) {
    if (q$LAST + pixel < $WIDTH) {
      $UNROLL
      for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) {
        const float value = sums[pixel][in_chunk];
        sums[pixel][in_chunk] = $VALUE;
      }
      ob_store_chunk(result + ($TO + (q$LAST + pixel) * $TO_STEP), sums[pixel], is_wide);
    }
  }
"""

# The partial results are added in row order.
_WEIGHTS = """\
  const ob_i64 number = $ITEM;
  if (number >= $SPLITS * $OUTER * $EACH) return;
  const ob_i32 first = (ob_i32)number % $EACH * $CHUNK, outer = (ob_i32)number / $EACH % $OUTER;
  const ob_i64 split = number / $EACH / $OUTER;
  $OF_SPLIT
  $OF_OUTER
  const bool is_wide = $WIDE;
  float sums[$TAPS][$CHUNK];
  $UNROLL
  for (int tap = 0; tap < $TAPS; ++tap) {
    $UNROLL
    for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) sums[tap][in_chunk] = 0;
  }
  for (ob_i32 of_all = (ob_i32)from_count; of_all < (ob_i32)to_count; ++of_all) {
    ob_i32 row = of_all;
    $OF_ROW
    const ob_i32 batch = row;
    if ($INSIDE) {
      const ob_i32 row_from = $FROM, grid_from = $TO;
      for (ob_i32 q = 0; q < $WIDTH; q += $PIXELS) {
        float gradients[$PIXELS][$CHUNK];
        $UNROLL
        for (int pixel = 0; pixel < $PIXELS; ++pixel) {
          $UNROLL
          for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk) gradients[pixel][in_chunk] = 0;
          if (q + pixel < $WIDTH)
            ob_load_chunk(gradients[pixel], $GRID + (grid_from + (q + pixel) * $TO_STEP), is_wide);
        }
$SUMS
      }
    }
  }
  $UNROLL
  for (int tap = 0; tap < $TAPS; ++tap) {
    $UNROLL
    for (int in_chunk = 0; in_chunk < $CHUNK; ++in_chunk)
      part[((split * $GROUPS + first + in_chunk) * $OUTER + outer) * $TAPS + tap] = sums[tap][in_chunk];
  }
"""

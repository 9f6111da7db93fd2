# SPDX-License-Identifier: BSD-3-Clause
"""Tensors whose channels are adjacent in memory, as matrix units need them, and copies with this layout."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, Mod

from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor, simplified
from torch_outboard.kernels.templates.product import ceil_div, filled

__all__ = ["NARROW", "Divisions", "Size", "by_channels", "holds", "is_narrow"]

_BYTES = 16  # bytes loaded at a time
# Below this bound, sizes are counted in 32 bits, which divide several times faster than 64.
NARROW = (1 << 31) - (1 << 20)


def holds(condition: Any) -> bool:
    """Evaluate a condition on the sizes. The plan then serves only calls with the same answer."""
    return bool(V.graph.sizevars.evaluate_expr(sympy.sympify(condition)))


def is_narrow(*tensors: Layout) -> bool:
    """Return whether 32 bits suffice to number the elements of tensors and their positions in memory."""
    return all(
        holds(sympy.Le(prod(tensor.size, start=sympy.Integer(1)), NARROW))
        and holds(
            sympy.Le(sum((size - 1) * stride for size, stride in zip(tensor.size, tensor.stride, strict=True)), NARROW)
        )
        for tensor in tensors
    )


class Size(NamedTuple):
    """A number of elements: its text in kernels and its value."""

    text: str
    value: Any


class Divisions:
    """Divisions by sizes. A 32-bit number is multiplied by the size's inverse, which the launch passes.

    The inverse is 2^62 / size, rounded up. Quotients are exact for numbers and sizes below 2^31.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._sizes: dict[str, Any] = {}

    def over(self, number: str, size: Size) -> str:
        """Return the text of a number divided by a size."""
        if simplified(size.value) == 1:
            return number
        if self.kind == "ob_i64":
            return f"((ob_i64)({number}) / {size.text})"
        if isinstance(simplified(size.value), sympy.Integer):
            return f"((ob_i32)({number}) / (ob_i32){size.text})"
        self._sizes[size.text] = size.value
        return f"ob_over((ob_i32)({number}), over_{list(self._sizes).index(size.text)})"

    def rest(self, number: str, size: Size) -> str:
        """Return the text of the remainder."""
        if simplified(size.value) == 1:
            return "0"
        if self.kind == "ob_i64" or isinstance(simplified(size.value), sympy.Integer):
            return f"(({self.kind})({number}) % ({self.kind}){size.text})"
        return f"((ob_i32)({number}) - {self.over(number, size)} * (ob_i32){size.text})"

    def declare(self, kernel: Kernel) -> None:
        """Declare the inverses of all sizes used so far."""
        for number, size in enumerate(self._sizes.values()):
            kernel.parameter(f"over_{number}", FloorDiv(1 << 62, sympy.Max(1, size)) + 1)


def by_channels(call: TemplateCall, tensor: Tensor, groups: int = 1) -> Tensor:
    """Return a tensor of batch, channels and grid whose adjacent channels fill 16 bytes: the tensor itself or a copy.

    In a copy, zeros pad the channels of each group. The caller frees the copy.
    """
    chunk = _BYTES // tensor.dtype.itemsize
    channels = FloorDiv(tensor.size[1], groups)
    is_whole = holds(sympy.Eq(Mod(channels, chunk), 0))
    if is_whole and V.graph.sizevars.statically_known_equals(tensor.stride[1], 1):
        return tensor
    padded = channels if is_whole else ceil_div(channels, chunk) * chunk
    size = [tensor.size[0], padded * groups, *tensor.size[2:]]
    strides: list[Any] = []
    for dim in reversed(range(2, len(size))):
        strides.insert(0, strides[0] * size[dim + 1] if strides else size[1])
    strides = [strides[0] * size[2], sympy.Integer(1), *strides]
    copy = call.allocate(Layout(tensor.dtype, size, strides))
    call.launch(_copy(call, tensor, copy, channels, padded))
    return copy


def _copy(call: TemplateCall, tensor: Tensor, copy: Tensor, channels: Any, padded: Any) -> Kernel:
    kernel = Kernel("ob_by_channels")
    chunk = _BYTES // tensor.dtype.itemsize
    kind = "ob_i32" if is_narrow(tensor, copy) else "ob_i64"
    bits = {2: "ob_u16", 4: "ob_u32"}[tensor.dtype.itemsize]
    kernel.pointer("image", tensor, element=bits)
    kernel.pointer("copy", copy, is_written=True, element=bits)
    divisions = Divisions(kind)
    grid = [Size(kernel.number(f"size{dim}", tensor.size[dim]), tensor.size[dim]) for dim in range(2, len(tensor.size))]
    places, number = [], "pixel"
    for dim in reversed(range(len(grid))):
        at = divisions.rest(number, grid[dim]) if dim > 0 else number
        places.append(f"{at} * ({kind}){kernel.number(f'stride{dim + 2}', tensor.stride[dim + 2])}")
        number = divisions.over(number, grid[dim])
    divisions.declare(kernel)
    four = call.dialect.four("ob_u32")
    words = {
        "INDEX": kind,
        "ITEM": call.dialect.item,
        "BATCHES": kernel.number("batches", tensor.size[0]),
        "PIXELS": f"({' * '.join(size.text for size in grid) or '1'})",
        "ALL": kernel.number("all", copy.size[1]),
        "CHANNELS": kernel.number("channels", channels),
        "PADDED": kernel.number("padded", padded),
        "BATCH_STRIDE": kernel.number("stride0", tensor.stride[0]),
        "CHANNEL_STRIDE": kernel.number("stride1", tensor.stride[1]),
        "PLACE": " + ".join(places) or "0",
        "CHUNK": str(chunk),
        "UNROLL": call.dialect.unroll,
        "WORD": "next[at / 2] |= (ob_u32)element << at % 2 * 16;" if chunk == 8 else "next[at] = element;",
        "FOUR": four,
        "PARTS": " ".join(f"four.{part} = next[{i}];" for i, part in enumerate("xyzw")),
    }
    kernel.text = filled(_COPY, words)
    pixels = prod(tensor.size[2:], start=tensor.size[0])
    kernel.spread(call, pixels * FloorDiv(copy.size[1], chunk), 128)
    return kernel


# Adjacent items copy adjacent pixels.
_COPY = """\
  const ob_i64 number = $ITEM, pixels = $PIXELS;
  if (number >= $BATCHES * pixels * ($ALL / $CHUNK)) return;
  const $INDEX pixel = ($INDEX)number % ($INDEX)pixels, of_pixel = ($INDEX)number / ($INDEX)pixels;
  const $INDEX first = of_pixel % ($INDEX)($ALL / $CHUNK) * $CHUNK, batch = of_pixel / ($INDEX)($ALL / $CHUNK);
  const $INDEX channel = first / ($INDEX)$PADDED * ($INDEX)$CHANNELS, beside = first % ($INDEX)$PADDED;
  const $INDEX place = batch * ($INDEX)$BATCH_STRIDE + $PLACE;
  ob_u32 next[4] = {0, 0, 0, 0};
  $UNROLL
  for (int at = 0; at < $CHUNK; ++at) {
    if (beside + at < $CHANNELS) {
      const ob_u32 element = image[place + (channel + beside + at) * ($INDEX)$CHANNEL_STRIDE];
      $WORD
    }
  }
  $FOUR four;
  $PARTS
  *(OB_GLOBAL $FOUR*)(copy + (batch * ($INDEX)pixels + pixel) * ($INDEX)$ALL + first) = four;
"""

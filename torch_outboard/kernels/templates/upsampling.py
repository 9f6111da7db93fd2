# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of resized images: an item sums one element of the input's gradient.

The item visits the results whose windows may contain its element, and computes their weights as the forward kernel
does. There are no atomic additions, so gradients are deterministic. Along each dimension, the scale bounds the range of
results to visit, with a margin for rounding. Windows are clipped at the image's edges, so there the range extends to
the last result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import SumType, filled, loaded, stored

__all__ = ["backward", "upsample_backward"]

_AXES = ("depth", "height", "width")

_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "upsample_backward(Tensor grad, Tensor like, str kind, bool align_corners, float[] scales) -> Tensor"
)
_library.impl(  # type: ignore[no-untyped-call]
    "upsample_backward", lambda grad, like, *_: torch.empty_like(like), "Meta"
)

# The gradient has the shape and strides of `like`. Kinds are "nearest", "nearest_exact", "linear"
# and "cubic". A scale of 0 means the ratio of the sizes.
upsample_backward = torch.ops.outboard.upsample_backward.default


def backward(call: TemplateCall) -> list[str | None]:
    grad = call.tensor("grad")
    (layout,) = call.results
    assert layout is not None
    if not grad.dtype.is_floating_point:
        raise CallRefusal(f"the gradient isn't supported in {grad.dtype} [products]")
    result = call.allocate(layout)
    count: sympy.Expr = sympy.Integer(1)
    for size in result.size:
        count = count * size
    kernel = Kernel("ob_upsample_backward")
    kernel.spread(call, count)
    kernel.pointer("grad", grad)
    kernel.pointer("result", result, is_written=True)
    _write(call, kernel, grad, result, count)
    call.launch(kernel)
    return [result.name]


def _write(call: TemplateCall, kernel: Kernel, grad: Tensor, result: Tensor, count: Any) -> None:
    kind, is_aligned = call.arguments["kind"], call.arguments["align_corners"]
    scales: Sequence[float] = call.arguments["scales"]
    sums = SumType.of(grad.dtype)
    axes = _AXES[-len(scales) :]
    names = ("image", "channel", *axes)
    sizes = {name: kernel.number(f"in_{name}", size) for name, size in zip(names, result.size, strict=True)}
    words = {
        # Nearest kernels use float scales for every type.
        "REAL": "float" if kind.startswith("nearest") else sums.kind,
        "SUM": sums.kind,
        "ITEM": call.dialect.item,
        "COUNT": kernel.number("count", count),
        "SOURCE": "scale * ($REAL)to" if is_aligned else _SOURCES[kind],
        "WEIGHT": _WEIGHTS[kind],
        "GRAD": loaded(f"grad[{_place(kernel, 'grad', grad, names[:2], axes)}]", grad.dtype, sums),
        "STORE": stored(f"result[{_place(kernel, 'result', result, names, ())}]", "sum", result.dtype),
    }
    lines = [f"  const ob_i64 {name} = rest % {sizes[name]};\n  rest /= {sizes[name]};\n" for name in reversed(names)]
    for number, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        out = kernel.number(f"out_{axis}", grad.size[number + 2])
        text = _scale(kind, sizes[axis], out, scale, is_aligned)
        ranges = {"IN": sizes[axis], "OUT": out, "SCALE": text, "REAL": words["REAL"]}
        lines.append(filled(_RANGE.replace("@", axis), ranges))
    kernel.before = filled(_HELPER, words)
    kernel.text = filled("".join([_BEGIN, *lines, _loops(axes, sizes), "  $STORE\n"]), words)


def _scale(kind: str, size: str, out: str, scale: float, is_aligned: bool) -> str:
    """Return how many input elements a result advances by, computed as in the CPU's kernels."""
    if is_aligned:
        return f"({out} > 1 ? ($REAL)({size} - 1) / ($REAL)({out} - 1) : ($REAL)0)"
    text = f"($REAL){1 / scale!r}" if scale > 0 else f"($REAL){size} / ($REAL){out}"
    if kind == "nearest":
        # For these two sizes, the CPU's kernel uses their ratio and ignores the scale.
        return f"({out} == {size} ? ($REAL)1 : {out} == 2 * {size} ? ($REAL)0.5 : {text})"
    return text


def _place(kernel: Kernel, name: str, tensor: Tensor, items: Sequence[str], results: Sequence[str]) -> str:
    """Return an element's position: the item's coordinates, then a result's coordinates."""
    coordinates = [*items, *(f"{axis}_to" for axis in results)]
    strides = [kernel.number(f"{name}_stride_{number}", stride) for number, stride in enumerate(tensor.stride)]
    return " + ".join(f"{at} * {stride}" for at, stride in zip(coordinates, strides, strict=True))


def _loops(axes: Sequence[str], sizes: Mapping[str, str]) -> str:
    """Return the loops over the results along each axis."""
    text = "  $SUM sum = 0;\n"
    for axis in axes:
        text += (
            f"  for (ob_i64 {axis}_to = {axis}_first; {axis}_to < {axis}_last; ++{axis}_to) {{\n"
            f"  const $REAL {axis}_weight = ob_weight({axis}_scale, {axis}_to, {axis}, {sizes[axis]});\n"
            f"  if ({axis}_weight == 0) continue;\n"
        )
    factors = " * ".join(f"($SUM){axis}_weight" for axis in axes)
    return f"{text}  sum += $GRAD * {factors};\n{'  }' * len(axes)}\n"


_SOURCES = {
    "nearest": "($REAL)to * scale",
    "nearest_exact": "(($REAL)to + ($REAL)0.5) * scale",
    "linear": "scale * (($REAL)to + ($REAL)0.5) - ($REAL)0.5",
    "cubic": "scale * (($REAL)to + ($REAL)0.5) - ($REAL)0.5",
}

# The weight of the input element `at`, of `size` elements, in the result `to`.
_HELPER = """\
OB_DEVICE $REAL ob_weight($REAL scale, ob_i64 to, ob_i64 at, ob_i64 size) {
  $REAL source = $SOURCE;
$WEIGHT}
"""

_NEAREST = """\
  const ob_i64 from = (ob_i64)OB_LIB(floor)(source);
  return (from < size - 1 ? from : size - 1) == at ? ($REAL)1 : ($REAL)0;
"""

_LINEAR = """\
  if (source < 0) source = 0;
  ob_i64 from = (ob_i64)OB_LIB(floor)(source);
  if (from > size - 1) from = size - 1;
  $REAL part = source - ($REAL)from;
  if (part > 1) part = 1;
  const ob_i64 next = from < size - 1 ? from + 1 : from;
  return (from == at ? 1 - part : 0) + (next == at ? part : 0);
"""

# Keys' cubic convolution with a = -0.75, as in torch's kernels.
_CUBIC = """\
  ob_i64 from = (ob_i64)OB_LIB(floor)(source);
  if (from > size - 1) from = size - 1;
  $REAL part = source - ($REAL)from;
  if (part > 1) part = 1;
  $REAL sum = 0;
  for (int tap = 0; tap < 4; ++tap) {
    ob_i64 place = from - 1 + tap;
    place = place < 0 ? 0 : place > size - 1 ? size - 1 : place;
    if (place != at) continue;
    const $REAL x = tap == 0 ? part + 1 : tap == 1 ? part : tap == 2 ? 1 - part : 2 - part;
    const $REAL a = ($REAL)-0.75;
    sum += tap == 1 || tap == 2 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  }
  return sum;
"""

_WEIGHTS = {"nearest": _NEAREST, "nearest_exact": _NEAREST, "linear": _LINEAR, "cubic": _CUBIC}

_BEGIN = """\
  ob_i64 rest = $ITEM;
  if (rest >= $COUNT) return;
"""

# The range of results along the axis @. A window reaches less than 2 elements to either side; 3
# leaves one for rounding.
_RANGE = """\
  const $REAL @_scale = $SCALE;
  ob_i64 @_first = 0, @_last = $OUT;
  if (@_scale > 0 && @ > 0) {
    const $REAL bound = OB_LIB(floor)(($REAL)(@ - 3) / @_scale) - 1;
    if (bound > 0) @_first = bound < ($REAL)$OUT ? (ob_i64)bound : $OUT;
  }
  if (@_scale > 0 && @ < $IN - 1) {
    const $REAL bound = OB_LIB(ceil)(($REAL)(@ + 3) / @_scale) + 2;
    if (bound < ($REAL)$OUT) @_last = (ob_i64)bound;
  }
"""

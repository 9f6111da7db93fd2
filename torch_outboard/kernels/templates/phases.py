# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions and image gradients on matrix units, in phases that skip the zeros between pixels.

If windows have a stride of s, a pixel meets every s-th position of a window. The pixels of a phase meet the same
positions, which begin at `tap`:

    image[n, m, first + u * s] = sum over c, j of weight[c, m, tap + j * s] * grid[n, c, u + ahead - j]

Each phase is a batch of the product, with its own number of positions and thus of steps. Phases with more positions
come first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import sympy  # type: ignore[import-untyped]
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.channels import Divisions, Size
from torch_outboard.kernels.templates.convolution_shape import NamedTensor, Shape, biased, declares
from torch_outboard.kernels.templates.product import Epilogue, Number, Operand, Product, ceil_div, statements

__all__ = ["has_phases", "spread_by_phases"]


def has_phases(shape: Shape) -> bool:
    """Return whether matrix units compute it, and it has strides above 1, all with a dilation of 1."""
    apart = [dilation for stride, dilation in zip(shape.stride, shape.dilation, strict=True) if stride > 1]
    return shape.has_units and len(apart) > 0 and all(dilation == 1 for dilation in apart)


class _Phases:
    """The texts of the phases; numbers computed for each batch define the names in these texts."""

    def __init__(self, shape: Shape, weight: NamedTensor, out: NamedTensor, divisions: Divisions) -> None:
        self._shape, self._out, self._divisions = shape, out, divisions
        self._window = [int(V.graph.sizevars.guard_int(size)) for size in weight.tensor.size[2:]]
        # The most window positions that a phase has in each dimension.
        self._most = [-(-size // stride) for size, stride in zip(self._window, shape.stride, strict=True)]
        self.group = "group" if shape.groups > 1 else "0"

    @property
    def count(self) -> int:
        return prod(self._shape.stride)

    @property
    def most(self) -> int:
        """The most window positions that a phase has."""
        return prod(self._most)

    def of_batch(self) -> list[Number]:
        """Return the numbers that define a phase."""
        shape = self._shape
        made: list[Number] = [("ob_i32", "phase", f"(ob_i32)(batch / {shape.groups})")]
        if shape.groups > 1:
            made.append(("ob_i32", "group", f"(ob_i32)(batch % {shape.groups})"))
        for i in self._apart():
            stride, padding, window, most = shape.stride[i], shape.padding[i], self._window[i], self._most[i]
            made.append(("ob_i32", f"tap{i}", f"phase / {prod(shape.stride[i + 1 :])} % {stride}"))
            made.append(("ob_i32", f"first{i}", f"(tap{i} + {-padding % stride}) % {stride}"))
            if window % stride != 0:
                made.append(("ob_i32", f"taps{i}", f"tap{i} < {window % stride} ? {most} : {most - 1}"))
        return made

    def taps(self) -> str:
        """Return the number of window positions in a phase."""
        apart = self._apart()
        each = (
            f"taps{i}" if i in apart and self._window[i] % self._shape.stride[i] != 0 else str(most)
            for i, most in enumerate(self._most)
        )
        return " * ".join(each)

    def of_tap(self, tap: str) -> list[Number]:
        """Return a position's distance and its place in the window, from its number within a phase."""
        shape, made = self._shape, list[Number]()
        for i in reversed(range(shape.rank)):
            most, is_apart = self._most[i], i in self._apart()
            varies = is_apart and self._window[i] % shape.stride[i] != 0 and most > 1
            at = f"{tap} % {most}"
            over = f"({tap} / {most})"
            if varies:
                at = f"(taps{i} == {most} ? {tap} % {most} : {tap} % {most - 1})"
                over = f"(taps{i} == {most} ? {tap} / {most} : {tap} / {most - 1})"
            made.append(("ob_i32", f"j{i}", "0" if most == 1 else at if i > 0 else tap))
            made.append(("ob_i32", f"d{i}", f"j{i}" if is_apart else f"j{i} * {shape.dilation[i]}"))
            made.append(("ob_i32", f"k{i}", f"tap{i} + j{i} * {shape.stride[i]}" if is_apart else f"j{i}"))
            if i > 0 and most > 1:
                made.append(("ob_i32", f"left{i}", over))
                tap = f"left{i}"
        return made

    def pixels(self) -> Size:
        """Return the number of pixels in a phase, including pixels that only other phases have."""
        each = [self._size(i) for i in range(self._shape.rank)]
        text = " * ".join(factor.text for factor in each)
        return Size(f"({text})", prod((factor.value for factor in each), start=sympy.Integer(1)))

    def _size(self, dim: int) -> Size:
        stride, size = self._shape.stride[dim], self._out.sized(dim + 2)
        return size if stride == 1 else Size(f"(({size.text} + {stride - 1}) / {stride})", ceil_div(size.value, stride))

    def coordinates(self, number: str) -> list[str]:
        """Return the coordinates `u` of a pixel, from its number among the pixels of all images."""
        made, rest = list[str](), self._divisions.rest(number, self.pixels())
        for i in reversed(range(self._shape.rank)):
            made.insert(0, self._divisions.rest(rest, self._size(i)) if i > 0 else rest)
            rest = self._divisions.over(rest, self._size(i))
        return made

    def image(self, number: str) -> str:
        """Return the number of the image that contains a pixel."""
        return self._divisions.over(number, self.pixels())

    def of_line(self) -> list[Number]:
        """Return the coordinates of the last grid pixel whose window may contain the pixel `line`."""
        ahead = [
            f"(first{i} + {padding}) / {stride}" if stride > 1 else str(padding)
            for i, (stride, padding) in enumerate(zip(self._shape.stride, self._shape.padding, strict=True))
        ]
        return [("ob_i32", f"y{i}", f"(ob_i32)({u}) + {ahead[i]}") for i, u in enumerate(self.coordinates("line"))]

    def place(self, number: str) -> str:
        """Return a pixel's position in its image."""
        pixels = enumerate(self._in_image(number))
        return " + ".join(f"({pixel}) * {self._out.stride(i + 2)}" for i, pixel in pixels)

    def condition(self, number: str) -> str:
        """Return the condition that a pixel exists in a phase. "": always."""
        conditions, shape = [], self._shape
        for i, pixel in enumerate(self._in_image(number)):
            size = self._out.size(i + 2)
            if shape.stride[i] > 1 and not (size.isdigit() and int(size) % shape.stride[i] == 0):
                conditions.append(f"{pixel} < {size}")
        return " && ".join(conditions)

    def _in_image(self, number: str) -> list[str]:
        """Return a pixel's coordinates in its image."""
        return [
            f"first{i} + ({u}) * {self._shape.stride[i]}" if self._shape.stride[i] > 1 else u
            for i, u in enumerate(self.coordinates(number))
        ]

    def _apart(self) -> list[int]:
        return [i for i, stride in enumerate(self._shape.stride) if stride > 1]


def spread_by_phases(
    call: TemplateCall, shape: Shape, image: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    """Write the launches of a transposed convolution with a stride above 1."""
    divisions = Divisions(shape.kind)
    grid, weight = NamedTensor("grid", image, divisions), NamedTensor("weight", weight_given, divisions)
    out = NamedTensor("result", result, divisions, True)
    phases = _Phases(shape, weight, out, divisions)
    channels = grid.sized(1, shape.groups)
    product = Product(
        name="ob_transposed_convolution",
        batch=sympy.Integer(shape.groups * phases.count),
        rows=FloorDiv(result.size[1], shape.groups),
        columns=result.size[0] * phases.pixels().value,
        depth=FloorDiv(image.size[1], shape.groups) * phases.most,
        sums=shape.sums,
        left=_weight(shape, phases, weight, channels, divisions),
        right=_grid(shape, phases, grid, channels, declares(grid, numbers_of=(weight, out)), divisions),
        epilogue=_epilogue(shape, phases, out, bias),
        of_batch=tuple(phases.of_batch()),
        steps_of_batch=f"({channels.text} * {phases.taps()})",
    )
    shape.multiply(call, product)


def _of_step(shape: Shape, phases: _Phases, channels: Size, divisions: Divisions) -> list[Number]:
    """Return the numbers of a step: its channel and its place in the window."""
    if phases.most == 1:
        return [(shape.kind, "channel", "step"), *phases.of_tap("0")]
    over, rest = divisions.over("step", channels), divisions.rest("step", channels)
    return [("ob_i32", "of_phase", f"(ob_i32){over}"), (shape.kind, "channel", rest), *phases.of_tap("of_phase")]


def _weight(shape: Shape, phases: _Phases, weight: NamedTensor, channels: Size, divisions: Divisions) -> Operand:
    """Return the weight as the left operand; its lines are the result's channels."""
    kind = shape.kind
    own = f"({weight.size(0)} / {shape.groups})"  # a copy of the grid may have more channels
    places = " + ".join(f"k{i} * {weight.stride(i + 2)}" for i in range(shape.rank))
    place = f"(({kind})({phases.group} * {own}) + channel) * {weight.stride(0)} + {places}"
    steps = [*_of_step(shape, phases, channels, divisions), (kind, "weight_to", place)]
    return Operand(
        declare=declares(weight),
        of_line=((kind, "weight_from", f"({kind})line * {weight.stride(1)}"),),
        of_step=statements(steps),
        place="weight[weight_from + weight_to]",
        dtype=weight.tensor.dtype,
        is_dense_along_steps=False,
        condition=f"channel < {own}",
        adjacent="weight[weight_from + weight_to + lane]",
        multiples=weight.others(1),
        pointer="weight",
        lines_in_memory=weight.size(1),
    )


def _grid(
    shape: Shape,
    phases: _Phases,
    grid: NamedTensor,
    channels: Size,
    declare: Callable[[Kernel], None],
    divisions: Divisions,
) -> Operand:
    """Return the grid as the right operand; its lines are the pixels of a phase."""
    kind, group = shape.kind, f"({shape.kind})({phases.group} * {channels.text})"
    begin = f"{phases.image('line')} * {grid.stride(0)} + {group} * {grid.stride(1)}"
    places = " + ".join(f"(y{i} - d{i}) * {grid.stride(i + 2)}" for i in range(shape.rank))
    return Operand(
        declare=declare,
        of_line=(*phases.of_line(), (kind, "grid_from", begin)),
        of_step=statements(_of_step(shape, phases, channels, divisions)),
        place=f"grid[grid_from + channel * {grid.stride(1)} + {places}]",
        dtype=grid.tensor.dtype,
        is_dense_along_steps=True,
        condition=" && ".join(grid.has(f"y{i} - d{i}", i + 2) for i in range(shape.rank)),
        multiples=(*grid.others(1), channels.text),
        pointer="grid",
    )


def _epilogue(shape: Shape, phases: _Phases, out: NamedTensor, bias: Tensor | None) -> Epilogue:
    kind, of_group = shape.kind, f"({out.size(1)} / {shape.groups})"
    channel = f"({of_group} * {phases.group} + row)"
    declare, value = biased(out, bias, channel, shape.sums)
    begin = f"{phases.image('column')} * {out.stride(0)} + ({kind}){channel} * {out.stride(1)}"
    return Epilogue(
        declare,
        value,
        f"result[{begin} + {phases.place('column')}]",
        out.tensor.dtype,
        dense="row" if out.is_dense_along(1) else "",
        multiples=(*out.others(1), of_group),
        pointer="result",
        condition=phases.condition("column"),
    )

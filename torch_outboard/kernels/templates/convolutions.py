# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions and their gradients, as products whose right operand reads windows of an image.

The windows are not stored: elements are located where they are loaded. There are three forms. In them, `image` is the
tensor with the larger grid of pixels, and `grid` the tensor with one pixel for each window:

    windows     grid[n, m, q] = sum over c, k of weight[m, c, k] * image[n, c, q * stride - padding + k * dilation]
    spread      image[n, m, p] = sum over c, k of weight[c, m, k] * grid[n, c, q] where q has p in its window at k
    weights     weight[m, c, k] = sum over n, q of grid[n, m, q] * image[n, c, q * stride - padding + k * dilation]

A convolution is the first form, and the others are its gradients. A transposed convolution is the second form, and the
others are its gradients. Groups are the batch of the product.

Sums go through the places of the window for each channel. For matrix units, they go through the channels for each
place instead: adjacent channels are adjacent in memory, and are brought together. Tensors whose channels are not
adjacent, or do not fill 16 bytes, are copied so (channels.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor, number_text, simplified
from torch_outboard.kernels.templates.channels import Divisions, Size, by_channels, holds, is_narrow
from torch_outboard.kernels.templates.product import End, Number, Operand, Product, SumType, loaded, statements
from torch_outboard.kernels.templates.schedules import direct
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS, Device

__all__ = ["backward", "forward"]


def forward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::convolution."""
    shape = _Shape.of(call)
    (layout,) = call.results
    assert layout is not None
    result = call.allocate(layout)
    bias = call.tensor("bias") if call.arguments["bias"] is not None else None
    given = shape.placed(call, call.tensor("input"), shape.groups)
    weight = shape.placed_weight(call, call.tensor("weight"))
    run = _spread if shape.is_transposed else _windows
    run(call, shape, given, weight, bias, result)
    shape.free(call, given, weight)
    return [result.name]


def backward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::convolution_backward."""
    shape = _Shape.of(call)
    of_input, of_weight, of_bias = call.results
    names: list[str | None] = [None, None, None]
    grad = call.tensor("grad_output")
    placed = shape.placed(call, grad, shape.groups) if of_input is not None or of_weight is not None else grad
    if of_input is not None:
        result = call.allocate(of_input)
        weight = shape.placed_weight(call, call.tensor("weight"))
        run = _windows if shape.is_transposed else _spread
        run(call, shape, placed, weight, None, result)
        shape.free(call, weight)
        names[0] = result.name
    if of_weight is not None:
        result = call.allocate(of_weight)
        given = shape.placed(call, call.tensor("input"), shape.groups)
        _weights(call, shape, *((given, placed) if shape.is_transposed else (placed, given)), result)
        shape.free(call, given)
        names[1] = result.name
    shape.free(call, placed)
    if of_bias is not None:
        dims = [0, *range(2, 2 + shape.rank)]
        (names[2],) = call.plan.call(torch.ops.aten.sum.dim_IntList, [grad.name, dims], {})
    return names


# With fewer channels, a group of a convolution would fill a small part of a tile.
_LEAST_CHANNELS = 16


@dataclass(frozen=True)
class _Shape:
    """The constants of a convolution.

    Attributes
    ----------
    kind : str
        The type of numbers that count pixels, channels and places in memory.
    has_units : bool
        Whether it is multiplied by matrix units, with adjacent channels.
    is_direct : bool
        Whether each result has an item, since groups have few channels.
    """

    rank: int
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    is_transposed: bool
    sums: SumType
    kind: str
    has_units: bool
    is_direct: bool

    @staticmethod
    def of(call: TemplateCall) -> _Shape:
        given = call.arguments
        weight = call.tensor("weight")
        rank = len(weight.size) - 2
        tensors = [one for one in given.values() if isinstance(one, Tensor)]
        dtypes = {one.dtype for one in tensors}
        if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
            raise Refusal(f"there are no convolutions of {' and '.join(sorted(map(str, dtypes)))}")
        if len(call.tensor("input").size) != rank + 2:
            raise Refusal("its input has no batch")

        def each(name: str) -> list[int]:
            values = [int(one) for one in given[name]]
            return values * rank if len(values) == 1 else values

        groups = given["groups"]
        way = PRODUCTS.way_of(call.family, Device(call.dialect, call.is_cpu, call.dtype))
        has_few = way != "strips" and groups > 1 and _has_few_channels(weight, groups)
        has_units = way == "matrix" and not has_few
        of_results = [one for one in call.results if one is not None]
        return _Shape(
            rank,
            each("stride"),
            each("padding"),
            each("dilation"),
            groups,
            given["transposed"],
            SumType.of(dtypes.pop()),
            "ob_i32" if (has_units or has_few or way == "strips") and is_narrow(*tensors, *of_results) else "ob_i64",
            has_units,
            has_few,
        )

    def placed(self, call: TemplateCall, tensor: Tensor, groups: int = 1) -> Tensor:
        """Return the tensor, or a copy whose channels are as the product takes them."""
        return by_channels(call, tensor, groups) if self.has_units else tensor

    def placed_weight(self, call: TemplateCall, weight: Tensor) -> Tensor:
        """Return the weight, or a copy; for items with adjacent channels, a copy whose first dimension is adjacent."""
        if not self.is_direct or weight.dtype.itemsize not in (2, 4):
            return self.placed(call, weight)
        one = sympy.Integer(1)
        rows = Tensor(weight.dtype, [one, *weight.size], [one, *weight.stride], weight.name)
        copy = by_channels(call, rows)
        return Tensor(weight.dtype, weight.size, copy.stride[1:], copy.name)

    @staticmethod
    def free(call: TemplateCall, *tensors: Tensor) -> None:
        """Free the copies among tensors."""
        given = {one.name for one in call.arguments.values() if isinstance(one, Tensor)}
        for one in tensors:
            if one.name not in given:
                call.free(one)

    def multiply(self, call: TemplateCall, product: Product) -> None:
        if self.is_direct:
            direct.multiply(call, product, self.kind)
        else:
            PRODUCTS.schedule_of(call).multiply(call, product)


def _has_few_channels(weight: Tensor, groups: int) -> bool:
    """Return whether a group has so few channels that tiles would be empty. The window's sizes are then constants."""
    of_group = (FloorDiv(weight.size[0], groups), weight.size[1])
    if all(holds(sympy.Ge(one, _LEAST_CHANNELS)) for one in of_group):
        return False
    for one in (*of_group, *weight.size[2:]):
        V.graph.sizevars.guard_int(one)
    return True


class _Named:
    """A tensor by the texts of its strides and sizes, which each kernel that uses it declares with the pointer.

    Its first two dimensions are "n" and "c", the others are the grid's dimensions. `place` treats dimensions of the
    grid that are contiguous in memory as one.
    """

    def __init__(self, name: str, tensor: Tensor, divisions: Divisions, is_written: bool = False) -> None:
        self.name, self.tensor, self._divisions, self._is_written = name, tensor, divisions, is_written
        self._kind = divisions.kind
        self.grid = list(tensor.size[2:])
        known = V.graph.sizevars.statically_known_equals
        strides = tensor.stride[2:]
        self._is_one = all(
            known(strides[i], strides[i + 1] * self.grid[i + 1]) or known(self.grid[i], 1)
            for i in range(len(strides) - 1)
        )
        # Whether pixels of all batches are contiguous.
        self.is_one = self._is_one and (
            known(tensor.stride[0], prod(self.grid, start=tensor.stride[-1])) or known(tensor.size[0], 1)
        )

    def stride(self, dim: int) -> str:
        text = number_text(f"{self.name}_stride{dim}", self.tensor.stride[dim])
        return text if self._kind == "ob_i64" or text.isdigit() else f"({self._kind}){text}"

    def size(self, dim: int) -> str:
        return number_text(f"{self.name}_size{dim}", self.tensor.size[dim])

    def sized(self, dim: int, groups: int = 1) -> Size:
        """Return the size of a dimension, or that of a group of it."""
        text, value = self.size(dim), self.tensor.size[dim]
        return Size(text if groups == 1 else f"({text} / {groups})", FloorDiv(value, groups))

    def declare(self, kernel: Kernel) -> None:
        kernel.pointer(self.name, self.tensor, self._is_written)
        self.declare_numbers(kernel)

    def declare_numbers(self, kernel: Kernel) -> None:
        self._divisions.declare(kernel)
        for dim in range(len(self.tensor.size)):
            kernel.number(f"{self.name}_stride{dim}", self.tensor.stride[dim])
            kernel.number(f"{self.name}_size{dim}", self.tensor.size[dim])

    def pixels(self) -> Size:
        """Return the number of the grid's pixels."""
        text = " * ".join(self.size(dim) for dim in range(2, len(self.tensor.size)))
        return Size(f"({text})", prod(self.grid, start=sympy.Integer(1)))

    def others(self, dim: int) -> tuple[str, ...]:
        """Return the strides of the dimensions other than `dim`, without those of one element."""
        sizes = enumerate(self.tensor.size)
        return tuple(self.stride(one) for one, size in sizes if one != dim and simplified(size) != 1)

    def has(self, number: str, dim: int) -> str:
        """Return the condition that a number, which may be negative, is below the size of a dimension."""
        if self._kind == "ob_i64":
            return f"{number} >= 0 && {number} < {self.size(dim)}"
        return f"(ob_u32)({number}) < (ob_u32){self.size(dim)}"

    def is_dense_along(self, dim: int) -> bool:
        return bool(V.graph.sizevars.statically_known_equals(self.tensor.stride[dim], 1))

    def is_dense_from(self, dim: int) -> bool:
        """Return True if the dimensions from `dim` on are contiguous in memory."""
        known = V.graph.sizevars.statically_known_equals
        expected = sympy.Integer(1)
        for size, stride in zip(reversed(self.tensor.size[dim:]), reversed(self.tensor.stride[dim:]), strict=True):
            if not (known(stride, expected) or known(size, 1)):
                return False
            expected = expected * size
        return True

    def coordinates(self, number: str, prefix: str, kind: str = "ob_i32") -> list[Number]:
        """Return the coordinates of a pixel by its number, the last dimension first."""
        made: list[Number] = []
        for dim in reversed(range(len(self.grid))):
            text = self._divisions.rest(number, self.sized(dim + 2)) if dim > 0 else number
            made.append((kind, f"{prefix}{dim}", f"({kind}){text}"))
            number = self._divisions.over(number, self.sized(dim + 2))
        return made

    def place(self, number: str) -> str:
        """Return a pixel's place in memory, by its number."""
        if self._is_one:
            return f"({number}) * {self.stride(len(self.grid) + 1)}"
        return " + ".join(
            f"{text} * {self.stride(int(name[1:]) + 2)}"
            for _, name, text in self.coordinates(f"({number})", "q", self._kind)
        )


def _declares(*used: _Named, numbers_of: Sequence[_Named] = ()) -> Callable[[Kernel], None]:
    def declare(kernel: Kernel) -> None:
        for one in used:
            one.declare(kernel)
        for one in numbers_of:
            one.declare_numbers(kernel)

    return declare


def _parts(number: str, window: Size, channels: Size, shape: _Shape, divisions: Divisions) -> tuple[str, str]:
    """Return the place in the window and the channel of a number that counts both."""
    if not shape.has_units:
        return divisions.rest(number, window), divisions.over(number, window)
    if simplified(window.value) == 1:
        return "0", f"({shape.kind}){number}"
    return divisions.over(number, channels), divisions.rest(number, channels)


def _of_window(shape: _Shape, weight: _Named, source: _Named, channels: Size, divisions: Divisions) -> str:
    """Return the statements of a step, which is a channel of the source and a place in the window."""
    tap, channel = _parts("step", weight.pixels(), channels, shape, divisions)
    return statements(
        [
            *weight.coordinates(tap, "k"),
            *(("ob_i32", f"d{i}", f"k{i} * {shape.dilation[i]}") for i in range(shape.rank)),
            (shape.kind, "channel", f"{channel} * {source.stride(1)}"),
        ]
    )


def _windows(
    call: TemplateCall, shape: _Shape, given: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    kind, divisions = shape.kind, Divisions(shape.kind)
    image, weight = _Named("image", given, divisions), _Named("weight", weight_given, divisions)
    out = _Named("result", result, divisions, True)
    per_group, channels = FloorDiv(weight.tensor.size[0], shape.groups), weight.tensor.size[1]
    number = divisions.over("line", out.pixels())
    of_line = [
        *out.coordinates(divisions.rest("line", out.pixels()), "q"),
        *(("ob_i32", f"y{i}", f"q{i} * {shape.stride[i]} - {shape.padding[i]}") for i in range(shape.rank)),
        (
            kind,
            "image_from",
            f"{number} * {image.stride(0)} + ({kind})(batch * {weight.size(1)}) * {image.stride(1)}",
        ),
    ]
    right = Operand(
        declare=_declares(image, numbers_of=(weight, out)),
        of_line=tuple(of_line),
        of_step=_of_window(shape, weight, image, weight.sized(1), divisions),
        **_inside(image),
        is_dense_along_steps=shape.has_units,
        multiples=(*image.others(1), weight.size(1)),
        pointer="image",
    )
    left = _weight_operand(weight, shape, None, divisions)
    _convolve(call, shape, "ob_convolution", per_group, channels, left, right, weight, out, bias, divisions)


def _spread(
    call: TemplateCall, shape: _Shape, given: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    kind, divisions = shape.kind, Divisions(shape.kind)
    grid, weight = _Named("grid", given, divisions), _Named("weight", weight_given, divisions)
    out = _Named("result", result, divisions, True)
    per_group, channels = FloorDiv(result.size[1], shape.groups), FloorDiv(given.size[1], shape.groups)
    of_group = grid.sized(1, shape.groups)
    of_line = [
        *out.coordinates(divisions.rest("line", out.pixels()), "p"),
        *(("ob_i32", f"y{i}", f"p{i} + {shape.padding[i]}") for i in range(shape.rank)),
        (
            kind,
            "grid_from",
            f"{divisions.over('line', out.pixels())} * {grid.stride(0)}"
            f" + ({kind})(batch * {of_group.text}) * {grid.stride(1)}",
        ),
    ]
    # The window at q has the pixel if the distance is a multiple of the stride.
    conditions, places = [], []
    for i in range(shape.rank):
        step = shape.stride[i]
        conditions.append(f"y{i} >= d{i} && {grid.has(f'(y{i} - d{i}) / {step}', i + 2)}")
        if step > 1:
            conditions.append(f"(y{i} - d{i}) % {step} == 0")
        places.append(f"(y{i} - d{i}) / {step} * {grid.stride(i + 2)}")
    right = Operand(
        declare=_declares(grid, numbers_of=(weight, out)),
        of_line=tuple(of_line),
        of_step=_of_window(shape, weight, grid, of_group, divisions),
        place=f"grid[grid_from + channel + {' + '.join(places)}]",
        dtype=given.dtype,
        condition=" && ".join(conditions),
        is_dense_along_steps=shape.has_units,
        multiples=(*grid.others(1), of_group.text),
        pointer="grid",
    )
    left = _weight_operand(weight, shape, of_group, divisions)
    _convolve(call, shape, "ob_transposed_convolution", per_group, channels, left, right, weight, out, bias, divisions)


def _weights(call: TemplateCall, shape: _Shape, grid_given: Tensor, given: Tensor, result: Tensor) -> None:
    kind, divisions = shape.kind, Divisions(shape.kind)
    grid, image = _Named("grid", grid_given, divisions), _Named("image", given, divisions)
    out = _Named("result", result, divisions, True)
    channels = FloorDiv(given.size[1], shape.groups)
    of_image, rows = (one.sized(1, shape.groups) for one in (image, grid))
    tap, channel = _parts("line", out.pixels(), of_image, shape, divisions)
    pixels = grid.pixels()
    of_step = statements(
        [(kind, "number", divisions.over("step", pixels)), (kind, "pixel", divisions.rest("step", pixels))]
    )
    at_step = f"({kind})step * {grid.stride(1 + shape.rank)}"
    if not (grid.is_one and shape.has_units):
        at_step = f"number * {grid.stride(0)} + {grid.place('pixel')}"
    left = Operand(
        declare=_declares(grid, numbers_of=(out,)),
        of_line=((kind, "grid_from", f"({kind})(batch * {rows.text} + line) * {grid.stride(1)}"),),
        of_step=f"{of_step}const {kind} grid_to = {at_step}; ",
        place="grid[grid_from + grid_to]",
        dtype=grid_given.dtype,
        is_dense_along_steps=False,
        beside="grid[grid_from + grid_to + lane]" if shape.has_units else "",
        multiples=(*grid.others(1), rows.text),
        pointer="grid",
        room=rows.text,
    )
    right = Operand(
        declare=_declares(image, numbers_of=(grid, out)),
        of_line=(
            *out.coordinates(tap, "k"),
            *(("ob_i32", f"y{i}", f"k{i} * {shape.dilation[i]} - {shape.padding[i]}") for i in range(shape.rank)),
            (kind, "image_from", f"(({kind})(batch * {of_image.text}) + {channel}) * {image.stride(1)}"),
        ),
        of_step=of_step
        + statements(grid.coordinates("pixel", "q"))
        + statements(("ob_i32", f"d{i}", f"q{i} * {shape.stride[i]}") for i in range(shape.rank))
        + statements([(kind, "channel", f"number * {image.stride(0)}")]),
        **_inside(image),
        is_dense_along_steps=False,
        beside="image[image_from + lane]" if shape.has_units else "",
        multiples=(*image.others(1), of_image.text),
        pointer="image",
    )
    product = Product(
        name="ob_convolution_weights",
        batch=sympy.Integer(shape.groups),
        rows=FloorDiv(result.size[0], shape.groups),
        columns=channels * prod(result.size[2:], start=sympy.Integer(1)),
        depth=grid_given.size[0] * prod(grid.grid, start=sympy.Integer(1)),
        sums=shape.sums,
        left=left,
        right=right,
        end=_end_of_weights(shape, out, image, channels, divisions),
    )
    shape.multiply(call, product)


def _end_of_weights(shape: _Shape, out: _Named, image: _Named, channels: sympy.Expr, divisions: Divisions) -> End:
    """Return the stores of a weight's gradient, without the channels that only a copy of the image has."""
    kind, of_image = shape.kind, image.sized(1, shape.groups)
    of_row = f"({kind})(batch * ({out.size(0)} / {shape.groups}) + row) * {out.stride(0)}"
    tap, channel = _parts("column", out.pixels(), of_image, shape, divisions)
    is_whole = bool(V.graph.sizevars.statically_known_equals(channels, out.tensor.size[1]))
    is_dense = shape.has_units and is_whole and out.is_dense_along(1)
    return End(
        declare=_declares(out, numbers_of=(image,)),
        value="value",
        place=f"result[{of_row} + {channel} * {out.stride(1)} + {out.place(tap)}]",
        dtype=out.tensor.dtype,
        dense="column" if is_dense else "",
        multiples=(*out.others(1), out.size(1)),
        pointer="result",
        condition="" if is_whole else f"{channel} < {out.size(1)}",
    )


def _inside(image: _Named) -> dict[str, Any]:
    """Return an operand's place, type and condition: the image at y + d, or 0 outside the image."""
    at = [f"y{i} + d{i}" for i in range(len(image.grid))]
    place = " + ".join(f"({one}) * {image.stride(i + 2)}" for i, one in enumerate(at))
    return {
        "place": f"image[image_from + channel + {place}]",
        "dtype": image.tensor.dtype,
        "condition": " && ".join(image.has(one, i + 2) for i, one in enumerate(at)),
    }


def _weight_operand(weight: _Named, shape: _Shape, of_source: Size | None, divisions: Divisions) -> Operand:
    """Return the weight as the left operand.

    Its lines are the result's channels, and its steps are the source's channels and the window's places. The first
    dimension is that of the source's channels, of which a group has `of_source`, unless this is None.
    """
    kind = shape.kind
    groups = f"batch * ({weight.size(0)} / {shape.groups})"
    source_dim, result_dim = (1, 0) if of_source is None else (0, 1)
    channels = weight.sized(1) if of_source is None else of_source
    tap, channel = _parts("step", weight.pixels(), channels, shape, divisions)
    source = channel if of_source is None else f"({kind})({groups} + {channel})"
    line = f"({groups} + line)" if of_source is None else "line"
    place = f"{source} * {weight.stride(source_dim)} + {weight.place(tap)}"
    is_dense = not shape.has_units and of_source is None and weight.is_dense_from(1)
    is_across = shape.has_units and of_source is not None
    # A copy of the source has more channels than the weight.
    own = f"({weight.size(0)} / {shape.groups})"
    return Operand(
        declare=_declares(weight),
        of_line=((kind, "weight_from", f"({kind}){line} * {weight.stride(result_dim)}"),),
        of_step="" if is_dense else f"const {kind} weight_to = {place}; ",
        place=f"weight[weight_from + {'step' if is_dense else 'weight_to'}]",
        dtype=weight.tensor.dtype,
        is_dense_along_steps=is_dense or (shape.has_units and of_source is None),
        condition=f"{channel} < {own}" if is_across else "",
        beside="weight[weight_from + weight_to + lane]" if is_across else "",
        multiples=(*weight.others(1), *([channels.text] if of_source is None else [])),
        pointer="weight",
        room=weight.size(1) if is_across else "",
    )


def _convolve(
    call: TemplateCall,
    shape: _Shape,
    name: str,
    rows: sympy.Expr,
    channels: sympy.Expr,
    left: Operand,
    right: Operand,
    weight: _Named,
    out: _Named,
    bias: Tensor | None,
    divisions: Divisions,
) -> None:
    pixels, kind = out.pixels(), shape.kind
    of_group = f"({out.size(1)} / {shape.groups})"
    of_channel = f"({of_group} * batch + row)"
    place = out.place(divisions.rest("column", pixels))
    at = f"{divisions.over('column', pixels)} * {out.stride(0)} + ({kind}){of_channel} * {out.stride(1)} + {place}"
    if shape.has_units and out.is_one:
        at = f"({kind})column * {out.stride(1 + shape.rank)} + ({kind}){of_channel} * {out.stride(1)}"
    value = "value"
    if bias is not None:
        bias_place = f"bias[{of_channel} * {number_text('bias_stride', bias.stride[0])}]"
        value = f"value + {loaded(bias_place, bias.dtype, shape.sums)}"

    def declare(kernel: Kernel) -> None:
        out.declare(kernel)
        if bias is not None:
            kernel.pointer("bias", bias)
            kernel.number("bias_stride", bias.stride[0])

    last = 1 + shape.rank
    dense, multiples = "", tuple[str, ...]()
    if out.is_dense_along(1):
        dense, multiples = "row", (*out.others(1), of_group)
    elif out.is_dense_along(last) and out.is_dense_from(2):
        dense, multiples = "column", (out.stride(0), out.stride(1), pixels.text)
    product = Product(
        name=name,
        batch=sympy.Integer(shape.groups),
        rows=rows,
        columns=out.tensor.size[0] * prod(out.grid, start=sympy.Integer(1)),
        depth=channels * prod(weight.grid, start=sympy.Integer(1)),
        sums=shape.sums,
        left=left,
        right=right,
        end=End(declare, value, f"result[{at}]", out.tensor.dtype, dense, multiples, "result"),
    )
    shape.multiply(call, product)

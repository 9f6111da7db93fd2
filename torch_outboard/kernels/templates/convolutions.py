# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions and their gradients, as products whose right operand reads windows of an image.

The windows are not stored: elements are located where they are loaded. There are three forms. In them, `image` is the
tensor with the larger grid of pixels, and `grid` the tensor with one pixel for each window:

    windows     grid[n, m, q] = sum over c, k of weight[m, c, k] * image[n, c, q * stride - padding + k * dilation]
    spread      image[n, m, p] = sum over c, k of weight[c, m, k] * grid[n, c, q] where q has p in its window at k
    weights     weight[m, c, k] = sum over n, q of grid[n, m, q] * image[n, c, q * stride - padding + k * dilation]

A convolution is the first form, and the others are its gradients. A transposed convolution is the second form, and the
others are its gradients. Groups are the batch of the product.
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
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor, number_text
from torch_outboard.kernels.templates.product import Number, Operand, Product, SumType, loaded, statements, stored
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS

__all__ = ["backward", "forward"]


def forward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::convolution."""
    shape = _Shape.of(call)
    (layout,) = call.results
    assert layout is not None
    result = call.allocate(layout)
    bias = call.tensor("bias") if call.arguments["bias"] is not None else None
    run = _spread if shape.is_transposed else _windows
    run(call, shape, call.tensor("input"), call.tensor("weight"), bias, result)
    return [result.name]


def backward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::convolution_backward."""
    shape = _Shape.of(call)
    grad, given, weight = call.tensor("grad_output"), call.tensor("input"), call.tensor("weight")
    of_input, of_weight, of_bias = call.results
    names: list[str | None] = [None, None, None]
    if of_input is not None:
        result = call.allocate(of_input)
        run = _windows if shape.is_transposed else _spread
        run(call, shape, grad, weight, None, result)
        names[0] = result.name
    if of_weight is not None:
        result = call.allocate(of_weight)
        _weights(call, shape, *((given, grad) if shape.is_transposed else (grad, given)), result)
        names[1] = result.name
    if of_bias is not None:
        dims = [0, *range(2, 2 + shape.rank)]
        (names[2],) = call.plan.call(torch.ops.aten.sum.dim_IntList, [grad.name, dims], {})
    return names


@dataclass(frozen=True)
class _Shape:
    """The constants of a convolution."""

    rank: int
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    is_transposed: bool
    sums: SumType

    @staticmethod
    def of(call: TemplateCall) -> _Shape:
        given = call.arguments
        rank = len(call.tensor("weight").size) - 2
        dtypes = {one.dtype for one in given.values() if isinstance(one, Tensor)}
        if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
            raise Refusal(f"there are no convolutions of {' and '.join(sorted(map(str, dtypes)))}")
        if len(call.tensor("input").size) != rank + 2:
            raise Refusal("its input has no batch")

        def each(name: str) -> list[int]:
            values = [int(one) for one in given[name]]
            return values * rank if len(values) == 1 else values

        return _Shape(
            rank,
            each("stride"),
            each("padding"),
            each("dilation"),
            given["groups"],
            given["transposed"],
            SumType.of(dtypes.pop()),
        )


class _Named:
    """A tensor by the texts of its strides and sizes, which each kernel that uses it declares with the pointer.

    Its first two dimensions are "n" and "c", the others are the grid's dimensions. `place` treats dimensions of the
    grid that are contiguous in memory as one.
    """

    def __init__(self, name: str, tensor: Tensor, is_written: bool = False) -> None:
        self.name, self.tensor, self._is_written = name, tensor, is_written
        self.grid = list(tensor.size[2:])
        known = V.graph.sizevars.statically_known_equals
        strides = tensor.stride[2:]
        self._is_one = all(
            known(strides[i], strides[i + 1] * self.grid[i + 1]) or known(self.grid[i], 1)
            for i in range(len(strides) - 1)
        )

    def stride(self, dim: int) -> str:
        return number_text(f"{self.name}_stride{dim}", self.tensor.stride[dim])

    def size(self, dim: int) -> str:
        return number_text(f"{self.name}_size{dim}", self.tensor.size[dim])

    def declare(self, kernel: Kernel) -> None:
        kernel.pointer(self.name, self.tensor, self._is_written)
        self.declare_numbers(kernel)

    def declare_numbers(self, kernel: Kernel) -> None:
        for dim in range(len(self.tensor.size)):
            kernel.number(f"{self.name}_stride{dim}", self.tensor.stride[dim])
            kernel.number(f"{self.name}_size{dim}", self.tensor.size[dim])

    def pixels(self) -> str:
        """Return the number of the grid's pixels."""
        return "(" + " * ".join(self.size(dim) for dim in range(2, len(self.tensor.size))) + ")"

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
        rest = number
        for dim in reversed(range(len(self.grid))):
            text = f"(({rest}) % {self.size(dim + 2)})" if dim > 0 else f"({rest})"
            made.append((kind, f"{prefix}{dim}", f"({kind}){text}"))
            rest = f"({rest}) / {self.size(dim + 2)}"
        return made

    def place(self, number: str) -> str:
        """Return a pixel's place in memory, by its number."""
        if self._is_one:
            return f"({number}) * {self.stride(len(self.grid) + 1)}"
        return " + ".join(
            f"{text} * {self.stride(int(name[1:]) + 2)}" for _, name, text in self.coordinates(number, "q", "ob_i64")
        )


def _declares(*used: _Named, numbers_of: Sequence[_Named] = ()) -> Callable[[Kernel], None]:
    def declare(kernel: Kernel) -> None:
        for one in used:
            one.declare(kernel)
        for one in numbers_of:
            one.declare_numbers(kernel)

    return declare


def _of_window(shape: _Shape, weight: _Named, source: _Named) -> str:
    """Return the statements of a step, which is a channel of the source and a place in the window."""
    window = weight.pixels()
    return statements(
        [
            *weight.coordinates(f"step % {window}", "k"),
            *(("ob_i32", f"d{i}", f"k{i} * {shape.dilation[i]}") for i in range(shape.rank)),
            ("ob_i64", "channel", f"step / {window} * {source.stride(1)}"),
        ]
    )


def _windows(
    call: TemplateCall, shape: _Shape, given: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    image, weight, out = _Named("image", given), _Named("weight", weight_given), _Named("result", result, True)
    per_group, channels = FloorDiv(weight.tensor.size[0], shape.groups), weight.tensor.size[1]
    of_line = [
        *out.coordinates(f"line % {out.pixels()}", "q"),
        *(("ob_i32", f"y{i}", f"q{i} * {shape.stride[i]} - {shape.padding[i]}") for i in range(shape.rank)),
        (
            "ob_i64",
            "image_from",
            f"line / {out.pixels()} * {image.stride(0)} + batch * {weight.size(1)} * {image.stride(1)}",
        ),
    ]
    right = Operand(
        declare=_declares(image, numbers_of=(weight, out)),
        of_line=tuple(of_line),
        of_step=_of_window(shape, weight, image),
        **_inside(image),
        is_dense_along_steps=False,
    )
    left = _weight_operand(weight, shape, is_source_first=False)
    _convolve(call, shape, "ob_convolution", per_group, channels, left, right, weight, out, bias)


def _spread(
    call: TemplateCall, shape: _Shape, given: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    grid, weight, out = _Named("grid", given), _Named("weight", weight_given), _Named("result", result, True)
    per_group, channels = weight.tensor.size[1], FloorDiv(weight.tensor.size[0], shape.groups)
    of_line = [
        *out.coordinates(f"line % {out.pixels()}", "p"),
        *(("ob_i32", f"y{i}", f"p{i} + {shape.padding[i]}") for i in range(shape.rank)),
        (
            "ob_i64",
            "grid_from",
            f"line / {out.pixels()} * {grid.stride(0)}"
            f" + batch * ({weight.size(0)} / {shape.groups}) * {grid.stride(1)}",
        ),
    ]
    # The window at q has the pixel if the distance is a multiple of the stride.
    conditions, places = [], []
    for i in range(shape.rank):
        step, size = shape.stride[i], grid.size(i + 2)
        conditions.append(f"y{i} >= d{i} && (y{i} - d{i}) / {step} < {size}")
        if step > 1:
            conditions.append(f"(y{i} - d{i}) % {step} == 0")
        places.append(f"(y{i} - d{i}) / {step} * {grid.stride(i + 2)}")
    right = Operand(
        declare=_declares(grid, numbers_of=(weight, out)),
        of_line=tuple(of_line),
        of_step=_of_window(shape, weight, grid),
        place=f"grid[grid_from + channel + {' + '.join(places)}]",
        dtype=given.dtype,
        condition=" && ".join(conditions),
        is_dense_along_steps=False,
    )
    left = _weight_operand(weight, shape, is_source_first=True)
    _convolve(call, shape, "ob_transposed_convolution", per_group, channels, left, right, weight, out, bias)


def _weights(call: TemplateCall, shape: _Shape, grid_given: Tensor, given: Tensor, result: Tensor) -> None:
    grid, image, out = _Named("grid", grid_given), _Named("image", given), _Named("result", result, True)
    per_group = FloorDiv(result.size[0], shape.groups)
    rows = f"({out.size(0)} / {shape.groups})"
    window = out.pixels()
    of_step = statements(
        [("ob_i64", "number", f"step / {grid.pixels()}"), ("ob_i64", "pixel", f"step % {grid.pixels()}")]
    )
    left = Operand(
        declare=_declares(grid, numbers_of=(out,)),
        of_line=(("ob_i64", "grid_from", f"(batch * {rows} + line) * {grid.stride(1)}"),),
        of_step=f"{of_step}const ob_i64 grid_to = number * {grid.stride(0)} + {grid.place('pixel')}; ",
        place="grid[grid_from + grid_to]",
        dtype=grid_given.dtype,
        is_dense_along_steps=False,
    )
    right = Operand(
        declare=_declares(image, numbers_of=(grid, out)),
        of_line=(
            *out.coordinates(f"line % {window}", "k"),
            *(("ob_i32", f"y{i}", f"k{i} * {shape.dilation[i]} - {shape.padding[i]}") for i in range(shape.rank)),
            ("ob_i64", "image_from", f"(batch * {out.size(1)} + line / {window}) * {image.stride(1)}"),
        ),
        of_step=of_step
        + statements(
            [
                *grid.coordinates("pixel", "q"),
                *(("ob_i32", f"d{i}", f"q{i} * {shape.stride[i]}") for i in range(shape.rank)),
                ("ob_i64", "channel", f"number * {image.stride(0)}"),
            ]
        ),
        **_inside(image),
        is_dense_along_steps=False,
    )
    of_row = f"(batch * {rows} + row) * {out.stride(0)}"
    at = f"{of_row} + column / {window} * {out.stride(1)} + {out.place(f'column % {window}')}"
    product = Product(
        name="ob_convolution_weights",
        batch=sympy.Integer(shape.groups),
        rows=per_group,
        columns=prod(result.size[1:], start=sympy.Integer(1)),
        depth=grid_given.size[0] * prod(grid.grid, start=sympy.Integer(1)),
        sums=shape.sums,
        left=left,
        right=right,
        end=(_declares(out), stored(f"result[{at}]", "value", result.dtype)),
    )
    PRODUCTS.schedule_of(call).multiply(call, product)


def _inside(image: _Named) -> dict[str, Any]:
    """Return an operand's place, type and condition: the image at y + d, or 0 outside the image."""
    at = [f"y{i} + d{i}" for i in range(len(image.grid))]
    place = " + ".join(f"({one}) * {image.stride(i + 2)}" for i, one in enumerate(at))
    return {
        "place": f"image[image_from + channel + {place}]",
        "dtype": image.tensor.dtype,
        "condition": " && ".join(f"{one} >= 0 && {one} < {image.size(i + 2)}" for i, one in enumerate(at)),
    }


def _weight_operand(weight: _Named, shape: _Shape, *, is_source_first: bool) -> Operand:
    """Return the weight as the left operand.

    Its lines are the result's channels, and its steps are the source's channels and the window's places.
    """
    window = weight.pixels()
    of_source, of_result = (0, 1) if is_source_first else (1, 0)
    groups = f"batch * ({weight.size(0)} / {shape.groups})"
    source = f"({groups} + step / {window})" if is_source_first else f"step / {window}"
    line = "line" if is_source_first else f"({groups} + line)"
    place = f"{source} * {weight.stride(of_source)} + {weight.place(f'step % {window}')}"
    is_dense = not is_source_first and weight.is_dense_from(1)
    return Operand(
        declare=_declares(weight),
        of_line=(("ob_i64", "weight_from", f"{line} * {weight.stride(of_result)}"),),
        of_step="" if is_dense else f"const ob_i64 weight_to = {place}; ",
        place=f"weight[weight_from + {'step' if is_dense else 'weight_to'}]",
        dtype=weight.tensor.dtype,
        is_dense_along_steps=is_dense,
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
) -> None:
    pixels = out.pixels()
    of_channel = f"({out.size(1)} / {shape.groups} * batch + row)"
    at = f"column / {pixels} * {out.stride(0)} + {of_channel} * {out.stride(1)} + {out.place(f'column % {pixels}')}"
    value = "value"
    if bias is not None:
        place = f"bias[{of_channel} * {number_text('bias_stride', bias.stride[0])}]"
        value = f"value + {loaded(place, bias.dtype, shape.sums)}"

    def declare(kernel: Kernel) -> None:
        out.declare(kernel)
        if bias is not None:
            kernel.pointer("bias", bias)
            kernel.number("bias_stride", bias.stride[0])

    product = Product(
        name=name,
        batch=sympy.Integer(shape.groups),
        rows=rows,
        columns=out.tensor.size[0] * prod(out.grid, start=sympy.Integer(1)),
        depth=channels * prod(weight.grid, start=sympy.Integer(1)),
        sums=shape.sums,
        left=left,
        right=right,
        end=(declare, stored(f"result[{at}]", value, out.tensor.dtype)),
    )
    PRODUCTS.schedule_of(call).multiply(call, product)

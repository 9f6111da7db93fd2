# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions and their gradients, as products whose right operand reads windows of an image.

The windows are not stored: elements are located as they are loaded. In the following three forms, `image` is the tensor
with the larger grid of pixels, and `grid` the tensor with one pixel per window:

    windows     grid[n, m, q] = sum over c, k of weight[m, c, k] * image[n, c, q * stride - padding + k * dilation]
    spread      image[n, m, p] = sum over c, k of weight[c, m, k] * grid[n, c, q] where q has p in its window at k
    weights     weight[m, c, k] = sum over n, q of grid[n, m, q] * image[n, c, q * stride - padding + k * dilation]

A convolution is the first form, a transposed convolution the second; the other two forms are its gradients. The groups
form the batch of the product.

By default, sums run over the window positions of each channel in turn. If channels are adjacent in memory, tiles run
over the channels of each position instead, so that neighbouring items load adjacent elements. Matrix units always do
this, because they load adjacent channels together. For them, tensors whose channels are not adjacent, or do not fill 16
bytes, are copied to that layout (channels.py).
"""

from __future__ import annotations

from math import prod
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.kernels.templates import depthwise
from torch_outboard.kernels.templates.call import TemplateCall, Tensor
from torch_outboard.kernels.templates.channels import Divisions, Size
from torch_outboard.kernels.templates.convolution_shape import NamedTensor, Shape, biased, declares, parts_of
from torch_outboard.kernels.templates.phases import has_phases, spread_by_phases
from torch_outboard.kernels.templates.product import Epilogue, Operand, Product, statements

__all__ = ["backward", "forward"]


def forward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::convolution."""
    shape = Shape.of(call)
    (layout,) = call.results
    assert layout is not None
    result = call.allocate(layout)
    bias = call.tensor("bias") if call.arguments["bias"] is not None else None
    image = shape.placed(call, call.tensor("input"), shape.groups)
    weight = shape.placed_weight(call, call.tensor("weight"))
    run = _spread if shape.is_transposed else _windows
    run(call, shape, image, weight, bias, result)
    shape.free(call, image, weight)
    return [result.name]


def backward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::convolution_backward."""
    shape = Shape.of(call)
    shape.check_gradient(call)
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
        image = shape.placed(call, call.tensor("input"), shape.groups)
        _weights(call, shape, *((image, placed) if shape.is_transposed else (placed, image)), result)
        shape.free(call, image)
        names[1] = result.name
    shape.free(call, placed)
    if of_bias is not None:
        dims = [0, *range(2, 2 + shape.rank)]
        (names[2],) = call.plan.call(torch.ops.aten.sum.dim_IntList, [grad.name, dims], {})
    return names


def _of_window(
    shape: Shape, weight: NamedTensor, source: NamedTensor, channels: Size, by_channels: bool, divisions: Divisions
) -> str:
    """Return the statements of a step: a channel of the source and a position in the window."""
    tap, channel = parts_of("step", weight.pixels(), channels, by_channels, divisions)
    return statements(
        [
            *weight.coordinates(tap, "k"),
            *(("ob_i32", f"d{i}", f"k{i} * {shape.dilation[i]}") for i in range(shape.rank)),
            (shape.kind, "channel", f"{channel} * {source.stride(1)}"),
        ]
    )


def _windows(
    call: TemplateCall, shape: Shape, given: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    kind, divisions = shape.kind, Divisions(shape.kind)
    image, weight = NamedTensor("image", given, divisions), NamedTensor("weight", weight_given, divisions)
    out = NamedTensor("result", result, divisions, True)
    if depthwise.takes(call, shape, given, result, has_groups=True):
        depthwise.convolve(call, shape, image, weight, out, bias, is_spread=False)
        return
    per_group, channels = FloorDiv(weight.tensor.size[0], shape.groups), weight.tensor.size[1]
    by_channels = shape.goes_by_channels(given)
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
        declare=declares(image, numbers_of=(weight, out)),
        of_line=tuple(of_line),
        of_step=_of_window(shape, weight, image, weight.sized(1), by_channels, divisions),
        **_inside(image),
        is_dense_along_steps=by_channels,
        multiples=(*image.others(1), weight.size(1)),
        pointer="image",
    )
    left = _weight_operand(weight, shape, None, by_channels, divisions)
    _convolve(call, shape, "ob_convolution", per_group, channels, left, right, weight, out, bias, divisions)


def _spread(
    call: TemplateCall, shape: Shape, image: Tensor, weight_given: Tensor, bias: Tensor | None, result: Tensor
) -> None:
    if has_phases(shape):
        spread_by_phases(call, shape, image, weight_given, bias, result)
        return
    kind, divisions = shape.kind, Divisions(shape.kind)
    grid, weight = NamedTensor("grid", image, divisions), NamedTensor("weight", weight_given, divisions)
    out = NamedTensor("result", result, divisions, True)
    if depthwise.takes(call, shape, image, result, is_spread=True):
        depthwise.convolve(call, shape, grid, weight, out, bias, is_spread=True)
        return
    per_group, channels = FloorDiv(result.size[1], shape.groups), FloorDiv(image.size[1], shape.groups)
    of_group, by_channels = grid.sized(1, shape.groups), shape.goes_by_channels(image)
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
    # The window at q contains the pixel if their distance is a multiple of the stride.
    conditions, places = [], []
    for i in range(shape.rank):
        step = shape.stride[i]
        conditions.append(f"y{i} >= d{i} && {grid.has(f'(y{i} - d{i}) / {step}', i + 2)}")
        if step > 1:
            conditions.append(f"(y{i} - d{i}) % {step} == 0")
        places.append(f"(y{i} - d{i}) / {step} * {grid.stride(i + 2)}")
    right = Operand(
        declare=declares(grid, numbers_of=(weight, out)),
        of_line=tuple(of_line),
        of_step=_of_window(shape, weight, grid, of_group, by_channels, divisions),
        place=f"grid[grid_from + channel + {' + '.join(places)}]",
        dtype=image.dtype,
        condition=" && ".join(conditions),
        is_dense_along_steps=by_channels,
        multiples=(*grid.others(1), of_group.text),
        pointer="grid",
    )
    left = _weight_operand(weight, shape, of_group, by_channels, divisions)
    _convolve(call, shape, "ob_transposed_convolution", per_group, channels, left, right, weight, out, bias, divisions)


def _weights(call: TemplateCall, shape: Shape, grid_given: Tensor, given: Tensor, result: Tensor) -> None:
    kind, divisions = shape.kind, Divisions(shape.kind)
    grid, image = NamedTensor("grid", grid_given, divisions), NamedTensor("image", given, divisions)
    out = NamedTensor("result", result, divisions, True)
    channels = FloorDiv(given.size[1], shape.groups)
    of_image, rows = (tensor.sized(1, shape.groups) for tensor in (image, grid))
    by_channels = shape.goes_by_channels(given)
    tap, channel = parts_of("line", out.pixels(), of_image, by_channels, divisions)
    pixels = grid.pixels()
    of_step = statements(
        [(kind, "number", divisions.over("step", pixels)), (kind, "pixel", divisions.rest("step", pixels))]
    )
    at_step = f"({kind})step * {grid.stride(1 + shape.rank)}"
    if not (grid.is_one and shape.has_units):
        at_step = f"number * {grid.stride(0)} + {grid.place('pixel')}"
    left = Operand(
        declare=declares(grid, numbers_of=(out,)),
        of_line=((kind, "grid_from", f"({kind})(batch * {rows.text} + line) * {grid.stride(1)}"),),
        of_step=f"{of_step}const {kind} grid_to = {at_step}; ",
        place="grid[grid_from + grid_to]",
        dtype=grid_given.dtype,
        is_dense_along_steps=shape.has_tiles and not shape.goes_by_channels(grid_given),
        adjacent="grid[grid_from + grid_to + lane]" if shape.has_units else "",
        multiples=(*grid.others(1), rows.text),
        pointer="grid",
        lines_in_memory=rows.text,
    )
    right = Operand(
        declare=declares(image, numbers_of=(grid, out)),
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
        is_dense_along_steps=shape.has_tiles and not by_channels,
        adjacent="image[image_from + lane]" if shape.has_units else "",
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
        epilogue=_weights_epilogue(shape, out, image, channels, by_channels, divisions),
    )
    if depthwise.takes(call, shape, grid_given, given):
        depthwise.weights(call, shape, grid, image, product)
    else:
        shape.multiply(call, product)


def _weights_epilogue(
    shape: Shape, out: NamedTensor, image: NamedTensor, channels: sympy.Expr, by_channels: bool, divisions: Divisions
) -> Epilogue:
    """Return the stores of a weight's gradient, leaving out channels that exist only in a copy of the image."""
    kind, of_image = shape.kind, image.sized(1, shape.groups)
    of_row = f"({kind})(batch * ({out.size(0)} / {shape.groups}) + row) * {out.stride(0)}"
    tap, channel = parts_of("column", out.pixels(), of_image, by_channels, divisions)
    is_whole = bool(V.graph.sizevars.statically_known_equals(channels, out.tensor.size[1]))
    is_dense = by_channels and is_whole and out.is_dense_along(1)
    return Epilogue(
        declare=declares(out, numbers_of=(image,)),
        value="value",
        place=f"result[{of_row} + {channel} * {out.stride(1)} + {out.place(tap)}]",
        dtype=out.tensor.dtype,
        dense="column" if is_dense else "",
        multiples=(*out.others(1), out.size(1)),
        pointer="result",
        condition="" if is_whole else f"{channel} < {out.size(1)}",
    )


def _inside(image: NamedTensor) -> dict[str, Any]:
    """Return an operand's place, type and condition: the image at y + d, or 0 outside it."""
    at = [f"y{i} + d{i}" for i in range(len(image.grid))]
    place = " + ".join(f"({index}) * {image.stride(i + 2)}" for i, index in enumerate(at))
    return {
        "place": f"image[image_from + channel + {place}]",
        "dtype": image.tensor.dtype,
        "condition": " && ".join(image.has(index, i + 2) for i, index in enumerate(at)),
    }


def _weight_operand(
    weight: NamedTensor, shape: Shape, of_source: Size | None, by_channels: bool, divisions: Divisions
) -> Operand:
    """Return the weight as the left operand.

    Its lines are the result's channels, and its steps are the source's channels and the window's positions. The first
    dimension of the weight is the source's channels, `of_source` per group, unless `of_source` is None.
    """
    kind = shape.kind
    groups = f"batch * ({weight.size(0)} / {shape.groups})"
    source_dim, result_dim = (1, 0) if of_source is None else (0, 1)
    channels = weight.sized(1) if of_source is None else of_source
    tap, channel = parts_of("step", weight.pixels(), channels, by_channels, divisions)
    source = channel if of_source is None else f"({kind})({groups} + {channel})"
    line = f"({groups} + line)" if of_source is None else "line"
    place = f"{source} * {weight.stride(source_dim)} + {weight.place(tap)}"
    is_dense = not by_channels and of_source is None and weight.is_dense_from(1)
    is_across = shape.has_units and of_source is not None
    # A copy of the source may have more channels than the weight.
    own = f"({weight.size(0)} / {shape.groups})"
    return Operand(
        declare=declares(weight),
        of_line=((kind, "weight_from", f"({kind}){line} * {weight.stride(result_dim)}"),),
        of_step="" if is_dense else f"const {kind} weight_to = {place}; ",
        place=f"weight[weight_from + {'step' if is_dense else 'weight_to'}]",
        dtype=weight.tensor.dtype,
        is_dense_along_steps=is_dense or (by_channels and of_source is None),
        condition=f"{channel} < {own}" if is_across else "",
        adjacent="weight[weight_from + weight_to + lane]" if is_across else "",
        multiples=(*weight.others(1), *([channels.text] if of_source is None else [])),
        pointer="weight",
        lines_in_memory=weight.size(1) if is_across else "",
    )


def _convolve(
    call: TemplateCall,
    shape: Shape,
    name: str,
    rows: sympy.Expr,
    channels: sympy.Expr,
    left: Operand,
    right: Operand,
    weight: NamedTensor,
    out: NamedTensor,
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
    declare, value = biased(out, bias, of_channel, shape.sums)
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
        epilogue=Epilogue(declare, value, f"result[{at}]", out.tensor.dtype, dense, multiples, "result"),
    )
    shape.multiply(call, product)

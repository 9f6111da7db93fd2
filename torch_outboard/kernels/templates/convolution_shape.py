# SPDX-License-Identifier: BSD-3-Clause
"""Parts shared by all forms of convolution: constants, and tensors as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from operator import ge

import sympy  # type: ignore[import-untyped]
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.kernels.refusal import CallRefusal, other_sizes
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor, number_text, simplified
from torch_outboard.kernels.templates.channels import Divisions, Size, by_channels, holds, is_narrow
from torch_outboard.kernels.templates.product import Number, Product, SumType, loaded
from torch_outboard.kernels.templates.schedules import direct
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS, Device

__all__ = ["NamedTensor", "Shape", "biased", "declares", "parts_of"]

# With fewer channels, a convolution group would fill only a small part of a tile.
_MIN_CHANNELS = 16


@dataclass(frozen=True)
class Shape:
    """The constants of a convolution.

    Attributes
    ----------
    kind : str
        The integer type for pixels, channels and positions in memory.
    has_units : bool
        Whether matrix units compute it, with adjacent channels.
    has_tiles : bool
        Whether it is computed in tiles without matrix units.
    is_direct : bool
        Whether each result has its own item, because groups have few channels.
    """

    rank: int
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    output_padding: Sequence[int]
    groups: int
    is_transposed: bool
    sums: SumType
    kind: str
    has_units: bool
    has_tiles: bool
    is_direct: bool

    @staticmethod
    def of(call: TemplateCall) -> Shape:
        arguments = call.arguments
        weight = call.tensor("weight")
        rank = len(weight.size) - 2
        tensors = [argument for argument in arguments.values() if isinstance(argument, Tensor)]
        dtypes = {tensor.dtype for tensor in tensors}
        if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
            raise CallRefusal(f"convolutions of {' and '.join(sorted(map(str, dtypes)))} aren't supported [products]")
        if len(call.tensor("input").size) != rank + 2:
            raise CallRefusal("the input has no batch dimension [batch]")

        def each(name: str) -> list[int]:
            values = [int(number) for number in arguments[name]]
            return values * rank if len(values) == 1 else values

        stride, padding, dilation = each("stride"), each("padding"), each("dilation")
        if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
            raise CallRefusal(
                f"stride {stride} or dilation {dilation} is less than 1, or padding {padding} is negative [wrong-call]"
            )
        output_padding = each("output_padding")
        if arguments["transposed"] and any(map(ge, output_padding, map(max, stride, dilation))):
            raise CallRefusal("output_padding must be smaller than the stride or the dilation [wrong-call]")
        groups = arguments["groups"]
        way = PRODUCTS.way_of(call.family, Device.of(call))
        has_few = way != "strips" and groups > 1 and _has_few_channels(weight, groups)
        has_units = way == "matrix" and not has_few
        of_results = [result for result in call.results if result is not None]
        return Shape(
            rank,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            arguments["transposed"],
            SumType.of(dtypes.pop()),
            "ob_i32" if is_narrow(*tensors, *of_results) else "ob_i64",
            has_units,
            way == "tiles" and not has_few,
            has_few,
        )

    def check_gradient(self, call: TemplateCall) -> None:
        """Refuse a gradient whose shape does not match the sizes; torch's meta kernel does not check it."""
        image, weight, grad = call.tensor("input"), call.tensor("weight"), call.tensor("grad_output")
        of_input, of_grad = weight.size[1] * self.groups, weight.size[0]
        if self.is_transposed:
            of_input, of_grad = of_grad, of_input
        expected = [image.size[0], of_grad]
        for i in range(self.rank):
            size, reach = image.size[i + 2], self.dilation[i] * (weight.size[i + 2] - 1) + 1
            if self.is_transposed:
                size = (size - 1) * self.stride[i] - 2 * self.padding[i] + reach + self.output_padding[i]
            else:
                size = FloorDiv(size + 2 * self.padding[i] - reach, self.stride[i]) + 1
            expected.append(size)
        pairs = [(image.size[1], of_input), *zip(grad.size, expected, strict=True)]
        if not all(holds(sympy.Eq(*pair)) for pair in pairs) or not all(
            holds(sympy.Ge(size, 1)) for size in expected[2:]
        ):
            raise other_sizes()

    def goes_by_channels(self, source: Tensor) -> bool:
        """Return whether adjacent steps, or lines of a weight's gradient, are channels instead of window positions."""
        is_last = V.graph.sizevars.statically_known_equals(source.stride[1], 1)
        return self.has_units or (self.has_tiles and bool(is_last))

    def placed(self, call: TemplateCall, tensor: Tensor, groups: int = 1) -> Tensor:
        """Return the tensor, or a copy with the channel layout that the product needs."""
        return by_channels(call, tensor, groups) if self.has_units else tensor

    def placed_weight(self, call: TemplateCall, weight: Tensor) -> Tensor:
        """Return the weight or a copy; for items with adjacent channels, the copy's first dimension is contiguous."""
        if not self.is_direct or weight.dtype.itemsize not in (2, 4):
            return self.placed(call, weight)
        one = sympy.Integer(1)
        rows = Tensor(weight.dtype, [one, *weight.size], [one, *weight.stride], weight.name)
        copy = by_channels(call, rows)
        return Tensor(weight.dtype, weight.size, copy.stride[1:], copy.name)

    @staticmethod
    def free(call: TemplateCall, *tensors: Tensor) -> None:
        """Free the tensors that are copies."""
        names = {argument.name for argument in call.arguments.values() if isinstance(argument, Tensor)}
        for tensor in tensors:
            if tensor.name not in names:
                call.free(tensor)

    def multiply(self, call: TemplateCall, product: Product) -> None:
        if self.is_direct:
            direct.multiply(call, product, self.kind)
        else:
            PRODUCTS.schedule_of(call).multiply(call, product)


def _has_few_channels(weight: Tensor, groups: int) -> bool:
    """Return whether a group has too few channels to fill a tile. The window's sizes then become constants."""
    of_group = (FloorDiv(weight.size[0], groups), weight.size[1])
    if all(holds(sympy.Ge(size, _MIN_CHANNELS)) for size in of_group):
        return False
    for size in (*of_group, *weight.size[2:]):
        V.graph.sizevars.guard_int(size)
    return True


class NamedTensor:
    """A tensor, with texts for its strides and sizes. Each kernel that uses it declares them with the pointer.

    The first two dimensions are "n" and "c", the others are the grid's. `place` treats contiguous grid dimensions as
    one.
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
        # Whether the pixels of all batches are contiguous.
        self.is_one = self._is_one and (
            known(tensor.stride[0], prod(self.grid, start=tensor.stride[-1])) or known(tensor.size[0], 1)
        )

    def stride(self, dim: int) -> str:
        text = number_text(f"{self.name}_stride{dim}", self.tensor.stride[dim])
        return text if self._kind == "ob_i64" or text.isdigit() else f"({self._kind}){text}"

    def size(self, dim: int) -> str:
        return number_text(f"{self.name}_size{dim}", self.tensor.size[dim])

    def sized(self, dim: int, groups: int = 1) -> Size:
        """Return the size of a dimension, or of one group's part of it."""
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
        """Return the number of pixels in the grid."""
        text = " * ".join(self.size(dim) for dim in range(2, len(self.tensor.size)))
        return Size(f"({text})", prod(self.grid, start=sympy.Integer(1)))

    def others(self, dim: int) -> tuple[str, ...]:
        """Return the strides of the dimensions other than `dim` that have more than one element."""
        sizes = enumerate(self.tensor.size)
        return tuple(self.stride(axis) for axis, size in sizes if axis != dim and simplified(size) != 1)

    def has(self, number: str, dim: int) -> str:
        """Return the condition that a number is in the range of a dimension. The number may be negative."""
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
        """Return the coordinates of a pixel from its number, the last dimension first."""
        made: list[Number] = []
        for dim in reversed(range(len(self.grid))):
            text = self._divisions.rest(number, self.sized(dim + 2)) if dim > 0 else number
            made.append((kind, f"{prefix}{dim}", f"({kind}){text}"))
            number = self._divisions.over(number, self.sized(dim + 2))
        return made

    def place(self, number: str) -> str:
        """Return a pixel's position in memory from its number."""
        if self._is_one:
            return f"({number}) * {self.stride(len(self.grid) + 1)}"
        return " + ".join(
            f"{text} * {self.stride(int(name[1:]) + 2)}"
            for _, name, text in self.coordinates(f"({number})", "q", self._kind)
        )


def declares(*used: NamedTensor, numbers_of: Sequence[NamedTensor] = ()) -> Callable[[Kernel], None]:
    def declare(kernel: Kernel) -> None:
        for tensor in used:
            tensor.declare(kernel)
        for tensor in numbers_of:
            tensor.declare_numbers(kernel)

    return declare


def parts_of(number: str, window: Size, channels: Size, by_channels: bool, divisions: Divisions) -> tuple[str, str]:
    """Split a number that counts window positions and channels into the position and the channel."""
    if not by_channels:
        return divisions.rest(number, window), divisions.over(number, window)
    if simplified(window.value) == 1:
        return "0", f"({divisions.kind}){number}"
    return divisions.over(number, channels), divisions.rest(number, channels)


def biased(out: NamedTensor, bias: Tensor | None, channel: str, sums: SumType) -> tuple[Callable[[Kernel], None], str]:
    """Return a function that declares a result and its bias, and the text of a sum plus its channel's bias."""
    value = "value"
    if bias is not None:
        place = f"bias[{channel} * {number_text('bias_stride', bias.stride[0])}]"
        value = f"value + {loaded(place, bias.dtype, sums)}"

    def declare(kernel: Kernel) -> None:
        out.declare(kernel)
        if bias is not None:
            kernel.pointer("bias", bias)
            kernel.number("bias_stride", bias.stride[0])

    return declare, value

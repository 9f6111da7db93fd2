# SPDX-License-Identifier: BSD-3-Clause
"""The steps that a program is drawn from. Each is a function of tensors, with numbers that are drawn with it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Tensors = list[torch.Tensor]
Function = Callable[..., Any]

DTYPES = (torch.float32, torch.float32, torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.int32)
ENDS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 1e18, 1e-40, 0.5, 88.0)


def nothing(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Draw no numbers."""
    return ()


@dataclass(frozen=True)
class Kind:
    """A kind of steps: how many tensors it takes, and the numbers that it draws from their shapes."""

    name: str
    count: int
    function: Function
    draw: Callable[[random.Random, Sequence[torch.Tensor]], tuple[Any, ...]] = nothing
    in_place: bool = False
    differentiable: bool = False


@dataclass(frozen=True)
class Step:
    """One step of a program: what it makes is the next tensor of the program, if it makes one."""

    kind: Kind
    places: tuple[int, ...]  # of the tensors that it takes, among those that live when it runs
    numbers: tuple[Any, ...]

    def __str__(self) -> str:
        words = [f"t{place}" for place in self.places] + [repr(number) for number in self.numbers]
        return f"{self.kind.name}({', '.join(words)})"


def made(seed: int, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Return a new tensor on the CPU, in a layout, with the ends of its type among its elements."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = torch.randn(shape, generator=generator) * 3
        ends = torch.tensor(ENDS)[torch.randint(len(ENDS), shape, generator=generator)]
        values = torch.where(torch.rand(shape, generator=generator) < 0.1, ends, values).to(dtype)
    else:
        values = torch.randint(-3, 9, shape, generator=generator).to(dtype)
    if layout == "transposed" and len(shape) > 1:
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps" and shape:
        return values.repeat_interleave(2, -1)[..., ::2]
    if layout == "last" and len(shape) == 4:
        return values.contiguous(memory_format=torch.channels_last)
    if layout == "offset":
        return torch.cat([values.new_zeros(3), values.flatten()])[3:].view(shape)
    return values


def shape_of(generator: random.Random) -> tuple[int, ...]:
    return tuple(
        generator.choice((1, 1, 2, 3, 4, 5, 0) if generator.random() < 0.1 else (1, 2, 3, 4))
        for _ in range(generator.choice((0, 1, 2, 2, 3, 3, 4)))
    )


def _dim(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return (generator.randrange(-operands[0].dim(), operands[0].dim()) if operands[0].dim() else 0,)


def _two_dims(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return _dim(generator, operands) + _dim(generator, operands)


def _place(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    (dim,) = _dim(generator, operands)
    size = operands[0].shape[dim] if operands[0].dim() else 1
    start = generator.randrange(size + 1)
    return dim, start, generator.randrange(size - start + 1)


def _index(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    (dim,) = _dim(generator, operands)
    size = operands[0].shape[dim] if operands[0].dim() else 1
    return dim, generator.randrange(-1, size + (generator.random() < 0.05)) if size else 0


def _order(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    order = list(range(operands[0].dim()))
    generator.shuffle(order)
    return (tuple(order),)


def _larger(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    sizes = tuple(generator.choice((2, 3)) if size == 1 else size for size in operands[0].shape)
    return ((generator.choice((1, 2)), *sizes) if generator.random() < 0.3 else sizes,)


def _number(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    if operands[0].dtype.is_floating_point:
        return (generator.choice((*ENDS, 2.5, -0.75, 3)),)
    return (generator.choice((0, 1, 2, -1, 5, True, 2.5)),)


def _window(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    (dim,) = _dim(generator, operands)
    size = operands[0].shape[dim] if operands[0].dim() else 1
    return dim, generator.randint(1, max(size, 1)), generator.randint(1, 3)


def _dtype(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return (generator.choice(DTYPES),)


def _format(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    formats = (torch.contiguous_format, torch.preserve_format, torch.channels_last)
    return (generator.choice(formats),)


def _indices(generator: random.Random, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    (dim,) = _dim(generator, operands)
    size = operands[0].shape[dim] if operands[0].dim() else 1
    most = size + (generator.random() < 0.03)
    return dim, tuple(generator.randrange(most) for _ in range(generator.randint(1, 4))) if most else ()


def _here(like: torch.Tensor, values: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(like.device)


def _mask(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.bool else tensor > 0


def _autocast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.autocast(a.device.type, dtype=torch.bfloat16):
        return functional.linear(a, b)


def _sum_into(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sum into other memory: a sum into its own input has no meaning."""
    is_apart = a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    return torch.sum(b, 0, out=a) if is_apart else a


def _halve(tensor: torch.Tensor) -> torch.Tensor:
    """Resize to fewer elements: more of them would be what nothing has written."""
    return tensor.resize_(tensor.numel() // 2) if tensor.is_contiguous() else tensor


VIEWS = (
    Kind("transpose", 1, torch.transpose, _two_dims),
    Kind("permute", 1, torch.permute, _order),
    Kind("narrow", 1, torch.narrow, _place),
    Kind("select", 1, torch.select, _index),
    Kind("expand", 1, torch.Tensor.expand, _larger),
    Kind("unsqueeze", 1, torch.unsqueeze, _dim),
    Kind("squeeze", 1, torch.squeeze),
    Kind(
        "step",
        1,
        lambda x, dim, step: x[(slice(None),) * (dim % max(x.dim(), 1)) + (slice(None, None, step),)],
        lambda g, t: (*_dim(g, t), g.choice((2, 3))),
    ),
    Kind("flatten", 1, torch.flatten),
    Kind("diagonal", 1, torch.diagonal),
    Kind("unfold", 1, torch.Tensor.unfold, _window),
    Kind("chunk", 1, lambda x, dim: x.chunk(2, dim)[-1], _dim),
    Kind("view_int", 1, lambda x: x.view(torch.int32)),
    Kind("detach", 1, torch.detach),
)
FUNCTIONS = (
    *(
        Kind(name, 1, getattr(torch, name), differentiable=True)
        for name in ("neg", "abs", "sin", "tanh", "exp", "relu")
    ),
    *(Kind(name, 1, getattr(torch, name)) for name in ("sqrt", "floor", "sign", "isnan", "logical_not", "reciprocal")),
    *(Kind(name, 2, getattr(torch, name), differentiable=True) for name in ("add", "sub", "mul", "div", "maximum")),
    *(Kind(name, 2, getattr(torch, name)) for name in ("eq", "lt", "logical_and", "fmin", "floor_divide", "remainder")),
    *(Kind(name, 2, getattr(torch, name), differentiable=True) for name in ("matmul", "outer")),
    Kind("where", 3, lambda x, a, b: torch.where(_mask(x), a, b), differentiable=True),
    Kind("addcmul", 3, torch.addcmul, differentiable=True),
    *(
        Kind(name, 1, getattr(torch, name), _dim, differentiable=True)
        for name in ("sum", "mean", "amax", "cumsum", "prod")
    ),
    Kind("sum_all", 1, torch.sum, differentiable=True),
    Kind("softmax", 1, torch.softmax, _dim, differentiable=True),
    Kind("sort", 1, lambda x, dim: x.sort(dim, stable=True)[0], _dim),
    Kind("argmax", 1, torch.argmax, _dim),
    Kind("cat", 2, lambda a, b, dim: torch.cat([a, b], dim), _dim),
    Kind("stack", 2, lambda a, b: torch.stack([a, b])),
    Kind("flip", 1, lambda x, dim: x.flip(dim), _dim),
    Kind("roll", 1, lambda x, dim, n: x.roll(n, dim), _index),
    Kind("clone", 1, lambda x, format: x.clone(memory_format=format), _format),
    Kind("contiguous", 1, torch.Tensor.contiguous),
    Kind("to", 1, lambda x, dtype: x.to(dtype), _dtype),
    Kind("reshape", 1, lambda x: x.reshape(-1)),
    Kind("index_select", 1, lambda x, dim, at: x.index_select(dim, _here(x, at)), _indices),
    Kind("index", 1, lambda x, dim, at: x[_here(x, at)], _indices),
    Kind("pad", 1, lambda x, n: functional.pad(x, (1, 2), value=n), _number),
    Kind("tril", 1, torch.tril),
    Kind("layer_norm", 1, lambda x: functional.layer_norm(x, x.shape[-1:]), differentiable=True),
    Kind("linear_autocast", 2, _autocast),
    Kind("add_number", 1, torch.add, _number),
    Kind("mul_number", 1, torch.mul, _number),
    Kind("full_like", 1, torch.full_like, _number),
)
IN_PLACE = tuple(
    Kind(f"{name}_", count, function, draw, in_place=True)
    for name, count, function, draw in (
        ("add", 2, torch.Tensor.add_, nothing),
        ("mul", 2, torch.Tensor.mul_, nothing),
        ("sub", 2, torch.Tensor.sub_, nothing),
        ("copy", 2, torch.Tensor.copy_, nothing),
        ("fill", 1, torch.Tensor.fill_, _number),
        ("add_number", 1, torch.Tensor.add_, _number),
        ("zero", 1, torch.Tensor.zero_, nothing),
        ("neg", 1, torch.Tensor.neg_, nothing),
        ("relu", 1, torch.Tensor.relu_, nothing),
        ("masked_fill", 2, lambda x, mask, n: x.masked_fill_(_mask(mask), n), _number),
        (
            "index_fill",
            1,
            lambda x, dim, at, n: x.index_fill_(dim, _here(x, at), n),
            lambda g, t: _indices(g, t) + _number(g, t),
        ),
        ("index_copy", 2, lambda a, b, dim, at: a.index_copy_(dim, _here(a, at), b), _indices),
        ("index_put", 2, lambda a, b, dim, at: a.index_put_((_here(a, at),), b), _indices),
        ("add_out", 2, lambda a, b: torch.add(a, b, out=a), nothing),
        ("sum_out", 2, _sum_into, nothing),
        ("t", 1, torch.Tensor.t_, nothing),
        ("resize", 1, _halve, nothing),
    )
)
DIFFERENTIABLE = tuple(kind for kind in FUNCTIONS if kind.differentiable)

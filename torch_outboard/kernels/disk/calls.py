# SPDX-License-Identifier: BSD-3-Clause
"""The calls that packs are built from: operators that eager training and inference of common models use.

A plan serves all sizes that satisfy its guards. Each call is therefore made once per rank, with different sizes: sizes
that are equal when a plan is built must also be equal when it is used. Sizes of 1 have their own plans.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["CALLS", "DTYPES", "PackCall", "Samples", "chosen_calls"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*_FLOATS, torch.int64)

_SHAPES = ((7,), (5, 14), (3, 6, 10), (2, 5, 9, 14))
# Numbers of common models that are written into plans: entries of embeddings, for their
# gradients, and widths of norms.
_VOCABULARIES = (512, 1024, 2048, 30522, 32000, 50257, 50304, 128256, 151936)
_WIDTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
# Rows and their lengths. On GPUs, a plan of a reduction is valid for sizes of one order of
# magnitude: see kernels/magnitudes.py.
_ROWS_ON_CPU = ((6, 10), (600, 34), (6, 9000))
_LENGTHS = (2000, 20000, 300000, 3000000)
_ROWS_ON_GPU = tuple(
    (rows, row) for rows in (6, 100, 3000, 50000) for row in (10, 200, 3000, 50000, 400000) if rows * row <= 1 << 25
)


@dataclass(frozen=True)
class Samples:
    """Creates contiguous arguments of a dtype on a device. A device without hardware has no memory for values."""

    device: torch.device
    dtype: torch.dtype
    machine: str
    has_memory: bool = True

    def __call__(self, *sizes: int) -> torch.Tensor:
        if self.dtype.is_floating_point:
            return torch.randn(sizes).to(self.dtype).to(self.device)
        return torch.randint(1, 9, sizes).to(self.dtype).to(self.device)

    def indices(self, end: int, *sizes: int) -> torch.Tensor:
        return torch.randint(0, end, sizes).to(self.device)

    def mask(self, *sizes: int) -> torch.Tensor:
        return (torch.rand(sizes) < 0.5).to(self.device)

    def rows(self) -> tuple[tuple[int, int], ...]:
        return _ROWS_ON_GPU if self.machine == "gpu" else _ROWS_ON_CPU


@dataclass(frozen=True)
class PackCall:
    """A function that runs operators, and the dtypes that it supports."""

    run: Callable[[Samples], object]
    dtypes: tuple[torch.dtype, ...]


CALLS: dict[str, PackCall] = {}


def chosen_calls(only: str, dtypes: Sequence[torch.dtype]) -> list[tuple[str, PackCall, torch.dtype]]:
    """Return the calls with a dtype among `dtypes` whose label, such as "add float32", matches the pattern."""
    labelled = (
        (f"{name} {str(dtype).removeprefix('torch.')}", call, dtype)
        for name, call in CALLS.items()
        for dtype in call.dtypes
        if dtype in dtypes
    )
    return [call for call in labelled if re.search(only, call[0])]


def _call(name: str = "", dtypes: tuple[torch.dtype, ...] = _FLOATS) -> Callable[[Any], Any]:
    def add(run: Callable[[Samples], object]) -> Callable[[Samples], object]:
        CALLS[name or run.__name__.strip("_")] = PackCall(run, dtypes)
        return run

    return add


def _train(function: Callable[..., Any], *arguments: torch.Tensor) -> None:
    """Call a function without gradients, and with them."""
    with torch.no_grad():
        function(*arguments)
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in arguments]
    result = function(*leaves)
    result.backward(torch.ones(result.shape, dtype=result.dtype).to(result.device))


# Element by element.


def _binary(function: Callable[..., Any], in_place: str, samples: Samples) -> None:
    for shape in _SHAPES:
        x, y = samples(*shape), samples(*shape)
        function(x, y)
        function(x, 3)
        function(x, samples())
        if samples.dtype.is_floating_point:
            function(x, 0.5)
        if len(shape) > 1:
            function(x, samples(*shape[1:]))
            function(x, samples(*shape[:-1], 1))
            function(x, y.transpose(-1, -2).contiguous().transpose(-1, -2))
        if in_place and (samples.dtype.is_floating_point or in_place != "div_"):
            getattr(x, in_place)(y)
            getattr(x, in_place)(3)
            if len(shape) > 1:
                getattr(x, in_place)(samples(*shape[1:]))


for _name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"):
    _in_place = f"{_name}_" if _name in ("add", "sub", "mul", "div") else ""
    _function = getattr(torch, _name)
    CALLS[_name] = PackCall(functools.partial(_binary, _function, _in_place), DTYPES)


@_call("maximum and minimum", DTYPES)
def _extremes(samples: Samples) -> None:
    for shape in _SHAPES:
        x, y = samples(*shape), samples(*shape)
        torch.maximum(x, y)
        torch.minimum(x, y)
        x.clamp(min=0)
        x.clamp(min=1, max=3)


@_call("powers, and sums of scaled ones")
def _scaled(samples: Samples) -> None:
    for shape in _SHAPES:
        x, y, z = samples(*shape), samples(*shape), samples(*shape)
        for exponent in (2, 3, 0.5, -0.5):
            x.pow(exponent)
        torch.add(x, y, alpha=0.1)
        x.add_(y, alpha=-0.1)
        x.lerp_(y, 0.1)
        torch.addcmul(x, y, z, value=0.1)
        x.addcmul_(y, z, value=0.1)
        x.addcdiv_(y, z, value=0.1)


_UNARY = (
    "abs neg exp log log1p sqrt rsqrt sin cos tanh sigmoid erf reciprocal square sign floor ceil round isnan isfinite"
)


@_call("functions of one number")
def _unary(samples: Samples) -> None:
    for shape in _SHAPES:
        x = samples(*shape)
        for name in _UNARY.split():
            getattr(torch, name)(x)
        for name in ("neg_", "exp_", "sqrt_", "relu_", "sigmoid_"):
            getattr(x, name)()


@_call("whole numbers", (torch.int64,))
def _whole(samples: Samples) -> None:
    for shape in _SHAPES:
        x, y = samples(*shape), samples(*shape)
        for result in (
            x.abs(),
            x.neg(),
            x // y,
            x % y,
            x // 3,
            x % 3,
            x.bitwise_and(y),
            x.cumsum(0),
            x.float(),
            x.bool(),
        ):
            result.contiguous()
        mask, second_mask = samples.mask(*shape), samples.mask(*shape)
        for result in (
            mask & second_mask,
            mask | second_mask,
            ~mask,
            mask ^ second_mask,
            mask.float(),
            mask.long(),
            mask.sum(),
            mask.any(),
            mask.all(),
        ):
            result.contiguous()


@_call("activations")
def _activations(samples: Samples) -> None:
    functions: tuple[Callable[..., Any], ...] = (
        F.relu, F.gelu, F.silu, F.sigmoid, F.tanh, F.softplus, F.leaky_relu, F.elu, F.hardswish, F.hardtanh, F.mish,
        functools.partial(F.gelu, approximate="tanh"), F.logsigmoid,
    )  # fmt: skip
    for shape in _SHAPES[1:]:
        for function in functions:
            _train(function, samples(*shape))
        _train(lambda x, y: torch.where(x > 0, x, y), samples(*shape), samples(*shape))
        _train(F.glu, samples(*shape))


# Copies, casts, fills, moves.


@_call("copies and casts", DTYPES)
def _copies(samples: Samples) -> None:
    for shape in _SHAPES:
        x = samples(*shape)
        for dtype in (*DTYPES, torch.bool, torch.int32, torch.float64):
            x.to(dtype)
        x.clone()
        x.copy_(samples(*shape))
        x[1:].clone()
        if len(shape) > 1:
            x.transpose(-1, -2).contiguous()
            x.transpose(0, 1).contiguous()
            x[:, 1:].clone()
            x[..., 1:].contiguous()
            x.expand(4, *shape).contiguous()
    samples(2, 5, 9, 14).permute(0, 2, 3, 1).contiguous()
    samples(2, 3, 5, 7, 10).transpose(1, 2).contiguous()


@_call("fills", DTYPES)
def _fills(samples: Samples) -> None:
    where: dict[str, Any] = {"dtype": samples.dtype, "device": samples.device}
    for shape in _SHAPES:
        x = samples(*shape)
        for tensor in (
            torch.zeros_like(x),
            torch.ones_like(x),
            torch.zeros(shape, **where),
            torch.ones(shape, **where),
        ):
            tensor.zero_()
        torch.full(shape, 3, **where).fill_(2)
        x.masked_fill(samples.mask(*shape), 0)
        x.masked_fill_(samples.mask(*shape), 0)
        torch.where(samples.mask(*shape), x, 0)
    torch.full((5, 9), float("-inf"), device=samples.device)
    torch.arange(9, **where)
    torch.arange(2, 9, **where)
    torch.eye(5, **where)
    for x in (samples(5, 9), samples(3, 5, 9)):
        x.tril()
        x.triu(1)


@_call("joins and parts", DTYPES)
def _joins(samples: Samples) -> None:
    for shape in _SHAPES:
        x, y = samples(*shape), samples(*shape)
        for dim in {0, len(shape) - 1, min(1, len(shape) - 1)}:
            torch.cat([x, y], dim)
            torch.cat([x, y, x], dim)
            torch.stack([x, y], dim)
            x.flip(dim)
            x.roll(1, dim)
        F.pad(x, (1, 2))
        x.repeat(2, *shape[1:])
        x.repeat_interleave(2, 0)
    torch.cat([samples(7) for _ in range(20)])  # copies a list of tensors to the parts of the result


@_call("indices", DTYPES)
def _indices(samples: Samples) -> None:
    for shape in _SHAPES:
        x, where = samples(*shape), samples.indices(shape[0], 4)
        x.index_select(0, where)
        _ = x[where]
        x[where] = samples(4, *shape[1:])
        x.index_add_(0, where, samples(4, *shape[1:]))
        whole = samples.indices(shape[-1], *shape)
        x.gather(-1, whole)
        x.scatter(-1, whole, samples(*shape))
        x.scatter_add_(-1, whole, samples(*shape))
    x, first, second = samples(5, 9), samples.indices(5, 4), samples.indices(9, 4)
    _ = x[first, second]
    for x in (samples(40), samples(5, 40)):
        x.sort(-1)
        x.argsort(-1)
        x.topk(3, -1)
    F.one_hot(samples.indices(9, 5), 9)


@_call("embeddings")
def _embeddings(samples: Samples) -> None:
    for sizes in ((7,), (3, 7)):
        where = samples.indices(30, *sizes)
        _train(functools.partial(F.embedding, where), samples(30, 12))
        _train(lambda table, at=where: table[at], samples(30, 12))
        for entries in _VOCABULARIES:
            torch.ops.aten.embedding_dense_backward(samples(*sizes, 12), where, entries, -1, False)


# Reductions.


def _sized(samples: Samples) -> Iterator[torch.Tensor]:
    for rows, row in samples.rows():
        yield samples(rows, row)
        yield samples(3, rows // 2, row)


@_call("sums and extremes", DTYPES)
def _reductions(samples: Samples) -> None:
    names = ["sum", "amax", "amin", "max", "min", "argmax", "argmin", "prod"]
    if samples.dtype.is_floating_point:
        names += ["mean", "var", "std", "norm", "logsumexp"]
    for x in _sized(samples):
        for name in names:
            function = getattr(torch, name)
            if name != "logsumexp":
                function(x)
            if name != "prod":
                for dim in (0, -1):
                    function(x, dim=dim)
                    function(x, dim=dim, keepdim=True)
        x.cumsum(-1)
    for x in (samples(2, 5, 9, 14), *map(samples, _LENGTHS)):
        for name in names:
            if name != "logsumexp":
                getattr(torch, name)(x)
    for dims in ([0, 2, 3], [2, 3], [0, 1]):
        for name in ("sum", "mean")[: 1 + samples.dtype.is_floating_point]:
            getattr(torch, name)(samples(2, 5, 9, 14), dims)
            getattr(torch, name)(samples(2, 5, 9, 14), dims, keepdim=True)


@_call("softmax")
def _softmax(samples: Samples) -> None:
    for x in _sized(samples):
        for function in (F.softmax, F.log_softmax):
            _train(functools.partial(function, dim=-1), x)
    for function in (F.softmax, F.log_softmax):
        _train(functools.partial(function, dim=1), samples(2, 5, 9, 14))
        _train(functools.partial(function, dim=-1), samples(2, 5, 9, 14))


@_call("norms")
def _norms(samples: Samples) -> None:
    for width in _WIDTHS:
        weight, bias = samples(width), samples(width)
        for rows in sorted({rows for rows, _ in samples.rows()}):
            for x in (samples(rows, width), samples(3, rows // 2, width)):
                _train(lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias), x, weight, bias)
                _train(lambda x, weight: F.rms_norm(x, weight.shape, weight), x, weight)
    for x in _sized(samples):
        _train(lambda x: F.normalize(x, dim=-1), x)
    x = samples(2, 6, 9, 14)
    _train(lambda x, weight, bias: F.group_norm(x, 3, weight, bias), x, samples(6), samples(6))
    for kind, sample in (
        (nn.BatchNorm1d, samples(5, 6)),
        (nn.BatchNorm2d, x),
        (nn.BatchNorm2d, samples(300, 6, 9, 14)),
    ):
        module = kind(6).to(samples.device)
        for state in (module, module.eval()):
            _train(state, sample)
        _train(kind(6).to(samples.device), sample)
    # Norms of gradients: matrices and filters of each order of magnitude, as one row.
    nn.utils.clip_grad_norm_(_with_gradients(samples), 1.0)
    for length in _LENGTHS:
        for x in (samples(length), samples(length // 20, 20), samples(length // 60, 5, 4, 3)):
            torch.linalg.vector_norm(x)


@_call("losses")
def _losses(samples: Samples) -> None:
    for rows, row in samples.rows():
        _train(functools.partial(F.cross_entropy, target=samples.indices(row, rows)), samples(rows, row))
    where = samples.indices(9, 6)
    _train(functools.partial(F.cross_entropy, target=where, label_smoothing=0.1), samples(6, 9))
    _train(functools.partial(F.cross_entropy, target=where, reduction="none"), samples(6, 9))
    _train(lambda x: F.nll_loss(F.log_softmax(x, 1), where), samples(6, 9))
    functions = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits)
    for shape in _SHAPES[:2]:
        for function in functions:
            _train(functools.partial(function, target=samples(*shape).abs().clamp(max=1)), samples(*shape))
    _train(lambda x, y: F.kl_div(x, y, reduction="batchmean"), samples(6, 9), samples(6, 9).softmax(1))


# Products.


@_call("products", (*_FLOATS, torch.int64))
def _products(samples: Samples) -> None:
    x, y = samples(6, 10), samples(10, 14)
    for left, right in (
        (x, y),
        (x, samples(14, 10).t()),
        (samples(10, 6).t(), y),
        (samples(10, 6).t(), samples(14, 10).t()),
    ):
        torch.mm(left, right)
    torch.addmm(samples(14), x, y)
    x, y = samples(3, 6, 10), samples(3, 10, 14)
    torch.bmm(x, y)
    torch.bmm(x, samples(3, 14, 10).transpose(1, 2))
    torch.baddbmm(samples(3, 6, 14), x, y)
    torch.mv(samples(6, 10), samples(10))
    torch.dot(samples(10), samples(10))


@_call("layers of products")
def _layers(samples: Samples) -> None:
    for shape in ((6, 10), (3, 6, 10), (1, 10), (1, 6, 10), (3, 1, 10)):
        _train(F.linear, samples(*shape), samples(14, 10), samples(14))
        _train(F.linear, samples(*shape), samples(14, 10))
    for is_causal in (False, True):
        heads = [samples(2, 3, 9, 16) for _ in range(3)]
        _train(functools.partial(F.scaled_dot_product_attention, is_causal=is_causal), *heads)
    F.scaled_dot_product_attention(samples(2, 3, 1, 16), samples(2, 3, 9, 16), samples(2, 3, 9, 16))


@_call("convolutions")
def _convolutions(samples: Samples) -> None:
    for kernel, stride, padding in (
        (1, 1, 0),
        (1, 2, 0),
        (3, 1, 1),
        (3, 2, 1),
        (5, 1, 2),
        (7, 2, 3),
        (4, 4, 0),
        (3, 1, 0),
    ):
        run = functools.partial(F.conv2d, stride=stride, padding=padding)
        images, weight = samples(2, 6, 20, 24), samples(10, 6, kernel, kernel)
        _train(run, images, weight)
        _train(run, images, weight, samples(10))
    for stride in (1, 2):
        _train(
            functools.partial(F.conv2d, stride=stride, padding=1, groups=6), samples(2, 6, 20, 24), samples(6, 1, 3, 3)
        )
    _train(functools.partial(F.conv1d, padding=1), samples(2, 6, 20), samples(10, 6, 3), samples(10))
    _train(functools.partial(F.conv_transpose2d, stride=2), samples(2, 6, 9, 11), samples(6, 10, 2, 2), samples(10))


@_call("pools")
def _pools(samples: Samples) -> None:
    images = (2, 6, 20, 24)
    _train(functools.partial(F.max_pool2d, kernel_size=2), samples(*images))
    _train(functools.partial(F.max_pool2d, kernel_size=3, stride=2, padding=1), samples(*images))
    _train(functools.partial(F.avg_pool2d, kernel_size=2), samples(*images))
    _train(functools.partial(F.adaptive_avg_pool2d, output_size=1), samples(*images))
    _train(functools.partial(F.interpolate, scale_factor=2, mode="nearest"), samples(*images))
    _train(functools.partial(F.interpolate, scale_factor=2, mode="bilinear"), samples(*images))


# Random numbers, optimizers, models.


@_call("drawn numbers")
def _drawn(samples: Samples) -> None:
    where: dict[str, Any] = {"dtype": samples.dtype, "device": samples.device}
    for shape in _SHAPES:
        x = samples(*shape)
        for make in (torch.rand, torch.randn):
            make(shape, **where)
        torch.rand_like(x)
        torch.randn_like(x)
        x.normal_(0, 0.02)
        x.uniform_(-0.1, 0.1)
        x.bernoulli_(0.5)
        torch.randint(9, shape, device=samples.device)
        for rate in (0.1, 0.2, 0.5):
            _train(functools.partial(F.dropout, p=rate), samples(*shape))
    torch.randperm(9, device=samples.device)
    weights, module = samples(5, 9).softmax(1), torch.get_device_module(samples.device)
    # The call reads the model's weights, except in a capture.
    with contextlib.nullcontext() if samples.has_memory else module.graph(module.Graph()):
        weights.multinomial(1)


def _with_gradients(samples: Samples) -> list[nn.Parameter]:
    parameters = [nn.Parameter(samples(*shape)) for shape in ((7,), (5, 14), (10, 6, 3, 3))]
    for result in parameters:
        result.grad = samples(*result.shape)
    return parameters


@_call("optimizers")
def _optimizers(samples: Samples) -> None:
    kinds: tuple[Callable[..., torch.optim.Optimizer], ...] = (
        functools.partial(torch.optim.SGD, lr=0.1),
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4),
        torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad,
    )  # fmt: skip
    for kind in kinds:
        for is_many in (None, False, True):
            optimizer = kind(_with_gradients(samples), foreach=is_many)
            for _ in range(2):
                optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def _train_model(samples: Samples, model: nn.Module, inputs: torch.Tensor, classes: int) -> None:
    """Run a training step, under autocast for halves, and a call without gradients."""
    model = model.to(samples.device)
    optimizer = torch.optim.AdamW(model.parameters())
    is_mixed = samples.dtype != torch.float32
    with torch.autocast(samples.device.type, dtype=samples.dtype if is_mixed else None, enabled=is_mixed):
        result = model(inputs)
        loss = F.cross_entropy(result, samples.indices(classes, len(result)))
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.eval()(inputs)


@_call("a transformer")
def _transformer(samples: Samples) -> None:
    layers = [nn.TransformerEncoderLayer(24, 3, 40, dropout=0.1, activation="gelu", batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(30, 24), *layers, nn.Flatten(0, 1), nn.LayerNorm(24), nn.Linear(24, 11))
    _train_model(samples, model, samples.indices(30, 5, 14), 11)


@_call("a convolutional network")
def _network(samples: Samples) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(10, 14, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(14), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(14, 11),
    )  # fmt: skip
    _train_model(samples, model, torch.randn(5, 3, 20, 24).to(samples.device), 11)


@_call("a recurrent network", (torch.float32,))
def _recurrent(samples: Samples) -> None:
    lstm = nn.LSTM(10, 14, batch_first=True)
    gru = nn.GRU(10, 14, batch_first=True)
    for net in (lstm, gru):
        module: Any = net.to(samples.device)
        module(samples(3, 5, 10))[0].sum().backward()

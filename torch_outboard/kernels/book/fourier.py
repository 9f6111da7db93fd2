# SPDX-License-Identifier: BSD-3-Clause
"""Fourier transforms, as formulas over pairs of reals: one pass per factor of a length (Cooley and Tukey, 1965).

A length n is r m. With j = m a + b and k = c + r d, the sum over j of x[j] w^(j k), where w is the n-th root of one, is

    y[c, b] = w^(c b) times the sum over a of x[a, b] w^(m c a), and then the transform of length m over b for each c.

Each pass is a kernel. An earlier kernel computes the powers of w, which all passes read. For a prime length, each
result is one sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torch_outboard.kernels.book.copies import in_memory
from torch_outboard.kernels.book.pair import Pair
from torch_outboard.kernels.book.row import Function
from torch_outboard.kernels.refusal import CallRefusal

__all__ = ["FORMULAS"]

_RADIX = 8  # the most terms in a pass unless a prime needs more: all are written into one expression
_MAX_PRIME_FACTOR = 4096  # of a length: each result reads that many elements
_MAX_LENGTH_WITHOUT_TABLE = 8  # the items of a short transform compute the powers
_BY_ROOT, _BY_COUNT = 1, 2  # how results are scaled


def _complex_to_complex(kind: torch.dtype, self: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    return _transform_dimensions(self, dim, normalization, -1 if forward else 1)


def _real_to_complex(
    kind: torch.dtype, self: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool
) -> Any:
    """Transform reals. `onesided` keeps the first half along the last dimension; the other half is its conjugate."""
    whole = _transform_dimensions(Pair(self.to(kind), None), dim, normalization, -1)
    if not onesided:
        return whole
    return Pair(*(part.narrow(dim[-1], 0, self.shape[dim[-1]] // 2 + 1) for part in whole))


def _complex_to_real(kind: torch.dtype, self: Pair, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Any:
    """Transform complex numbers to reals. Only one half is given; the other half is its conjugate."""
    half = _transform_dimensions(self, dim[:-1], 0, 1)
    last = dim[-1]
    place = torch.arange(last_dim_size, device=half.re.device)
    is_given = 2 * place <= last_dim_size
    source = torch.where(is_given, place, last_dim_size - place)
    re, im = (part.index_select(last, source).movedim(last, -1) for part in half)
    # Numbers that are their own conjugates are real.
    im = torch.where((place == 0) | (2 * place == last_dim_size), 0, torch.where(is_given, im, -im))
    whole = _transform_dimensions(Pair(*(part.movedim(-1, last) for part in (re, im))), dim[-1:], 0, 1)
    return whole.re * _scale(whole.re, dim, normalization)


def _transform_dimensions(signal: Pair, dims: Sequence[int], normalization: int, sign: int) -> Pair:
    """Return the transform over some dimensions, scaled."""
    for dim in dims:
        length = int(signal.re.shape[dim])
        if max(_prime_factors(length), default=1) > _MAX_PRIME_FACTOR:
            raise CallRefusal(
                f"a transformed dimension's length has a prime factor above {_MAX_PRIME_FACTOR} [fourier-length]"
            )
        parts = Pair(*(None if part is None else part.movedim(dim, -1) for part in signal))
        powers = _RootsOfUnity(length, sign, signal.re)
        signal = Pair(*(part.movedim(-1, dim) for part in _transform_last(parts, length, powers)))
    if normalization == 0:
        return signal
    return Pair(*(part * _scale(part, dims, normalization) for part in signal))


def _scale(whole: torch.Tensor, dims: Sequence[int], normalization: int) -> float:
    count = math.prod(int(whole.shape[dim]) for dim in dims)
    return {_BY_ROOT: 1 / math.sqrt(count), _BY_COUNT: 1 / count}.get(normalization, 1.0)


class _RootsOfUnity:
    """The powers of an n-th root of one, where n is `count`."""

    def __init__(self, count: int, sign: int, like: torch.Tensor) -> None:
        self.count = count
        self._step = sign * 2 * math.pi / count
        self._dtype = like.dtype
        self._table: Pair | None = None
        if count > _MAX_LENGTH_WITHOUT_TABLE:
            self._table = Pair(*map(in_memory, self._compute(torch.arange(count, device=like.device))))

    def of(self, exponent: torch.Tensor) -> Pair:
        """Return the powers for a tensor of integer exponents from 0 on."""
        exponent = torch.remainder(exponent, self.count)
        if self._table is None:
            return self._compute(exponent)
        return Pair(*(torch.ops.aten._unsafe_index.Tensor(part, [exponent]) for part in self._table))

    def _compute(self, exponent: torch.Tensor) -> Pair:
        # Use angles around 0, where floats are densest.
        around = torch.where(2 * exponent > self.count, exponent - self.count, exponent)
        angle = around.to(self._dtype) * self._step
        return Pair(angle.cos(), angle.sin())


def _transform_last(signal: Pair, length: int, powers: _RootsOfUnity) -> Pair:
    """Return the transform along the last dimension, whose length divides `powers.count`."""
    radix = _radix(length)
    rest = length // radix
    parts: Iterator[Any] = (None if part is None else part.reshape(*part.shape[:-1], 1, radix, rest) for part in signal)
    re, im = parts
    a, b, c = (
        torch.arange(size, device=signal.re.device).reshape(shape)
        for size, shape in ((radix, (1, radix, 1)), (rest, (1, rest)), (radix, (radix, 1, 1)))
    )
    step = powers.count // length
    root = powers.of(step * rest * (c * a))
    if im is None:
        spectrum = Pair((re * root.re).sum(-2), (re * root.im).sum(-2))
    else:
        spectrum = Pair((re * root.re - im * root.im).sum(-2), (re * root.im + im * root.re).sum(-2))
    if rest > 1:
        turn = powers.of(step * (c.squeeze(-1) * b))
        turned = Pair(spectrum.re * turn.re - spectrum.im * turn.im, spectrum.re * turn.im + spectrum.im * turn.re)
        spectrum = _transform_last(Pair(*map(in_memory, turned)), rest, powers)
    return Pair(*(part.transpose(-1, -2).reshape(signal.re.shape) for part in spectrum))


def _prime_factors(length: int) -> list[int]:
    import sympy  # type: ignore[import-untyped]  # not needed if plans are read from disk

    primes: list[int] = sympy.primefactors(length)
    return primes


def _radix(length: int) -> int:
    """Return the factor of the first pass: the largest up to `_RADIX`, or else the smallest prime."""
    usual = [radix for radix in range(2, _RADIX + 1) if length % radix == 0]
    return max(usual, default=min(_prime_factors(length), default=1))


FORMULAS: dict[str, Function] = {
    "aten::_fft_c2c": _complex_to_complex,
    "aten::_fft_c2r": _complex_to_real,
    "aten::_fft_r2c": _real_to_complex,
}

# SPDX-License-Identifier: BSD-3-Clause
"""Operators that draw random numbers: Philox applied to the call's seed and to an element's position.

An operator that draws more than one number per element uses another seed for each draw, derived from the call's seed by
a constant. A float64 number has 53 random bits. All drivers' devices draw the same bits; values computed from the bits
may differ by rounding.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.indexing import check_between
from torch_outboard.kernels.book.row import Draw, Operator
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["OPERATORS", "draw_with_seed"]

_seeds: contextvars.ContextVar[Iterator[torch.Tensor]] = contextvars.ContextVar("seeds")

_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1


@contextlib.contextmanager
def draw_with_seed(seed: torch.Tensor) -> Iterator[None]:
    """Draw with `seed`, an int64 tensor without dimensions, within the scope."""
    token = _seeds.set(_seeds_of(seed))
    try:
        yield
    finally:
        _seeds.reset(token)


def _seeds_of(seed: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a seed for each draw; the first seed is the call's own."""
    yield seed
    for number in itertools.count(1):
        # Multiples of an odd number without a bit pattern: any two differ in about half of their
        # bits.
        yield torch.bitwise_xor(seed, number * 0x9E3779B97F4A7C15 % 2**63)


def _next_seed() -> torch.Tensor:
    return next(_seeds.get())


def _integers(size: Sequence[Any], low: int, high: int) -> torch.Tensor:
    """Draw integers from [low, high)."""
    return torch.ops.prims.inductor_randint(low, high, size, _next_seed())  # type: ignore[no-any-return]


def _uniform(size: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Draw from [0, 1), in the type in which kernels compute numbers of `dtype`."""
    if dtype == torch.float64:
        return _integers(size, 0, 1 << 53).to(torch.float64) * 2.0**-53
    return torch.ops.prims.inductor_random(size, _next_seed(), "rand")  # type: ignore[no-any-return]


def _normal(size: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Draw with mean 0 and standard deviation 1."""
    if dtype == torch.float64:
        # Box-Muller; the logarithm's argument is in (0, 1].
        length = torch.sqrt(-2.0 * torch.log(1.0 - _uniform(size, dtype)))
        return length * torch.cos(2 * math.pi * _uniform(size, dtype))
    return torch.ops.prims.inductor_random(size, _next_seed(), "randn")  # type: ignore[no-any-return]


def _exponential(size: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Draw with rate 1; no draw is 0."""
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.clamp_min(-torch.log(1.0 - _uniform(size, dtype)), torch.finfo(kind).eps / 2)


def _check_real(tensor: torch.Tensor) -> None:
    if not tensor.dtype.is_floating_point:
        raise ClassRefusal(f"random numbers of {tensor.dtype} are not supported [mixed-types]")


# The formulas take the operator's tensors and numbers, without its generator.


def _uniform_between(self: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    if self.is_complex():
        like = self.new_empty(self.shape, dtype=self.dtype.to_real())
        return torch.complex(*(_uniform_between(like, low, high) for _ in range(2)))
    _check_real(self)
    drawn = _uniform(self.shape, self.dtype) * (high - low) + low
    # Do not let rounding move a draw onto the excluded bound.
    limits = torch.finfo(self.dtype)
    last = high - torch.clamp_min(high.abs() * limits.eps, limits.tiny)
    return torch.maximum(torch.minimum(drawn, last), low).to(self.dtype)


def _normal_around(self: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    if self.is_complex():  # each part has half of the variance
        kind = self.dtype.to_real()
        parts = [_normal(self.shape, kind) * (std * math.sqrt(0.5)) + mean for _ in range(2)]
        return torch.complex(*(part.to(kind) for part in parts))
    _check_real(self)
    return (_normal(self.shape, self.dtype) * std + mean).to(self.dtype)


def _normal_of_tensors(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    torch.ops.aten._assert_async.msg((std >= 0).all(), "normal expects all elements of std >= 0.0")
    return _normal_around_each(mean, std)


def _normal_around_each(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Draw around each mean; a standard deviation given as a number was checked at the call."""
    size = torch.broadcast_shapes(mean.shape, std.shape)  # type: ignore[no-untyped-call]
    like = mean if mean.dim() > 0 else std
    _check_real(like)
    return (_normal(size, like.dtype) * std + mean).to(like.dtype)


def _log_normal(self: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    _check_real(self)
    return torch.exp(_normal(self.shape, self.dtype) * std + mean).to(self.dtype)


def _exponential_of_rate(self: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    _check_real(self)
    return (_exponential(self.shape, self.dtype) / rate).to(self.dtype)


def _cauchy(self: torch.Tensor, median: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    _check_real(self)
    return (median + sigma * torch.tan(math.pi * (_uniform(self.shape, self.dtype) - 0.5))).to(self.dtype)


def _geometric(self: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    drawn = _uniform(self.shape, self.dtype)
    return (torch.floor(torch.log1p(-drawn) / torch.log1p(-p)) + 1).to(self.dtype)


def _bernoulli_of_number(self: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (_uniform(self.shape, torch.float32) < p).to(self.dtype)


def _bernoulli_of_tensor(self: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    check_between(p, 0, 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return (_uniform(self.shape, p.dtype) < p).to(self.dtype)


def _bernoulli_of_itself(self: torch.Tensor) -> torch.Tensor:
    return _bernoulli_of_tensor(self, self)


def _dropout(input: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw as `bernoulli_` does. A dropped infinity or NaN becomes NaN, as on the CPU."""
    wide = torch.promote_types(input.dtype, torch.float32)
    kept = 1 - p
    mask = _uniform(input.shape, torch.float32) < kept
    scale = torch.where(kept > 0, 1 / kept, 0).to(wide)
    return (input.to(wide) * mask * scale).to(input.dtype), mask


def _whole_numbers(self: torch.Tensor) -> torch.Tensor:
    """Draw from the integers from 0 to the type's largest.

    For a floating type, this is the largest integer up to which the type represents every integer.
    """
    if self.dtype.is_floating_point:
        last = 2 ** round(1 - math.log2(torch.finfo(self.dtype).eps))
    else:
        last = 1 if self.dtype == torch.bool else torch.iinfo(self.dtype).max
    return _integers(self.shape, 0, last if last == _MAX_INT64 else last + 1).to(self.dtype)


def _whole_numbers_between(self: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    # Take remainders, as in the CPU's kernel: in ranges near 2**64, some numbers come up twice as
    # often as others.
    bits = _integers(self.shape, _MIN_INT64, _MAX_INT64)
    count = high - low
    # Clamp to at least 1, so that no check is needed: a driver's own capture refuses kernels with
    # checks.
    narrow = torch.remainder(torch.bitwise_and(bits, _MAX_INT64), count.clamp_min(1))
    # For 2**63 numbers and more, `count` is negative. Bits outside the range, compared as unsigned,
    # are reduced by `count`.
    is_one = torch.bitwise_xor(bits, _MIN_INT64) < torch.bitwise_xor(count, _MIN_INT64)
    wide = torch.where(is_one, bits, bits - count)
    return (torch.where(count > 0, narrow, wide) + low).to(self.dtype)


def _whole_numbers_below(self: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return _whole_numbers_between(self, torch.zeros_like(high), high)


def _multinomial(self: torch.Tensor, num_samples: int, replacement: bool) -> torch.Tensor:
    """Return the indices of the greatest ratios of weights to exponential draws; an index of weight 0 is never drawn.

    The greatest `num_samples` ratios are draws without replacement (Efraimidis and Spirakis 2006).
    """
    _check_real(self)
    weights = self if self.dtype == torch.float64 else self.float()
    is_weight = torch.logical_and(weights >= 0, weights < math.inf)
    wrong = "probability tensor contains either `inf`, `nan` or element < 0"
    torch.ops.aten._assert_async.msg(is_weight.all(), wrong)
    wrong = "invalid multinomial distribution (sum of probabilities <= 0)"
    torch.ops.aten._assert_async.msg((weights.sum(-1) > 0).all(), wrong)
    if num_samples > 1 and not replacement:
        wrong = "invalid multinomial distribution (with replacement=False, not enough non-negative category to sample)"
        torch.ops.aten._assert_async.msg(((weights > 0).sum(-1) >= num_samples).all(), wrong)
        keys = weights / _exponential(weights.shape, weights.dtype)
        return torch.topk(keys, num_samples, -1)[1]
    size = [*weights.shape[:-1], num_samples, weights.shape[-1]]
    return (weights.unsqueeze(-2) / _exponential(size, weights.dtype)).argmax(-1)


def _permutation(n: int) -> torch.Tensor:
    # Equal 64-bit keys are rare; the stable sort keeps their order.
    return _integers([n], _MIN_INT64, _MAX_INT64).sort(stable=True).indices


OPERATORS = (
    Operator("aten::bernoulli", facts=Facts(bad_numbers={"self p": "is_bad_probability"})),
    Operator(
        "aten::bernoulli.default aten::bernoulli.out",
        computed=Draw(_bernoulli_of_itself),
        facts=Facts(bad_dtypes={"self": "has_integral_type"}),
    ),
    Operator("aten::bernoulli.p", computed=Draw(_bernoulli_of_number, ("p",))),
    Operator(
        "aten::bernoulli_ aten::cauchy_ aten::exponential_ aten::geometric_ aten::log_normal_ aten::normal_ "
        "aten::uniform_",
        facts=Facts(keeps_shapes=True),
    ),
    Operator(
        "aten::bernoulli_.float",
        computed=Draw(_bernoulli_of_number, ("p",)),
        facts=Facts(bad_dtypes={"self": "has_complex_type"}),
    ),
    Operator(
        "aten::bernoulli_.Tensor",
        computed=Draw(_bernoulli_of_tensor),
        facts=Facts(bad_dtypes={"p": "has_integral_type"}),
    ),
    Operator(
        "aten::cauchy",
        facts=Facts(bad_numbers={"self sigma": "is_not_positive"}, bad_dtypes={"self": "is_not_floating"}),
    ),
    Operator("aten::cauchy_.default", computed=Draw(_cauchy, ("median", "sigma"))),
    Operator(
        "aten::exponential",
        facts=Facts(bad_numbers={"self lambd": "is_not_positive"}, bad_dtypes={"self": "is_not_floating"}),
    ),
    Operator("aten::exponential_.default", computed=Draw(_exponential_of_rate, ("lambd",))),
    Operator(
        "aten::geometric",
        facts=Facts(bad_numbers={"self p": "is_bad_inner_probability"}, bad_dtypes={"self": "is_boolean_or_complex"}),
    ),
    Operator("aten::geometric_.default", computed=Draw(_geometric, ("p",))),
    Operator(
        "aten::log_normal",
        facts=Facts(bad_numbers={"self std": "is_not_positive"}, bad_dtypes={"self": "is_not_floating"}),
    ),
    Operator("aten::log_normal_.default", computed=Draw(_log_normal, ("mean", "std"))),
    Operator(
        "aten::multinomial",
        facts=Facts(
            checked_values="sums",
            bad_arguments={"out": "is_bad_index_type", "self num_samples replacement": "has_too_many_samples"},
            check_values="check_weights",
            is_left_to_kernels=True,
        ),
    ),
    Operator("aten::multinomial.default", computed=Draw(_multinomial)),
    Operator(
        "aten::normal",
        facts=Facts(
            layout="contiguous",
            bad_numbers={"mean std": "is_negative"},
            bad_dtypes={"self": "has_integral_type"},
            check_values="check_deviation",
            is_left_to_kernels=True,
        ),
    ),
    Operator("aten::normal.Tensor_Tensor", computed=Draw(_normal_of_tensors)),
    Operator("aten::normal.Tensor_float", computed=Draw(_normal_around_each, ("std",))),
    Operator("aten::normal.float_Tensor", computed=Draw(_normal_of_tensors, ("mean",))),
    Operator("aten::normal_.default", computed=Draw(_normal_around, ("mean", "std"))),
    Operator("aten::random", facts=Facts(bad_dtypes={"self": "has_complex_type"})),
    Operator("aten::random_", facts=Facts(keeps_shapes=True, has_bounds=True)),
    Operator("aten::random_.default", computed=Draw(_whole_numbers)),
    Operator(
        "aten::random_.from",
        computed=Draw(_whole_numbers_between, ("from", "to")),
        facts=Facts(known_warning="two bounds", bad_numbers={"self from to": "is_bad_range"}),
    ),
    Operator(
        "aten::random_.to",
        computed=Draw(_whole_numbers_below, ("to",)),
        facts=Facts(known_warning="bound", bad_numbers={"self to": "is_bad_end"}),
    ),
    Operator("aten::randperm", guarded=("n",)),
    Operator("aten::randperm.generator_out", computed=Draw(_permutation)),
    Operator("aten::uniform", facts=Facts(bad_numbers={"self from to": "is_bad_interval"})),
    Operator("aten::uniform_.default", computed=Draw(_uniform_between, ("from", "to"))),
    Operator("outboard::dropout", computed=Draw(_dropout, ("p",))),
    # The formulas above draw with these operators.
    Operator("prims::inductor_randint.default", lowering="lowerings:draw_integers"),
    Operator("prims::inductor_random.default", lowering="lowerings:draw_random"),
)

# SPDX-License-Identifier: BSD-3-Clause
"""The operators that check values, with a wrong call of each: `AT_CALL` raise at the call, `AT_WAIT` at the next wait.

docs/streams.md says the same; tests/unit/test_value_checks.py compares them, and the operators with csrc/.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["AT_CALL", "AT_WAIT"]

NAN = float("nan")
aten = torch.ops.aten


def _numbers(*values):
    return lambda d: torch.tensor(values).to(d)


zero, one, five = _numbers(0), _numbers(1), _numbers(5)
three = _numbers(0.0, 1.0, 2.0)
value = _numbers(1.0)


def matrix(number, size=1):
    return lambda d: torch.full((size, size), number).to(d)


def _images(dims):
    return lambda d: torch.ones((1, 1, *[1] * dims), device=d)


# Operators for which the caller waits on any device. The names are those of aten.
AT_CALL = {
    "_linalg_eigh": lambda d: torch.linalg.eigh(matrix(NAN, 2)(d)),
    "_linalg_solve_ex": lambda d: torch.linalg.solve(matrix(0.0)(d), matrix(1.0)(d)),
    "_linalg_svd": lambda d: torch.linalg.svd(matrix(NAN)(d)),
    "bincount": lambda d: torch.bincount(_numbers(-1)(d)),
    "cholesky": lambda d: torch.cholesky(matrix(-1.0)(d)),
    "cholesky_inverse": lambda d: torch.cholesky_inverse(matrix(0.0)(d)),
    "fake_quantize_per_channel_affine_cachemask": lambda d: torch.fake_quantize_per_channel_affine(
        torch.ones(2, device=d), _numbers(1.0, 1.0)(d), _numbers(0, 900)(d).int(), 0, 0, 255
    ),
    "histc": lambda d: torch.histc(_numbers(1.0, NAN)(d), 3),
    "index_fill": lambda d: torch.ones(3, dtype=torch.uint8, device=d).index_fill(0, zero(d), _numbers(300)(d)[0]),
    "linalg_cholesky_ex": lambda d: torch.linalg.cholesky_ex(matrix(-1.0)(d), check_errors=True),
    "linalg_eig": lambda d: torch.linalg.eig(matrix(NAN)(d)),
    "linalg_inv_ex": lambda d: torch.linalg.inv(matrix(0.0)(d)),
    "linalg_lu_factor_ex": lambda d: torch.linalg.lu_factor(matrix(0.0)(d)),
    "masked_fill": lambda d: torch.ones(1, dtype=torch.uint8, device=d).masked_fill_(
        torch.ones(1, dtype=torch.bool, device=d), _numbers(300)(d)[0]
    ),
    "multinomial": lambda d: torch.multinomial(_numbers(-1.0, 2.0)(d), 1),
    "normal": lambda d: torch.normal(value(d), _numbers(-1.0)(d)),
    "repeat_interleave": lambda d: torch.repeat_interleave(_numbers(1, -1)(d)),
    "searchsorted": lambda d: torch.searchsorted(three(d), value(d), sorter=_numbers(0, 1, 7)(d)),
    "segment_reduce": lambda d: torch.segment_reduce(three(d), "sum", lengths=one(d)),
}

# Operators whose kernels check while they run.
AT_WAIT = {
    "_assert_async": lambda d: torch._assert_async(zero(d)[0]),
    "_embedding_bag": lambda d: functional.embedding_bag(_numbers(5, 1)(d), torch.ones(3, 2, device=d), zero(d)),
    "bernoulli": lambda d: torch.bernoulli(_numbers(2.0)(d)),
    "binary_cross_entropy": lambda d: functional.binary_cross_entropy(_numbers(2.0)(d), value(d)),
    "div": lambda d: one(d).div(zero(d), rounding_mode="floor"),
    "embedding": lambda d: functional.embedding(five(d), torch.ones(3, 2, device=d)),
    "floor_divide": lambda d: one(d) // zero(d),
    "fmod": lambda d: one(d).fmod(zero(d)),
    "gather": lambda d: three(d).gather(0, five(d)),
    "index": lambda d: three(d)[five(d)],
    "index_add": lambda d: three(d).index_add(0, five(d), value(d)),
    "index_copy": lambda d: three(d).index_copy(0, five(d), value(d)),
    "index_put": lambda d: three(d).index_put_((five(d),), value(d)),
    "index_reduce": lambda d: three(d).index_reduce(0, five(d), value(d), "amax"),
    "index_select": lambda d: three(d).index_select(0, five(d)),
    "linalg_lu_solve": lambda d: torch.linalg.lu_solve(
        torch.eye(2, device=d), _numbers(1, 9)(d).int(), torch.ones(2, 1, device=d)
    ),
    "lu_unpack": lambda d: torch.lu_unpack(torch.eye(2, device=d), _numbers(1, 9)(d).int()),
    "masked_scatter": lambda d: three(d).masked_scatter(torch.ones(3, dtype=torch.bool, device=d), value(d)),
    "max_unpool2d": lambda d: functional.max_unpool2d(_images(2)(d), _numbers(9)(d).view(1, 1, 1, 1), 2),
    "max_unpool3d": lambda d: functional.max_unpool3d(_images(3)(d), _numbers(99)(d).view(1, 1, 1, 1, 1), 2),
    "multi_margin_loss": lambda d: functional.multi_margin_loss(torch.ones(1, 3, device=d), five(d)),
    "multilabel_margin_loss_forward": lambda d: functional.multilabel_margin_loss(
        torch.ones(1, 3, device=d), _numbers(5, -1, -1)(d)[None]
    ),
    "multinomial of several, with replacement": lambda d: torch.multinomial(_numbers(-1.0, 2.0)(d), 5, True),
    "nll_loss2d_forward": lambda d: functional.nll_loss(torch.ones(1, 3, 1, 1, device=d), five(d).view(1, 1, 1)),
    "nll_loss_forward": lambda d: functional.nll_loss(torch.ones(1, 3, device=d), five(d)),
    "put": lambda d: three(d).put(five(d), value(d)),
    "remainder": lambda d: one(d) % zero(d),
    "scatter": lambda d: three(d).scatter(0, five(d), 1.0),
    "scatter_add": lambda d: three(d).scatter_add(0, five(d), value(d)),
    "scatter_reduce": lambda d: three(d).scatter_reduce(0, five(d), value(d), "amax"),
    "take": lambda d: three(d).take(five(d)),
}

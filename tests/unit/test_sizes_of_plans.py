# SPDX-License-Identifier: BSD-3-Clause
"""What sizes leave open: the environment of plans answers as torch's own, sooner."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Mod

from torch_outboard.kernels.plans.sizes import Sizes


def symbols_of(env: ShapeEnv, sizes: tuple[int, ...] = (6, 10, 14)) -> list[sympy.Symbol]:
    meta = torch.empty(sizes, device="meta")
    symbols, _, _ = env.create_symbolic_sizes_strides_storage_offset(meta, ConstantSource("t0"))
    return [size.node.expr for size in symbols]


CONDITIONS = {
    "product": lambda a, b, c: sympy.Le(a * b * c, 1 << 30),
    "long product": lambda a, b, c: sympy.Gt(8 * a * b, 100),
    "product with a sum": lambda a, b, c: sympy.Le(a * (b + 1), 1 << 30),
    "known product": lambda a, b, c: sympy.Eq(a * b, 60),
    "product and zero": lambda a, b, c: sympy.Ne((a - 2) * (b - 2), 0),
    "multiple": lambda a, b, c: sympy.Le(8 * a, 4096),
    "square": lambda a, b, c: sympy.Le(a * a, 1 << 20),
    "always": lambda a, b, c: sympy.Ge(a * b, 4),
    "never": lambda a, b, c: sympy.Lt(a + b, 4),
    "equal": lambda a, b, c: sympy.Eq(a + 4, b),
    "unequal": lambda a, b, c: sympy.Ne(a, b),
    "whole": lambda a, b, c: sympy.Eq(Mod(a, 2), 0),
    "quotient": lambda a, b, c: sympy.Gt(FloorDiv(a * b, 4), c),
    "same": lambda a, b, c: sympy.Ge(a * b - b * a + c, 2),
    "division by zero": lambda a, b, c: sympy.Gt(FloorDiv(c, a - 2), 0),
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_answers_and_guards_are_torchs(condition):
    ours, torchs = Sizes(), ShapeEnv(duck_shape=False)
    for env in (ours, torchs):
        question = condition(*symbols_of(env))
        env.evaluate_expr(sympy.Le(symbols_of(env, (100, 7, 3))[0], 4096))  # changes a range
        env.evaluate_expr(question)
        env.evaluate_expr(question)
    assert [str(guard.expr) for guard in ours.guards] == [str(guard.expr) for guard in torchs.guards]
    assert ours.var_to_range == torchs.var_to_range


def test_the_bound_of_a_product_with_a_known_size_is_refined_as_by_torch():
    ranges = []
    for env in (Sizes(), ShapeEnv(duck_shape=False)):
        a, b, _ = symbols_of(env)
        env.evaluate_expr(sympy.Eq(a, 6))
        env._refine_ranges(sympy.Le(a * b, 600))
        ranges.append(dict(env.var_to_range))
    assert ranges[0] == ranges[1] and ranges[0][b].upper == 100


def test_torch_asks_it(monkeypatch):
    seen = []
    of_ours = Sizes._is_open
    monkeypatch.setattr(Sizes, "_is_open", lambda env, condition: seen.append(of_ours(env, condition)) or seen[-1])
    env = Sizes()
    a, b, c = symbols_of(env)
    assert env.evaluate_expr(sympy.Le(a * b * c, 1 << 30))
    assert seen == [True]
    assert env._maybe_evaluate_static(sympy.Le(a * b * c, 1 << 30)) is sympy.true  # a guard says so
    assert env._maybe_evaluate_static(sympy.Ge(a, 2)) is sympy.true
    assert env._maybe_evaluate_static(sympy.Le(a, 50)) is None
    env.evaluate_expr(sympy.Le(a, 40))
    assert env._maybe_evaluate_static(sympy.Le(a, 50)) is sympy.true  # by the new range


def test_sizes_that_are_equal_by_chance_have_their_own_symbols():
    assert len(set(symbols_of(Sizes(), (6, 6, 6)))) == 3

# SPDX-License-Identifier: BSD-3-Clause
"""The caches of sympy: larger after Inductor's import, and for comparisons too, unless the user has chosen."""

from __future__ import annotations

import pytest

CODE = """
import torch_outboard
from torch_outboard._compat.imports import import_inductor
import_inductor()
import sympy
from sympy.core.cache import CACHE
sizes = {function.cache_info().maxsize for function in CACHE}
x = sympy.Symbol("x", positive=True)
before = sympy.Add.__new__.cache_info().misses
assert x + 12345 is x + 12345
assert sympy.Add.__new__.cache_info().misses > before
print(len(CACHE) > 50, sizes)
"""

COMPARED = """
import sympy
from sympy.core import relational
from torch_outboard._compat.sympy_caches import enlarge_caches
of_sympy = relational.is_ge
enlarge_caches()
x, y = (sympy.Symbol(name, integer=True, positive=True) for name in "xy")
for _ in range(2):
    assert sympy.Ge(x * y, 1) is sympy.true and sympy.Gt(1, x * y) is sympy.false
    assert sympy.Ge(x, y) == sympy.Ge(x, y, evaluate=False) and sympy.Eq(x, x) is sympy.true
    for wrong in (lambda: sympy.Ge(sympy.I, 0), lambda: sympy.Ge(x, sympy.nan)):
        try:
            wrong()
        except TypeError:
            continue
        raise SystemExit("a comparison of numbers without an order has passed")
enlarge_caches()  # a second time changes nothing
print(relational.is_ge is of_sympy or relational.is_ge.cache_info().hits > 0)
print(relational.is_ge.__wrapped__ is of_sympy if relational.is_ge is not of_sympy else "as it was")
"""


@pytest.mark.parametrize("chosen, sizes", [({}, {32768}), ({"SYMPY_CACHE_SIZE": "77"}, {77})], ids=["ours", "chosen"])
def test_they_are_widened_unless_the_user_chose_their_size(run_python, chosen, sizes):
    answer = run_python(CODE, env=chosen)
    assert answer.stdout.split() == f"True {sizes}".split()


@pytest.mark.parametrize("chosen, what", [({}, "True"), ({"SYMPY_USE_CACHE": "no"}, "as it was")], ids=["ours", "off"])
def test_comparisons_are_cached_unless_the_user_switched_caches_off(run_python, chosen, what):
    assert run_python(COMPARED, env=chosen).stdout.splitlines() == ["True", what]

# SPDX-License-Identifier: BSD-3-Clause
"""The caches of sympy: larger after Inductor's import, unless the user has chosen."""

from __future__ import annotations

import pytest

CODE = """
import torch_outboard
from torch_outboard._compat.imports import import_inductor
import_inductor()
import sympy
from sympy.core.cache import CACHE
sizes = {one.cache_info().maxsize for one in CACHE}
x = sympy.Symbol("x", positive=True)
before = sympy.Add.__new__.cache_info().misses
assert x + 12345 is x + 12345
assert sympy.Add.__new__.cache_info().misses > before
print(len(CACHE) > 50, sizes)
"""


@pytest.mark.parametrize("chosen, sizes", [({}, {32768}), ({"SYMPY_CACHE_SIZE": "77"}, {77})], ids=["ours", "chosen"])
def test_they_are_widened_unless_the_user_chose_their_size(run_python, chosen, sizes):
    answer = run_python(CODE, env=chosen)
    assert answer.stdout.split() == f"True {sizes}".split()

# SPDX-License-Identifier: BSD-3-Clause
"""Values that generated kernels compute from sizes alone: once, before any loop."""

from __future__ import annotations

import pytest
import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_outboard.codegen.dialects.frame import Suffixes
from torch_outboard.codegen.kernel.indexing import IndexPrinter

SIZE = sympy.Symbol("ks0", integer=True, nonnegative=True)
OTHER = sympy.Symbol("ks1", integer=True, nonnegative=True)
INDEX = sympy.Symbol("x0", integer=True, nonnegative=True)


@pytest.fixture
def printer() -> IndexPrinter:
    with_sizes = IndexPrinter(Suffixes())
    with_sizes.sizes = {"ks0", "ks1"}
    return with_sizes


def test_what_is_of_sizes_alone_has_a_name(printer: IndexPrinter) -> None:
    text = printer.doprint(INDEX * FloorDiv(SIZE**2 + 1023, 1024) + 3)
    names = list(printer.named.values())
    assert len(names) == len(set(names)) == 3, "the square, the sum, the quotient"
    assert "ks0" not in text and names[-1] in text and "x0" in text
    declared: set[str] = set()
    for expression, name in printer.named.items():
        used = {used_name for used_name in names if used_name in expression}
        assert used <= declared, "each is made of those before it"
        declared.add(name)


def test_the_same_has_one_name(printer: IndexPrinter) -> None:
    first, second = printer.doprint(INDEX + SIZE * OTHER), printer.doprint(SIZE * OTHER)
    assert list(printer.named.values()) == [second]
    assert second in first


@pytest.mark.parametrize(
    "expression",
    [FloorDiv(SIZE, OTHER), ModularIndexing(SIZE, 1, OTHER), INDEX + 1, SIZE, sympy.Integer(7), SIZE / 2],
    ids=str,
)
def test_what_may_have_no_value_and_what_is_nothing_to_compute_has_none(
    printer: IndexPrinter, expression: sympy.Expr
) -> None:
    """With a size of zero a quotient by this size may be unused; a name for it would compute it all the same."""
    printer.doprint(expression)
    assert not printer.named

# SPDX-License-Identifier: BSD-3-Clause
"""Matrix units as data: what a wrong one is refused for, and which one a product takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.units import Fragment, reference, reference_of_joint, unit_of
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.schedules import matrix
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array
from torch_outboard.kernels.templates.schedules.matrix_sides import Tiling
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS, Device

UNIT = reference(torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"left": replace(UNIT.left, column="index % 4")}, "no lane holds element (0, 4) of its left"),
        ({"right": replace(UNIT.right, row="index + 1")}, "lane 0 holds element (8, 0) of its right, which"),
        ({"right": replace(UNIT.right, column="lane % 8 - 1")}, "lane 0 holds element (0, -1) of its right"),
        ({"result": replace(UNIT.result, count=16, row="index")}, "several lanes hold the same element of its result"),
        ({"result": replace(UNIT.result, count=4)}, "no lane holds element (8, 0) of its result"),
        (
            {"result": replace(UNIT.result, kind="double")},
            "accumulates in double; the result must be one float per register",
        ),
        ({"left": replace(UNIT.left, column="__import__('os')")}, "is not an expression of lane, index and integers"),
        ({"k": 16}, "no lane holds element (0, 8) of its left"),
    ],
)
def test_a_unit_whose_fragments_are_wrong_is_refused(change, words):
    with pytest.raises(ValueError) as raised:
        replace(UNIT, **change)
    assert words in str(raised.value)


def test_a_reference_unit_of_no_whole_rows_is_refused():
    with pytest.raises(ValueError, match="of 16 by 8 can't have 12 lanes"):
        reference(torch.float32, lanes=12)


def test_places_divide_as_c_does():
    fragment = Fragment("ob_u32", 4, "lane / 4 + index / 2 % 2 * 8", "lane % 4 * 2 + index % 2 + index / 4 * 8", 2)
    assert fragment.elements == 8
    assert [fragment.place(5, index) for index in range(8)] == [
        *[(1, 2), (1, 3), (9, 2), (9, 3)],
        *[(1, 10), (1, 11), (9, 10), (9, 11)],
    ]


def test_a_product_takes_the_first_unit_of_its_type():
    small = reference(torch.bfloat16, m=8)
    assert unit_of((reference(torch.float16), UNIT, small), torch.bfloat16) is UNIT
    assert unit_of((UNIT,), torch.float32) is None
    with_unit = replace(OPENCL_C, units=(UNIT,))
    assert PRODUCTS.way_of("convolution", Device(with_unit, False, torch.bfloat16)) == "matrix"
    assert PRODUCTS.way_of("convolution", Device(with_unit, False, torch.float16)) == "tiles"
    without = replace(with_unit, has_groups=False)
    assert PRODUCTS.way_of("product", Device(without, False, torch.bfloat16)) == "strips"


def test_units_are_in_the_key_of_plans():
    assert replace(OPENCL_C, units=(UNIT,)).described() != OPENCL_C.described()


@pytest.mark.parametrize(
    ("unit", "rows", "columns", "group"),
    [
        (UNIT, 16, 32, 128),
        (reference(torch.float16, lanes=32), 32, 32, 128),
        (reference(torch.float16, 32, 32, 8, 64), 32, 64, 128),
        (reference(torch.float32, 64, 64, 4, 64), 64, 64, 64),
    ],
)
def test_the_lanes_of_units_share_a_tile(unit, rows, columns, group):
    tiling = Tiling.of(unit, (64, 64), 32)
    assert (tiling.rows, tiling.columns, tiling.group) == (rows, columns, group)


@pytest.mark.parametrize(
    "unit", [reference(torch.bfloat16, m=24), reference(torch.bfloat16, 64, 8, 8, 512), reference(torch.float32, k=6)]
)
def test_a_unit_that_does_not_divide_tiles_is_refused(unit):
    words = f"{unit.m} by 8 by {unit.k} and {unit.lanes} lanes doesn't divide tiles of 64 by 64"
    with pytest.raises(Refusal, match=words):
        Tiling.of(unit, (64, 64), 32)


@pytest.mark.parametrize("unit", [UNIT, reference(torch.float32, m=8), reference_of_joint(torch.float16)])
@pytest.mark.parametrize("size", [64, 128])
def test_the_memory_of_a_tiling_is_that_of_its_arrays(unit, size):
    for steps in (32, 64):
        tiling = Tiling.of(unit, (size, size), steps)
        array = Array("", "", size, tiling.steps, tiling.chunk, is_plain=unit.sums is not None)
        sums = tiling.numbers * 4 if unit.sums else 0
        slots = 3 if unit.copies else 2
        assert matrix._bytes(tiling) == 2 * slots * array.size * unit.dtype.itemsize + sums


def test_the_unit_of_the_documentation_serves_products():
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "MatrixUnit(" in block)
    names = {}
    exec(text, names)
    unit = names["UNIT"]
    assert PRODUCTS.way_of("product", Device(replace(OPENCL_C, units=(unit,)), False, torch.bfloat16)) == "matrix"
    assert Tiling.of(unit, (128, 128), 32).group == 128

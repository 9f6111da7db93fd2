# SPDX-License-Identifier: BSD-3-Clause
"""A dialect's lack is the reason why an operator has no kernel, and each reason is shown with a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.refused import MISSING_FEATURE, mark_unsupported
from torch_outboard.kernels.reasons import REMEDIES, code_of, explained
from torch_outboard.kernels.refusal import CallRefusal, Refusal

aten = torch.ops.aten
ROWS = (0, torch.zeros(2, dtype=torch.int64, device="meta"))


def lack(dialect, operator, *arguments):
    """Return what the dialect lacks for a call with tensors of the device "meta"."""
    graph = torch.fx.Graph()
    places = []
    for number, value in enumerate(arguments):
        if isinstance(value, torch.Tensor):
            places.append(graph.placeholder(f"x{number}"))
            places[-1].meta["val"] = value
        else:
            places.append(value)
    node = graph.call_function(operator, tuple(places))
    node.meta["val"] = torch.empty(2, dtype=arguments[0].dtype, device="meta")
    graph.output(node)
    mark_unsupported(torch.fx.GraphModule({}, graph), "meta", dialect)
    assert ("should_fallback" in node.meta) == (MISSING_FEATURE in node.meta)
    return node.meta.get(MISSING_FEATURE, "")


@pytest.mark.parametrize(
    ("change", "dtype", "operator", "more", "reason", "todo"),
    [
        ({"atomics": frozenset({"f32"})}, torch.bfloat16, aten.scatter_add.default, 2, "adds torch.bfloat16", "OB_CAS"),
        ({"records": False}, torch.float32, aten.index_select.default, 1, "needs `records`", "OB_TAKE"),
        ({"records": False}, torch.int32, aten.floor_divide.default, 0, "integer division", "OB_TAKE"),
        (
            {"has_double": False},
            torch.float64,
            aten.add.Tensor,
            0,
            "does not support torch.float64: float64 needs",
            "has_double",
        ),
        ({"has_int16": False}, torch.uint16, aten.add.Tensor, 0, "uint16 need has_int16", "has_int16 for int16"),
        ({}, torch.int4, aten.clone.default, None, "does not support torch.int4", "convert the tensors"),
    ],
)
def test_what_a_dialect_lacks_is_named_with_what_to_do(change, dtype, operator, more, reason, todo):
    x = torch.empty(2, dtype=dtype, device="meta")
    arguments = (x,) if more is None else (x, *ROWS[: 2 if more else 0], *([x] if more != 1 else []))
    refusal = lack(replace(OPENCL_C, **change), operator, *arguments)
    assert reason in refusal and todo in explained(refusal)
    if change:
        assert lack(OPENCL_C, operator, *arguments) == ""


@pytest.mark.parametrize(
    ("reason", "todo"),
    [
        ("no template multiplies matrices of torch.float8_e4m3fn [products]", "Convert to float32, bfloat16"),
        ("generated kernels don't support torch.int4 [storage-type]", "The type can be stored but not"),
        ("generated kernels have no airy_ai function [function]", "Use other functions"),
        ("a kernel takes s0 + 1, which is not a buffer [plan]", "A plan can't express"),
        ("it calls aten::add without self [plan]", "A plan can't express"),
        (
            "its plan can't be used: program_build (k): error: no such type\nin line 3 [program]",
            "The text after the colon comes from",
        ),
        (
            "a number was passed for a tensor, and there is no functional form [number-for-tensor]",
            "Pass a device tensor with at least",
        ),
        ("building its plan raised UnsupportedOperatorException: aten::x [upstream]", "PyTorch raised this"),
        ("it needs memory on meta [plan]", "A plan can't express"),
    ],
)
def test_a_reason_is_shown_with_its_remedy(reason, todo):
    assert explained(reason).startswith(f"{reason}. {todo}") and explained(reason).endswith(".")


def test_a_reason_that_nobody_knows_is_shown_as_it_is():
    for reason in ("because", "because [nobody-knows]", "[plan]", "because[plan]", "because [plan] of it"):
        assert explained(reason) == reason and not code_of(reason)


def test_a_full_stop_stands_once_and_lines_are_kept():
    assert explained("its plan can't be used: line 1:\nno such type. [program]") == (
        f"its plan can't be used: line 1:\nno such type [program]. {REMEDIES['program']}"
    )


def test_a_refusal_has_a_reason_of_the_table_and_says_what_it_is_about():
    with pytest.raises(ValueError, match="the reason 'because' must end with a code"):
        CallRefusal("because")
    with pytest.raises(TypeError, match="raise OperatorRefusal, ClassRefusal or CallRefusal"):
        Refusal("its decomposition contains constant tensors [no-definition]")

# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels explain` on a device: the route that it prints is the one that the call takes."""

from __future__ import annotations

from typing import Any

import pytest

RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"
DRIVER = ("--driver", "tests.simt_drivers:DiscreteOpenCL")
SCATTERS = "aten::index_put.default: decomposition _index_put"
BY_SEGMENTS = "outboard::combine_sorted.default: template combine_sorted"


@pytest.fixture
def explained(run_python: Any) -> Any:
    return lambda *arguments: run_python(RUN, "kernels", "explain", *arguments, *DRIVER).stdout


def test_a_wrong_index_put_is_found_in_two_files(explained: Any) -> None:
    """The file that decides is named, and by it the file of the kernels."""
    atomic, sorted_ = explained("index_put_"), explained("index_put_", "--deterministic")
    for output in (atomic, sorted_):
        assert "the chain  native, generated, fallback (the host cannot reach the device's memory)" in output
        assert "generated  ran aten::_index_put_impl_\n" in output
        assert "torch_outboard/kernels/book/indexing.py:" in output
    assert f"{SCATTERS}, which declines\n" in atomic and "aten::index_put.default " in atomic
    assert f"{SCATTERS}\n" in sorted_ and BY_SEGMENTS in sorted_ and "templates/segments.py:" in sorted_
    assert BY_SEGMENTS not in atomic


def test_a_mask_takes_another_route(explained: Any) -> None:
    output = explained("index.Tensor", "--mask")
    assert "if an index is a mask, its values decide the result's shape" in output
    assert "generated  ran aten::index.Tensor" in output and "generated  ran aten::cumsum" in output


def test_what_takes_a_call_apart_is_named(explained: Any) -> None:
    options = ("--mask", "--shape", "4,3", "--shape", "12", "--value", "accumulate=true")
    output = explained("index_put_", *options)
    assert "aten::index_put_(float32[4, 3], [bool[4, 3]], float32[12], True)" in output
    assert (
        "generated  some calls are composed from other operators\n               csrc/ops/planned/composed.cpp"
        in output
    )


def test_a_value_that_is_no_json_is_refused(run_python: Any) -> None:
    errors = run_python(RUN, "kernels", "explain", "sum", "--value", "keepdim=yes", status=2).stderr
    assert "'keepdim=yes' is not NAME=JSON, such as accumulate=true" in errors


def test_a_refused_operator_prints_the_reason_and_what_to_do(explained: Any) -> None:
    output = explained("logit", "--dtype", "bfloat16")
    assert "fallback   ran aten::logit" in output
    assert "No plan of aten::logit: for half and bfloat16, the decomposition rounds where" in output
    assert "Compute in float32" in output
    assert "The plan of" not in output
    assert "No plan of" not in explained("logit")


def test_the_texts_are_those_of_the_kernels(explained: Any) -> None:
    assert "__kernel void" not in explained("add.Tensor", "--shape", "4,3")
    output = explained("add.Tensor", "--shape", "4,3", "--shape", "3", "--text")
    assert "aten::add.Tensor(float32[4, 3], float32[3]) on ocl:0" in output
    assert "    plan 1\n" in output and "__kernel void" in output and "return b" in output


def test_lists_and_numbers(explained: Any) -> None:
    output = explained("_foreach_add.List")
    assert "aten::_foreach_add.List: for each tensor aten::add.Tensor" in output
    assert "aten::add.Tensor: formula _add\n" in output


def test_an_error_of_the_call_is_part_of_the_answer(explained: Any) -> None:
    """The CPU's kernel accepts what this device has no kernel for, and which nothing else may run."""
    output = explained("_linalg_eigvals")
    assert "_linalg_eigvals has no formula for its complex result [no-definition]. It has no decomp" in output
    assert "No plan of aten::_linalg_eigvals" in output and "fallback   ran aten::_linalg_eigvals" in output

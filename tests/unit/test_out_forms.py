# SPDX-License-Identifier: BSD-3-Clause
"""The list of operators whose out= kernel replaces the functional one: each entry is proven again, on the CPU.

The tests use the first samples, with float32 or the entry's replacement of it; `scripts/out_forms` covers all element
types.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from operators.lists import OF_NEWER_TORCH
from operators.out_forms import (
    WRONG_ELSEWHERE,
    Pair,
    Prover,
    candidates,
    entries_by_name,
    prove_call,
    read_list,
    render_list,
    run_entry,
    schema_name,
)

# Of an entry's samples, and of an operator's calls.
SAMPLES, MORE_SAMPLES, LIMIT = 6, 64, 3
# Some that a training step cannot do without a copy.
_WANTED = """
    add.Tensor mul.Tensor div.Tensor exp sigmoid tanh silu silu_backward gelu_backward threshold_backward
    mm addmm bmm baddbmm sum.dim_IntList mean.dim amax gather index_select cat eq.Tensor lt.Scalar pow.Tensor_Scalar
"""
WANTED = frozenset(f"aten::{name}" for name in _WANTED.split())


def listed_pairs() -> dict[str, Pair]:
    listed = read_list()
    return {name: pair for name, pair in candidates().items() if name in listed}


@functools.cache
def prover_of(entry: str, first_only: bool) -> Prover:
    """Prove the listed operators that an entry calls: by its first samples, or by many of each type."""
    info = entries_by_name()[entry]
    dtypes = sorted(info.supported_dtypes("cpu"), key=str)
    prover = Prover(listed_pairs(), LIMIT)
    if first_only:
        run_entry(prover, info, torch.float32 if torch.float32 in dtypes else dtypes[0], SAMPLES)
    else:
        for dtype in dtypes:
            run_entry(prover, info, dtype, MORE_SAMPLES)
    return prover


def failure_of(name: str, entries: list[str]) -> str | None:
    """Return why an operator is not proven by these entries, or None.

    Few operators need more than the entries' first samples.
    """
    for first_only in (True, False):
        for entry in (entry for entry in entries if entry not in OF_NEWER_TORCH or entry in entries_by_name()):
            verdict = prover_of(entry, first_only).verdicts.get(name)
            if verdict is not None and (verdict.failure is not None or verdict.compared):
                return verdict.failure
    return f"none of {', '.join(entries)} calls it"


@pytest.mark.database
@pytest.mark.parametrize("name", sorted(listed_pairs()))
def test_a_listed_operator_is_proven(name: str):
    assert failure_of(name, read_list()[name][1]) is None


@pytest.mark.parametrize(
    "name,entry",
    [
        ("aten::_log_softmax", "log_softmax"),
        ("aten::_log_softmax_backward_data", "log_softmax"),
        ("aten::native_batch_norm", "nn.functional.batch_norm"),
    ],
)
def test_an_operator_whose_out_kernel_is_wrong_is_not_proven(name: str, entry: str):
    """Planted in the list, it fails: the CPU's own kernels are wrong in outputs that are not contiguous."""
    assert name not in read_list()
    prover = Prover({name: candidates()[name]}, LIMIT)
    run_entry(prover, entries_by_name()[entry], torch.float32, SAMPLES)
    assert prover.verdicts[name].failure is not None
    assert name not in render_list(prover.verdicts)


def test_an_operator_that_no_entry_calls_is_not_proven():
    assert "calls it" in failure_of("aten::sin", ["exp"])


def test_faults_of_an_out_kernel_are_noticed():
    pair = candidates()["aten::exp"]

    def failure(run) -> str:
        _, text = prove_call(dataclasses.replace(pair, out=run), (torch.rand(3, 4),), {})
        return text or ""

    def exp_but_one(x, out):
        torch.exp(x[1:], out=out[1:])

    def exp_and_beside(x, out):
        torch.exp(x, out=out)
        torch.empty(0).set_(out.untyped_storage())[0] = 1

    def exp_elsewhere(x, out):
        out.set_(x.exp())

    def exp_if_contiguous(x, out):
        torch.exp(x, out=torch.empty(0).set_(out.untyped_storage(), 0, out.shape))

    assert failure(pair.out) == ""
    assert "elements differ" in failure(exp_but_one)
    assert "beside" in failure(exp_and_beside) or "differ" in failure(exp_and_beside)
    assert "resized or moved" in failure(exp_elsewhere)
    assert failure(exp_if_contiguous)


def test_what_is_wrong_on_another_torch_is_not_listed():
    assert not set(read_list()) & WRONG_ELSEWHERE


def test_the_list_holds_what_costs_most_otherwise():
    assert set(read_list()) >= WANTED


def test_the_list_is_sorted_and_names_pairs():
    assert list(read_list()) == sorted(read_list())
    assert all(
        schema_name(candidates()[name].out) == out for name, (out, _) in read_list().items() if name in candidates()
    )

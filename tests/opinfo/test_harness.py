# SPDX-License-Identifier: BSD-3-Clause
"""Controls: faults that the operator database's harness must notice."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from .compare import metadata_difference, value_difference
from .harness import EntryCheck
from .lists import Tolerance
from .samples import Copier


def entry(name):
    return next(info for info in op_db if info.full_name == name)


def kinds(op, device, name="relu", on_device_only=True):
    """Gives the kinds of failure found when `op` stands in for an entry's operator on the device."""
    info = entry(f"nn.functional.{name}")

    def run(tensor, *args, **kwargs):
        if on_device_only and tensor.device.type == "cpu":
            return info.op(tensor, *args, **kwargs)
        return op(tensor)

    changed = copy.copy(info)
    changed.op = run
    report = EntryCheck(changed, torch.float32, device).run()
    return {failure.kind for failure in report.failures}


def test_the_untouched_entry_passes(device):
    assert kinds(torch.relu, device) == set()


def test_a_wrong_value_is_noticed(device):
    assert "values" in kinds(lambda x: torch.relu(x) + 1e-7, device)


def test_a_wrong_gradient_is_noticed(device):
    assert kinds(lambda x: torch.relu(x.detach()) + 0 * x, device) >= {"gradient: values"}


def test_a_result_on_the_cpu_is_noticed(device):
    assert {"wrong device", "not run by the device"} <= kinds(lambda x: torch.relu(x.cpu()), device)


def test_an_unwritten_result_is_noticed(device):
    assert "values" in kinds(lambda x: torch.empty_like(x).requires_grad_(x.requires_grad), device)


def test_another_type_and_shape_are_noticed(device):
    assert "metadata" in kinds(lambda x: torch.relu(x).double(), device)
    assert "metadata" in kinds(lambda x: torch.relu(x)[None], device)


def test_an_exception_and_a_missing_one_are_noticed(device):
    def fail(x):
        raise ValueError("no")

    assert kinds(fail, device) == {"exception"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16])
def test_comparison_is_bit_for_bit(dtype):
    ones = torch.ones(4, dtype=dtype)
    other = ones.clone()
    other[2] = 0
    assert value_difference(ones, ones.clone(), None) is None
    assert "1 of 4" in value_difference(other, ones, None) or dtype.is_complex


def test_comparison_knows_zeros_and_nan():
    assert value_difference(torch.tensor([0.0]), torch.tensor([-0.0]), None) is not None
    assert value_difference(torch.tensor([torch.nan]), torch.tensor([-torch.nan]), None) is None
    assert value_difference(torch.tensor([torch.nan]), torch.tensor([1.0]), None) is not None
    assert value_difference(torch.tensor([1.0]), torch.tensor([torch.nan]), Tolerance(1e9, "")) is not None


def test_comparison_takes_a_tolerance():
    close = torch.tensor([1.0 + 1e-6])
    assert value_difference(close, torch.ones(1), None) is not None
    assert value_difference(close, torch.ones(1), Tolerance(100, "")) is None
    assert value_difference(close, torch.ones(1), Tolerance(2, "")) is not None


def test_metadata_says_what_differs():
    assert "dtype" in metadata_difference(torch.ones(1), torch.ones(1).double())
    assert "shape" in metadata_difference(torch.ones(1), torch.ones(2))
    assert metadata_difference(torch.ones(1), torch.zeros(1)) is None


def test_copies_keep_shared_storage_and_what_lies_beyond_a_view():
    base = torch.arange(12.0)
    view = base[2:6]
    to_cpu = Copier(torch.device("cpu"))
    ours, whole = to_cpu(view), to_cpu(base)
    assert torch.equal(ours, view) and ours.data_ptr() != view.data_ptr()
    assert ours.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert torch.equal(ours.as_strided((3,), (1,), 9), base[9:])
    conjugate = to_cpu(torch.tensor([1 + 2j]).conj())
    assert conjugate.is_conj() and conjugate.item() == 1 - 2j
    assert to_cpu(torch.ones(1, requires_grad=True)).requires_grad

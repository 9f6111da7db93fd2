# SPDX-License-Identifier: BSD-3-Clause
"""Controls: faults that the operator database's checks must notice."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from torch_outboard.testing.database.calls import Copier
from torch_outboard.testing.database.compare import (
    TorchBounds,
    metadata_difference,
    sharing,
    storage_difference,
    stride_difference,
    value_difference,
)

from .checks import errors
from .checks.broadcasting import Broadcasting
from .checks.errors import Errors
from .checks.forward import Forward
from .checks.forward_ad import ForwardAD
from .checks.inplace import InPlace
from .checks.memory_layouts import MemoryLayouts
from .checks.out import Out
from .checks.settings import Settings
from .checks.sparse import Sparse
from .layouts import LAYOUTS
from .lists import COMPLEX_PRODUCTS, Tolerance
from .outcome import Outcome


def entry(name):
    return next(info for info in op_db if info.full_name == name)


def failures(op, device, name="nn.functional.relu", check=Forward, dtype=torch.float32, **changes):
    """Return the failures found when `op` replaces an entry's operator on the device."""
    info = entry(name)

    def run(*args, **kwargs):
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        on_device = any(isinstance(leaf, torch.Tensor) and leaf.device.type == device.type for leaf in leaves)
        return (op if on_device else info.op)(*args, **kwargs)

    changed = copy.copy(info)
    changed.op = run
    for key, value in changes.items():
        object.__setattr__(changed, key, value)
    return check(changed, dtype, device).run().failures


def kinds(*args, **kwargs):
    return {failure.kind for failure in failures(*args, **kwargs)}


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


def test_other_strides_are_noticed(device):
    assert "strides" in kinds(lambda x: torch.relu(x).mT.contiguous().mT if x.dim() > 1 else torch.relu(x), device)


def test_an_exception_and_a_missing_one_are_noticed(device):
    def fail(x):
        raise ValueError("no")

    assert kinds(fail, device) == {"exception"}


def test_a_warning_too_many_is_noticed(device):
    def warn(x):
        warnings.warn("made up", UserWarning, stacklevel=1)
        return torch.relu(x)

    assert kinds(warn, device) == {"warnings"}


def test_a_copy_for_a_view_is_noticed(device):
    assert "sharing" in kinds(lambda x, *args: torch.t(x).clone(), device, "t")
    assert "sharing" in kinds(
        lambda x, *args, **kwargs: tuple(t.clone() for t in torch.chunk(x, *args)), device, "chunk"
    )


def test_a_view_for_a_copy_is_noticed(device):
    assert "sharing" in kinds(lambda x, **kwargs: x.view_as(x), device, "clone")


def test_an_argument_that_is_written_to_is_noticed(device):
    def write(x):
        result = torch.relu(x)
        x.detach().add_(1)
        return result

    assert "argument" in kinds(write, device)


def test_a_wrong_derivative_is_noticed(device):
    assert kinds(torch.exp, device, "exp", ForwardAD) == set()
    assert "values" in kinds(lambda x: torch.exp(x) + x - x.detach(), device, "exp", ForwardAD)
    assert "structure" in kinds(lambda x: torch.exp(x.detach()), device, "exp", ForwardAD) or "values" in kinds(
        lambda x: torch.exp(x.detach()), device, "exp", ForwardAD
    )


def test_layouts_are_distinguished(device):
    def wrong_if_transposed(x, *args, **kwargs):
        result = torch.exp(x)
        return result if x.is_contiguous() or x.numel() == 0 else result + 1

    assert kinds(torch.exp, device, "exp", MemoryLayouts) == set()
    noted = failures(wrong_if_transposed, device, "exp", MemoryLayouts)
    assert {"0 transposed", "0 cropped", "0 stepped", "0 expanded"} <= {failure.sample for failure in noted}
    assert "0 offset" not in {failure.sample for failure in noted}


def test_a_wrong_result_of_broadcasting_is_noticed(device):
    def first_shape(a, b, **kwargs):
        return torch.mul(a, b)[:1] if isinstance(b, torch.Tensor) else torch.mul(a, b)

    assert kinds(torch.mul, device, "mul", Broadcasting) == set()
    assert "metadata" in kinds(first_shape, device, "mul", Broadcasting)


def exp_into(x, out=None):
    if out is None:
        return torch.exp(x)
    value = torch.exp(x)
    out.resize_(value.shape)  # also where as many elements lie in another shape, or elsewhere
    out.set_(value.to(out.dtype))
    return out


def test_out_that_is_not_written_where_it_lies_is_noticed(device):
    assert "argument" in kinds(exp_into, device, "exp", Out)
    assert "sharing" in kinds(lambda x, out=None: torch.exp(x, out=None if out is None else out[:]), device, "exp", Out)
    assert "no exception" in kinds(exp_into, device, "exp", Out)


def test_out_that_writes_beside_its_target_is_noticed(device):
    def beside(x, out=None):
        if out is None:
            return torch.exp(x)
        torch.exp(x, out=out)
        if out.storage_offset():
            out.as_strided((1,), (1,), 0).zero_()
        return out

    noted = failures(beside, device, "exp", Out)
    assert any(failure.kind == "argument" and "inner" in failure.sample for failure in noted)


def test_a_variant_that_does_nothing_in_place_is_noticed(device):
    info = entry("exp")

    def nothing(x):
        return x if x.device.type == device.type else info.inplace_variant(x)

    assert {"values", "argument"} <= kinds(torch.exp, device, "exp", InPlace, inplace_variant=nothing)
    assert {"sharing", "argument"} <= kinds(
        torch.exp, device, "exp", InPlace, inplace_variant=lambda x: x.exp() if x.device == device else x.exp_()
    )


def test_a_sparse_variant_that_does_nothing_in_place_is_noticed(device):
    def nothing(x):
        return x if x.device.type == device.type else x.neg_()

    noted = kinds(torch.neg, device, "neg", Sparse, inplace_variant=nothing)
    assert {"values", "argument"} <= noted


def test_a_setting_that_is_forgotten_is_noticed(device):
    assert "metadata" in kinds(lambda x: torch.exp(x).float(), device, "exp", Settings, dtype=torch.int64)


def test_an_error_that_does_not_come_is_noticed(device):
    info = entry("t")
    assert not Errors(info, torch.float32, device).run().failures
    assert "no exception" in kinds(lambda x: x, device, "t", Errors)


def test_an_error_that_comes_late_is_noticed(device, monkeypatch):
    def late(run, place):
        outcome = Outcome(run, place)
        outcome.is_late = outcome.error is not None
        return outcome

    monkeypatch.setattr(errors, "Outcome", late)
    assert "late exception" in {failure.kind for failure in Errors(entry("t"), torch.float32, device).run().failures}


def test_an_entry_without_anything_to_compare_is_noticed(device):
    nothing = {"sample_inputs_func": lambda *args, **kwargs: []}
    assert kinds(torch.relu, device, **nothing) == {"nothing compared"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16])
def test_comparison_is_bit_for_bit(dtype):
    ones = torch.ones(4, dtype=dtype)
    changed = ones.clone()
    changed[2] = 0
    assert value_difference(ones, ones.clone(), None) is None
    assert "1 of 4" in value_difference(changed, ones, None) or dtype.is_complex


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


def test_the_cpu_rounds_complex_products_by_place():
    """This is why such results have a tolerance; if this test fails, remove the tolerance."""
    counts = set()
    for _ in range(50):
        memory = torch.randn(40, dtype=torch.complex64)
        factor = torch.randn((), dtype=torch.complex64)
        far, *products = [torch.mul(factor, memory[:5], out=memory[at : at + 5]).clone() for at in range(34, 4, -1)]
        counts.add(len({tuple(result.tolist()) for result in products}))
        assert all(value_difference(result, far, COMPLEX_PRODUCTS) is None for result in products)
    assert max(counts) > 1


def test_a_kernel_of_the_drivers_has_torchs_tolerances():
    assert TorchBounds(None).of(torch.float32) == (1.3e-6, 1e-5)
    assert TorchBounds(entry("nn.functional.conv2d")).of(torch.float32) >= (1.3e-6, 1e-5)
    outcome = Outcome(lambda: torch.ones(1), torch.device("cpu"))
    assert outcome.is_exact
    outcome.calls["native", "aten::mm"] = 1
    assert not outcome.is_exact


def test_what_lies_beside_a_view_is_compared():
    ours, theirs = torch.zeros(5), torch.zeros(5)
    ours[4] = 1
    assert value_difference(ours[:3], theirs[:3], None) is None
    assert "1 of 5" in storage_difference(ours[:3], theirs[:3], None)


def test_metadata_says_what_differs():
    assert "dtype" in metadata_difference(torch.ones(1), torch.ones(1).double())
    assert "shape" in metadata_difference(torch.ones(1), torch.ones(2))
    assert metadata_difference(torch.ones(1), torch.zeros(1)) is None
    assert "strides" in stride_difference(torch.ones(2, 3), torch.ones(3, 2).mT)
    assert "offset" in stride_difference(torch.ones(4)[1:], torch.ones(3))
    assert stride_difference(torch.ones(0, 3), torch.ones(3, 0).mT) is None


def test_sharing_names_objects_views_and_parts():
    a, b = torch.ones(4), torch.ones(4)
    assert sharing([a, b]) == []
    assert sharing([a, b, a]) == ["2 is 0"]
    assert sharing([a, a[1:], b]) == ["1.0 shares with 0.0"]
    sparse = a.to_sparse()
    assert sharing([sparse, sparse._values()]) == ["1.0 shares with 0.1"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_keep_shape_and_values(name):
    source = torch.randn(3, 4, 1, 5, dtype=torch.complex64)
    laid_out = LAYOUTS[name](source)
    assert laid_out is not None and laid_out.shape == source.shape
    assert name == "expanded" or torch.equal(laid_out, source)
    lazy = laid_out.is_conj() or laid_out.is_neg()
    assert lazy or laid_out.stride() != source.stride() or laid_out.storage_offset() == 3


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

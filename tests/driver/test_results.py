# SPDX-License-Identifier: BSD-3-Clause
"""A call returns what its schema declares: an argument, a view of an argument, or new memory."""

from __future__ import annotations

import warnings

import pytest
import torch

from .support import assert_same

# Torch says once a process that it doesn't check the indices of sparse tensors.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


@pytest.fixture
def library():
    with torch.library._scoped_library("ownership", "DEF") as scoped:
        yield scoped


def define(library, schema, kernel, meta=None):
    """Define an operator with a CPU kernel, and return it."""
    name = library.define(schema)
    library.impl(name, kernel, "CPU")
    if meta is not None:
        library.impl(name, meta, "Meta")
    return getattr(torch.ops.ownership, name)


def shares(view, base):
    return view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


# ---- views


@pytest.mark.parametrize("part", [torch.view_as_real, torch.real, torch.imag])
def test_parts_of_complex_tensors_are_views(device, part):
    host = torch.randn(5, 3, dtype=torch.complex64)[1:]
    ours = host.to(device)[1:]
    view = part(ours)
    assert shares(view, ours) and view._is_view()
    view.fill_(7)
    expected = host[1:].clone()
    part(expected).fill_(7)
    assert_same(ours, expected, device)


def test_complex_tensors_are_views_of_real_ones(device):
    ours = torch.zeros(3, 2, device=device)
    torch.view_as_complex(ours[1:]).add_(1 + 2j)
    assert_same(ours, torch.tensor([[0.0, 0], [1, 2], [1, 2]]), device)


def test_writes_to_a_part_have_gradients(device):
    def gradient(place):
        source = torch.tensor([1 + 2j, 3 - 1j], device=place, requires_grad=True)
        result = source * 1
        result.real.mul_(source.imag)
        result.abs().sum().backward()
        return source.grad

    torch.testing.assert_close(gradient(device).cpu(), gradient("cpu"))


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "Adagrad"])
def test_complex_parameters_train(device, kind):
    def trained(place):
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 4).to(torch.complex64).add(0.5j).to(place))
        optimizer = getattr(torch.optim, kind)([parameter], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * parameter.conj() * (1 + 2j)).abs().sum().backward()
            optimizer.step()
        return parameter.detach().cpu()

    torch.testing.assert_close(trained(device), trained("cpu"))


def test_a_lazy_clone_is_a_copy(device):
    source = torch.arange(6.0, device=device)
    copy = torch._lazy_clone(source[1:])
    copy.add_(1)
    assert_same(copy, torch.arange(2.0, 7.0), device)
    assert_same(source, torch.arange(6.0), device)


@pytest.mark.parametrize("tells", [True, False], ids=["meta tells the view", "meta tells the shape"])
def test_custom_views(device, library, tells):
    def rows(x):
        return x[1:]

    define(library, "rows(Tensor(a) x) -> Tensor(a)", rows, rows if tells else lambda x: torch.empty_like(x[1:]))
    for cut in (lambda t: t[2:], lambda t: t.t()[1:], lambda t: t[:, 1:]):
        host, ours = cut(torch.arange(20.0).reshape(5, 4)), cut(torch.arange(20.0).reshape(5, 4).to(device))
        view = torch.ops.ownership.rows(ours)
        assert shares(view, ours)
        assert_same(view, host[1:], device)
        view.zero_()
        host[1:].zero_()
        assert_same(ours, host, device)


def test_lists_of_views(device, library):
    halves = define(library, "halves(Tensor(a) x) -> Tensor(a)[]", lambda x: list(x.chunk(2)))
    ours = torch.arange(8.0, device=device)[2:]
    first, second = halves(ours)
    second.zero_()
    assert shares(first, ours)
    assert_same(ours, torch.tensor([2.0, 3, 4, 0, 0, 0]), device)


# ---- what schemas do not say


def test_an_undeclared_view_becomes_a_copy(device, library, capfd):
    """Who calls other people's operators cannot correct their schemas: one warning names the schema."""
    tail = define(library, "tail(Tensor x) -> Tensor", lambda x: x[1:])
    x = torch.arange(3.0, device=device)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        result, again = tail(x), tail(x)
    # Warnings of operators called by torch.ops go to stderr, until torch 2.15.
    lines = [*capfd.readouterr().err.splitlines(), *(str(warning.message) for warning in raised)]
    reports = [line for line in lines if "operator ownership::tail: result 0" in line]
    assert (
        len(reports) == 1 and "in the memory of argument 'x'" in reports[0] and "Schema: ownership::tail(" in reports[0]
    )
    assert not shares(result, x) and not shares(again, x)
    x.zero_()
    assert_same(result, torch.tensor([1.0, 2.0]), device)


def test_a_declared_view_that_is_a_copy_is_an_error(device, library):
    copied = define(library, "copied(Tensor(a) x) -> Tensor(a)", lambda x: x.clone())
    with pytest.raises(RuntimeError, match=r"ownership::copied: result 0 is not in the memory of argument 'x'"):
        copied(torch.ones(3, device=device))


def test_another_tensor_than_the_written_argument_is_an_error(device, library):
    operator = define(library, "other_(Tensor(a!) x, bool go) -> (Tensor(a!), int)", lambda x, go: (x.clone(), 1))
    with pytest.raises(RuntimeError, match=r"ownership::other_: result 0 is not the same tensor as argument 'x'"):
        operator(torch.ones(3, device=device), True)


# ---- sparse tensors


def sparse(place, coalesced=True):
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]], device=place)
    result = torch.sparse_coo_tensor(indices, torch.tensor([3.0, 4.0, 5.0], device=place), (2, 3))
    return result.coalesce() if coalesced else result


@pytest.mark.parametrize("coalesced", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.mul_(2),
        lambda s: s.div_(2),
        lambda s: s.add_(sparse(s.device)),
        lambda s: s.sub_(sparse(s.device) * 3),
        lambda s: s.mul_(sparse(s.device)),
        lambda s: s.copy_(sparse(s.device) * 2),
        lambda s: s.neg_(),
        lambda s: s.zero_(),
        lambda s: s.add_(torch.sparse_coo_tensor([[0], [0]], [9.0], (2, 3), device=s.device)),
        lambda s: torch.add(s, s, out=s),
        lambda s: torch.mul(s, 3, out=s),
        lambda s: s.coalesce().sqrt_(),
        lambda s: s._values().fill_(9),
    ],
)
def test_sparse_tensors_change_in_place(device, change, coalesced):
    ours, host = sparse(device, coalesced), sparse("cpu", coalesced)
    for result, expected in ((change(ours), change(host)), (ours, host)):
        assert_same(result.to_dense(), expected.to_dense(), device)
    assert ours._nnz() == host._nnz() and ours.is_coalesced() == host.is_coalesced()


def test_sparse_values_stay_shared_when_they_change_in_place(device):
    ours = sparse(device)
    values = ours.values()
    ours.neg_()
    assert_same(values, torch.tensor([-3.0, -4.0, -5.0]), device)


@pytest.mark.parametrize("module", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_gradients_accumulate(device, module):
    def gradient(place):
        embedding = module(5, 2, sparse=True)
        with torch.no_grad():
            embedding.weight.copy_(torch.arange(10.0).reshape(5, 2))
        embedding.to(place)
        for row in ([[1, 2]], [[1, 3]], [[4, 4]]):
            embedding(torch.tensor(row, device=place)).square().sum().backward()
        assert embedding.weight.grad.is_sparse
        return embedding.weight.grad.to_dense().detach()

    assert_same(gradient(device), gradient("cpu"), device)


def test_sparse_tensors_on_another_device(device):
    if torch.accelerator.device_count() < 2:
        pytest.skip("capability: two devices. The driver has one")
    second = torch.device(device.type, 1)
    ours = sparse(second)
    assert torch.accelerator.current_device_index() == device.index
    dense = torch.eye(2, device=second).to_sparse()
    for result in (ours, ours.clone(), ours + ours, dense + dense, torch.sparse_coo_tensor((2, 2), device=second)):
        assert result.device == second
    assert_same((ours + ours).to_dense(), sparse("cpu").to_dense() * 2, second)


# ---- numbers on the CPU


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view], ids=["conjugated", "negated"])
def test_lazy_bits_of_numbers_on_the_cpu(device, lazy):
    number = lazy(torch.tensor(1 + 2j))
    zeros = torch.zeros(2, 2, dtype=torch.complex64)
    assert_same(torch.addmm(number, zeros.to(device), zeros.to(device)), torch.addmm(number, zeros, zeros), device)


def test_batch_norm_into_given_outputs(device):
    host = torch.linspace(-2, 5, 60).reshape(3, 4, 5)

    def normed(place):
        weight = torch.linspace(1, 2, 4).to(place)
        out = tuple(torch.zeros(*shape, device=place) for shape in ((3, 4, 5), (4,), (4,)))
        torch.native_batch_norm(host.to(place), weight, weight, None, None, True, 0.1, 1e-5, out=out)
        return out

    for result, expected in zip(normed(device), normed("cpu"), strict=True):
        torch.testing.assert_close(result.cpu(), expected)


def test_a_custom_operator_may_be_defined_again(device):
    """A notebook does so when its cell runs again: with another body, then with another schema."""
    ones = torch.ones(3, device=device)

    def scaled(factor):
        @torch.library.custom_op("ownership::scaled", mutates_args=(), device_types="cpu")
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        scaled.register_fake(torch.empty_like)
        return scaled

    for factor in (2.0, 10.0):
        assert_same(scaled(factor)(ones), torch.full((3,), factor), device)

    @torch.library.custom_op("ownership::scaled", mutates_args=(), device_types="cpu")
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 3 + y

    added.register_fake(lambda x, y: torch.empty_like(x))
    assert_same(added(ones, ones), torch.full((3,), 4.0), device)

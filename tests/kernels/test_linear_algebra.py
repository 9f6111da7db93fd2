# SPDX-License-Identifier: BSD-3-Clause
"""Factors of matrices and what is made of them, by kernels of the device: residuals, layouts, errors, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import linalg

import torch_outboard
from torch_outboard import _C

EPSILON = torch.finfo(torch.float32).eps


pytestmark = pytest.mark.usefixtures("nothing_on_the_cpu")


def assert_like(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare all but the values: factors are unique up to signs."""
    assert got.dtype == want.dtype and got.shape == want.shape
    strides = zip(got.shape, got.stride(), want.stride(), strict=True)
    assert got.numel() == 0 or all(size == 1 or ours == theirs for size, ours, theirs in strides)


def assert_near(got: torch.Tensor, want: torch.Tensor, factor: float = 4) -> None:
    """Compare matrices by the length of their difference, in roundings of the matrix for each row or column."""
    bound = factor * max(*want.shape[-2:], 4) * EPSILON * want.double().norm(dim=(-2, -1))
    assert ((got.double() - want.double()).norm(dim=(-2, -1)) <= bound).all()


def assert_orthogonal(columns: torch.Tensor) -> None:
    identity = torch.eye(columns.shape[-1], dtype=torch.float64)
    assert_near(columns.double().mT @ columns.double(), identity.expand(*columns.shape[:-2], *identity.shape))


def compare(device: Any, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Compare unique results element by element."""
    got, want = function(*(tensor.to(device) for tensor in inputs)), function(*inputs)
    for ours, theirs in [(got, want)] if isinstance(got, torch.Tensor) else zip(got, want, strict=True):
        assert_like(ours, theirs)
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def regular(*shape: int) -> torch.Tensor:
    """Return random matrices that are far from singular."""
    return torch.randn(shape) + 2 * shape[-1] ** 0.5 * torch.eye(shape[-1])


# None has a whole number of blocks.
@pytest.mark.long
def test_matrices_that_are_factored_by_blocks(device):
    a, b = regular(300, 300), torch.randn(300, 5)
    compare(device, linalg.lu_factor_ex, a)
    compare(device, linalg.inv, a)
    compare(device, lambda a: linalg.det(a / 35), a)
    compare(device, linalg.slogdet, a.mT)
    compare(device, lambda a, b: linalg.solve(a, b.mT, left=False), a, b)
    compare(device, lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=True), a, b)
    positive = a @ a.mT / 300
    for upper in (False, True):
        compare(device, lambda a, upper=upper: linalg.cholesky(a, upper=upper), positive)
        factor = linalg.cholesky(positive, upper=upper)
        compare(device, lambda f, b, upper=upper: linalg.solve_triangular(f, b, upper=upper), factor, b)
        compare(device, lambda f, b, upper=upper: torch.cholesky_solve(b, f, upper=upper), factor, b)
    unit = factor / 300
    compare(device, lambda f, b: linalg.solve_triangular(f, b.mT, upper=True, left=False, unitriangular=True), unit, b)


def test_batches_of_matrices_that_are_factored_by_blocks(device):
    a, b = regular(2, 270, 270), torch.randn(2, 270, 5)
    compare(device, linalg.solve, a, b)
    compare(device, linalg.solve, a, b[..., 0])
    compare(device, linalg.cholesky, a @ a.mT / 270)


def test_a_matrix_of_blocks_says_where_it_fails(device):
    a = torch.eye(300)
    a[200, 200] = a[270, 270] = -1
    assert linalg.cholesky_ex(a.to(device)).info.item() == 201
    with pytest.raises(linalg.LinAlgError, match="leading minor of order 201"):
        linalg.cholesky(a.to(device))
    a[200] = 0
    assert linalg.lu_factor_ex(a.to(device)).info.item() == 201
    with pytest.raises(linalg.LinAlgError, match="singular"):
        linalg.inv(a.to(device))


def test_gradients_of_factors_by_blocks(device):
    def of(a):
        a = a.requires_grad_()
        positive = a @ a.mT / a.shape[-1] + torch.eye(a.shape[-1], device=a.device)
        return torch.autograd.grad(linalg.cholesky(positive).diagonal().log().sum() + linalg.det(a / 35), a)[0]

    compare(device, of, regular(280, 280))


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 4, 5), (2, 3, 40, 33)])
def test_lu(device, shape):
    a = torch.randn(shape)
    torch_outboard.reset_coverage()
    p, low, up = (factor.cpu() for factor in linalg.lu(a.to(device)))
    assert_near(p @ low @ up, a)
    assert low.abs().amax() <= 1
    for ours, theirs in zip(linalg.lu_factor_ex(a.to(device)), linalg.lu_factor_ex(a), strict=True):
        assert_like(ours, theirs)
    assert {row.provider for row in torch_outboard.coverage() if "linalg_lu" in row.op} == {"generated"}


def test_systems(device):
    a, b = regular(2, 3, 6, 6), torch.randn(2, 3, 6, 4)
    compare(device, linalg.solve, a, b)
    compare(device, linalg.solve, a.mT, b)
    compare(device, lambda a, b: linalg.solve(a, b.mT, left=False), a, b)
    compare(device, linalg.solve, a, b[..., 0])
    compare(device, lambda a: linalg.inv(a[..., ::2, ::2]), a)
    compare(device, linalg.det, a / 4)
    compare(device, linalg.slogdet, a.mT)
    compare(device, lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=True), a, b)
    beyond = torch.full((2, 3, 6), 9, dtype=torch.int32)
    compare(device, lambda a, b: linalg.lu_solve(a, beyond.to(a.device), b[..., :0]), a, b)


def test_gradients_of_a_determinant_and_a_solution(device):
    def gradients(a, b):
        a, b = (tensor.detach().requires_grad_() for tensor in (a, b))
        return torch.autograd.grad(linalg.solve(a, b).sin().sum() + linalg.det(a / 3), (a, b))

    inputs = regular(4, 4), torch.randn(4, 3)
    got, want = (gradients(*(tensor.to(place) for tensor in inputs)) for place in (device, "cpu"))
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_upper", [False, True])
def test_cholesky_and_triangles(device, is_upper):
    a, b = regular(2, 5, 5), torch.randn(2, 5, 3)
    a = a @ a.mT
    compare(device, lambda a: linalg.cholesky(a, upper=is_upper), a)
    triangle = linalg.cholesky(a, upper=is_upper)
    compare(device, lambda b, t: torch.cholesky_solve(b, t, upper=is_upper), b, triangle)
    compare(device, lambda t: torch.cholesky_inverse(t, upper=is_upper), triangle)
    compare(device, lambda t, b: linalg.solve_triangular(t, b, upper=is_upper), triangle, b)
    compare(device, lambda t, b: linalg.solve_triangular(t, b.mT, upper=is_upper, left=False), triangle, b)


@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 4, 6), (2, 40, 33)])
def test_qr(device, shape):
    a = torch.randn(shape)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(a.to(device), mode)
        for ours, theirs in zip((q, r), linalg.qr(a, mode), strict=True):
            assert_like(ours, theirs)
        assert_near(q.cpu() @ r.cpu(), a)
        assert_orthogonal(q.cpu())
    compare(device, lambda a: linalg.qr(a, "r").R, a)
    compare(device, torch.geqrf, a)


def test_reflections_of_other_matrices(device):
    a, tau = torch.geqrf(torch.randn(2, 6, 4))
    compare(device, linalg.householder_product, a, tau)
    for transpose in (False, True):
        compare(device, lambda a, tau, c, t=transpose: torch.ormqr(a, tau, c, True, t), a, tau, torch.randn(2, 6, 3))
    compare(device, lambda a, tau, c: torch.ormqr(a, tau, c.mT, False), a, tau, torch.randn(2, 6, 3))


def test_large_and_small_numbers_do_not_overflow(device):
    for size in (1e30, 1e-30):
        a = torch.randn(12, 5) * size
        q, r = (factor.cpu().double() for factor in linalg.qr(a.to(device)))
        assert_near(q @ r / size, a.double() / size)
        compare(device, lambda a, size=size: linalg.svdvals(a) / size, a)


@pytest.mark.parametrize("side", ["L", "U"])
def test_eigenvalues_and_vectors(device, side):
    for a in (torch.randn(2, 5, 5), torch.randn(2, 40, 40), torch.ones(2, 4, 4), torch.zeros(2, 3, 3)):
        got = linalg.eigh(a.to(device), side)
        for ours, theirs in zip(got, linalg.eigh(a, side), strict=True):
            assert_like(ours, theirs)
        values, vectors = (part.cpu() for part in got)
        low = a.tril() if side == "L" else a.triu().mT
        assert_near(vectors * values.unsqueeze(-2) @ vectors.mT, low + low.tril(-1).mT)
        assert_orthogonal(vectors)
        assert (values[..., 1:] >= values[..., :-1]).all()


@pytest.mark.parametrize("full", [False, True])
def test_singular_values_and_vectors(device, full):
    graded = torch.randn(2, 21, 20) * 10.0 ** -torch.arange(20.0)
    low_rank = torch.randn(2, 9, 2) @ torch.randn(2, 2, 5)
    for a in (torch.randn(2, 6, 4), torch.randn(2, 4, 6), low_rank, torch.zeros(2, 4, 3), graded):
        got = linalg.svd(a.to(device), full_matrices=full)
        for ours, theirs in zip(got, linalg.svd(a, full_matrices=full), strict=True):
            assert_like(ours, theirs)
        u, values, vh = (part.cpu() for part in got)
        count = values.shape[-1]
        assert_near(u[..., :count] * values.unsqueeze(-2) @ vh[..., :count, :], a)
        assert_orthogonal(u)
        assert_orthogonal(vh.mT)
        assert (values[..., 1:] <= values[..., :-1]).all()


def test_what_is_made_of_singular_values(device):
    a = torch.randn(3, 6, 2) @ torch.randn(3, 2, 5)
    assert (linalg.matrix_rank(a.to(device)).cpu() == 2).all()
    torch_outboard.reset_coverage()
    compare(device, linalg.pinv, regular(3, 5, 5))
    compare(device, linalg.cond, regular(3, 5, 5))
    assert {row.provider for row in torch_outboard.coverage() if "svd" in row.op} == {"generated"}


def test_doubles(device):
    a = torch.randn(7, 7, dtype=torch.float64)
    q, r = linalg.qr(a.to(device))
    torch.testing.assert_close((q @ r).cpu(), a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linalg.svdvals(a.to(device)).cpu(), linalg.svdvals(a), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: linalg.cholesky(-a),
        lambda a: linalg.cholesky(-a[0]),
        lambda a: linalg.cholesky_ex(-a, check_errors=True),
        lambda a: linalg.inv(a * 0),
        lambda a: linalg.solve(a[0] * 0, a[0]),
        lambda a: linalg.lu_factor_ex(a * 0, check_errors=True),
        lambda a: linalg.svd(a / 0),
        lambda a: linalg.svdvals(a[0] * float("nan")),
    ],
)
def test_errors_are_torchs(device, function):
    a = torch.eye(3).expand(2, 3, 3)
    with pytest.raises(RuntimeError) as want:
        function(a)
    with pytest.raises(want.type) as got:
        function(a.to(device))
    assert str(got.value) == str(want.value)


def test_endless_eigenvalues_are_an_error(device):
    with pytest.raises(linalg.LinAlgError, match=r"linalg\.eigh: \(Batch element 1\).*failed to converge"):
        linalg.eigh(torch.tensor([1.0, float("inf")], device=device).view(2, 1, 1).expand(2, 2, 2))


def test_errors_are_not_raised_of_other_matrices(device):
    a = regular(2, 3, 3)
    a = a @ a.mT
    compare(device, lambda a: linalg.cholesky_ex(a, check_errors=True), a)
    compare(device, lambda a: linalg.inv_ex(a, check_errors=True), a)
    assert linalg.cholesky_ex(-a.to(device)).info.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0)])
@pytest.mark.parametrize("function", [linalg.inv, linalg.det, linalg.lu, linalg.qr, linalg.eigh, linalg.svd])
def test_matrices_without_elements(device, function, shape):
    got, want = function(torch.zeros(shape, device=device)), function(torch.zeros(shape))
    for ours, theirs in [(got, want)] if isinstance(got, torch.Tensor) else zip(got, want, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_results_are_written_where_the_caller_says(device):
    a = regular(3, 4, 4)
    out = torch.empty_like(a, device=device)
    linalg.inv(a.to(device), out=out)
    torch.testing.assert_close(out.cpu(), linalg.inv(a), rtol=1e-4, atol=1e-4)


def test_large_matrices_are_left_to_the_cpu(device):
    with pytest.raises(torch_outboard.NotSupportedError, match="has more than 256 rows and columns"):
        linalg.svdvals(torch.zeros(300, 300, device=device))
    assert linalg.qr(torch.ones(300, 2, device=device), "r").R.shape == (2, 2)


DRIVERS = [{"driver": routine} for routine in ("gels", "gelsy", "gelsd", "gelss")]


@pytest.mark.parametrize("options", [{}, {"rcond": 1e-3}, *DRIVERS])
@pytest.mark.parametrize(
    "shape", [(2, 5, 3), (3, 5), pytest.param((4, 4), marks=pytest.mark.long), (7, 1), (1, 6), (40, 33)]
)
def test_least_squares(device: torch.device, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    a, b = torch.randn(shape), torch.randn(*shape[:-1], 2)
    for right in (b, b[..., 0]) if len(shape) > 2 else (b,):
        got, want = (linalg.lstsq(*operands, **options) for operands in ((a.to(device), right.to(device)), (a, right)))
        for ours, theirs in zip(got, want, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-3, atol=2e-3)


def test_least_squares_in_given_tensors(device: torch.device) -> None:
    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 2)
    places = [
        torch.empty(0, dtype=dtype, device=device) for dtype in (*[torch.float32] * 2, torch.int64, torch.float32)
    ]
    linalg.lstsq(a.to(device), b.to(device), driver="gelsd", out=tuple(places))
    for ours, theirs in zip(places, linalg.lstsq(a, b, driver="gelsd"), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def test_least_squares_of_dependent_columns(device: torch.device) -> None:
    a, b = torch.randn(3, 6, 4), torch.randn(3, 6, 2)
    a[1, :, 2] = 2 * a[1, :, 0]
    a[2] = 0
    got = linalg.lstsq(a.to(device), b.to(device))
    assert got.rank.tolist() == [4, 3, 0]  # torch's kernel for the CPU may find fewer behind another matrix of a batch
    want = (linalg.pinv(a.double(), rtol=1e-6) @ b.double()).float()
    torch.testing.assert_close(got.solution.cpu(), want, rtol=1e-4, atol=1e-4)


def test_gradients_of_least_squares(device: torch.device) -> None:
    def gradients(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        return torch.autograd.grad(linalg.lstsq(a, b).solution.square().sum(), (a, b))

    compare(device, gradients, torch.randn(2, 5, 3), torch.randn(2, 5, 2))


def test_bad_least_squares(device: torch.device) -> None:
    """What the CPU refuses is refused, by the CPU's kernel."""
    _C.set_providers(1, 2, 1)
    _C.set_fallback_mode("silent")
    a = torch.randn(5, 3)
    for b in (torch.randn(4, 2), torch.randn(5, 2).double(), torch.randn(2, 5, 2)):
        for function in (lambda a, b: linalg.lstsq(a, b), lambda a, b: linalg.lstsq(a, b, driver="gels")):
            try:
                want = function(a, b)
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    function(a.to(device), b.to(device))
            else:
                torch.testing.assert_close(function(a.to(device), b.to(device)).solution.cpu(), want.solution)
    with pytest.raises(RuntimeError, match="driver"):
        linalg.lstsq(a.to(device), torch.randn(5, 2).to(device), driver="gelsx")


@pytest.mark.parametrize("size", [1e-6, 0.3, 3, 40])
def test_matrix_exponential(device: torch.device, size: float) -> None:
    """Of matrices in a batch whose sizes differ, so that each is squared as often as it needs."""
    a = torch.randn(3, 7, 7) * torch.tensor([size, size / 20, 0])[:, None, None]
    a = a - a.mT  # whose exponential is a rotation
    for matrix in (a, a[0], torch.diag(torch.tensor([-300.0, 0, 2]))):
        got = linalg.matrix_exp(matrix.to(device))
        torch.testing.assert_close(got.cpu().double(), linalg.matrix_exp(matrix.double()), rtol=3e-5, atol=size * 3e-5)


def test_exponential_of_what_is_no_number(device: torch.device) -> None:
    """A matrix of several rows that has such a number is NaN in each place, and no other of its batch is."""
    least, most = float("-inf"), float("inf")
    for size in (1, 2, 5):
        a = torch.randn(4, size, size)
        a[0, 0, 0], a[1, 0, -1], a[3, -1, 0] = most, least, float("nan")
        for matrix in (a, a[0]):
            got, want = linalg.matrix_exp(matrix.to(device)), linalg.matrix_exp(matrix)
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_gradient_of_the_matrix_exponential(device: torch.device) -> None:
    def gradient(a: torch.Tensor) -> torch.Tensor:
        a = a.detach().requires_grad_()
        return torch.autograd.grad(linalg.matrix_exp(a).sin().sum(), a)[0]

    compare(device, gradient, torch.randn(2, 5, 5))

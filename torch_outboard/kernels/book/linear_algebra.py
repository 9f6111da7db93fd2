# SPDX-License-Identifier: BSD-3-Clause
"""Linear algebra, built on the matrix factorizations that have templates."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.indexing import check_between
from torch_outboard.kernels.book.pair import real_of
from torch_outboard.kernels.book.row import Operator
from torch_outboard.kernels.refusal import ClassRefusal, other_sizes

__all__ = ["OPERATORS"]

_Tensors = tuple[torch.Tensor, ...]


def _as_batch(tensor: torch.Tensor, rank: int = 2) -> torch.Tensor:
    """Return matrices, or vectors if `rank` is 1, with a single batch dimension."""
    kept = tensor.shape[tensor.dim() - rank :]
    return tensor.reshape((math.prod(tensor.shape[: tensor.dim() - rank]), *kept))


def _of_batch(tensor: torch.Tensor, batch: Any) -> torch.Tensor:
    return tensor.reshape((*batch, *tensor.shape[1:]))


def _broadcast(*shapes: Any) -> Any:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]


def _min_size(rows: Any, columns: Any) -> Any:
    return torch.sym_min(rows, columns)  # type: ignore[no-untyped-call]


def _columns(tensor: torch.Tensor) -> torch.Tensor:
    """Return matrices in column-major order, as torch does for most results."""
    if any(size == 0 for size in tensor.shape):
        return tensor.new_empty(tensor.shape)
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor.contiguous()


def _refuse_checks(check_errors: bool) -> None:
    """Refuse a call that raises value errors: its parts wait for the values (csrc/ops/planned/composed_factors.cpp)."""
    if check_errors:
        raise ClassRefusal("check_errors=True makes the call wait for its results [errors-wanted]")


def _factor(a: torch.Tensor) -> _Tensors:
    from torch_outboard.kernels.templates.factors import lu_factor

    factors, pivots, info = lu_factor(_as_batch(a))
    return tuple(_of_batch(tensor, a.shape[:-2]) for tensor in (factors, pivots, info))


def _lu_factor_ex(a: torch.Tensor, *, pivot: bool = True, check_errors: bool = False) -> _Tensors:
    _refuse_checks(check_errors)
    if not pivot:
        raise ClassRefusal("generated kernels always factor with pivots [pivots]")
    return _factor(a)


def _cholesky_ex(a: torch.Tensor, *, upper: bool = False, check_errors: bool = False) -> _Tensors:
    from torch_outboard.kernels.templates.factors import cholesky_factor

    _refuse_checks(check_errors)
    factor, info = (_of_batch(tensor, a.shape[:-2]) for tensor in cholesky_factor(_as_batch(a.mT if upper else a)))
    return _columns(factor.mT) if upper else factor, info


# Triangles.


def _substitute(
    a: torch.Tensor, b: torch.Tensor, upper: bool, *, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    """Solve a triangular system; the batch dimensions of both operands are broadcast."""
    from torch_outboard.kernels.templates.triangles import substitution

    if not left:
        return _substitute(a.mT, b.mT, not upper, unitriangular=unitriangular).mT
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    wide_a, wide_b = (_as_batch(tensor.expand(*batch, *tensor.shape[-2:])) for tensor in (a, b))
    return _of_batch(substitution(wide_a, wide_b, upper, unitriangular), batch)


def _solve_triangular(
    a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    return _columns(_substitute(a, b, upper, left=left, unitriangular=unitriangular))


def _triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> _Tensors:
    is_upper = upper != transpose
    solution = _substitute(a.mT if transpose else a, b, is_upper, unitriangular=unitriangular)
    return solution, _columns(a.expand(*solution.shape[:-2], *a.shape[-2:]).clone())


def _cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool) -> torch.Tensor:
    lower = factor.mT if upper else factor
    return _substitute(lower.mT, _substitute(lower, b, False), True)


def _cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    return _cholesky_solve(_identity(factor), factor, upper)


def _identity(like: torch.Tensor) -> torch.Tensor:
    identity = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return identity.expand(*like.shape[:-2], *identity.shape)


# LU.


def _swapped(pivots: torch.Tensor, rows: Any, *, inverse: bool = False) -> torch.Tensor:
    from torch_outboard.kernels.templates.triangles import rows_of_pivots

    return _of_batch(rows_of_pivots(_as_batch(pivots, 1), rows, inverse), pivots.shape[:-1])


def _permuted(b: torch.Tensor, pivots: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    from torch_outboard.kernels.templates.triangles import permuted_rows

    rows = _swapped(pivots, b.shape[-2], inverse=inverse)
    batch = _broadcast(b.shape[:-2], rows.shape[:-1])
    wide_b, wide_rows = b.expand(*batch, *b.shape[-2:]), rows.expand(*batch, rows.shape[-1])
    return _of_batch(permuted_rows(_as_batch(wide_b), _as_batch(wide_rows, 1)), batch)


def _laid_out(solution: torch.Tensor, left: bool) -> torch.Tensor:
    return _columns(solution) if left else solution.contiguous()


def _lu_solve(
    factors: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, *, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    if b.numel() > 0:  # the CPU's kernel returns an empty result before it reads the pivots
        _check_pivots(pivots, factors.shape[-2])
    return _laid_out(_solve(factors, pivots, b, left=left, adjoint=adjoint), left)


def _check_pivots(pivots: torch.Tensor, rows: Any) -> None:
    wrong = "pivots must be between 1 and LU.size(-2) inclusive. Did you properly pass the result of lu_factor?"
    check_between(pivots, 1, rows, wrong)


def _solve(
    factors: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, *, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    if not left:
        return _solve(factors, pivots, b.mT, adjoint=not adjoint).mT
    if not adjoint:
        half = _substitute(factors, _permuted(b, pivots), False, unitriangular=True)
        return _substitute(factors, half, True)
    half = _substitute(factors.mT, b, False)
    return _permuted(_substitute(factors.mT, half, True, unitriangular=True), pivots, inverse=True)


def _unpack(factors: torch.Tensor) -> _Tensors:
    rows, columns = factors.shape[-2:]
    count = _min_size(rows, columns)
    places = torch.arange(rows, device=factors.device).unsqueeze(-1) - torch.arange(count, device=factors.device)
    low = torch.where(places > 0, factors[..., :count], torch.where(places == 0, 1.0, 0.0).to(factors.dtype))
    return low, factors[..., :count, :].triu()


def _permutation(pivots: torch.Tensor, rows: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the permutation matrix that undoes the row swaps."""
    sources = _swapped(pivots, rows).unsqueeze(-2)
    return (sources == torch.arange(rows, device=pivots.device).unsqueeze(-1)).to(dtype)


def _lu(a: torch.Tensor, *, pivot: bool = True) -> _Tensors:
    factors, pivots, _ = _lu_factor_ex(a, pivot=pivot)
    return _permutation(pivots, a.shape[-2], a.dtype), *_unpack(factors)


def _lu_unpack(
    factors: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> _Tensors:
    permutation = factors.new_empty(0)
    if unpack_pivots:
        _check_pivots(pivots, factors.shape[-2])
        permutation = _permutation(pivots, factors.shape[-2], factors.dtype)
    low, up = _unpack(factors) if unpack_data else (factors.new_empty(0), factors.new_empty(0))
    return permutation, low, up


def _solve_ex(a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False) -> _Tensors:
    _refuse_checks(check_errors)
    factors, pivots, info = _factor(a)
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    # A vector is a column on either side.
    result = _solve(factors, pivots, right, left=left or is_vector)
    return _laid_out(result.squeeze(-1) if is_vector else result, left), factors, pivots, info


def _inv_ex(a: torch.Tensor, *, check_errors: bool = False) -> _Tensors:
    result, _, _, info = _solve_ex(a, _identity(a), check_errors=check_errors)
    return result, info


def _parity(pivots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return -1 for an odd number of row swaps, else 1."""
    places = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device, dtype=pivots.dtype)
    return 1 - 2 * ((pivots != places).sum(-1) % 2).to(dtype)


def _diagonal(a: torch.Tensor) -> torch.Tensor:
    """Return the diagonals of matrices with at least as many rows as columns."""
    rows, columns = (torch.arange(size, device=a.device) for size in a.shape[-2:])
    return torch.where(rows.unsqueeze(-1) == columns, a, 0).sum(-2)


def _factor_for_determinant(a: torch.Tensor) -> _Tensors:
    """Factor the transpose of a contiguous matrix, else the matrix itself, as the gradient's formula expects."""
    return _factor(a.mT if a.is_contiguous() else a)[:2]


def _det(a: torch.Tensor) -> _Tensors:
    factors, pivots = _factor_for_determinant(a)
    return _diagonal(factors).prod(-1) * _parity(pivots, a.dtype), factors, pivots


def _slogdet(a: torch.Tensor) -> _Tensors:
    factors, pivots = _factor_for_determinant(a)
    diagonal = _diagonal(factors)
    sign = diagonal.sign().prod(-1) * _parity(pivots, a.dtype)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


# Reflections.


def _geqrf(a: torch.Tensor) -> _Tensors:
    from torch_outboard.kernels.templates.reflectors import reflections

    return tuple(_of_batch(tensor, a.shape[:-2]) for tensor in reflections(_as_batch(a)))


def _apply_reflections(
    vectors: torch.Tensor, tau: torch.Tensor, c: torch.Tensor, *, transpose: bool = False
) -> torch.Tensor:
    from torch_outboard.kernels.templates.reflectors import reflected

    result = reflected(_as_batch(vectors), _as_batch(tau, 1), _as_batch(c), transpose)
    return _of_batch(result, c.shape[:-2])


def _identity_columns(like: torch.Tensor, rows: Any, columns: Any) -> torch.Tensor:
    """Return the leading columns of identity matrices."""
    identity = torch.eye(rows, columns, dtype=like.dtype, device=like.device)
    return identity.expand(*like.shape[:-2], *identity.shape)


def _householder_product(vectors: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    return _columns(_apply_reflections(vectors, tau, _identity_columns(vectors, *vectors.shape[-2:])))


def _ormqr(
    vectors: torch.Tensor, tau: torch.Tensor, c: torch.Tensor, left: bool = True, transpose: bool = False
) -> torch.Tensor:
    if tau.shape[-1] != min(c.shape[-2 if left else -1], vectors.shape[-1]):
        raise other_sizes()
    if left:
        return _columns(_apply_reflections(vectors, tau, c, transpose=transpose))
    return _columns(_apply_reflections(vectors, tau, c.mT, transpose=not transpose).mT)


def _qr(a: torch.Tensor, mode: str = "reduced") -> _Tensors:
    rows, columns = a.shape[-2:]
    count = _min_size(rows, columns)
    factors, tau = _geqrf(a)
    width = rows if mode == "complete" else count
    r = _columns(factors[..., :width, :].triu())
    if mode == "r":
        return a.new_empty(0), r
    return _columns(_apply_reflections(factors, tau, _identity_columns(a, rows, width))), r


# Rotations.


def _eigh(a: torch.Tensor, uplo: str = "L", compute_v: bool = True) -> _Tensors:
    """Use rotations on a shifted matrix with positive eigenvalues, which are also its singular values."""
    from torch_outboard.kernels.templates.rotations import orthogonal_columns

    if 0 in a.shape:
        return a.new_empty(a.shape[:-1], dtype=real_of(a.dtype)), a.new_empty(a.shape if compute_v else 0)
    low = (a.mT if uplo in ("U", "u") else a).tril()
    symmetric = low + low.tril(-1).mT
    size = symmetric.abs().sum(-1).amax(-1)[..., None, None]  # an upper bound of the eigenvalues
    scaled = symmetric / torch.where(size > 0, size, 1)
    shifted = scaled + 1.5 * _identity(scaled)
    _, values, vectors, failed = orthogonal_columns(_as_batch(shifted), _as_batch(scaled))
    _assert_converged(failed, "linalg.eigh")
    values = _of_batch(values, a.shape[:-2]) * size.squeeze(-1)
    return values, _of_batch(vectors, a.shape[:-2]) if compute_v else a.new_empty(0)


def _svd_of_empty(a: torch.Tensor, full_matrices: bool, compute_uv: bool) -> _Tensors:
    rows, columns = a.shape[-2:]
    values = a.new_empty((*a.shape[:-2], columns), dtype=real_of(a.dtype))
    if not compute_uv:
        return a.new_empty(0), values, a.new_empty(0)
    width = rows if full_matrices else columns
    return _columns(_identity_columns(a, rows, width).clone()), values, _identity(a).clone()


def _assert_converged(failed: torch.Tensor, name: str) -> None:
    torch.ops.aten._assert_async.msg((failed == 0).all(), f"{name}: The algorithm failed to converge")


def _svd(a: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    from torch_outboard.kernels.templates.rotations import orthogonal_columns

    if a.shape[-2] < a.shape[-1]:
        v, values, u = _svd(a.mT, full_matrices, compute_uv)
        return (_columns(u.mT), values, _columns(v.mT)) if compute_uv else (u, values, v)
    if 0 in a.shape:
        return _svd_of_empty(a, full_matrices, compute_uv)
    size = a.abs().amax((-2, -1), keepdim=True)
    scaled = a / torch.where(size > 0, size, 1)
    left, values, right, failed = orthogonal_columns(_as_batch(scaled), None)
    _assert_converged(failed, "linalg.svd")
    values = _of_batch(values, a.shape[:-2]) * size.squeeze(-1)
    if not compute_uv:
        return a.new_empty(0), values, a.new_empty(0)
    # Reflections fill in columns of length 0, and the additional columns of a full matrix.
    factors, tau = _geqrf(_of_batch(left, a.shape[:-2]))
    rows, columns = a.shape[-2:]
    sign = torch.where(_diagonal(factors) < 0, -1.0, 1.0).to(a.dtype)
    width = rows if full_matrices else columns
    signs = torch.nn.functional.pad(sign, (0, width - columns), value=1.0)
    u = _apply_reflections(factors, tau, _identity_columns(a, rows, width) * signs.unsqueeze(-2))
    return _columns(u), values, _columns(_of_batch(right, a.shape[:-2]).mT)


OPERATORS = (
    Operator(
        "aten::_cholesky_solve_helper.default", decomposition=_cholesky_solve, facts=Facts(composed="cholesky_solve")
    ),
    Operator("aten::_linalg_det.default", decomposition=_det, facts=Facts(composed="determinant")),
    Operator("aten::_linalg_eigh", facts=Facts(raises_at_call=True, check_values="check_ends")),
    Operator("aten::_linalg_eigh.default", decomposition=_eigh),
    Operator("aten::_linalg_eigvals aten::linalg_eig", facts=Facts(raises_at_call=True)),
    Operator("aten::_linalg_slogdet.default", decomposition=_slogdet, facts=Facts(composed="log_determinant")),
    Operator(
        "aten::_linalg_solve_ex aten::linalg_cholesky_ex aten::linalg_inv_ex aten::linalg_ldl_factor_ex "
        "aten::linalg_lu_factor_ex",
        facts=Facts(accepts="identities"),
    ),
    Operator("aten::_linalg_solve_ex.default", decomposition=_solve_ex, facts=Facts(composed="solve_ex")),
    Operator("aten::_linalg_svd", facts=Facts(raises_at_call=True, correct="correct_svd", check_values="check_ends")),
    Operator("aten::_linalg_svd.default", decomposition=_svd),
    Operator(
        "aten::cholesky",
        facts=Facts(raises_at_call=True, accepts="identities", bad_dtypes={"self": "has_integral_type"}),
    ),
    Operator("aten::cholesky.default", facts=Facts(composed="checked_cholesky")),
    Operator(
        "aten::cholesky_inverse",
        facts=Facts(accepts="identities", bad_dtypes={"self": "has_integral_type"}, check_values="check_factor"),
    ),
    Operator(
        "aten::cholesky_inverse.default", decomposition=_cholesky_inverse, facts=Facts(composed="cholesky_inverse")
    ),
    Operator("aten::geqrf.default", decomposition=_geqrf),
    Operator("aten::linalg_cholesky_ex.default", decomposition=_cholesky_ex, facts=Facts(composed="cholesky_ex")),
    Operator("aten::linalg_householder_product.default", decomposition=_householder_product),
    Operator("aten::linalg_inv_ex.default", decomposition=_inv_ex, facts=Facts(composed="inverse_ex")),
    Operator("aten::linalg_ldl_factor_ex.default", facts=Facts(composed="checked_factors")),
    Operator("aten::linalg_ldl_solve aten::linalg_lu_solve aten::lu_unpack", facts=Facts(accepts="ones")),
    # Residuals are returned only if the matrix turns out to have full rank.
    Operator("aten::linalg_lstsq", facts=Facts(has_misleading_meta=True)),
    Operator("aten::linalg_lstsq.out", facts=Facts(composed="least_squares")),
    Operator("aten::linalg_lu.default", decomposition=_lu),
    Operator("aten::linalg_lu_factor_ex.default", decomposition=_lu_factor_ex, facts=Facts(composed="lu_factor_ex")),
    Operator("aten::linalg_lu_solve.default", decomposition=_lu_solve, facts=Facts(composed="lu_solve")),
    Operator("aten::linalg_matrix_exp.default", facts=Facts(composed="matrix_exponential")),
    Operator("aten::linalg_qr.default", decomposition=_qr),
    Operator(
        "aten::linalg_solve_triangular.default",
        decomposition=_solve_triangular,
        facts=Facts(composed="solve_triangular"),
    ),
    Operator("aten::lu_unpack.default", decomposition=_lu_unpack),
    Operator("aten::ormqr.default", decomposition=_ormqr),
    Operator("aten::triangular_solve.default", decomposition=_triangular_solve),
    Operator("outboard::cholesky_factor.default", template="factors:cholesky"),
    Operator("outboard::lu_factor.default", template="factors:lu"),
    Operator("outboard::orthogonal_columns.default", template="rotations:rotate"),
    Operator("outboard::permuted_rows.default", template="triangles:permute"),
    Operator("outboard::reflected.default", template="reflectors:multiply"),
    Operator("outboard::reflections.default", template="reflectors:factor"),
    Operator("outboard::rows_of_pivots.default", template="triangles:permutation"),
    Operator("outboard::substitution.default", template="triangles:substitute"),
)

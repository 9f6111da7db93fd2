# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of a device's results with the CPU's, bit for bit."""

from __future__ import annotations

import torch

from .lists import Tolerance


def metadata_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """Says in what the two tensors differ besides values and strides, or gives None."""
    for name in ("dtype", "shape", "layout", "requires_grad"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            return f"{name} is {a}, the CPU's is {b}"
    return None


def value_difference(ours: torch.Tensor, theirs: torch.Tensor, tolerance: Tolerance | None) -> str | None:
    """Says how far the values of two tensors on the CPU lie apart, or gives None if they are the same bits.

    Any two NaN are the same. With a tolerance, values within it are.
    """
    for a, b in zip(_parts(ours), _parts(theirs), strict=True):
        if a.shape != b.shape:
            return f"a component's shape is {tuple(a.shape)}, the CPU's is {tuple(b.shape)}"
        difference = _strided_difference(a, b, tolerance)
        if difference is not None:
            return difference
    return None


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    return [tensor]


def _strided_difference(ours: torch.Tensor, theirs: torch.Tensor, tolerance: Tolerance | None) -> str | None:
    # A clone has the strides of its shape, also where `contiguous` would leave those of a size of 1.
    ours, theirs = (t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in (ours, theirs))
    if ours.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    if not ours.numel():
        return None
    size = ours.element_size()
    a = ours.reshape(-1).view(torch.uint8).reshape(-1, size)
    b = theirs.reshape(-1).view(torch.uint8).reshape(-1, size)
    differs = (a != b).any(1)
    if not differs.any():
        return None
    if not ours.is_floating_point():
        count, first = int(differs.sum()), int(differs.nonzero()[0])
        pair = f"{ours.reshape(-1)[first].item()} for {theirs.reshape(-1)[first].item()}"
        return f"{count} of {ours.numel()} elements differ; first, element {first}: {pair}"
    x, y = ours.reshape(-1)[differs].double(), theirs.reshape(-1)[differs].double()
    kept = ~(x.isnan() & y.isnan())
    x, y = x[kept], y[kept]
    if not len(x):
        return None
    if tolerance is not None:
        multiple = tolerance.epsilons if size > 2 else tolerance.half_epsilons
        allowed = multiple * torch.finfo(ours.dtype).eps
        if torch.allclose(x, y, rtol=allowed, atol=allowed):
            return None
    error = (x - y).abs()
    worst = error.nan_to_num(torch.inf).max().item()
    pair = f"{x[0].item()!r} for {y[0].item()!r}"
    return f"{len(x)} of {ours.numel()} elements differ by up to {worst:.3g}; first: {pair}"

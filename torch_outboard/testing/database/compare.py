# SPDX-License-Identifier: BSD-3-Clause
"""Comparing a device's tensors with the CPU's: metadata, strides, shared storages, and values bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import OpInfo


class Bounds(Protocol):
    """How far a value may differ from the CPU's."""

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the relative and the absolute bound for an element type."""


class TorchBounds:
    """The bounds that torch's own tests use for an entry on another device; for kernels other than the CPU's."""

    def __init__(self, info: OpInfo | None) -> None:
        self._overrides: dict[torch.dtype, tuple[float, float]] = {}
        for decorator in info.decorators if info is not None else ():
            for inner in getattr(decorator, "decorators", ()):
                if isinstance(inner, toleranceOverride):
                    for dtype, bound in _overrides(inner).items():
                        relative, absolute = self._overrides.get(dtype, (0.0, 0.0))
                        self._overrides[dtype] = max(relative, bound.rtol), max(absolute, bound.atol)

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        relative, absolute = self._overrides.get(dtype, (0.0, 0.0))
        default = default_tolerances(dtype)
        return max(relative, default[0]), max(absolute, default[1])


def _overrides(decorator: toleranceOverride) -> dict[torch.dtype, Any]:
    def decorated() -> None:
        """Do nothing; the function takes the bounds as an attribute."""

    overrides: dict[torch.dtype, Any] = decorator(decorated).tolerance_overrides
    return overrides


def metadata_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """Return how two tensors differ besides values and strides, or None if they agree."""
    for name in ("dtype", "shape", "layout", "requires_grad"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            return f"{name} is {a}, the CPU's is {b}"
    return None


def stride_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """Return how strides and offset of two dense tensors of the same shape differ, or None if they agree.

    A tensor without elements accesses no memory, so its strides and offset may differ.
    """
    if ours.layout != torch.strided or not ours.numel():
        return None
    if ours.stride() != theirs.stride():
        return f"strides are {ours.stride()}, the CPU's are {theirs.stride()}, of shape {tuple(ours.shape)}"
    if ours.storage_offset() != theirs.storage_offset():
        return f"the offset is {ours.storage_offset()}, the CPU's is {theirs.storage_offset()}"
    return None


def difference(ours: torch.Tensor, theirs: torch.Tensor, bounds: Bounds | None) -> str | None:
    """Return how a device's tensor differs from the CPU's in metadata, strides or values, or None if they agree."""
    return (
        metadata_difference(ours, theirs)
        or stride_difference(ours, theirs)
        or value_difference(ours.detach().cpu(), theirs.detach(), bounds)
    )


def sharing(tensors: Iterable[torch.Tensor]) -> list[str]:
    """Return a line per tensor that repeats an earlier tensor, and per part that shares an earlier storage.

    Two lists of tensors have the same aliasing exactly if their lines agree.
    """
    objects: dict[int, int] = {}
    storages: dict[int, str] = {}
    sentences = []
    for index, tensor in enumerate(tensors):
        if id(tensor) in objects:
            sentences.append(f"{index} is {objects[id(tensor)]}")
            continue
        objects[id(tensor)] = index
        for number, part in enumerate(parts(tensor)):
            place = f"{index}.{number}"
            first = storages.setdefault(part.untyped_storage()._cdata, place)
            if first != place:
                sentences.append(f"{place} shares with {first}")
    return sentences


def value_difference(ours: torch.Tensor, theirs: torch.Tensor, bounds: Bounds | None) -> str | None:
    """Return how far the values of two tensors on the CPU differ, or None if they have the same bits.

    All NaNs are equal. With bounds, values within them are equal too.
    """
    for a, b in zip(parts(ours), parts(theirs), strict=True):
        if a.shape != b.shape:
            return f"a component's shape is {tuple(a.shape)}, the CPU's is {tuple(b.shape)}"
        difference = _strided_difference(a, b, bounds)
        if difference is not None:
            return difference
    return None


def storage_difference(ours: torch.Tensor, theirs: torch.Tensor, bounds: Bounds | None) -> str | None:
    """Compare the whole storages of two dense tensors, including elements outside the tensors."""
    if ours.layout != torch.strided or ours.is_quantized:
        return value_difference(ours.cpu(), theirs, bounds)
    a, b = _whole(ours), _whole(theirs)
    if a.shape != b.shape:
        return f"the storage has {a.numel()} elements, the CPU's has {b.numel()}"
    return _strided_difference(a.cpu(), b, bounds)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    size = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors of which a tensor consists."""
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


def _strided_difference(ours: torch.Tensor, theirs: torch.Tensor, bounds: Bounds | None) -> str | None:
    # A clone has strides that match its shape. `contiguous` would keep the strides of dimensions of
    # size 1.
    ours, theirs = (t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in (ours, theirs))
    if not ours.numel():
        return None
    bits_of_ours, bits_of_theirs = (t.reshape(-1).view(torch.uint8) for t in (ours, theirs))
    if torch.equal(bits_of_ours, bits_of_theirs):
        return None
    if ours.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    size = ours.element_size()
    differs = (bits_of_ours != bits_of_theirs).reshape(-1, size).any(1)
    if not ours.is_floating_point():
        count, first = int(differs.sum()), int(differs.nonzero()[0])
        pair = f"{ours.reshape(-1)[first].item()} for {theirs.reshape(-1)[first].item()}"
        return f"{count} of {ours.numel()} elements differ; first, element {first}: {pair}"
    x, y = ours.reshape(-1)[differs].double(), theirs.reshape(-1)[differs].double()
    kept = ~(x.isnan() & y.isnan())
    x, y = x[kept], y[kept]
    if not len(x):
        return None
    if bounds is not None:
        relative, absolute = bounds.of(ours.dtype)
        if torch.allclose(x, y, rtol=relative, atol=absolute):
            return None
    error = (x - y).abs()
    worst = error.nan_to_num(torch.inf).max().item()
    pair = f"{x[0].item()!r} for {y[0].item()!r}"
    return f"{len(x)} of {ours.numel()} elements differ by up to {worst:.3g}; first: {pair}"

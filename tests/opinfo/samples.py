# SPDX-License-Identifier: BSD-3-Clause
"""Which entries, element types and samples of torch's operator database are tried, and how they reach a device."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from .lists import HOST_ARGUMENTS

# Of each entry and element type: the first eight samples, then those with shapes not seen so far, up to this many.
MAX_SAMPLES = 32
FIRST_SAMPLES = 8

_OTHERS = (
    torch.float64,
    torch.int64,
    torch.complex64,
    torch.bool,
    torch.bfloat16,
    torch.float16,
    torch.int32,
    torch.uint8,
    torch.complex128,
    torch.int16,
    torch.int8,
)


def dtypes_of(info: OpInfo) -> list[torch.dtype]:
    """Gives float32 and one other element type that the entry supports on the CPU, always the same for a name."""
    supported = info.supported_dtypes("cpu")
    others = [dtype for dtype in _OTHERS if dtype in supported]
    if not others and supported - {torch.float32}:
        others = sorted(supported - {torch.float32}, key=str)
    start = zlib.crc32(info.full_name.encode()) % len(others) if others else 0
    ordered = others[start:] + others[:start]
    if torch.float32 in supported:
        return [torch.float32, *ordered[:1]]
    return ordered[:2]


def entries() -> Iterator[tuple[OpInfo, torch.dtype | None]]:
    """Gives every entry with its element types; None for an entry that has none on the CPU."""
    for info in op_db:
        for dtype in dtypes_of(info) or [None]:
            yield info, dtype


def entry_name(info: OpInfo, dtype: torch.dtype | None) -> str:
    return f"{info.full_name}-{dtype_name(dtype)}"


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _signature(sample: SampleInput) -> tuple[Any, ...]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))


def samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool) -> list[SampleInput]:
    """Makes the samples on the CPU, the same ones each time."""
    torch.manual_seed(zlib.crc32(info.full_name.encode()))
    chosen: list[SampleInput] = []
    seen = set()
    for index, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=requires_grad)):
        signature = _signature(sample)
        if index < FIRST_SAMPLES or signature not in seen:
            chosen.append(sample)
            seen.add(signature)
        if len(chosen) == MAX_SAMPLES:
            break
    return chosen


class Copier:
    """Copies the arguments of one sample to a device, so that tensors which share a storage still share one.

    `Tensor.to` would give each view a storage of its own size, and operators like `as_strided` reach beyond the view.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # The source stands beside its copy: a freed storage's identity may come back.
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                return self._copy(value.detach()).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) and value.type == "cpu":
            return self.device
        if isinstance(value, str) and value == "cpu":
            return str(self.device)
        return value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to(self.device, copy=True)
        if tensor.is_conj():
            return self._copy(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._copy(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = storage, torch.empty(0, dtype=torch.uint8).set_(storage).to(self.device, copy=True)
        ours = self._storages[key][1].untyped_storage()
        result = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return result.set_(ours, tensor.storage_offset(), tensor.size(), tensor.stride())


class Call:
    """One sample's arguments on one device."""

    def __init__(self, info: OpInfo, sample: SampleInput, device: torch.device) -> None:
        copy = Copier(device)
        host = Copier(torch.device("cpu"))
        on_host = HOST_ARGUMENTS.get(info.full_name, frozenset())
        self.info = info
        self.device = device
        self.input = tree_map(copy, sample.input)
        self.args = tuple(tree_map(host if i in on_host else copy, arg) for i, arg in enumerate(sample.args))
        self.kwargs = {key: tree_map(copy, value) for key, value in sample.kwargs.items()}
        self.process = sample.output_process_fn_grad
        leaves = tree_leaves((self.input, self.args, self.kwargs))
        self.inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        # A factory without a tensor to follow and without a device of its own goes where torch.device says.
        self.is_factory = not self.inputs and "device" not in self.kwargs

    def forward(self) -> Any:
        if self.is_factory:
            with self.device:
                return self.info(self.input, *self.args, **self.kwargs)
        return self.info(self.input, *self.args, **self.kwargs)

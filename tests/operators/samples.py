# SPDX-License-Identifier: BSD-3-Clause
"""Which entries, element types and samples of torch's operator database are tried, and how they reach a device."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._pytree import tree_leaves, tree_map

from .lists import HOST_ARGUMENTS
from .outcome import CPU, seed

# Of each entry and element type, in the long run: the first eight samples, then those with shapes not seen so far, up
# to this many.
MAX_SAMPLES = 32
FIRST_SAMPLES = 8
ALL_SAMPLES = os.environ.get("OUTBOARD_TEST_SAMPLES") == "all"

_COMMON = (
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
    """Gives every element type that the entry claims for the CPU, float32 first."""
    return sorted(info.supported_dtypes("cpu"), key=lambda dtype: (dtype != torch.float32, str(dtype)))


def few_dtypes_of(info: OpInfo) -> list[torch.dtype]:
    """Gives float32 and one other element type that the entry claims, always the same for a name."""
    supported = info.supported_dtypes("cpu")
    others = [dtype for dtype in _COMMON if dtype in supported]
    if not others and supported - {torch.float32}:
        others = sorted(supported - {torch.float32}, key=str)
    start = zlib.crc32(info.full_name.encode()) % len(others) if others else 0
    ordered = others[start:] + others[:start]
    if torch.float32 in supported:
        return [torch.float32, *ordered[:1]]
    return ordered[:2]


def few_and_complex_dtypes_of(info: OpInfo) -> list[torch.dtype]:
    """Gives the few, and complex64 where the entry claims it: kernels of complex numbers are often others."""
    few = few_dtypes_of(info)
    has_complex = any(dtype.is_complex for dtype in few) or torch.complex64 not in info.supported_dtypes("cpu")
    return few if has_complex else [*few, torch.complex64]


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _signature(sample: SampleInput) -> tuple[Any, ...]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))


def samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool, most: int = MAX_SAMPLES) -> list[SampleInput]:
    """Makes the samples on the CPU, the same ones each time."""
    return distinct(all_samples_of(info, dtype, requires_grad), most)


def all_samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    seed(zlib.crc32(info.full_name.encode()), CPU)
    return iter(info.sample_inputs_func(info, "cpu", dtype, requires_grad))


def broad_samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    """Gives the samples, and before them one of four dimensions for entries of one operand, whose own have one."""
    if isinstance(info, UnaryUfuncInfo):
        seed(zlib.crc32(info.full_name.encode()), CPU)
        low, high = info.domain
        if dtype.is_floating_point or dtype.is_complex:
            low = low if low is None else low + info._domain_eps
            high = high if high is None else high - info._domain_eps
        shape = (2, 3, 4, 5)
        made = make_tensor(shape, dtype=dtype, device="cpu", low=low, high=high, requires_grad=requires_grad)
        kwargs, _ = info.sample_kwargs("cpu", dtype, made)
        yield SampleInput(made, kwargs=kwargs)
    yield from all_samples_of(info, dtype, requires_grad)


def distinct(samples: Iterable[SampleInput], most: int) -> list[SampleInput]:
    """Gives the first samples, and of the others those of other shapes than the ones before."""
    chosen: list[SampleInput] = []
    seen = set()
    for index, sample in enumerate(samples):
        signature = _signature(sample)
        if index < min(FIRST_SAMPLES, most) or signature not in seen:
            chosen.append(sample)
            seen.add(signature)
        if len(chosen) == most:
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
            if value.device.type != "cpu":
                return value
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

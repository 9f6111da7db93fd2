# SPDX-License-Identifier: BSD-3-Clause
"""The tested entries, element types and samples of torch's operator database."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._pytree import tree_leaves

from torch_outboard.testing.database.calls import CPU, all_samples_of, seed

# Of each entry and element type, in the long run: the first eight samples, then those with shapes
# not seen so far, up to this many.
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
    """Return every element type that the entry claims for the CPU, float32 first."""
    return sorted(info.supported_dtypes("cpu"), key=lambda dtype: (dtype != torch.float32, str(dtype)))


def few_dtypes_of(info: OpInfo) -> list[torch.dtype]:
    """Return float32 and one other element type that the entry claims, always the same for a name."""
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
    """Return the few, and complex64 if the entry claims it: complex numbers often have separate kernels."""
    few = few_dtypes_of(info)
    has_complex = any(dtype.is_complex for dtype in few) or torch.complex64 not in info.supported_dtypes("cpu")
    return few if has_complex else [*few, torch.complex64]


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _signature(sample: SampleInput) -> tuple[Any, ...]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))


def samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool, most: int = MAX_SAMPLES) -> list[SampleInput]:
    """Make the samples on the CPU, the same ones each time."""
    return distinct(all_samples_of(info, dtype, requires_grad), most)


def broad_samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    """Yield the samples, and a four-dimensional one first for entries of one operand, which have only vectors."""
    if isinstance(info, UnaryUfuncInfo):
        seed(zlib.crc32(info.full_name.encode()), CPU)
        low, high = info.domain
        if dtype.is_floating_point or dtype.is_complex:
            low = low if low is None else low + info._domain_eps
            high = high if high is None else high - info._domain_eps
        shape = (2, 3, 4, 5)
        tensor = make_tensor(shape, dtype=dtype, device="cpu", low=low, high=high, requires_grad=requires_grad)
        kwargs, _ = info.sample_kwargs("cpu", dtype, tensor)
        yield SampleInput(tensor, kwargs=kwargs)
    yield from all_samples_of(info, dtype, requires_grad)


def distinct(samples: Iterable[SampleInput], most: int) -> list[SampleInput]:
    """Return the first samples, and then only samples of new shapes."""
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

# SPDX-License-Identifier: BSD-3-Clause
"""Calls of torch's operator database: an entry's samples, and their arguments on a device."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard.testing.database.lists import HOST_ARGUMENTS

__all__ = ["CPU", "Call", "Copier", "all_samples_of", "poison", "seed"]

CPU = torch.device("cpu")


def seed(value: int, device: torch.device) -> None:
    """Seed the CPU's and the device's generators; torch.manual_seed would record a traceback per other device."""
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(value)


def poison(device: torch.device) -> None:
    """Fill cached memory for small results with 0xFF, so that stale results cannot pass as correct."""
    torch.full((1 << 20,), 0xFF, dtype=torch.uint8, device=device)


def all_samples_of(info: OpInfo, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    seed(zlib.crc32(info.full_name.encode()), CPU)
    return iter(info.sample_inputs_func(info, "cpu", dtype, requires_grad))


class Copier:
    """Copies a sample's arguments to a device, so that tensors that share a storage still share one.

    `Tensor.to` would allocate a new storage with the size of each view, but operators such as `as_strided` reach past
    the view.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Keep the source with its copy: a later storage could reuse the identity of a freed one.
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
        # A factory without tensor arguments and without a device argument allocates on the device
        # that torch.device selects.
        self.is_factory = not self.inputs and "device" not in self.kwargs

    def forward(self) -> Any:
        if self.is_factory:
            with self.device:
                return self.info(self.input, *self.args, **self.kwargs)
        return self.info(self.input, *self.args, **self.kwargs)

# SPDX-License-Identifier: BSD-3-Clause
"""Registering the backend with torch.distributed, and creating a group's backend."""

from __future__ import annotations

import copy
from typing import Any

import torch

from torch_outboard.distributed._first_step import watch_first_step
from torch_outboard.distributed._ring_attention import register_ring_attention_when_imported
from torch_outboard.distributed._sharding import register_attention_when_imported

__all__ = ["BACKEND", "create", "register"]

BACKEND = "outboard"


def register(device: str) -> None:
    """Register the backend for the device and for CPU tensors, unless torch was built without distributed."""
    if not torch.distributed.is_available():
        return
    torch.distributed.Backend.register_backend(BACKEND, create, extended_api=True, devices=[device, "cpu"])
    watch_first_step(device)
    register_attention_when_imported()
    register_ring_attention_when_imported()


def create(options: Any, group_options: Any) -> Any:
    """Return the backend of a new group.

    Parameters
    ----------
    options : torch.distributed.distributed_c10d._DistributedBackendOptions
        The group's store, ranks, name and timeout.
    given : options of this backend, or None
        The `pg_options` of the call that creates the group.

    Raises
    ------
    TypeError
        `given` has another class.
    """
    from torch_outboard import _C

    _C.add_distributed()
    if group_options is not None and not isinstance(group_options, _C.DistributedOptions):
        raise TypeError(
            f"pg_options of the backend {BACKEND!r} must be a copy (copy.deepcopy) of another group's options, "
            f"not {type(group_options).__name__}"
        )
    own = _C.DistributedOptions(options.timeout) if group_options is None else copy.deepcopy(group_options)
    own._timeout = options.timeout
    own.group_name = options.group_id
    own.global_ranks_in_group = options.global_ranks_in_group
    return _C.DistributedBackend(options.store, options.group_rank, options.group_size, own)

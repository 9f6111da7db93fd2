# SPDX-License-Identifier: BSD-3-Clause
"""History and snapshots of torch.<name>.memory, in the form of torch.cuda's."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.cuda import _memory_viz as _untyped_viz

from torch_outboard import _C
from torch_outboard.device._context import device_index

__all__ = ["memory_snapshot"]

_memory_viz: Any = _untyped_viz
_cuda_memory: Any = torch.cuda.memory
_Device = torch.device | int | str | None
_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}
# In the order of TraceEntry::Action.
_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: _Device = None,
    clear_history: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Record the actions of all devices' allocators, with stacks, until this function is called with None.

    None also drops the records, as in torch.cuda, so take the snapshot first.

    Parameters
    ----------
    enabled : {"all", "state", None}
        "state" keeps only the stacks of live memory, and no history.
    context : {"all", "alloc", "state", None}
        The entries that have stacks: all entries ("all"), allocations and live memory ("alloc"), only live memory
        ("state"), or none (None).
    stacks : {"all", "python"}
        "python" omits C++ frames, which take the longest to symbolise.
    max_entries : int
        The maximum number of entries to keep per device; older entries are dropped.
    device : optional
        Accepted for compatibility with torch.cuda; must be a device, and changes nothing.
    clear_history : bool
        Whether to drop the earlier records.
    skip_actions : list of str, optional
        Kinds of entries that are not recorded, such as "free_completed".
    """
    if enabled not in (None, "state", "all"):
        raise ValueError(f"enabled must be 'all', 'state' or None, not {enabled!r}")
    if context not in _CONTEXTS:
        raise ValueError(f"context must be 'all', 'alloc', 'state' or None, not {context!r}")
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks must be 'all' or 'python', not {stacks!r}")
    if max_entries < 0:
        raise ValueError(f"max_entries must be at least 0, not {max_entries}")
    if device is not None:
        device_index(device)
    skipped = 0
    for action in skip_actions or ():
        if action not in _ACTIONS:
            raise ValueError(f"{action!r} is not a kind of entry; choose from {', '.join(_ACTIONS)}")
        skipped |= 1 << _ACTIONS.index(action)
    _C.record_memory_history(
        enabled is not None,
        enabled == "all",
        _CONTEXTS[context],
        stacks == "all",
        min(max_entries, sys.maxsize),
        skipped,
        clear_history or enabled is None,
    )


def _snapshot(device: _Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return the segments of all devices and the records of `_record_memory_history`, as torch.cuda does."""
    if device is not None:
        device_index(device)
    snapshot = _C.memory_snapshot(True)
    snapshot["external_annotations"] = []
    if augment_with_fx_traces:
        snapshot = _cuda_memory._augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(
    filename: str | os.PathLike[str] = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write `_snapshot()` to a file, for `outboard memory`, torch.cuda._memory_viz or pytorch.org/memory_viz."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Return the segments of all devices, or of one memory pool, with their blocks.

    Without `include_traces` the records are not gathered, and the history has no entry of this snapshot. With a long
    history this takes far less time.
    """
    segments: list[dict[str, Any]] = _C.memory_snapshot(include_traces)["segments"]
    if mempool_id is None:
        return segments
    return [segment for segment in segments if segment["segment_pool_id"] == tuple(mempool_id)]


def _save_segment_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Write torch's flame graph of the segments; this fetches a script from the network."""
    with open(filename, "w") as file:
        file.write(_memory_viz.segments(snapshot or _snapshot()))


def _save_memory_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Write torch's flame graph of the memory by stacks; this fetches a script from the network."""
    with open(filename, "w") as file:
        file.write(_memory_viz.memory(snapshot or _snapshot()))

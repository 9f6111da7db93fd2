# SPDX-License-Identifier: BSD-3-Clause
"""What every wrapper asks of the graph that is being lowered."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_outboard import _C

__all__ = ["Unguarded", "flush_kernels", "is_for_streams", "is_ours", "keep_order_of_streams"]


class Unguarded:
    """Of wrappers whose launches and allocations name their device.

    Inductor changes the current device round the kernels of what it knows as a GPU.
    """

    last_seen_device_guard_index: int | None

    def codegen_device_guard_enter(self, device_idx: int, *streams: Any, **named: Any) -> None:
        self.last_seen_device_guard_index = device_idx

    def codegen_device_guard_exit(self) -> None:
        pass


def is_ours(name: str) -> bool:
    """Whether a buffer or an input of the graph is a tensor on our device, and not a tuple of them."""
    buffer = V.graph.try_get_buffer(name) or V.graph.graph_inputs.get(name)
    if isinstance(getattr(buffer, "layout", None), ir.MultiOutputLayout):
        return False
    device = buffer.get_device() if hasattr(buffer, "get_device") else None  # type: ignore[union-attr]
    return device is not None and device.type == _C.driver_name()


def is_for_streams(operator: object) -> bool:
    """Whether an operator is one of Dynamo's that record, wait or synchronize."""
    return isinstance(operator, torch._ops.OpOverload) and operator.namespace == "streams"


def keep_order_of_streams() -> None:
    """Has nothing moved across an operator for streams or events, once the graph is lowered and not yet scheduled.

    Torch 2.13 orders what a wait for an event follows, and not what follows it. Newer versions order more, and only the
    streams concerned; between them there is nothing to win by another order, as their work is concurrent anyhow.
    """
    before: list[str] = []  # buffers since the last such operator, and that operator's
    last: str | None = None
    for operation in V.graph.operations:
        overload = getattr(operation, "op_overload", None)
        own = [buffer.get_name() for buffer in operation.get_outputs()]
        if is_for_streams(overload):
            V.graph.additional_buffer_deps[operation.get_operation_name()].update(before)
            before, last = own, own[0]
            continue
        if last is not None:
            V.graph.additional_buffer_deps[operation.get_operation_name()].add(last)
        before += own


def flush_kernels() -> None:
    """Writes the kernels that the scheduling has gathered."""
    # Not the scheduler's own flush, which also frees what the operator to come is the last to use.
    for backend in V.graph.scheduler.backends.values():
        backend.flush()

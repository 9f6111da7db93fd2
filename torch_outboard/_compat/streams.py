# SPDX-License-Identifier: BSD-3-Clause
"""Streams in the graphs of torch.compile."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = [
    "MODULE",
    "VARIABLES",
    "needs_order_streams",
    "needs_trace_current_stream",
    "order_streams",
    "trace_current_stream",
]

VARIABLES = "torch._dynamo.variables.streams"
MODULE = "torch._functorch._aot_autograd.streams"
_NAME = "_wrap_sync_node"


def needs_order_streams() -> bool:
    """Return True if a wait in a graph depends on all nodes before it, and belongs to no part of the graph."""
    from torch._functorch._aot_autograd import streams

    return hasattr(streams, _NAME) and not mentions(getattr(streams, _NAME), "partitioner_tag")


def order_streams(streams: ModuleType) -> None:
    """Make a forward pass's waits depend only on forward nodes, and a backward pass's waits on backward nodes.

    In torch 2.13, the joint graph has the gradients among its inputs, so the first wait of the forward pass depends on
    them, and the forward graph has no results. The wait of a backward pass keeps alive everything that the forward pass
    computed. A wait never concerns the other pass, which is over or has not begun. Upstream:
    https://github.com/pytorch/pytorch/pull/187695.
    """
    if not needs_order_streams():
        return
    of_torch = getattr(streams, _NAME)

    @functools.wraps(of_torch)
    def wrap_sync_node(gm: Any, sync_node: Any, deps_before_sync: list[Any], visited: set[Any]) -> Any:
        is_backward = streams.is_bwd_node(sync_node)
        of_pass = [dep for dep in deps_before_sync if streams.is_bwd_node(dep) == is_backward]
        wait, passed = of_torch(gm, sync_node, of_pass, visited)
        for node in (wait, *passed):
            node.meta["partitioner_tag"] = "must_be_in_backward" if is_backward else "must_be_in_forward"
        return wait, passed

    setattr(streams, _NAME, wrap_sync_node)


def needs_trace_current_stream() -> bool:
    """Return True if a traced program's current stream of any device is the current device's stream."""
    from torch._dynamo.variables import streams

    state = getattr(streams, "SymbolicStreamState", None)
    if state is None or not hasattr(streams, "register_user_object"):
        return False
    return not mentions(state.cur_stream, "register_user_object")


def trace_current_stream(streams: ModuleType) -> None:
    """Trace `current_stream(device)` as that device's stream, even if another device is current.

    Torch records the current stream of the device that is current when tracing begins, and uses this stream for every
    device. Waits then go to a stream that takes no part in the work. No issue upstream.
    """
    if not needs_trace_current_stream():
        return
    state = streams.SymbolicStreamState
    of_torch = state.cur_stream

    @functools.wraps(of_torch)
    def cur_stream(self: Any, device: torch.device | None = None) -> Any:
        is_known = device is None or any(stream.device.index == device.index for stream in self.cur_stream_stack)
        if device is None or is_known or device.index is None or device.type != self.cur_stream_stack[0].device.type:
            return of_torch(self, device)
        others = self.__dict__.setdefault("_of_other_devices", {})
        if device not in others:
            others[device] = _trace_current(streams, device)
        return others[device]

    state.cur_stream = cur_stream


def _trace_current(streams: ModuleType, device: torch.device) -> Any:
    """Return the variable for a device's current stream, which compiled code looks up at each call."""
    from torch._dynamo.source import CurrentStreamSource
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.utils import set_example_value

    stream = torch.accelerator.current_stream(device)
    source = CurrentStreamSource(stream.device)
    index = streams.register_user_object(stream, source)
    tx = InstructionTranslator.current_tx()
    proxy = tx.output.create_proxy("call_function", streams.get_external_object_by_index, (index,), {})
    set_example_value(proxy.node, stream)
    return streams.StreamVariable(proxy, stream, source=source, user_object_index=index)

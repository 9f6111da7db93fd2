# SPDX-License-Identifier: BSD-3-Clause
"""Choosing which of Inductor's graphs to capture, and installing the capturing function."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.utils import get_first_incompatible_cudagraph_node
from torch._inductor.virtualized import V

from torch_outboard import _C
from torch_outboard.compile.capture.function import CapturedFunction

__all__ = ["capture_obstacle", "install"]


def capture_obstacle(nodes: dict[torch.device, torch.fx.Node]) -> str | None:
    """Return why the graph that Inductor is lowering cannot be captured, or None if nothing prevents it.

    `nodes` maps each device that the graph uses to one of its nodes.
    """
    ours = [device for device in nodes if device.type == _C.driver_name()]
    others = [device for device in nodes if device.type not in (_C.driver_name(), "meta")]
    if len(ours) > 1:
        return f"it uses several devices: {', '.join(map(str, ours))}"
    if others:
        return f"it uses the device {others[0]}, in {nodes[others[0]].name}{_where(nodes[others[0]])}"
    unsafe = get_first_incompatible_cudagraph_node(V.graph.module)  # type: ignore[arg-type]
    if unsafe is not None:
        return f"the operator {unsafe.target} reads values on the host or cannot be captured{_where(unsafe)}"
    # Dynamo passes the current stream from before the call, so inside the call it would not be the
    # capture's stream.
    for node in V.graph.module.graph.nodes:  # type: ignore[union-attr]
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "streams":
            return f"it uses streams or events{_where(node)}"
    if any(getattr(V.graph.scheduler, "node_to_stream", {}).values()):
        return "it uses several streams"
    return None


def _where(node: torch.fx.Node) -> str:
    trace = node.meta.get("stack_trace")
    return f". Found from:\n{trace}" if trace else ""


# Keyed by the id of the object that Inductor passes to both a forward graph and its backward graph.
# The function keeps this object alive.
_forwards: weakref.WeakValueDictionary[int, CapturedFunction] = weakref.WeakValueDictionary()


def install(graph: Any, example_inputs: Sequence[Any], options: Mapping[str, Any], is_wanted: bool) -> None:
    """Make a compiled graph (a CompiledFxGraph) replay captures, or log why it does not.

    `example_inputs` and `options` are the arguments of its post_compile. `is_wanted` is true if graphs were requested
    and Inductor found no obstacle.
    """
    is_backward = bool(options["is_backward"])
    kind = "backward" if is_backward else "inference" if graph.fx_kwargs.get("is_inference") else "forward"
    reason = graph.disabled_cudagraphs_reason
    static = frozenset(graph.fx_kwargs.get("static_input_idxs") or ())
    if reason is None:
        if not is_wanted or CompilerBisector.disable_subsystem("inductor", "cudagraphs"):
            return
        moved = [index for index in graph.mutated_input_idxs if index not in static]
        if moved:
            reason = f"it changes {len(moved)} of its inputs in place, and they are neither parameters nor buffers"
        elif config.triton.cudagraph_skip_dynamic_graphs and _has_symbols(example_inputs):
            reason = "its sizes are dynamic, and triton.cudagraph_skip_dynamic_graphs is set"
    function = CapturedFunction(graph.current_callable, torch.device(_C.driver_name(), _index(graph)), static, kind)
    if reason is not None:
        function.give_up(reason)
        return
    function.trace_reason("")
    graph.current_callable = function
    shared = options.get("boxed_forward_device_index")
    if shared is None:
        return
    if is_backward:
        forward = _forwards.get(id(shared))
        if forward is not None:
            # The last outputs of a forward graph are the first inputs of its backward graph.
            forward.saved = len(static)
            function.forward = forward
    else:
        function.shared = shared
        _forwards[id(shared)] = function


def _index(graph: Any) -> int:
    return next((index for index in graph.device_idxs if index is not None), 0)


def _has_symbols(inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.SymInt) for value in inputs)

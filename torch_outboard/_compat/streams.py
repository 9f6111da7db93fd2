# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.13: a training function with several streams is traced to a graph that AOTAutograd cannot divide."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_outboard._compat.source import mentions

__all__ = ["MODULE", "needs_order_streams", "order_streams"]

MODULE = "torch._functorch._aot_autograd.streams"
_NAME = "_wrap_sync_node"


def needs_order_streams() -> bool:
    """Return True if a wait in a graph depends on all nodes before it, and belongs to no part of the graph."""
    from torch._functorch._aot_autograd import streams

    return hasattr(streams, _NAME) and not mentions(getattr(streams, _NAME), "partitioner_tag")


def order_streams(streams: ModuleType) -> None:
    """Make the waits of a forward pass depend on nodes of the forward pass, and those of a backward pass on its nodes.

    The joint graph has the gradients among its inputs, so that the first wait of the forward pass depended on them, and
    the forward graph had no results. The wait of a backward pass kept alive all that the forward pass had computed.
    The other pass is over, or has not begun: no wait can be about it. Upstream:
    https://github.com/pytorch/pytorch/pull/187695.
    """
    if not needs_order_streams():
        return
    of_torch = getattr(streams, _NAME)

    @functools.wraps(of_torch)
    def wrap_sync_node(gm: Any, sync_node: Any, deps_before_sync: list[Any], visited: set[Any]) -> Any:
        is_backward = streams.is_bwd_node(sync_node)
        of_pass = [one for one in deps_before_sync if streams.is_bwd_node(one) == is_backward]
        wait, passed = of_torch(gm, sync_node, of_pass, visited)
        for node in (wait, *passed):
            node.meta["partitioner_tag"] = "must_be_in_backward" if is_backward else "must_be_in_forward"
        return wait, passed

    setattr(streams, _NAME, wrap_sync_node)

# SPDX-License-Identifier: BSD-3-Clause
"""Changes to a graph before Inductor lowers it for our devices.

Some of Inductor's lowerings (torch/_inductor/lowering.py) generate wrong code. The first decides by the device's name:

- `make_pointwise` places an operator on the device of its first tensor, unless it finds a device that it treats as a
  GPU. If the first operand is a CPU scalar, which PyTorch allows next to device tensors, it chooses the CPU. This pass
  moves such an operand to the device. In other positions, the kernel launch reads the scalar.
- `_make_reduction_inner` numbers the elements of argmax over several dimensions in memory order. This pass flattens the
  input first.
- `_max_pool_with_offsets` numbers the positions of a window in loop order, which follows the input's strides. Of
  several equal elements, it may not find the first; compiled code on the CPU has the same fault. This pass first makes
  the image's rows contiguous.
- `var_mean` returns 0 instead of NaN as the mean of an empty input, also on the CPU. This pass computes the mean
  separately.
- `nextafter` of halves is computed in float, and the result rounds back to the same half. This pass increments the bits
  instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from torch_outboard.compile.device import cache_key
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.compile.generators import generators

__all__ = ["PrepareGraph"]


class PrepareGraph(CustomGraphModulePass):
    """Inductor's pass for graphs that use the device. Its uuid adds the device to the cache keys."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        self.prepare(gm, generators().of_all(self._indices(gm)))

    def prepare(self, gm: torch.fx.GraphModule, chosen: Iterable[CodeGenerator]) -> None:
        """Change a graph that these generators will lower."""
        moved: dict[tuple[torch.fx.Node, torch.device], torch.fx.Node] = {}
        for node in list(gm.graph.nodes):
            value = node.meta.get("val")
            if node.op == "call_function" and node.target in _REPAIRS and self._is_ours(node.args[0].meta["val"]):
                _REPAIRS[node.target](gm.graph, node)
            if node.op != "call_function" or not self._is_ours(value):
                continue
            operand = _operand_to_move(node)
            if operand is not None:
                key = (operand, value.device)
                if key not in moved:
                    moved[key] = _move(gm.graph, operand, value.device, node)
                node.replace_input_with(operand, moved[key])
        for generator in chosen:
            generator.prepare_graph(gm)
        gm.graph.lint()

    def uuid(self) -> Any:
        return cache_key.cache_key()

    def _indices(self, gm: torch.fx.GraphModule) -> list[int]:
        values = tree_leaves([node.meta.get("val") for node in gm.graph.nodes])
        return sorted({value.device.index for value in values if self._is_ours(value)})

    def _is_ours(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self._device


def _operand_to_move(node: torch.fx.Node) -> torch.fx.Node | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    tensors = [argument for argument in node.all_input_nodes if isinstance(argument.meta.get("val"), torch.Tensor)]
    # An operator on a single tensor is a copy to the device, or a factory.
    if len(tensors) < 2:
        return None
    first = tensors[0].meta["val"]
    return tensors[0] if first.device.type == "cpu" and first.dim() == 0 else None


def _move(graph: torch.fx.Graph, operand: torch.fx.Node, device: torch.device, user: torch.fx.Node) -> torch.fx.Node:
    with graph.inserting_before(user):
        copy = graph.call_function(torch.ops.prims.device_put.default, (operand, device))
    copy.meta["val"] = operand.meta["val"].to(device)
    return copy


def _flatten_input(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    source = node.args[0]
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if dim is not None or not isinstance(source, torch.fx.Node) or source.meta["val"].dim() < 2:
        return
    keepdim = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    if keepdim:
        return  # torch refuses such a call, or will; its message is better than one about our reshape
    with graph.inserting_before(node):
        flat = graph.call_function(torch.ops.aten.reshape.default, (source, [-1]))
    flat.meta["val"] = source.meta["val"].reshape(-1)
    node.args = (flat,)
    node.kwargs = {}


def _order_rows(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    source, window = node.args[:2]
    assert isinstance(source, torch.fx.Node) and isinstance(window, (list, tuple))
    value = source.meta["val"]
    rows = value.stride()[-len(window) :]
    if list(rows) == sorted(rows, reverse=True):
        return
    descending = list(range(value.dim(), 0, -1))  # only the order of the strides matters
    with graph.inserting_before(node):
        copy = graph.call_function(torch.ops.prims.inductor_force_stride_order.default, (source, descending))
    copy.meta["val"] = value.contiguous()
    node.replace_input_with(source, copy)


def _repair_mean_of_empty(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    if not any(isinstance(size, int) and size == 0 for size in source.meta["val"].shape):
        return
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keepdim = node.kwargs.get("keepdim", False)
    for user in [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]:
        with graph.inserting_before(user):
            mean = graph.call_function(torch.ops.aten.mean.dim, (source, dim, keepdim))
        mean.meta["val"] = user.meta["val"]
        user.replace_all_uses_with(mean)


def _step_by_bits(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    source, target = node.args
    assert isinstance(source, torch.fx.Node) and isinstance(target, torch.fx.Node)
    values = [node.meta["val"] for node in (source, target)]
    if (
        any(tensor.dtype not in (torch.float16, torch.bfloat16) for tensor in values)
        or values[0].dtype != values[1].dtype
    ):
        return
    with values[0].fake_mode:
        traced = make_fx(_next_half, select_decomp_table())(*values)
    inputs = dict(zip(traced.graph.find_nodes(op="placeholder"), (source, target), strict=True))
    with graph.inserting_before(node):
        result = graph.graph_copy(traced.graph, inputs)
    assert isinstance(result, torch.fx.Node)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _next_half(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    x, target = torch.broadcast_tensors(x, target)  # type: ignore[no-untyped-call]
    bits = x.contiguous().view(torch.int16)
    # The top bit is the sign, so adding one moves one step away from 0.
    is_away = torch.where(x > 0, target > x, target < x)
    stepped = torch.where(is_away, bits + 1, bits - 1)
    least = torch.where(target > 0, 1, -0x7FFF).to(torch.int16)
    moved = torch.where(x == 0, least, stepped).view(x.dtype)
    moved = torch.where(torch.logical_or(x == target, target.isnan()), target, moved)
    return torch.where(x.isnan(), x, moved)


_REPAIRS: dict[Any, Callable[[torch.fx.Graph, torch.fx.Node], None]] = {
    torch.ops.aten.argmax.default: _flatten_input,
    torch.ops.aten.argmin.default: _flatten_input,
    torch.ops.aten.max_pool2d_with_indices.default: _order_rows,
    torch.ops.aten.max_pool3d_with_indices.default: _order_rows,
    torch.ops.prims._low_memory_max_pool_with_offsets.default: _order_rows,
    torch.ops.aten.nextafter.default: _step_by_bits,
    torch.ops.aten.var_mean.correction: _repair_mean_of_empty,
}

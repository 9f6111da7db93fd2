# SPDX-License-Identifier: BSD-3-Clause
"""Rewriting of a graph with complex numbers to pairs of reals, which Inductor can lower.

A complex tensor of the call becomes two inputs: strided views of its real and imaginary parts, in the tensor's own
memory. A complex result becomes two inputs that the graph writes, in memory that the plan allocates. The kernels
therefore read and write strided reals, and no dialect needs a complex type.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from torch_outboard.kernels import route
from torch_outboard.kernels.book.complex_numbers import formula_of, is_componentwise
from torch_outboard.kernels.book.pair import Pair, pair_of, real_of
from torch_outboard.kernels.book.table import recording_decompositions
from torch_outboard.kernels.plans.traced import Input, TracedGraph
from torch_outboard.kernels.refusal import CallRefusal, ClassRefusal

__all__ = ["fusing_pairs", "has_complex", "rewrite_in_pairs"]


def has_complex(graph: torch.fx.GraphModule) -> bool:
    return any(_is_complex(node) for node in graph.graph.nodes)


def _is_complex(value: Any) -> bool:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, (list, tuple)):
        return any(map(_is_complex, value))
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


def rewrite_in_pairs(traced: TracedGraph) -> TracedGraph:
    """Return the graph rewritten with pairs of reals for complex numbers.

    Raises Refusal for an operator without a formula.
    """
    inputs = [part for traced_input in traced.inputs for part in _parts_of(traced_input, traced)]
    (output,) = (node for node in traced.graph.graph.nodes if node.op == "output")
    results: dict[int, torch.Tensor] = {
        number: node.meta["val"] for number, node in enumerate(output.args[0]) if _is_complex(node)
    }
    for number, whole in results.items():
        _check(whole.dtype)
        inputs += _parts_of(Input(whole, result=number), traced)
    body = _Body(traced.graph.graph, [traced_input.is_conjugated for traced_input in traced.inputs], [*results])
    with traced.fake_mode, enable_python_dispatcher(), torch.no_grad():
        graph = make_fx(body, decomposition_table=recording_decompositions(), tracing_mode="real")(
            *(traced_input.fake for traced_input in inputs)
        )
    return replace(traced, graph=graph, inputs=inputs, complex_results=results)


def _check(dtype: torch.dtype) -> None:
    if dtype not in (torch.complex64, torch.complex128):
        raise ClassRefusal(f"generated kernels don't support {dtype} [storage-type]")


def _parts_of(source: Input, traced: TracedGraph) -> Iterator[Input]:
    """Yield an input, or both parts of a complex input."""
    whole = source.fake
    if not isinstance(whole, torch.Tensor) or not whole.is_complex():
        yield source
        return
    for is_imaginary in (False, True):
        with traced.fake_mode:
            strides = [2 * stride for stride in whole.stride()]
            part = torch.empty_strided(whole.shape, strides, dtype=real_of(whole.dtype), device=whole.device)
        yield replace(source, fake=part, whole=whole, is_imaginary=is_imaginary)


class _Body:
    """Runs a graph's nodes with pairs. Writes the complex results, and returns the others."""

    def __init__(self, graph: torch.fx.Graph, are_conjugated: Sequence[bool], results: Sequence[int]) -> None:
        self._graph = graph
        self._are_conjugated = are_conjugated  # flags by placeholder
        self._results = results

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining, are_conjugated = iter(tensors), iter(self._are_conjugated)
        values: dict[torch.fx.Node, Any] = {}
        for node in self._graph.nodes:
            match node.op:
                case "placeholder":
                    first, is_conjugated = next(remaining), next(are_conjugated)
                    if _is_complex(node):
                        second = next(remaining)
                        values[node] = Pair(first, -second if is_conjugated else second)
                    else:
                        values[node] = first
                case "call_function":
                    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                    values[node] = _compute(node, args, kwargs)
                case "output":
                    outputs = [values[node_of_output] for node_of_output in node.args[0]]
                case _:
                    raise CallRefusal("its decomposition contains constant tensors [no-definition]")
        for number in self._results:
            for value in outputs[number]:
                next(remaining).copy_(value)
        return tuple(output for output in outputs if not isinstance(output, Pair))


def _compute(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    target: Any = node.target
    if not _is_complex(node) and not any(_is_complex(argument) for argument in (*node.args, *node.kwargs.values())):
        return target(*args, **kwargs)
    if not isinstance(target, torch._ops.OpOverload):
        return target(*args, **kwargs)  # operator.getitem
    if target in (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default):
        return target(args[0].re, *args[1:])
    kind = _kind_of(node)
    if target is torch.ops.aten.copy_.default:
        return _copy(kind, *args)
    if is_componentwise(target):
        return _compute_componentwise(target, kind, args, kwargs)
    formula = formula_of(target)
    route.add_decision(target, "formula of complex numbers", formula)
    result = NotImplemented if formula is None else formula(kind, *args, **kwargs)
    if result is NotImplemented:
        if not any(_is_complex(argument) for argument in node.all_input_nodes):
            raise CallRefusal(f"{target._schema.name} has no formula for its complex result [no-definition]")
        raise CallRefusal(f"{target._schema.name} has no formula for complex numbers [complex-formula]")
    return _with_shape_and_type(result, node.meta["val"])


def _kind_of(node: torch.fx.Node) -> torch.dtype:
    """Return the real type in which an operator computes."""
    values = [node.meta.get("val")]
    if not _is_complex(values[0]):
        values = [argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument for argument in node.args]
    numbers = [number for number in values if isinstance(number, (torch.Tensor, int, float, complex))]
    leaves = [leaf.dtype for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    if len(numbers) < 2:
        return real_of(leaves[0])
    common: Any = functools.reduce(lambda a, b: torch.empty((), dtype=torch.result_type(a, b), device="meta"), numbers)
    return real_of(common.dtype)


def _copy(kind: torch.dtype, target: Any, value: Any) -> Any:
    if isinstance(target, Pair):
        for part, component in zip(target, pair_of(value, kind), strict=True):
            part.copy_(component)
    else:
        target.copy_(value.re)
    return target


def _with_shape_and_type(result: Any, wanted: Any) -> Any:
    """Return a formula's result, or its list of results, with the operator's shape and type."""
    if isinstance(result, list):
        return [_with_shape_and_type(*both) for both in zip(result, wanted, strict=True)]
    if isinstance(result, Pair):
        return Pair(*(_with_shape_and_type(component, wanted) for component in result))
    return result.expand(wanted.shape).to(real_of(wanted.dtype))


def _compute_componentwise(target: torch._ops.OpOverload, kind: torch.dtype, args: Any, kwargs: Any) -> Any:
    def of(part: int) -> Any:
        named = {name: _part(value, part, kind) for name, value in kwargs.items()}
        return target(*(_part(argument, part, kind) for argument in args), **named)

    re, im = of(0), of(1)
    if isinstance(re, (list, tuple)):
        return [Pair(*parts) for parts in zip(re, im, strict=True)]
    return Pair(re, im)


def _part(value: Any, part: int, kind: torch.dtype) -> Any:
    """Return one part of an argument. Integer tensors are indices."""
    if isinstance(value, torch.dtype):
        return real_of(value)
    if isinstance(value, Pair) or (isinstance(value, torch.Tensor) and value.dtype.is_floating_point):
        return pair_of(value, kind)[part]
    if isinstance(value, (list, tuple)):
        return [_part(item, part, kind) for item in value]
    return value


@contextlib.contextmanager
def fusing_pairs() -> Iterator[None]:
    """Make Inductor compute both parts in one kernel, which it declines if the parts read no common element."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    def can_fuse(*args: Any) -> bool:
        return True

    choices: Any = type(V.choices)
    choices_class: Callable[[], Any] = type(
        "PairChoices",
        (choices,),
        {"can_fuse": staticmethod(can_fuse), "can_fuse_horizontal": staticmethod(can_fuse)},
    )
    with config.patch(aggressive_fusion=True), V.set_choices_handler(choices_class()):
        yield

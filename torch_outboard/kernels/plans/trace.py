# SPDX-License-Identifier: BSD-3-Clause
"""From a call of an operator to a graph of torch's decompositions, with symbols for sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torch_outboard.codegen.dialects.dialect import HALVES, SUFFIXES
from torch_outboard.kernels import route
from torch_outboard.kernels.book.complex_numbers import prefer_formulas
from torch_outboard.kernels.book.optimizers import run_update
from torch_outboard.kernels.book.random import draw_with_seed
from torch_outboard.kernels.book.rounding import rounded
from torch_outboard.kernels.book.row import Body, Draw, Fill, Numbers, Operator, Update
from torch_outboard.kernels.book.table import operator_of, recording_decompositions
from torch_outboard.kernels.layouts import as_laid_out, lay_out_results
from torch_outboard.kernels.operators import base_name, functional_of, overload_of
from torch_outboard.kernels.plans.pairs import has_complex, rewrite_in_pairs
from torch_outboard.kernels.plans.sizes import Sizes
from torch_outboard.kernels.plans.traced import Input, Number, TracedGraph
from torch_outboard.kernels.promotion import (
    common_type,
    is_tensor,
    is_wide_number,
    kinds_of,
    number_type,
)
from torch_outboard.kernels.refusal import CallRefusal, ClassRefusal, OperatorRefusal

__all__ = ["OperatorCall", "trace", "trace_function"]

# Number of calls in a trace after which further calls are cached. Most operators make 50 to 100,
# and take 1.2 times as long if all are cached; grid_sample makes up to 1,600, and takes longer if
# none are.
_CALLS_BEFORE_CACHING = 150


@dataclass
class OperatorCall:
    """A call to build a plan for."""

    name: str  # "aten::add.Tensor"
    arguments: Sequence[Any]  # in schema order; a Python number may stand for a tensor
    by_value: Sequence[int]  # positions of the numbers that the plan takes from each call
    is_aliased: bool  # a written tensor shares memory with another tensor
    device: torch.device
    strides: Sequence[Sequence[int] | None] = ()  # strides of the results, as far as the meta kernel reports them
    symbols: Sequence[int] = ()  # positions of the integers that the plan guards

    @property
    def operator(self) -> torch._ops.OpOverload:
        return overload_of(self.name)

    @property
    def base(self) -> str:
        """The operator without overload and in-place form: "aten::add" for "aten::add_.Tensor"."""
        return base_name(self.name)

    @property
    def draws(self) -> bool:
        """True if the operator draws random numbers and has a formula."""
        return isinstance(self.row.computed, Draw)

    @property
    def row(self) -> Operator:
        """The book's row for the operator."""
        return operator_of(self.name)


@dataclass
class _Cast:
    """A number that the graph converts before use."""

    tensor: torch.Tensor
    dtype: torch.dtype
    is_rounded: bool

    def convert(self, number: torch.Tensor) -> torch.Tensor:
        converted = number.to(self.dtype)
        return rounded(converted) if self.is_rounded else converted


@dataclass
class _Symbol:
    """An integer that becomes a placeholder."""

    value: torch.SymInt | int


class _Inputs:
    """Creates fake tensors for a call's arguments."""

    def __init__(self, call: OperatorCall, mode: FakeTensorMode, is_static: bool, real: torch.dtype) -> None:
        self.call = call
        self.mode = mode
        self.is_static = is_static
        self.real = real  # the widest real type in which kernels compute
        self.made: list[Input] = []
        self._tensors = 0
        self._kinds = kinds_of(call.name, call.arguments)

    def argument(self, place: int, value: Any, declared: Any) -> Any:
        """Return an argument's stand-in for the trace: a fake tensor for a tensor."""
        if isinstance(value, (bool, int, float, complex)) and is_tensor(declared):
            return self._number_tensor(place, value, declared.name)
        if isinstance(value, torch.Tensor) and is_wide_number(value, self.real):
            return self._narrow(place)
        rounds = self.call.row.rounds_numbers
        if isinstance(value, torch.Tensor) and value.dim() == 0 and rounds and is_tensor(declared):
            dtype = number_type(self.call.name, self.call.arguments, value.dtype)
            if dtype in HALVES and value.dtype not in HALVES:
                return _Cast(self._tensor(value), dtype, is_rounded=True)
        is_number = isinstance(value, (int, float)) and str(declared.type) in ("number", "Optional[number]")
        if (is_number or isinstance(value, float)) and rounds and self._kinds[0].is_floating_point:
            return torch.tensor(value, dtype=torch.float64).to(self._kinds[0]).item()
        return _replace(value, self._tensor)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = _fake(tensor, self.mode, self.call.device, self._tensors, self.is_static)
        is_scalar = tensor.device.type == "cpu" and tensor.dim() == 0
        return self._add(fake, is_conjugated=tensor.is_conj(), is_scalar=is_scalar)

    def _add(self, fake: torch.Tensor, *, is_conjugated: bool = False, is_scalar: bool) -> torch.Tensor:
        self.made.append(Input(fake, tensor=self._tensors, is_conjugated=is_conjugated, is_scalar=is_scalar))
        self._tensors += 1
        return fake

    def _number_tensor(self, place: int, value: Any, name: str) -> _Cast:
        """Return the stand-in for a Python number in place of a tensor; torch passes a tensor without dimensions."""
        wide = {float: torch.float64, complex: torch.complex128}
        number = torch.tensor(value, dtype=wide.get(type(value)))
        dtype = number_type(self.call.name, self.call.arguments, number.dtype)
        if is_wide_number(number, self.real):
            fake = self._narrow(place)
        else:
            with self.mode:
                fake = self._add(torch.empty((), dtype=number.dtype, device=self.call.device), is_scalar=True)
        is_in_float = self.call.row.takes_float and name == "other"
        return _Cast(fake, dtype, is_rounded=dtype in HALVES and not is_in_float)

    def _narrow(self, place: int) -> torch.Tensor:
        """Return a number that each call converts to the widest type in which kernels compute."""
        common, value = common_type(self._kinds), self.call.arguments[place]
        if common in (torch.float64, torch.complex128) or (
            isinstance(value, torch.Tensor) and not (common.is_floating_point or common.is_complex)
        ):
            raise ClassRefusal("it computes in float64, which needs has_double in the dialect [double]")
        self._tensors += 1
        is_complex = value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, complex)
        return self._number(place, self.real.to_complex() if is_complex else self.real)

    def number(self, place: int) -> torch.Tensor:
        value = self.call.arguments[place]
        if isinstance(value, complex):
            return self._number(place, self.real.to_complex())
        if not isinstance(value, (int, float)):
            raise ClassRefusal(f"a number argument is a {type(value).__name__} [wrong-call]")
        return self._number(place, torch.int64 if isinstance(value, int) else self.real)

    def _number(self, place: int, dtype: torch.dtype) -> torch.Tensor:
        with self.mode:
            fake = torch.empty((), dtype=dtype, device=self.call.device)
        self.made.append(Input(fake, number=place, is_scalar=True))
        return fake

    def symbols(self, place: int) -> Any:
        """Return the stand-in for an integer, or a list of integers, that the plan guards."""
        value = self.call.arguments[place]
        if isinstance(value, (list, tuple)):
            return [self._symbol(item, f"element {place} {number}") for number, item in enumerate(value)]
        return self._symbol(value, f"number {place}")

    def _symbol(self, value: int, text: str) -> Any:
        env = self.mode.shape_env
        assert env is not None
        fake: torch.SymInt | int = value
        if not self.is_static:
            source = ConstantSource(text.replace(" ", "_"))
            symbol = env.create_unspecified_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
            fake = env.create_symintnode(symbol, hint=value, source=source)
        self.made.append(Input(fake, symbol=text))  # type: ignore[arg-type]
        return _Symbol(fake)

    def seed(self) -> None:
        with self.mode:
            fake = torch.empty((), dtype=torch.int64, device=self.call.device)
        self.made.append(Input(fake))


def _fake(
    tensor: torch.Tensor, mode: FakeTensorMode, device: torch.device, number: int, is_static: bool = False
) -> torch.Tensor:
    if tensor.dtype not in SUFFIXES and tensor.dtype not in (torch.complex64, torch.complex128):
        raise ClassRefusal(f"generated kernels don't support {tensor.dtype} [storage-type]")
    sizes: Sequence[Any] = tensor.size()
    strides: Sequence[Any] = tensor.stride()
    if not is_static:
        assert mode.shape_env is not None
        meta = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
        source = ConstantSource(f"t{number}")
        sizes, strides, _ = mode.shape_env.create_symbolic_sizes_strides_storage_offset(meta, source)
    with mode:
        return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=device)


def _replace(value: Any, replace: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return [replace(item) if isinstance(item, torch.Tensor) else item for item in value]
    return value


def trace(call: OperatorCall, is_static: bool, real: torch.dtype) -> TracedGraph:
    """Trace a call.

    Raises Refusal, or the errors of the operator's decompositions.
    """
    if call.row.filled:
        _check_fill(call)
    shape_env = Sizes()
    mode = _Mode(shape_env)
    inputs = _Inputs(call, mode, is_static, real)
    arguments = [
        inputs.number(place)
        if place in call.by_value
        else inputs.symbols(place)
        if place in call.symbols
        else inputs.argument(place, value, declared)
        for place, (value, declared) in enumerate(zip(call.arguments, call.operator._schema.arguments, strict=True))
    ]
    if call.draws:
        inputs.seed()
    body = _Body(call, arguments, real)
    traced = TracedGraph(_graph_of(body, inputs.made, mode), shape_env, mode, inputs.made, body.returns)
    lay_out_results(traced.graph.graph, mode, call.strides)
    if call.is_aliased:
        _defer_copies(traced)
    if has_complex(_without_dead_code(traced).graph):
        traced = _without_dead_code(rewrite_in_pairs(traced))
    _check_has_effect(call, traced)
    return traced


def trace_function(
    function: Callable[..., Sequence[torch.Tensor]], arguments: Sequence[Any], device: Any
) -> TracedGraph:
    """Trace a function that takes tensors and returns a list of new tensors, as if they were on the device."""
    shape_env = Sizes()
    mode = _Mode(shape_env)
    inputs = [Input(_fake(tensor, mode, device, number), tensor=number) for number, tensor in enumerate(arguments)]
    results = 0

    def body(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal results
        outputs = tuple(function(*tensors))
        results = len(outputs)
        return outputs

    graph = _graph_of(body, inputs, mode)
    if has_complex(graph):
        raise ClassRefusal("its tensors are complex, and no formula for complex numbers is known [complex-formula]")
    return _without_dead_code(TracedGraph(graph, shape_env, mode, inputs, list(range(results))))


class _Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A mode that caches calls once there are many, because calls then repeat. Adding a cache entry is slow."""

    def __init__(self, shape_env: ShapeEnv) -> None:
        super().__init__(shape_env=shape_env)
        self.cache_enabled = False
        self.calls = 0

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls == _CALLS_BEFORE_CACHING:
            self.cache_enabled = True
        return super().dispatch(func, types, args, kwargs)


def _graph_of(body: Callable[..., Any], inputs: list[Input], mode: FakeTensorMode) -> torch.fx.GraphModule:
    fakes = [traced_input.fake for traced_input in inputs]
    with mode, enable_python_dispatcher(), torch.no_grad():
        function = torch.func.functionalize(body, remove="mutations_and_views")
        return make_fx(function, decomposition_table=_table(route.is_recording()), tracing_mode="real")(*fakes)


@functools.cache
def _table(is_recording: bool) -> dict[Any, Any]:  # one table for each value
    return prefer_formulas(recording_decompositions())


def _without_dead_code(traced: TracedGraph) -> TracedGraph:
    traced.graph.graph.eliminate_dead_code()
    traced.graph.recompile()
    return traced


def _check_has_effect(call: OperatorCall, traced: TracedGraph) -> None:
    """Refuse an operator that neither returns nor writes a tensor, such as an assertion removed as dead code."""
    schema = call.operator._schema
    is_silent = not schema.returns and not schema.is_mutable
    if is_silent and all(node.op in ("placeholder", "output") for node in traced.graph.graph.nodes):
        raise OperatorRefusal("torch removes it from graphs as dead code [no-definition]")


def _check_fill(call: OperatorCall) -> None:
    """Refuse to fill with a tensor of a higher category, because only its value shows whether it fits."""
    named = {
        declared.name: value for declared, value in zip(call.operator._schema.arguments, call.arguments, strict=True)
    }
    self, value = named["self"], named[call.row.filled]
    if isinstance(value, torch.Tensor) and not torch.can_cast(value.dtype, self.dtype):
        raise ClassRefusal("a number argument may not fit the tensor's dtype [wrong-call]")


class _Body:
    """Calls the operator with tensors for the placeholders, and returns the new tensors."""

    def __init__(self, call: OperatorCall, arguments: list[Any], real: torch.dtype) -> None:
        self.call = call
        self.real = real
        self.arguments = arguments
        self.returns: list[Any] = []

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining = iter(tensors)

        def take(argument: Any) -> Any:
            if isinstance(argument, (torch.Tensor, _Symbol)):
                return next(remaining)
            if isinstance(argument, _Cast):
                return argument.convert(next(remaining))
            if isinstance(argument, (list, tuple)) and any(
                isinstance(item, (torch.Tensor, _Cast, _Symbol)) for item in argument
            ):
                return [take(item) for item in argument]
            return argument

        arguments = [take(argument) for argument in self.arguments]
        if self.call.draws:
            with draw_with_seed(next(remaining)):
                result = self._run(arguments)
        else:
            result = self._run(arguments)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        declared = self.call.operator._schema.returns
        if len(declared) == 1 and isinstance(result, (list, tuple)):
            results = [list(result)]
        elif not declared:
            results = []
        fresh: list[torch.Tensor] = []
        self.returns = []
        for output, schema in zip(results, declared, strict=True):
            if schema.alias_info is not None:
                continue  # a written argument
            self.returns.append(_number_outputs(output, fresh))
        return tuple(as_laid_out(tensor, place, self.call.strides) for place, tensor in enumerate(fresh))

    def _run(self, arguments: list[Any]) -> Any:
        call, schema = self.call, self.call.operator._schema
        match call.row.computed:
            case Update() as update:
                route.add_decision(call.name, "formula", update.formula)
                if call.is_aliased:
                    raise CallRefusal("a tensor that it writes shares memory with another argument [layout]")
                named = {declared.name: value for value, declared in zip(arguments, schema.arguments, strict=True)}
                return run_update(update, named)
            case Body() as body:
                route.add_decision(call.name, "body", body.function)
                return body.function(*([self.real] if body.takes_reals else []), *arguments)
            case Draw() | Fill():
                return self._run_formula(arguments)
            case Numbers() if call.by_value:
                return self._run_formula(arguments)
        positional = [
            value for value, declared in zip(arguments, schema.arguments, strict=True) if not declared.kwarg_only
        ]
        named = {
            declared.name: value
            for value, declared in zip(arguments, schema.arguments, strict=True)
            if declared.kwarg_only
        }
        functional, out = functional_of(call.name), named.pop("out", None)
        if out is not None and named.get("dtype", out.dtype) is None and out.dtype != positional[0].dtype:
            named["dtype"] = out.dtype  # elements are converted before the reduction
        is_of_halves = any(isinstance(value, torch.Tensor) and value.dtype in HALVES for value in positional)
        if out is None or functional is None or not is_of_halves or out.dtype in HALVES:
            return call.operator(*positional, **named, **({} if out is None else {"out": out}))
        # The result is rounded to its own type before the conversion to the written tensor's type.
        result = functional(*positional, **named)
        return out.copy_(rounded(result) if result.dtype in HALVES else result)

    def _run_formula(self, arguments: list[Any]) -> Any:
        schema = self.call.operator._schema
        inputs = [
            value
            for value, declared in zip(arguments, schema.arguments, strict=True)
            if declared.name not in ("out", "generator")
        ]
        computed = self.call.row.computed
        assert isinstance(computed, (Draw, Fill, Numbers))
        route.add_decision(self.call.name, "formula", computed.formula)
        leading = (self.real, arguments[-1]) if isinstance(computed, Fill) else ()
        result = computed.formula(*leading, *inputs)
        targets = [
            value
            for value, declared in zip(arguments, schema.arguments, strict=True)
            if declared.alias_info is not None and declared.alias_info.is_write
        ]
        if not targets:
            return result
        if targets[0].shape != result.shape:
            raise CallRefusal("the result's shape differs from the shape of the tensor it is written to [wrong-call]")
        return targets[0].copy_(result)


def _number_outputs(value: Any, fresh: list[torch.Tensor]) -> Any:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_number_outputs(output, fresh) for output in value]
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return Number(value)
    if not isinstance(value, torch.Tensor):
        raise ClassRefusal(f"it returns a {type(value).__name__} [plan]")
    fresh.append(value)
    return len(fresh) - 1


def _defer_copies(traced: TracedGraph) -> None:
    """Turn copies to placeholders into outputs, which the plan copies after everything has been read."""
    graph = traced.graph.graph
    places = {node: place for place, node in enumerate(node for node in graph.nodes if node.op == "placeholder")}
    (output,) = (node for node in graph.nodes if node.op == "output")
    outputs = list(output.args[0])
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0] in places:
            tensor = traced.inputs[places[node.args[0]]].tensor
            assert tensor is not None
            if node.users:
                raise CallRefusal("it reads memory that it has written [plan]")
            traced.copies.append((tensor, len(outputs)))
            outputs.append(_converted(graph, node, traced))
            graph.erase_node(node)
    output.args = (tuple(outputs),)


def _converted(graph: torch.fx.Graph, copy: torch.fx.Node, traced: TracedGraph) -> torch.fx.Node:
    """Return a copy's source, converted to the target's type."""
    target, source = copy.args[:2]
    assert isinstance(target, torch.fx.Node) and isinstance(source, torch.fx.Node)
    if source.meta["val"].shape != target.meta["val"].shape:
        raise CallRefusal("the result's shape differs from the shape of the tensor it is written to [wrong-call]")
    if source.meta["val"].dtype == target.meta["val"].dtype:
        return source
    with graph.inserting_before(copy):
        node = graph.call_function(torch.ops.prims.convert_element_type.default, (source, target.meta["val"].dtype))
    with traced.fake_mode:
        node.meta["val"] = source.meta["val"].to(target.meta["val"].dtype)
    return node

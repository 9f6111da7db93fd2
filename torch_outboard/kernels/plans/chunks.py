# SPDX-License-Identifier: BSD-3-Clause
"""Plans of operators over lists of tensors: a kernel over chunks of all elements (csrc/kernels/chunk_plan.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_outboard.codegen.chunks import ChunkBody, Operand, Result, chunk_scheduling
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.compile.fx.wrapper import OutboardFxWrapper
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.kernels import route
from torch_outboard.kernels.book.row import Update
from torch_outboard.kernels.book.table import by_value, check_refused, named_function, operator_of
from torch_outboard.kernels.lists import ELEMENTS, PerTensorOperator, is_by_value, per_tensor_operator
from torch_outboard.kernels.operators import overload_of
from torch_outboard.kernels.plans.lower import lower_with
from torch_outboard.kernels.plans.trace import OperatorCall, trace, trace_function
from torch_outboard.kernels.plans.traced import TracedGraph
from torch_outboard.kernels.promotion import is_wide_number, tensors_in
from torch_outboard.kernels.refusal import CallRefusal, ClassRefusal

__all__ = ["chunk_generator", "lower_chunks"]

# No intermediate result is stored in memory, however often it is used and however many operations
# it takes.
_IN_ONE_KERNEL = {"realize_opcount_threshold": 1 << 20, "realize_reads_threshold": 1 << 20}


def chunk_generator(kind: type[CodeGenerator], driver: Any) -> CodeGenerator:
    """Return a generator of kernels over chunks."""

    def scheduling(self: Any) -> type[Any]:
        return chunk_scheduling(self.dialect)

    chunk_kind = type("ChunkGenerator", (kind,), {"fx_wrapper": lambda self: _NoWrapper, "scheduling": scheduling})
    return chunk_kind(driver)  # type: ignore[no-any-return]


class _NoWrapper(OutboardFxWrapper):
    """A wrapper that writes no code around a kernel over chunks."""

    request: ChunkBody

    def _generate(self, is_inference: bool) -> Any:
        return None, None


def lower_chunks(
    name: str, arguments: Sequence[Any], device: torch.device, generator: CodeGenerator
) -> tuple[str, list[DeviceProgram]]:
    """Return the plan and its programs for canonical arguments.

    Raises Refusal, or the errors of tracing and of Inductor.
    """
    real = generator.dialect.real  # type: ignore[attr-defined]
    make = _of_update if isinstance(operator_of(name).computed, Update) else _of_single
    traced, body = make(name, arguments, device, real)
    _check_results(name, arguments, traced, body)
    lower_with(generator, device, traced, body, _IN_ONE_KERNEL)
    if not body.programs:
        raise CallRefusal("its lists are empty [list-shapes]")
    return body.text, body.programs


def _operand(name: str, place: int, value: Any) -> Operand:
    """Return the operand for the argument at `place`; lists of numbers are passed by value, one number per row."""
    declared = overload_of(name)._schema.arguments[place]
    if isinstance(value, list) and isinstance(value[0], torch.Tensor):
        return Operand("element" if declared.name in ELEMENTS else "list", place)
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return Operand("number" if value.dim() == 0 else "numbers", place)
    if isinstance(value, torch.Tensor):
        return Operand("tensor", place)
    return Operand("numbers" if isinstance(value, list) else "number", place)


def _shaped_by(arguments: Sequence[Any]) -> int:
    for place, value in enumerate(arguments):
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return place
    raise CallRefusal("it takes no list of tensors [no-definition]")


def _of_update(
    name: str, arguments: Sequence[Any], device: torch.device, real: torch.dtype
) -> tuple[TracedGraph, ChunkBody]:
    update = operator_of(name).computed
    assert isinstance(update, Update)
    route.add_decision(name, "formula", update.formula)
    schema = overload_of(name)._schema.arguments
    named_values: dict[str, Any] = {}
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    operands: list[Operand] = []
    for place, (value, declared) in enumerate(zip(arguments, schema, strict=True)):
        named_values[declared.name] = None if isinstance(value, list) and not value else value
        if named_values[declared.name] is None or isinstance(value, bool):
            continue
        names.append(declared.name)
        operands.append(_operand(name, place, value))
        element = value[0] if isinstance(value, list) else value
        is_number = not isinstance(value, list) or declared.name in ELEMENTS
        dtype = element.dtype if isinstance(element, torch.Tensor) and not is_wide_number(element, real) else real
        tensors.append(torch.empty((), dtype=dtype, device="meta") if is_number else element)
    _check_types(dict(zip(names, tensors, strict=True)))
    order: list[str] = []

    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        values = update.formula({**named_values, **dict(zip(names, inputs, strict=True))})
        order[:] = values
        return list(values.values())

    traced = trace_function(function, tensors, device)
    places = {declared.name: place for place, declared in enumerate(schema)}
    results = [Result(places[name], is_flag=isinstance(arguments[places[name]], torch.Tensor)) for name in order]
    return traced, ChunkBody(operands, results, _shaped_by(arguments))


def _check_types(lists_by_name: Mapping[str, torch.Tensor]) -> None:
    """Refuse types that the CPU's kernels refuse, so that the CPU's kernels raise their error."""
    lists = {tensor.dtype for tensor in lists_by_name.values() if tensor.dim() > 0}
    if len(lists) != 1 or not all(dtype.is_floating_point for dtype in lists):
        raise ClassRefusal("the tensors in its lists don't share one floating-point dtype [mixed-types]")
    if any(
        lists_by_name[name].dtype != torch.float32
        for name in ("found_inf", "grad_scale", "inv_scale")
        if name in lists_by_name
    ):
        raise ClassRefusal("the scale and found_inf must be float32 [mixed-types]")


def _of_single(
    name: str, arguments: Sequence[Any], device: torch.device, real: torch.dtype
) -> tuple[TracedGraph, ChunkBody]:
    single, join = _per_tensor_operator(name, arguments)
    if isinstance(single.operator, str):
        route.add_decision(name, f"for each tensor {single.operator}")
    else:
        route.add_decision(name, "function of an element", single.operator)
    schema = overload_of(name)._schema.arguments
    values: list[Any] = []
    for place in single.arguments:
        value = arguments[place]
        if isinstance(value, list) and not value:
            raise CallRefusal("a list is empty [list-shapes]")
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            if value.device.type != "cpu":
                raise ClassRefusal("a tensor argument outside the lists is not zero-dimensional [list-shapes]")
            # Numbers stored in a tensor.
            value = 1.0 if value.is_floating_point() else 1
        values.append(value[0] if isinstance(value, list) else value)
    shaped_by = _shaped_by(arguments)
    _check_single(single.operator, arguments, arguments[shaped_by][0].dtype)
    result = Result(shaped_by if schema[shaped_by].alias_info is not None else None)
    of_place = {at: _operand(name, place, arguments[place]) for at, place in enumerate(single.arguments)}
    if not isinstance(single.operator, str):
        inputs = [value if isinstance(value, torch.Tensor) else _number(value, real) for value in values]
        traced = trace_function(single.operator, inputs, device)
        return traced, ChunkBody(
            [of_place[arg.tensor] for arg in traced.inputs if arg.tensor is not None], [result], shaped_by, join
        )
    declared_too = overload_of(single.operator)._schema.arguments[len(values) :]
    read = [
        place
        for place in by_value(single.operator)
        if place < len(values) and is_by_value(name, schema[single.arguments[place]])
    ]
    call = OperatorCall(
        single.operator, [*values, *(declared.default_value for declared in declared_too)], read, False, device
    )
    traced = trace(call, False, real)
    if any(traced_input.whole is not None for traced_input in traced.inputs):
        raise ClassRefusal("its tensors are complex, and no formula for complex numbers is known [complex-formula]")
    tensors = [
        at
        for at, (value, declared) in enumerate(zip(call.arguments, call.operator._schema.arguments, strict=True))
        if at not in call.by_value
        and (isinstance(value, torch.Tensor) or str(declared.type) in ("Tensor", "Optional[Tensor]"))
    ]
    operands = [
        of_place[tensors[traced_input.tensor]] if traced_input.tensor is not None else of_place[traced_input.number]  # type: ignore[index]
        for traced_input in traced.inputs
    ]
    if traced.returns != [0]:
        raise CallRefusal("the per-tensor operator doesn't return exactly one tensor [no-definition]")
    return traced, ChunkBody(operands, [result], shaped_by)


def _per_tensor_operator(name: str, arguments: Sequence[Any]) -> tuple[PerTensorOperator, Any]:
    """Return the operator for one tensor, and how its elements are combined, or None if they are not.

    Raises Refusal for a norm's order or a type that has no kernel.
    """
    each = operator_of(name).each
    if each is None or not each.reduction:
        return per_tensor_operator(name), None
    function, join = named_function(each.reduction)(arguments)
    return PerTensorOperator(function, (0,)), join


def _check_single(operator: Any, arguments: Sequence[Any], dtype: torch.dtype) -> None:
    """Refuse a call that the operator for one tensor would refuse, so that the CPU raises its error."""
    if not isinstance(operator, str):
        return
    check_refused(operator, tensors_in(arguments))
    is_refused = operator_of(operator).refuses_list
    if is_refused is not None and is_refused(arguments, dtype):
        raise CallRefusal(f"the CPU kernel rejects {dtype} with these numbers [wrong-call]")


def _number(value: int | float, real: torch.dtype) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64 if isinstance(value, int) else real, device="meta")


def _check_results(name: str, arguments: Sequence[Any], traced: TracedGraph, body: ChunkBody) -> None:
    (output,) = (node for node in traced.graph.graph.nodes if node.op == "output")
    for node, result in zip(output.args[0], body.results, strict=True):
        if result.argument is None:
            continue
        target = arguments[result.argument]
        dtype = target.dtype if result.is_flag else target[0].dtype
        wanted = torch.float32 if result.is_flag else node.meta["val"].dtype
        if dtype != wanted:
            raise ClassRefusal(f"results of {wanted} would be written to tensors of {dtype} [mixed-types]")

# SPDX-License-Identifier: BSD-3-Clause
"""From a graph to a plan: Inductor's lowering and scheduling, with a wrapper that writes the plan's steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import config, ir, lowering
from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.codegen.wrapper_fxir import FxConverter
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import fallback_handler
from torch._inductor.utils import LineContext
from torch._inductor.virtualized import V

from torch_outboard.codegen.formula import expression_of
from torch_outboard.codegen.letters import passed_types
from torch_outboard.codegen.mapping.machine import dynamic_memory, is_cpu, limits_of
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.codegen.refused import MISSING_FEATURE
from torch_outboard.compile.device.choice import lowering_with
from torch_outboard.compile.device.graph_pass import PrepareGraph
from torch_outboard.compile.fx.wrapper import OutboardFxWrapper
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.kernels import route
from torch_outboard.kernels.book.table import lowerings, templates
from torch_outboard.kernels.magnitudes import guard_magnitudes
from torch_outboard.kernels.plans.pairs import fusing_pairs
from torch_outboard.kernels.plans.text import PlanWriter
from torch_outboard.kernels.plans.trace import OperatorCall
from torch_outboard.kernels.plans.traced import Input, Number, TracedGraph
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.switches import allowed
from torch_outboard.kernels.templates.call import Layout, TemplateCall, Tensor
from torch_outboard.kernels.tune.schedule_table import schedules_of
from torch_outboard.kernels.tune.schedules import family_of

__all__ = ["eager_generator", "lower", "lower_with"]

# Settings that users may have changed for their own graphs.
_SETTINGS = {
    "benchmark_kernel": False,
    "comprehensive_padding": False,
    "cpp_wrapper": False,
    "layout_optimization": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "memory_planning": False,
    "size_asserts": False,
}


def eager_generator(kind: type[CodeGenerator], driver: Any) -> CodeGenerator:
    """Return a generator that writes plans instead of graph code."""
    plan_kind = type("EagerGenerator", (kind,), {"fx_wrapper": lambda self: _PlanWrapper})
    return plan_kind(driver)  # type: ignore[no-any-return]


def lower(call: OperatorCall, traced: TracedGraph, generator: CodeGenerator) -> tuple[PlanWriter, list[DeviceProgram]]:
    """Lower a graph to a plan and its programs.

    Raises Refusal, or Inductor's errors.
    """
    wrapper = lower_with(generator, call.device, traced, (call, traced, generator))
    return wrapper.plan, wrapper.ordered


def lower_with(
    generator: CodeGenerator,
    device: torch.device,
    traced: TracedGraph,
    request: Any,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Lower a graph and return the generator's wrapper. `request` is set while code is generated."""
    fakes = [traced_input.fake for traced_input in traced.inputs]
    is_of_pairs = any(traced_input.whole is not None for traced_input in traced.inputs)
    with (
        lowering_with(generator),
        config.patch({**_SETTINGS, **settings}),
        fusing_pairs() if is_of_pairs else contextlib.nullcontext(),
        V.set_debug_handler(DebugContext()),
        V.set_fake_mode(traced.fake_mode),
        torch.no_grad(),
    ):
        PrepareGraph(device.type).prepare(traced.graph, [generator])
        graph = _Lowering(
            traced.graph, example_inputs=fakes, shape_env=traced.shape_env, fx_wrapper=True, is_inference=True
        )
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.freeze_runtime_asserts()
            graph.run(*fakes)
            inputs = zip(graph.graph_input_names, traced.inputs, strict=True)
            graph.scalars = {name for name, traced_input in inputs if traced_input.is_scalar}
            _check_outputs(traced, graph)
            guard_magnitudes(graph, generator.dialect, device)  # type: ignore[attr-defined]
            graph.add_device_info(device)  # assertions have no result; torch 2.11 would take the CPU
            graph.init_wrapper_code()
            wrapper: Any = graph.wrapper_code
            wrapper.request = request
            graph.init_wrapper_code = lambda *args, **kwargs: None  # type: ignore[method-assign]
            graph.codegen()
    return wrapper


def _check_outputs(traced: TracedGraph, graph: GraphLowering) -> None:
    """Refuse results whose layout in Inductor differs from the operator's."""
    (output,) = (node for node in traced.graph.graph.nodes if node.op == "output")
    for node, result in zip(output.args[0], graph.graph_outputs, strict=True):
        value = node.meta["val"]
        if result.get_dtype() != value.dtype or not _are_equal(traced, result.get_size(), value.shape):
            raise CallRefusal("Inductor's result has a different shape or dtype from the operator's [plan]")
        if not _are_equal(traced, result.get_stride(), value.stride()):
            raise CallRefusal("Inductor's result has different strides from the operator's [plan]")


def _are_equal(traced: TracedGraph, arguments: Sequence[Any], values: Sequence[Any]) -> bool:
    """Return True if numbers are equal for all sizes, or for this call's sizes, which adds a guard to the plan."""
    wanted = _expressions(values)
    if len(arguments) != len(wanted):
        return False
    known = V.graph.sizevars.statically_known_equals
    return all(
        known(argument, expected) or bool(traced.shape_env.evaluate_expr(sympy.Eq(argument, expected)))
        for argument, expected in zip(arguments, wanted, strict=True)
    )


def _expressions(values: Sequence[Any]) -> list[sympy.Expr]:
    return [expression_of(value) for value in values]


class _Lowering(GraphLowering):
    """A lowering that keeps operators with a template as calls, with unchanged arguments.

    Attributes
    ----------
    scalars : set of str
        The names of inputs that are one element on the CPU.
    """

    scalars: set[str]

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if target in templates():
            route.add_decision(target, "template", templates()[target])
            return fallback_handler(target, add_to_fallback_set=False)(*args, **kwargs)  # type: ignore[no-untyped-call]
        if target in lowerings():
            route.add_decision(target, "lowering", lowerings()[target])
            return lowerings()[target](*args, **kwargs)
        route.add_decision(target, route.LOWERING, lowering.lowerings.get(target))
        return super().call_function(target, args, kwargs)


class _PlanWrapper(OutboardFxWrapper):
    """A wrapper that collects programs and whose lines are written as steps."""

    takes_expressions = True
    request: tuple[OperatorCall, TracedGraph, CodeGenerator]
    plan: PlanWriter
    ordered: list[DeviceProgram]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.programs: dict[str, DeviceProgram] = {}

    def define_program(self, program: DeviceProgram, device: torch.device) -> None:
        self.programs[program.name] = program

    def _generate(self, is_inference: bool) -> Any:
        self.run_wrapper_ir_passes(is_inference)
        converter = _Steps(
            lines=self.lines,
            prologue="",
            graph_inputs=self.get_fx_graph_inputs(),
            graph_outputs=self.get_graph_outputs(),
            subgms=self.subgms,
            is_subgraph=False,
        )
        converter.begin(*self.request, self.programs)
        self.plan, self.ordered = converter.write()
        return None, None


class _Steps(FxConverter):
    """Writes each line of the wrapper as plan steps. Maps buffer names to tensors and buffers of the plan."""

    # Lines that do not occur in an operator's graph, or that a plan cannot express.
    _REFUSED: ClassVar[tuple[str, ...]] = (
        "_generate_comm_buffer_allocate",
        "_generate_comm_buffer_free",
        "_generate_conditional",
        "_generate_dynamic_scalar",
        "_generate_enter_subgraph",
        "_generate_exit_subgraph",
        "_generate_index_put_fallback",
        "_generate_scatter_fallback",
        "_generate_switch",
        "generate_copy",
        "generate_enter_stream",
        "generate_leave_stream",
    )

    def begin(
        self, call: OperatorCall, traced: TracedGraph, generator: CodeGenerator, programs: dict[str, DeviceProgram]
    ) -> None:
        self.call, self.traced, self.generator, self.programs = call, traced, generator, programs
        self.plan = PlanWriter(traced)
        self.names: dict[str, Any] = {}
        self.wholes: dict[tuple[int | None, int | None, int | None], str] = {}
        self.ordered: list[DeviceProgram] = []
        for name in self._REFUSED:
            setattr(self, name, self._refuse_line)

    def write(self) -> tuple[PlanWriter, list[DeviceProgram]]:
        if V.graph.constants:
            raise CallRefusal("its decomposition contains constant tensors [no-definition]")
        for name, source in zip(V.graph.graph_input_names, self.traced.inputs, strict=True):
            self.names[name] = self._name_of(source)
        for line in self.lines:
            if isinstance(line, WrapperLine):
                line.codegen_fx(self)(line)
            elif not isinstance(line, LineContext):
                raise CallRefusal(f"a plan has no step for Inductor's {type(line).__name__} [plan]")
        outputs = [self._reference(node) for node in self.graph_outputs]
        if len(set(outputs)) != len(outputs) or any(not name.startswith("b") for name in outputs):
            raise CallRefusal("a result aliases an argument or another result [plan]")
        for number in sorted(self.traced.complex_results):
            outputs.insert(number, self.wholes[None, None, number])
        for tensor, output in self.traced.copies:
            self.plan.step(f"copy t{tensor} {outputs[output]}")
        for returned in self.traced.returns:
            if isinstance(returned, Number):
                self.plan.returned_number(*_expressions([returned.value]))
            else:
                self.plan.returned(returned, outputs)
        return self.plan, self.ordered

    def _name_of(self, source: Input) -> str | None:
        if source.symbol is not None:
            return None  # formulas name it
        if source.whole is not None:
            return self._part(source, source.whole)
        if source.tensor is not None:
            return f"t{source.tensor}"
        if source.number is None:
            return self.plan.seed()
        assert isinstance(source.fake, torch.Tensor)
        return self.plan.number(source.number, source.fake.dtype)

    def _part(self, input: Input, whole: torch.Tensor) -> str:
        """Return the real or imaginary part of a complex tensor of the call, a number or a result."""
        source = (input.tensor, input.number, input.result)
        if source not in self.wholes:
            if input.tensor is not None:
                self.wholes[source] = f"t{input.tensor}"
            elif input.number is not None:
                self.wholes[source] = self.plan.number(input.number, whole.dtype)
            else:
                layout = _expressions(whole.shape), _expressions(whole.stride())
                self.wholes[source] = self.plan.allocate(whole.dtype, *layout)
        part = input.fake
        assert isinstance(part, torch.Tensor)
        layout = _expressions(part.shape), _expressions(part.stride())
        return self.plan.view(self.wholes[source], *layout, int(input.is_imaginary), part.dtype)

    def _refuse_line(self, line: WrapperLine) -> None:
        raise CallRefusal(f"a plan has no step for Inductor's {type(line).__name__} [plan]")

    def _reference(self, node: Any) -> str:
        """Return the plan's name for one of Inductor's nodes; views become steps."""
        if isinstance(node, ir.MutableBox):
            return self._reference(node.data)
        if isinstance(node, ir.ReinterpretView):
            layout = node.layout
            base: Any = self._get_buffer(node.data)
            if layout.dtype != base.get_dtype():
                raise CallRefusal("it reinterprets memory as another dtype [plan]")
            return self.plan.view(self._name(base), layout.size, layout.stride, layout.offset)
        if isinstance(node, ir.Buffer):
            return self._name(node)
        raise CallRefusal(f"a plan can't refer to Inductor's {type(node).__name__} [plan]")

    def _name(self, buffer: Any) -> str:
        name = self.names[buffer.get_name()]
        if not isinstance(name, str):
            raise CallRefusal("it uses several results as one buffer [plan]")
        return name

    # The lines.

    def _generate_allocate(self, line: Any) -> None:
        buffer = line.node
        sizes = list(buffer.get_size())
        allocated = list(V.graph.get_allocation_size(buffer)) if hasattr(V.graph, "get_allocation_size") else sizes
        if allocated != sizes or getattr(line, "comm_buffer", False):
            raise CallRefusal("it allocates more memory than its sizes and strides span [plan]")
        if buffer.get_device() != self.call.device:
            raise CallRefusal(f"it needs memory on {buffer.get_device()} [plan]")
        self.names[buffer.get_name()] = self.plan.allocate(buffer.get_dtype(), sizes, buffer.get_stride())

    def _generate_free(self, line: Any) -> None:
        self._free_name(line.node.get_name())

    def _generate_free_if_not_reused(self, line: Any) -> None:
        if not line.is_reused:
            self._free_name(line.node.get_name())

    def _free_name(self, name: str) -> None:
        freed = self.names.pop(name, None)
        if isinstance(freed, str) and freed.startswith("b") and freed not in self.names.values():
            self.plan.step(f"free {freed}")

    def _generate_reuse(self, line: Any) -> None:
        old, new = line.node, line.reused_as
        if old.get_dtype() != new.get_dtype():
            raise CallRefusal("it reuses memory for another dtype [plan]")
        name = self._name(old)
        layouts = [(list(buffer.get_size()), list(buffer.get_stride()), buffer.get_offset()) for buffer in (old, new)]
        if layouts[0] != layouts[1]:
            name = self.plan.view(name, new.get_size(), new.get_stride(), new.get_offset())
        self.names[new.get_name()] = name

    def _generate_reinterpret(self, line: Any) -> None:
        layout = line.layout
        size, stride = layout.size, layout.stride
        if isinstance(layout, ir.NonOwningLayout):
            view: Any = layout.view
            layout = view.layout
        if layout.dtype != line.node.get_dtype():
            raise CallRefusal("it reinterprets memory as another dtype [plan]")
        self.names[line.reused_as.get_name()] = self.plan.view(
            self._name(line.node), size, stride, line.node.get_offset() + layout.offset
        )

    def _generate_multi_output(self, line: Any) -> None:
        results = self.names[line.arg_name]
        if len(line.indices) == 0 and isinstance(results, list) and len(results) == 1:
            self.names[line.result_name] = results[0]
        elif isinstance(results, list) and len(line.indices) == 1:
            self.names[line.result_name] = results[line.indices[0][1]]
        else:
            raise CallRefusal("it calls an operator that returns lists of tensors [plan]")

    def _generate_kernel_definition(self, line: Any) -> None:
        self._refuse_line(line)  # define_program receives programs

    def _generate_symbolic_call_arg(self, line: Any) -> None:
        pass  # its name is replaced at each use

    def _generate_unbacked_symbol_defs(self, line: Any) -> None:
        if line.unbacked_bindings:
            self._refuse_line(line)

    def _generate_assert_alignment(self, line: Any) -> None:
        pass  # from torch 2.15 on; not needed, because the memory that templates write to is aligned

    def _generate_kernel_call(self, line: Any) -> None:
        if line.kernel_name not in self.programs:
            raise CallRefusal(f"the kernel {line.kernel_name} runs on another device [plan]")
        program = self.programs[line.kernel_name]
        arguments = [
            self._kernel_tensor(value) if kind.endswith("*") else self.plan.formula(_expression(value))
            for value, kind in zip(line.raw_args, passed_types(program.types), strict=True)
        ]
        self.plan.step(f"launch {self._add_program(program)} [{', '.join(arguments)}]")

    def _add_program(self, program: DeviceProgram) -> int:
        if program not in self.ordered:
            self.ordered.append(program)
        return self.ordered.index(program)

    def _kernel_tensor(self, value: Any) -> str:
        name = self.names.get(value)
        if not isinstance(name, str):
            raise CallRefusal(f"a kernel takes {value}, which is not a buffer [plan]")
        return name

    # Operators.

    def _generate_extern_kernel_alloc(self, line: Any) -> None:
        kernel = line.node
        if kernel.op_overload in templates():
            results: Sequence[str | None] = self._write_template(kernel)
        else:
            results = self._call_operator(kernel, None)
        is_single = isinstance(kernel.layout, ir.Layout) and len(results) == 1
        self.names[kernel.get_name()] = results[0] if is_single else list(results)

    def _generate_extern_kernel_out(self, line: Any) -> None:
        kernel = line.node
        self._call_operator(kernel, self._reference(kernel.output_view or kernel))

    def _write_template(self, kernel: Any) -> list[str | None]:
        tensors = [self._template_tensor(node) for node in kernel.inputs]
        args, kwargs = kernel.unflatten_args(tensors, kernel.constant_args)
        kwargs = {**kernel.kwargs, **kwargs}
        schema = kernel.op_overload._schema.arguments
        arguments = {declared.name: kwargs.get(declared.name, declared.default_value) for declared in schema}
        arguments.update((declared.name, value) for declared, value in zip(schema, args, strict=False))
        # From torch 2.15 on, a call with a single result is itself the result.
        results = [kernel] if isinstance(kernel.layout, ir.Layout) else kernel.outputs
        call = TemplateCall(
            operator=kernel.op_overload,
            arguments=arguments,
            results=[_layout_of(result) if isinstance(result, ir.IRNode) else None for result in results],
            plan=self.plan,
            dialect=allowed(self.generator.dialect, family_of(kernel.op_overload._schema.name)),  # type: ignore[attr-defined]
            is_cpu=is_cpu(self.call.device),
            add_program=self._add_program,
            schedule_of=schedules_of(self.call.device.index).of,
            dynamic_memory=dynamic_memory(self.generator.dialect, self.call.device),  # type: ignore[attr-defined]
            limits=limits_of(self.generator.dialect, self.call.device),  # type: ignore[attr-defined]
        )
        names: list[str | None] = templates()[kernel.op_overload](call)
        return names

    def _template_tensor(self, value: Any) -> Tensor:
        layout = _layout_of(value)
        return Tensor(layout.dtype, layout.size, layout.stride, self._reference(value))

    def _call_operator(self, kernel: Any, out: str | None) -> list[str]:
        operator = kernel.op_overload
        if not isinstance(operator, torch._ops.OpOverload):
            raise CallRefusal("it needs code that is not an operator [no-definition]")
        base = operator._schema.name.removesuffix("_")
        if base == self.call.base:
            if missing := [origin.meta[MISSING_FEATURE] for origin in kernel.origins if MISSING_FEATURE in origin.meta]:
                raise CallRefusal(str(missing[0]))
            raise CallRefusal("Inductor has no lowering for this operator [no-definition]")
        tensors = [self._reference(node) for node in kernel.inputs]
        if hasattr(kernel, "unflatten_args"):
            args, kwargs = kernel.unflatten_args(tensors, kernel.constant_args)
            kwargs = {**kernel.kwargs, **kwargs}
        else:
            args, kwargs = [*tensors, *kernel.constant_args], dict(kernel.kwargs)
        if out is not None:
            kwargs["out"] = out
        return self.plan.call(operator, list(args), kwargs)


def _layout_of(value: Any) -> Layout:
    return Layout(value.get_dtype(), list(value.get_size()), list(value.get_stride()))


def _expression(value: Any) -> Any:
    """Return an expression over the call's symbols: Inductor names expressions that it uses often."""
    if isinstance(value, str):
        raise CallRefusal(f"a kernel takes {value} where a number is expected [plan]")
    return sympy.sympify(value).xreplace(V.graph.sizevars.inv_precomputed_replacements)

# SPDX-License-Identifier: BSD-3-Clause
"""A graph of torch.fx in place of the Python function: allocations, kernels and operators as nodes.

Torch's own converter knows Triton's kernels only. Ours makes a module of each C++ kernel, so that a node is called like
its kernel, and graph passes see that it writes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.common import FileBackedGraphModule
from torch._inductor.codegen.wrapper import KernelCallLine, KernelDefinitionLine, WrapperLine
from torch._inductor.codegen.wrapper_fxir import FxConverter, WrapperFxCodegen
from torch._inductor.virtualized import V

from torch_outboard._errors import NotSupportedError, OutboardError
from torch_outboard.compile.fx_kernel import CompiledKernel
from torch_outboard.compile.wrapper import KernelDefinitions, flush_kernels

__all__ = ["OutboardFxWrapper"]


class OutboardFxWrapper(KernelDefinitions, WrapperFxCodegen):
    """The wrapper of a graph, and by `create` of a graph within another one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        parent = getattr(self, "parent_wrapper", None)
        # Kernels of the same source are defined once for a graph and those within it.
        self._kernels: dict[str, CompiledKernel] = {} if parent is None else parent._kernels

    def _generate(self, is_inference: bool) -> tuple[FileBackedGraphModule, None]:
        self.run_wrapper_ir_passes(is_inference)
        untyped: Any = self  # is_subgraph is made a property by a decorator without types
        converter = _Converter(
            lines=self.lines,
            prologue=f"{self.imports.getvalue()}\n{self.header.getvalue()}",
            graph_inputs=self.get_fx_graph_inputs(),
            graph_outputs=self.get_graph_outputs(),
            subgms=self.subgms,
            is_subgraph=untyped.is_subgraph,
        )
        converter.compiled = self._kernels
        graph = converter.generate()
        for kernel in self._kernels.values():
            kernel.wait()
        return _GraphModule(graph, self.compile_graph(graph)), None

    def compile_graph(self, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        """Gives what runs the graph: a function of the list of arguments, which it empties."""
        graph = copy.deepcopy(gm.graph)
        graph.set_codegen(torch.fx.graph._BoxedCodeGen())
        return torch.fx.GraphModule(gm, graph).forward

    def writeline(self, line: Any) -> None:
        # What there is as text alone: comments, and asserts of what operators return, which torch's graphs leave out
        # where they have lines of their own. The converter refuses any other text.
        if not (isinstance(line, str) and line.startswith(("#", "assert_alignment(", "assert_size_stride("))):
            super().writeline(line)  # type: ignore[no-untyped-call]

    def generate_fallback_kernel(self, node: ir.FallbackKernel) -> None:
        flush_kernels()
        super().generate_fallback_kernel(node)

    def codegen_device_copy(self, src: Any, dst: Any, non_blocking: bool | str) -> None:
        source, target = _copied(str(src), str(dst))
        self.writeline(_CopyLine(source, target, str(non_blocking) == "True"))

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        raise NotSupportedError(
            "fx_wrapper makes graphs of one stream, and this one changes the stream: compile without fx_wrapper"
        )


class _GraphModule(FileBackedGraphModule):
    """Calls with the list itself, so that inputs which nobody else holds are freed after their last use."""

    def call(self, args: list[Any]) -> Any:
        return self.compiled_fn(args)


@dataclasses.dataclass
class _CopyLine(WrapperLine):
    """A copy between devices, which Inductor writes as text."""

    source: ir.IRNode
    target: ir.IRNode
    non_blocking: bool

    def codegen_fx(self, converter: FxConverter) -> Callable[[WrapperLine], None]:
        assert isinstance(converter, _Converter)
        return converter.generate_copy


class _Converter(FxConverter):
    """What differs from torch's own converter."""

    compiled: dict[str, CompiledKernel]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._definitions: dict[str, str] = {}

    def _generate_graph_constants(self) -> None:
        # Torch's hands on parameters, for which operators that write to a given tensor refuse to run.
        for name, constant in V.graph.constants.items():
            value = constant.detach() if isinstance(constant, torch.Tensor) else constant
            self.gm.register_buffer(name, value)
            node = self.gm.graph.get_attr(name)
            node.meta["val"] = value
            self.buffer_to_node[name] = node

    def _generate_allocate(self, line: WrapperLine) -> None:
        # Torch's leaves out the device's index.
        buffer = line.node  # type: ignore[attr-defined]
        node = self.gm.graph.call_function(
            torch.empty_strided,
            args=(self._generate_sym_nodes(buffer.get_size()), self._generate_sym_nodes(buffer.get_stride())),
            kwargs={"dtype": buffer.get_dtype(), "device": buffer.get_device()},
        )
        node.name = buffer.get_name()
        self._record_allocation(buffer, node)

    def _generate_kernel_definition(self, line: WrapperLine) -> None:
        assert isinstance(line, KernelDefinitionLine)
        if line.gpu:
            super()._generate_kernel_definition(line)
        else:
            self._definitions[line.kernel_name] = line.kernel_body

    def _generate_kernel_call(self, line: WrapperLine) -> None:
        assert isinstance(line, KernelCallLine)
        if line.triton:
            super()._generate_kernel_call(line)
            return
        name = line.kernel_name
        if name not in self.compiled:
            self.compiled[name] = CompiledKernel(name, self._definitions[name], tuple(line.arg_types))
        if not hasattr(self.gm, name):
            self.gm.add_submodule(name, self.compiled[name])
        arguments = tuple(
            self.buffer_to_node[argument] if kind.endswith("*") else self._number(name, argument)
            for argument, kind in zip(line.call_args, line.arg_types, strict=True)
        )
        with self._without_hooks():
            node = self.gm.graph.call_module(name, arguments)
        node.meta["val"] = None

    def generate_copy(self, line: WrapperLine) -> None:
        assert isinstance(line, _CopyLine)
        self.gm.graph.call_function(
            torch.ops.aten.copy_.default,
            args=(self._generate_buffer(line.target), self._generate_buffer(line.source), line.non_blocking),
        )

    def _number(self, kernel: str, name: str) -> int | torch.fx.Node:
        # A kernel's numbers are symbols, which reach this line as text.
        for symbol in self.expr_to_proxy:
            if str(symbol) == name:
                return self._generate_sym_node(symbol)
        raise OutboardError(f"the graph defines no {name!r}, which is an argument of the kernel {kernel}")

    @contextlib.contextmanager
    def _without_hooks(self) -> Iterator[None]:
        # The hook that is there would call the node's target, and takes functions only.
        hooks, self.gm._create_node_hooks = self.gm._create_node_hooks, []
        try:
            yield
        finally:
            self.gm._create_node_hooks = hooks


def _copied(source: str, target: str) -> tuple[ir.IRNode, ir.IRNode]:
    for node in V.graph.operations:
        pair: tuple[Any, Any] | None = None
        if isinstance(node, ir.DeviceCopy):
            pair = (node.inputs[0], node.output_view or node)
        elif isinstance(node, ir.InplaceCopyFallback):
            pair = (node.inputs[1], node.inputs[0])
        if pair is not None and (pair[0].codegen_reference(), pair[1].codegen_reference()) == (source, target):
            return pair
    raise OutboardError(f"Inductor copies {source} to {target}, but no operation of the graph does")

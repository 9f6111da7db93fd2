# SPDX-License-Identifier: BSD-3-Clause
"""The wrapper as a torch.fx graph instead of a Python function: allocations, kernels and operators are nodes.

Torch's own converter supports only Triton's kernels. This converter builds a module from each C++ kernel, so that a
node calls the kernel directly, and graph passes see that it writes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index
from torch._inductor import ir
from torch._inductor.codegen.common import FileBackedGraphModule
from torch._inductor.codegen.triton_utils import should_unwrap_unspec_arg
from torch._inductor.codegen.wrapper import KernelCallLine, KernelDefinitionLine, SymbolicCallArg, WrapperLine
from torch._inductor.codegen.wrapper_fxir import FxConverter, WrapperFxCodegen
from torch._inductor.virtualized import V

from torch_outboard._errors import NotSupportedError, OutboardError
from torch_outboard.compile.fx.kernel import CompiledKernel
from torch_outboard.compile.fx.streams import enter_stream, leave_stream, record_streams, restoring_streams
from torch_outboard.compile.wrapper.graph import (
    TunedKernel,
    flush_kernels,
    is_for_streams,
    is_ours,
    keep_order_of_streams,
)
from torch_outboard.compile.wrapper.python import KernelDefinitions

__all__ = ["OutboardFxWrapper"]


class OutboardFxWrapper(KernelDefinitions, WrapperFxCodegen):
    """The wrapper of a graph, and through `create`, of a subgraph."""

    takes_expressions = True  # numeric kernel arguments are needed as expressions, besides their text

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_order_of_streams()
        parent = getattr(self, "parent_wrapper", None)
        # A graph and its subgraphs define kernels with the same source only once.
        self._kernels: dict[str, CompiledKernel] = {} if parent is None else parent._kernels
        self._tuned: dict[str, TunedKernel] = {} if parent is None else parent._tuned

    def define_subgraph_launcher_fn(self, name: str | None, subgraph_code: Any) -> None:
        # Subgraphs have names. Torch's graph partitions have no names, and are called from text.
        if name is None:
            raise NotSupportedError(
                "fx_wrapper does not support graph partitions, which mode='reduce-overhead' captures: set "
                "torch._inductor.config.graph_partition to False, or omit the mode"
            )
        super().define_subgraph_launcher_fn(name, subgraph_code)

    def define_tuned(self, kernel: TunedKernel, comment: str | None) -> None:
        self._tuned[kernel.name] = kernel

    def _generate(self, is_inference: bool) -> tuple[FileBackedGraphModule, None]:
        self.run_wrapper_ir_passes(is_inference)
        untyped: Any = self  # is_subgraph is a property made by an untyped decorator
        converter = _Converter(
            lines=self.lines,
            prologue=f"{self.imports.getvalue()}\n{self.header.getvalue()}",
            graph_inputs=self.get_fx_graph_inputs(),
            graph_outputs=self.get_graph_outputs(),
            subgms=self.subgms,
            is_subgraph=untyped.is_subgraph,
        )
        converter.compiled = self._kernels
        converter.tuned = self._tuned
        graph = converter.generate()
        for kernel in self._kernels.values():
            kernel.wait()
        return _GraphModule(graph, self.compile_graph(graph)), None

    def compile_graph(self, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        """Return a function that runs the graph. The function takes the list of arguments and empties it."""
        graph = copy.deepcopy(gm.graph)
        graph.set_codegen(torch.fx.graph._BoxedCodeGen())
        run: Callable[..., Any] = torch.fx.GraphModule(gm, graph).forward
        parts = [part for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
        changes = any(node.target is enter_stream for part in parts for node in part.graph.nodes)
        return restoring_streams(run) if changes else run

    def writeline(self, line: Any) -> None:
        # Some lines exist only as text: comments, and asserts about the results of operators.
        # Torch's graphs omit such asserts if these have their own lines. The converter refuses any
        # other text.
        if not (isinstance(line, str) and line.startswith(("#", "assert_alignment(", "assert_size_stride("))):
            super().writeline(line)  # type: ignore[no-untyped-call]

    def generate_fallback_kernel(self, node: ir.FallbackKernel) -> None:
        if is_for_streams(node.op_overload):
            _refuse_ahead_of_time()
        flush_kernels()
        super().generate_fallback_kernel(node)

    def codegen_device_copy(self, src: Any, dst: Any, non_blocking: bool | str) -> None:
        source, target = _copied(str(src), str(dst))
        self.writeline(_CopyLine(source, target, str(non_blocking) == "True"))

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        _refuse_ahead_of_time()
        flush_kernels()
        line = _EnterStreamLine(stream_idx, V.graph.scheduler.current_device.index, dict(self._stream_numbers()))  # type: ignore[union-attr]
        self.writeline(line)
        return line

    def codegen_cuda_stream_exit(self) -> None:
        flush_kernels()
        self.writeline(_LeaveStreamLine())

    def _stream_numbers(self) -> Iterator[tuple[int, int]]:
        scheduler = V.graph.scheduler
        for index in sorted({*scheduler.node_to_stream.values()} - {0}):
            yield index, scheduler.stream_idx_to_user_obj_idx[index]


def _refuse_ahead_of_time() -> None:
    if V.aot_compilation:
        raise NotSupportedError(
            "with fx_wrapper, aot_compile supports only one stream, but this graph uses streams or events. Use "
            "torch.compile, which passes them at each call"
        )


class _GraphModule(FileBackedGraphModule):
    """A graph module that passes the argument list itself, so that an input can be freed after its last use."""

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


@dataclasses.dataclass
class _EnterStreamLine(WrapperLine):
    """A change to a stream of the graph. Stream 0, on which the graph is called, needs no change.

    `numbers` are the numbers of the graph's streams in Dynamo's table of objects per call.
    """

    stream_idx: int  # Inductor's scheduler reads it
    device_index: int
    numbers: dict[int, int]

    def codegen_fx(self, converter: FxConverter) -> Callable[[WrapperLine], None]:
        assert isinstance(converter, _Converter)
        return converter.generate_enter_stream


@dataclasses.dataclass
class _LeaveStreamLine(WrapperLine):
    """A change back to the previous stream."""

    def codegen_fx(self, converter: FxConverter) -> Callable[[WrapperLine], None]:
        assert isinstance(converter, _Converter)
        return converter.generate_leave_stream


class _Converter(FxConverter):
    """Differences from torch's own converter."""

    compiled: dict[str, CompiledKernel]
    tuned: dict[str, TunedKernel]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._definitions: dict[str, str] = {}
        self._streams: dict[int, torch.fx.Node] = {}  # 0 is the stream on which the graph is called
        self._before: torch.fx.Node | None = None

    def _generate_graph_constants(self) -> None:
        # Torch's method passes parameters, which operators with `out` arguments refuse.
        for name, constant in V.graph.constants.items():
            value = constant.detach() if isinstance(constant, torch.Tensor) else constant
            self.gm.register_buffer(name, value)
            node = self.gm.graph.get_attr(name)
            node.meta["val"] = value
            self.buffer_to_node[name] = node

    def _generate_allocate(self, line: WrapperLine) -> None:
        # Torch's method omits the device's index.
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
        if line.triton and line.kernel_name not in self.tuned:
            super()._generate_kernel_call(line)
            return
        name = line.kernel_name
        if name not in self.compiled:
            self.compiled[name] = self._compiled(name, line)
        if not hasattr(self.gm, name):
            self.gm.add_submodule(name, self.compiled[name])
        expressions = line.raw_args or [None] * len(line.call_args)
        arguments = tuple(
            self._tensor(argument, raw) if kind.endswith("*") else self._number(name, argument, raw)
            for argument, kind, raw in zip(line.call_args, self.compiled[name].types, expressions, strict=True)
        )
        with self._without_hooks():
            node = self.gm.graph.call_module(name, arguments)
        node.meta["val"] = None

    def _compiled(self, name: str, line: KernelCallLine) -> CompiledKernel:
        if not line.triton:
            return CompiledKernel(name, self._definitions[name], tuple(line.arg_types))
        kernel = self.tuned[name]
        return CompiledKernel(name, kernel.definition(), kernel.types(), kernel.imports)

    def _tensor(self, name: str, raw: Any) -> Any:
        return self.buffer_to_node[name] if name in self.buffer_to_node else self._generate_buffer(raw)

    def generate_copy(self, line: WrapperLine) -> None:
        assert isinstance(line, _CopyLine)
        self.gm.graph.call_function(
            torch.ops.aten.copy_.default,
            args=(self._generate_buffer(line.target), self._generate_buffer(line.source), line.non_blocking),
        )

    # Streams, as in the Python wrapper.

    def generate_enter_stream(self, line: WrapperLine) -> None:
        assert isinstance(line, _EnterStreamLine)
        if not self._streams:
            self._streams[0] = self._call("stream0", torch.accelerator.current_stream, line.device_index)
            for index, number in line.numbers.items():
                self._streams[index] = self._call(f"stream{index}", get_external_object_by_index, number)
        if line.stream_idx != 0:
            self._before = self._call("before", enter_stream, self._streams[line.stream_idx])

    def generate_leave_stream(self, line: WrapperLine) -> None:
        if self._before is not None:
            self._call("leave", leave_stream, self._before)
            self._before = None

    def _generate_unbacked_symbol_defs(self, line: WrapperLine) -> None:
        # Torch's method reads the result first, but operators for streams return none.
        if line.unbacked_bindings:  # type: ignore[attr-defined]
            super()._generate_unbacked_symbol_defs(line)

    def _generate_free(self, line: WrapperLine) -> None:
        self._record(line.node)  # type: ignore[attr-defined]
        super()._generate_free(line)

    def _generate_free_if_not_reused(self, line: WrapperLine) -> None:
        if not line.is_reused:  # type: ignore[attr-defined]
            self._record(line.node)  # type: ignore[attr-defined]
        super()._generate_free_if_not_reused(line)

    def _record(self, buffer: Any) -> None:
        name = buffer.get_name()
        if self._streams and name in self.buffer_to_node and is_ours(name):
            self._call(f"{name}_record", record_streams, self.buffer_to_node[name], list(self._streams.values()))

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> torch.fx.Node:
        with self._without_hooks():
            node = self.gm.graph.create_node("call_function", function, arguments, name=name)
        node.meta["val"] = None
        return node

    def _number(self, kernel: str, name: Any, raw: Any) -> Any:
        if isinstance(name, SymbolicCallArg):
            return self._generate_sym_node(name.inner)
        expression = name if isinstance(name, sympy.Expr) else raw
        if isinstance(expression, sympy.Expr):
            return self._generate_sym_node(expression)
        if not isinstance(name, str):
            return name
        if should_unwrap_unspec_arg(name):  # a tensor on the CPU without dimensions
            with self._without_hooks():
                return self.gm.graph.call_function(torch.ops.aten.item.default, (self.buffer_to_node[name],))
        # Numbers for C++ kernels arrive only as text: known numbers, and symbols.
        if name.lstrip("-").isdigit():
            return int(name)
        for symbol in self.expr_to_proxy:
            if str(symbol) == name:
                return self._generate_sym_node(symbol)
        raise OutboardError(f"the kernel {kernel} has an argument {name!r}, which the graph does not define")

    @contextlib.contextmanager
    def _without_hooks(self) -> Iterator[None]:
        # The installed hook would call the node's target to get its result, but supports only
        # functions.
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
    raise OutboardError(f"Inductor's code copies {source} to {target}, but the graph has no such copy")

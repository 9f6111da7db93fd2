# SPDX-License-Identifier: BSD-3-Clause
"""The wrapper in C++ instead of Python (`cpp_wrapper`), and AOTInductor's model.

The functions of torch_outboard/compiled.h launch kernels, allocate tensors and call operators. Operators go through the
dispatcher, because torch's C functions for operators exist only for its own devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, WrapperLine
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError, OutboardError
from torch_outboard._extension import header_path
from torch_outboard.codegen.letters import argument_type, kernel_letters, passed_types, program_letters
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.compile.cpp.operators import (
    Results,
    arguments_of,
    by_schema,
    names_of,
    overload_of,
    results_of,
    to_overload,
)
from torch_outboard.compile.cpp.tuned import TunedKernels
from torch_outboard.compile.cpp.values import ValueWriter, text_literal
from torch_outboard.compile.wrapper.graph import (
    UserKernels,
    WithoutDeviceGuards,
    flush_kernels,
    is_for_streams,
    is_ours,
    keep_order_of_streams,
)

__all__ = ["OutboardCppWrapper"]

_DEVICE_TYPE = "privateuse1"
_NO_FUNCTION = "outboard_has_no_function_for_"

_KERNEL = """
static void {name}_entry(const uint64_t* words) {{
    {name}({arguments});
}}
static const torch_outboard::CompiledKernel& {name}_kernel() {{
    static const torch_outboard::CompiledKernel kernel("{name}", {name}_entry, "{letters}");
    return kernel;
}}
"""

_PROGRAM = """
static const torch_outboard::CompiledKernel& {name}_kernel() {{
    static const char code[] = {code};
    static const char* const checks[] = {{{checks}}};
    static const torch_outboard::CompiledKernel kernel("{name}", torch_outboard::KernelProgram{{
        "{language}", code, sizeof(code) - 1, {options}, "{entry}", "{letters}",
        {{{grid}}}, {{{block}}}, {local_bytes}, checks, {check_count}}});
    return kernel;
}}
"""

_OPERATOR = """
static const torch_outboard::CompiledOperator& {accessor}() {{
    static const torch_outboard::CompiledOperator op("{name}", "{overload}");
    return op;
}}
"""

_CALL = """
from torch_outboard.compile.runtime import in_cpp
call = _wrap_func(in_cpp(inductor_entry, {streams}))
"""

_MODEL_DEVICE = """{{
    device_type_ = cached_torch_device_type_{type};
    device_idx_ = torch_outboard::compiled_functions().device_index(device_str.c_str());
"""


class OutboardCppWrapper(WithoutDeviceGuards, UserKernels, TunedKernels, CppWrapperCpu):
    """The wrapper of a graph and of its subgraphs, which are written inline."""

    def __init__(self) -> None:
        # A file compiled when it is called counts as a CPU file: with vector instructions and
        # torch's precompiled header.
        self.device = _C.driver_name() if V.graph.aot_mode else "cpu"
        self._kernel_types: dict[str, list[str]] = {}
        self._operators: dict[torch._ops.OpOverload, str] = {}
        self._streams: list[int] = []  # streams that the code changes to, as numbers in Dynamo's table
        self._has_streams = False
        super().__init__()
        keep_order_of_streams()

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> OutboardCppWrapper:
        return OutboardCppWrapper()

    # Headers.

    @staticmethod
    def get_device_include_path_jit(device: str) -> str:
        lines = ["#include <torch/csrc/inductor/cpp_wrapper/cpu.h>"]
        if device == _C.driver_name():
            lines += [f'#include "{header_path("compiled.h")}"', *_names()]
        return "\n".join(lines)

    @staticmethod
    def get_device_include_path_aot(device: str) -> str:
        # Also for the CPU: our header must come first, and includes the CPU's.
        return "\n".join([f'#include "{header_path("compiled_model.h")}"', *(_names() if device != "cpu" else ())])

    @staticmethod
    def get_device_include_path(device: str) -> str:
        """Return the include lines for both modes. Torch 2.11 calls this method in both."""
        if V.graph.aot_mode:
            return OutboardCppWrapper.get_device_include_path_aot(device)
        return OutboardCppWrapper.get_device_include_path_jit(device)

    def codegen_device(self, device: torch.device) -> str:
        if device.type != _C.driver_name():
            return super().codegen_device(device)  # type: ignore[no-any-return, no-untyped-call]
        self.used_cached_devices.add(_DEVICE_TYPE)
        return f"cached_torch_device_type_{_DEVICE_TYPE}, {device.index or 0}"

    def device_index(self, device: torch.device) -> str:
        """Return a device's index; in AOTInductor's code, the index of the loaded model."""
        index = self.codegen_device(device).split(", ")[1]
        if not V.graph.aot_mode:
            return index
        if not hasattr(self, "codegen_device_idx"):
            return "this->device_idx_"  # torch 2.11 writes a model for one device
        return self.codegen_device_idx(device, index)  # type: ignore[no-any-return, no-untyped-call]

    # Kernels.

    def declare_kernel(self, name: str, types: list[str]) -> None:
        """Declare that a kernel runs on the device, with these argument types."""
        self._kernel_types[name] = types

    def define_program(self, program: DeviceProgram, device: torch.device) -> None:
        """Define a kernel in the driver's language; `generate_kernel_call` with triton=False calls it."""
        self._kernel_types[program.name] = passed_types(program.types)
        *formulas, local_bytes = map(text_literal, program.geometry())
        self.header.splice(
            _PROGRAM.format(
                name=program.name,
                code=text_literal(program.code),
                language=program.language,
                options=text_literal(program.options),
                entry=program.entry,
                letters=program_letters(program.name, list(program.types)),
                grid=", ".join(formulas[:3]),
                block=", ".join(formulas[3:]),
                local_bytes=local_bytes,
                checks=", ".join([*map(text_literal, program.checks), "nullptr"]),
                check_count=len(program.checks),
            )
        )

    def _define_kernel_helper(self, kernel_name: str, *args: Any, **kwargs: Any) -> None:
        super()._define_kernel_helper(kernel_name, *args, **kwargs)
        types = self._kernel_types.get(kernel_name)
        if types is not None:
            words = (
                f"torch_outboard::kernel_argument<{argument_type(kind)}>(words[{i}])" for i, kind in enumerate(types)
            )
            letters = kernel_letters(kernel_name, types)
            self.header.splice(_KERNEL.format(name=kernel_name, arguments=", ".join(words), letters=letters))

    def _generate_kernel_call_helper(self, kernel_name: str, call_args: Any, **kwargs: Any) -> None:
        device = kwargs.get("device")
        if device is None or device.type != _C.driver_name():
            super()._generate_kernel_call_helper(kernel_name, call_args, **kwargs)
            return
        if kwargs.get("triton", True):
            self.call_tuned(kernel_name, call_args, kwargs.get("raw_args"))
            return
        arguments = (
            f"{argument}.get()" if kind.endswith("*") else f"static_cast<{argument_type(kind)}>({argument})"
            for argument, kind in zip(call_args, self._kernel_types[kernel_name], strict=True)
        )
        self.writeline(f"{kernel_name}_kernel().launch({{{', '.join(arguments)}}});")

    # Memory.

    def make_allocation(
        self,
        name: str,
        device: Any,
        dtype: Any,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        if device.type != _C.driver_name():
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)  # type: ignore[no-any-return, no-untyped-call]
        sizes = self.codegen_shape_tuple(shape)
        arguments = [sizes, self.codegen_shape_tuple(stride), self.codegen_dtype(dtype), self.device_index(device)]  # type: ignore[no-untyped-call]
        allocated = sizes if allocation_shape is None else self.codegen_shape_tuple(allocation_shape)
        if allocated != sizes:
            arguments.append(allocated)
        return f"RAIIAtenTensorHandle {name}(torch_outboard::empty_strided({', '.join(arguments)}));"

    # Operators are written in the second pass, in which references to views write their own lines.

    def generate_extern_kernel_alloc(self, node: Any) -> None:
        node.codegen_comment(self)
        self._write_operator(node, *arguments_of(node), results_of(node))
        if isinstance(node.layout, ir.Layout):
            node.codegen_size_asserts(self)

    def generate_extern_kernel_out(self, node: Any) -> None:
        node.codegen_comment(self)
        args, kwargs = arguments_of(node)
        overload = overload_of(node)
        outputs = [argument.name for argument in overload._schema.arguments if argument.is_out]
        self._write_operator(node, args, {**kwargs, outputs[0]: node.output_view or node}, [])

    def generate_fallback_kernel(self, node: Any) -> None:
        flush_kernels()
        self._write_operator(node, *arguments_of(node), results_of(node))

    def generate_fallback_kernel_with_runtime_lookup(
        self,
        buf_name: str,
        python_kernel_name: str,
        get_args: Callable[[], Sequence[str]],
        op_overload: Any,
        raw_args: Sequence[Any],
        outputs: Sequence[ir.Buffer],
    ) -> None:
        flush_kernels()
        if V.graph.aot_mode:
            V.extern_kernel_nodes.pop()  # for torch's executor, which is not used
        results = list(names_of(outputs)) if to_overload(op_overload)._schema.returns else []
        self.writeline(_OperatorLine(self, op_overload, by_schema(op_overload, raw_args, {}), results))

    def generate_index_put_fallback(self, node: Any) -> None:
        tensors = iter(node.inputs[2:])
        indices = [None if index is None else next(tensors) for index in node.indices]
        self._write_operator(node, [node.inputs[0], indices, node.inputs[1], *node.constant_args], {}, [])

    def generate_scatter_fallback(self, node: Any) -> None:
        target, index, *source = node.inputs
        dim, *number = node.constant_args
        self._write_operator(node, [target, dim, index, *source, *number], node.kwargs, [])

    def _write_operator(self, node: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Results) -> None:
        overload = overload_of(node)
        self.writeline(_OperatorLine(self, overload, by_schema(overload, args, kwargs), results))

    def call_operator(self, overload: torch._ops.OpOverload, arguments: Sequence[Any], results: Results) -> None:
        """Write a call, and the variables for its results."""
        values = ValueWriter(self, self.device_index)
        written = ", ".join(values.write(argument, str(overload)) for argument in arguments)
        names = [name for name in results if name is not None]
        for name in names:
            self.writeline(f"AtenTensorHandle {name}_handle = nullptr;")
        handles = ", ".join("nullptr" if name is None else f"&{name}_handle" for name in results)
        self.writeline(f"{self._accessor(overload)}().call({{{written}}}, {{{handles}}});")
        for name in names:
            self.writeline(f"RAIIAtenTensorHandle {name}({name}_handle);")

    def _accessor(self, overload: torch._ops.OpOverload) -> str:
        if overload not in self._operators:
            schema = overload._schema
            # The graph that folds constants has its own accessors in the same file.
            accessor = f"{'folding_' if V.graph.is_const_graph else ''}{schema.name}_{overload._overloadname}"
            accessor = self._operators[overload] = accessor.replace("::", "_")
            text = _OPERATOR.format(accessor=accessor, name=schema.name, overload=schema.overload_name)
            self.header.splice(text)
        return self._operators[overload]

    # Some of Inductor's nodes write a call to a C function of torch, which exists only for torch's
    # own devices.

    @staticmethod
    def get_c_shim_func_name(kernel: str, device: str) -> str:
        return kernel if kernel.startswith("aoti_torch_") else _NO_FUNCTION + kernel

    def writeline(self, line: Any) -> None:
        if isinstance(line, str) and _NO_FUNCTION in line:
            operator = line.partition(_NO_FUNCTION)[2].partition("(")[0]
            raise NotSupportedError(f"cpp_wrapper and AOTInductor do not support {operator}: use plain torch.compile")
        super().writeline(line)  # type: ignore[no-untyped-call]

    # Streams, as in the Python wrapper. Returning to the stream on which the function was called
    # takes no code, because the code leaves every other stream explicitly.

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        _refuse_ahead_of_time()
        flush_kernels()
        if not self._has_streams:
            self._has_streams = True
            self.writeline(f"torch_outboard::Streams streams({V.graph.scheduler.current_device.index});")  # type: ignore[union-attr]
        line = _StreamLine(stream_idx, self._place_of(stream_idx))
        self.writeline(line)
        return line

    def codegen_cuda_stream_exit(self) -> None:
        flush_kernels()
        self.writeline("streams.leave();")

    def make_buffer_free(self, buffer: Any) -> str:
        freed: str = super().make_buffer_free(buffer)  # type: ignore[no-untyped-call]
        return self._records([buffer.get_name()]) + freed if freed else ""  # a tuple has no variable in C++

    def make_free_by_names(self, names_to_del: list[str]) -> str:
        return self._records(names_to_del) + super().make_free_by_names(names_to_del)  # type: ignore[no-any-return]

    def _records(self, names: list[str]) -> str:
        return "".join(f"streams.record({name}); " for name in names if self._has_streams and is_ours(name))

    def _place_of(self, stream_idx: int) -> int | None:
        """Return a stream's position among the call's streams; None for the stream on which the function is called."""
        if stream_idx == 0:
            return None
        outermost = V.graph
        while getattr(outermost, "parent", None) is not None:
            outermost = outermost.parent  # type: ignore[attr-defined]
        streams = outermost.wrapper_code._streams  # type: ignore[attr-defined]
        number = V.graph.scheduler.stream_idx_to_user_obj_idx[stream_idx]
        if number not in streams:
            streams.append(number)
        return streams.index(number)  # type: ignore[no-any-return]

    # The whole file.

    def generate_end(self, result: Any) -> None:
        super().generate_end(result)  # type: ignore[no-untyped-call]
        if not V.graph.aot_mode:
            result.splice(_CALL.format(streams=self._streams))

    def codegen_model_constructor(self) -> None:
        """Write torch's constructor, but with our parser of device names: torch's parser knows only its own devices."""
        whole, self.prefix = self.prefix, IndentedBuffer()
        try:
            super().codegen_model_constructor()  # type: ignore[no-untyped-call]
            text = self.prefix.getvalue()
        finally:
            self.prefix = whole
        head, base, body = text.partition("AOTInductorModelBase(")
        if "device_str," not in body or "{" not in body:
            raise OutboardError(
                "cannot parse the model constructor that Inductor generated: torch-outboard doesn't support this "
                "version of torch"
            )
        self.used_cached_devices.add(_DEVICE_TYPE)
        body = body.replace("device_str,", '"cpu",', 1).replace("{", _MODEL_DEVICE.format(type=_DEVICE_TYPE), 1)
        self.prefix.splice(head + base + body)


@dataclasses.dataclass
class _StreamLine(WrapperLine):
    """A change of stream; without a place, back to the stream on which the function was called."""

    stream_idx: int  # Inductor's scheduler reads it
    place: int | None

    def codegen(self, code: IndentedBuffer) -> None:
        if self.place is not None:
            code.writeline(f"streams.enter({self.place});")


class _OperatorLine(WrapperLine):
    """A call of an operator."""

    def __init__(self, wrapper: OutboardCppWrapper, overload: Any, arguments: Sequence[Any], results: Results) -> None:
        self._wrapper = wrapper
        self._overload = to_overload(overload)
        if is_for_streams(self._overload):
            _refuse_ahead_of_time()
        self._arguments = arguments
        self._results = results

    def codegen(self, code: IndentedBuffer) -> None:
        self._wrapper.call_operator(self._overload, self._arguments, self._results)


def _refuse_ahead_of_time() -> None:
    if V.graph.aot_mode:
        raise NotSupportedError(
            "AOTInductor packages support only one stream, but this graph uses streams or events. Use torch.compile, "
            "which passes them at each call"
        )


def _names() -> list[str]:
    return [
        "using OutboardValue = torch_outboard::Value;",
        f"#define aoti_torch_{_C.driver_name()}_view_dtype torch_outboard::view_dtype",
    ]

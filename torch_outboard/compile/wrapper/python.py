# SPDX-License-Identifier: BSD-3-Clause
"""The Python function that calls the kernels of a graph.

Kernels run on the current stream of their tensors' device, and allocations name their device, so no guard is needed
around them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.virtualized import V

from torch_outboard import _C
from torch_outboard._errors import OutboardError
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.compile.wrapper.graph import (
    TunedKernel,
    UserKernels,
    WithoutDeviceGuards,
    flush_kernels,
    is_ours,
    keep_order_of_streams,
)

__all__ = ["KernelDefinitions", "OutboardSubgraphWrapper", "OutboardWrapper"]

_OF_CPU = "async_compile.cpp_pybinding("
_IMPORTS = (
    "from torch_outboard._C import empty_strided as empty_strided_outboard",
    "from torch_outboard.compile.runtime import cpp_kernel, device_kernel",
)


class KernelDefinitions(WithoutDeviceGuards, UserKernels, PythonWrapperCodegen):
    """A wrapper that defines kernels for the device where torch's wrapper would define kernels for the CPU."""

    _defines_for_device = False

    @contextlib.contextmanager
    def defining_for_device(self) -> Iterator[None]:
        """Within a `with` block, define kernels for the device instead of the CPU."""
        self._defines_for_device = True
        try:
            yield
        finally:
            self._defines_for_device = False

    def define_program(self, program: DeviceProgram, device: torch.device) -> None:
        """Define a kernel in the driver's language; `generate_kernel_call` with triton=False calls it."""
        self.define_kernel(program.name, program.definition(device.index or 0), gpu=False)

    def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
        if self._defines_for_device:
            if not kernel_body.startswith(_OF_CPU):
                raise OutboardError(
                    f"Inductor defines a C++ kernel with {kernel_body.partition('(')[0]!r}, not with {_OF_CPU!r}: "
                    "torch-outboard doesn't support this version of torch"
                )
            kernel_body = f"cpp_kernel(async_compile, {kernel_name!r}, " + kernel_body.removeprefix(_OF_CPU)
        super().define_kernel(kernel_name, kernel_body, *args, **kwargs)


class _DeviceCalls(KernelDefinitions):
    """Differences from torch's own wrapper."""

    _has_named_streams = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        keep_order_of_streams()

    def _generate_kernel_call_helper(self, kernel_name: str, call_args: Any, **kwargs: Any) -> None:
        device = kwargs.get("device")
        if device is not None and device.type == _C.driver_name():
            if kwargs.get("triton", True):
                call_args = self.prepare_triton_kernel_call(call_args)  # type: ignore[no-untyped-call]
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))  # type: ignore[no-untyped-call]
            return
        super()._generate_kernel_call_helper(kernel_name, call_args, **kwargs)

    def define_tuned(self, kernel: TunedKernel, comment: str | None) -> None:
        """Define a kernel with several configurations; `generate_kernel_call` with triton=True calls it."""
        for line in kernel.imports:
            self.add_import_once(line)
        self.define_kernel(kernel.name, kernel.definition(), comment)

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
        sizes = self.codegen_python_shape_tuple(shape)
        strides = self.codegen_python_shape_tuple(stride)
        allocated = sizes if allocation_shape is None else self.codegen_python_shape_tuple(allocation_shape)
        line = f"{name} = empty_strided_outboard({allocated}, {strides}, {dtype}, {device.index})"
        return line if allocated == sizes else f"{line}.as_strided({sizes}, {strides})"

    # The scheduling collects kernels that come earlier in the graph. They must be written before
    # the stream changes, and before an operator without a device, which may record an event or wait
    # for one.

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        flush_kernels()
        if not self._has_named_streams:
            self._name_streams()
            self._has_named_streams = True
        return super().codegen_cuda_stream_enter(stream_idx)

    def codegen_cuda_stream_exit(self) -> None:
        flush_kernels()
        super().codegen_cuda_stream_exit()

    def generate_fallback_kernel(self, node: Any) -> None:
        flush_kernels()
        super().generate_fallback_kernel(node)

    # Memory returns to the stream on which it was allocated, which may not have waited for the
    # other streams. Kernels record their streams in the tensors that they use, but operators do
    # not, and the user has no name for the tensors freed here.

    def make_buffer_free(self, buffer: Any) -> str:
        return self._records([buffer.get_name()]) + super().make_buffer_free(buffer)  # type: ignore[no-any-return]

    def make_free_by_names(self, names_to_del: list[str]) -> str:
        return self._records(names_to_del) + super().make_free_by_names(names_to_del)  # type: ignore[no-any-return]

    def _records(self, names: list[str]) -> str:
        if not self._has_named_streams:
            return ""
        ours = [name for name in names if is_ours(name)]
        return "".join(f"{name}.record_stream({stream}); " for name in ours for stream in _stream_names().values())

    def _name_streams(self) -> None:
        # Inductor writes this together with a device guard, which exists only for devices that it
        # treats as GPUs.
        scheduler = V.graph.scheduler
        self.add_import_once("from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index")
        for stream, name in _stream_names().items():
            value = f"torch.accelerator.current_stream({scheduler.current_device.index})"  # type: ignore[union-attr]
            if stream in scheduler.stream_idx_to_user_obj_idx:
                value = f"get_external_object_by_index({scheduler.stream_idx_to_user_obj_idx[stream]})"
            self.writeline(f"{name} = {value}")  # type: ignore[no-untyped-call]


class OutboardWrapper(_DeviceCalls):
    """The wrapper of a graph."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            return OutboardSubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return OutboardWrapper()

    def write_header(self) -> None:
        super().write_header()
        for line in _IMPORTS:
            self.imports.writeline(line)


class OutboardSubgraphWrapper(_DeviceCalls, SubgraphPythonWrapperCodegen):
    """The wrapper of a subgraph."""


def _stream_names() -> dict[int, str]:
    """Return the variables of the graph's streams by index; 0 is the stream on which the graph is called."""
    from torch._inductor.stream_utils import get_stream_name

    return {stream: get_stream_name(stream) for stream in sorted({0, *V.graph.scheduler.node_to_stream.values()})}

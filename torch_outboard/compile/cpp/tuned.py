# SPDX-License-Identifier: BSD-3-Clause
"""Kernels with several configurations in generated C++, which contains only the fastest configuration.

Configurations are measured when the code is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.common import WorkspaceArg
from torch._inductor.codegen.triton_utils import should_unwrap_unspec_arg
from torch._inductor.codegen.wrapper import SymbolicCallArg
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import _disable_current_modes

from torch_outboard import _C
from torch_outboard.codegen.letters import passed_types
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.compile.cpp.values import formula_in_cpp, number
from torch_outboard.compile.wrapper.graph import TunedKernel

__all__ = ["TunedKernels"]

_NUMBERS = {"kept": "int64_t"}  # C++ types for a program's argument types that are not C++ types


class TunedKernels:
    """A part of the C++ wrapper."""

    _tuned: dict[str, TunedKernel]
    _workspaces: dict[str, WorkspaceArg]
    _programs: dict[str, tuple[DeviceProgram, tuple[int, ...]]]

    def __init__(self) -> None:
        self._tuned = {}
        self._workspaces = {}
        self._programs = {}
        super().__init__()

    def define_tuned(self, kernel: TunedKernel, comment: str | None) -> None:
        """Store a kernel. Its first call writes it, because the measurement uses the sizes of that call."""
        self._tuned[kernel.name] = kernel

    def generate_workspace_allocation(self, ws: WorkspaceArg) -> None:
        self._workspaces[ws.get_name()] = ws
        super().generate_workspace_allocation(ws)  # type: ignore[misc]

    def make_zero_buffer(self, name: str) -> str:
        return f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_zero_({name}.get()));"

    def call_tuned(self, name: str, arguments: Sequence[Any], raw: Sequence[Any] | None) -> None:
        """Write a call. For a program's own kernels, `raw` holds the arguments as they appear in the graph."""
        wrapper: Any = self
        if name not in self._programs:
            examples = raw or [None] * len(arguments)
            program, _ = self._programs[name] = self._tuned[name].program(
                lambda: [self._example(argument, of) for argument, of in zip(arguments, examples, strict=True)]
            )
            wrapper.define_program(program, V.graph.get_current_device_or_throw())
        program, scratch = self._programs[name]
        kinds = passed_types(program.types)
        wrapper.writeline("{")
        texts = [self._text(argument, kind) for argument, kind in zip(arguments, kinds, strict=False)]
        blocks = " * ".join(formula_in_cpp(formula, texts) for formula in program.geometry()[:3])
        index = wrapper.device_index(torch.device(_C.driver_name(), V.graph.scheduler.current_device.index))  # type: ignore[union-attr]
        for place, size in enumerate(scratch):
            wrapper.writeline(
                f"RAIIAtenTensorHandle scratch{place}(torch_outboard::empty_strided({{{size}L * {blocks}}}, {{1L}}, "
                f"{wrapper.codegen_dtype(torch.uint8)}, {index}));"
            )
            texts.append(f"scratch{place}.get()")
        wrapper.writeline(f"{program.name}_kernel().launch({{{', '.join(texts)}}});")
        wrapper.writeline("}")

    def _text(self, argument: Any, kind: str) -> str:
        wrapper: Any = self
        if kind.endswith("*"):
            return f"{argument}.get()"
        if isinstance(argument, str) and should_unwrap_unspec_arg(argument):
            wrapper.codegen_tensor_item(V.graph.get_dtype(argument), argument, f"{argument}_item")
            argument = f"{argument}_item"
        return f"static_cast<{_NUMBERS.get(kind, kind)}>({number(wrapper, argument)})"

    def _example(self, argument: Any, raw: Any) -> Any:
        """Return a value to measure with. For an unknown size, return the size for which the graph was compiled."""
        hint = V.graph.sizevars.optimization_hint
        if isinstance(argument, SymbolicCallArg):
            return hint(argument.inner_expr)
        if not isinstance(argument, str):
            return hint(argument) if not isinstance(argument, float) else argument
        if should_unwrap_unspec_arg(argument):
            return 1
        if argument in self._workspaces:
            space = self._workspaces[argument]
            with _disable_current_modes():
                return torch.zeros(hint(space.count), dtype=space.dtype, device=space.device)
        tensor: Any = raw if isinstance(raw, ir.IRNode) else V.graph.try_get_buffer(argument)
        sizes, strides = ([hint(number) for number in numbers] for numbers in (tensor.get_size(), tensor.get_stride()))
        with _disable_current_modes():
            return AlgorithmSelectorCache.generate_example_value(  # type: ignore[no-untyped-call]
                sizes, strides, tensor.get_device(), tensor.get_dtype(), hint(tensor.get_layout().offset)
            )

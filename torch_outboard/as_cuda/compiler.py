# SPDX-License-Identifier: BSD-3-Clause
"""Support in torch.compile: traces programs for CUDA, and generates code for the driver's devices."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.imports import when_imported
from torch_outboard._patching import Patching
from torch_outboard._properties import DeviceProperties
from torch_outboard.as_cuda.names import CUDA, Names

__all__ = ["asked_by_compiler", "replace_for_compiler"]


def asked_by_compiler() -> bool:
    """Return whether the compiler is the caller.

    It imports and traces parts of torch.cuda that this build of torch lacks.
    """
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.startswith(("torch._inductor", "torch._dynamo.device_interface"))


def replace_for_compiler(patching: Patching, names: Names) -> None:
    """Make Dynamo trace devices as cuda, and compile for the driver's devices."""
    wrapper = torch._TorchCompileInductorWrapper
    compile_graph: Callable[..., Any] = wrapper.__call__

    @functools.wraps(compile_graph)
    def without_mode(self: Any, *arguments: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return compile_graph(self, *arguments)

    patching.set(wrapper, "__call__", without_mode, "a graph has the driver's devices; the compiler must see no others")
    reason = "a torch without CUDA asks for AMD's name of the architecture"
    patching.set(DeviceProperties, "gcnArchName", "", reason)
    when_imported("torch._dynamo.variables.tensor", lambda module: _trace_devices(module, patching, names))


def _trace_devices(module: ModuleType, patching: Patching, names: Names) -> None:
    """Trace a tensor's `device` and `is_cuda`, which Dynamo looks up outside the function mode."""
    if patching.is_undone:
        return
    variable = module.TensorVariable
    device_of = variable.method_attr_device

    def with_cuda_device(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def of_cuda(self: Any, tx: Any) -> Any:
            device = self.device
            if device is None or device.type != names.name:
                return function(self, tx)
            self.device = names.to_cuda(device)
            try:
                return function(self, tx)
            finally:
                self.device = device

        return of_cuda

    reason = f"compiled programs compare devices with {CUDA!r}, too"
    patching.set(variable, "method_attr_device", with_cuda_device(device_of), reason)
    patching.set(variable, "method_attr_is_cuda", with_cuda_device(variable.method_attr_is_cuda), reason)

# SPDX-License-Identifier: BSD-3-Clause
"""What every wrapper asks of the graph that is being lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError
from torch_outboard.codegen.program import DeviceProgram

__all__ = [
    "TunedKernel",
    "Unguarded",
    "UserKernels",
    "flush_kernels",
    "is_for_streams",
    "is_ours",
    "keep_order_of_streams",
]


class Unguarded:
    """Of wrappers whose launches and allocations name their device.

    Inductor changes the current device round the kernels of what it knows as a GPU.
    """

    last_seen_device_guard_index: int | None

    def codegen_device_guard_enter(self, device_idx: int, *streams: Any, **named: Any) -> None:
        self.last_seen_device_guard_index = device_idx

    def codegen_device_guard_exit(self) -> None:
        pass


class TunedKernel(Protocol):
    """A kernel of several configurations, which a scheduling hands to `define_tuned` of a wrapper."""

    name: str
    imports: tuple[str, ...]  # lines that `definition` needs

    def definition(self) -> str:
        """Gives Python code that makes a launcher, which finds the fastest configuration at its first call."""

    def types(self) -> tuple[str, ...]:
        """Gives those of the arguments that calls pass, as DeviceProgram has them; waits for the compiler."""

    def program(self, arguments: Callable[[], list[Any]]) -> tuple[DeviceProgram, tuple[int, ...]]:
        """Gives the fastest configuration; `arguments` makes some to measure with, if it isn't known.

        And bytes of memory for each block of the grid, of the pointers that calls pass behind the arguments.
        """


# Arguments of define_user_defined_triton_kernel behind the first three: torch 2.11 has three, others four.
_WITHOUT_OPTIONS = 4


class UserKernels:
    """Of wrappers: kernels in Triton that a program brings, defined by the scheduling of their device."""

    _user_kernels: Any = None  # the scheduling while it defines one
    # The class that says what kernels of the generator have in common, and this one alone.
    _user_kernel_info: Any = None

    def define_user_defined_triton_kernel(self, kernel: Any, configs: Any, kwargs: Any, *more: Any) -> Any:
        device = V.graph.get_current_device_or_throw()
        if device.type != _C.driver_name():
            return super().define_user_defined_triton_kernel(kernel, configs, kwargs, *more)  # type: ignore[misc]
        backend: Any = V.graph.scheduler.get_backend(device)
        if not hasattr(backend, "define_user_kernel"):
            raise NotSupportedError(
                f"the kernel {kernel.__name__} is in Triton, and the code generator of {device} writes none: name "
                "'triton' as code_generator of a driver that has a back end for it, or call an operator instead"
            )
        options: dict[str, Any] = {}
        if len(more) > _WITHOUT_OPTIONS:
            # From torch 2.15 on: names that may be options of the back end, which torch would look for by the device's
            # name.
            *others, names = more
            given = {name: kwargs[name] for name in names if name in kwargs}
            options, more = backend.launch_options(device, given, kernel.arg_names), (*others, ())
        self._user_kernels, self._user_kernel_info = backend, backend.user_kernel_info(_changed_by(kwargs), options)
        try:
            return super().define_user_defined_triton_kernel(kernel, configs, kwargs, *more)  # type: ignore[misc]
        finally:
            self._user_kernels = self._user_kernel_info = None

    def _get_triton_info_kernel_cls(self) -> Any:
        return self._user_kernel_info or super()._get_triton_info_kernel_cls()  # type: ignore[misc]

    def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
        backend, self._user_kernels = self._user_kernels, None  # which defines it by this method
        if backend is None:
            super().define_kernel(kernel_name, kernel_body, *args, **kwargs)  # type: ignore[misc]
        else:
            comment = args[0] if args else kwargs.get("metadata")
            backend.define_user_kernel(self, kernel_name, kernel_body, comment)


def _changed_by(kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Gives the arguments of a kernel of a program's own that it may write to, by their names.

    The graph's operation knows; what shares the memory of another argument counts with it.
    """
    tensors = {name: value for name, value in kwargs.items() if isinstance(value, ir.IRNode)}
    for operation in V.graph.operations:
        if isinstance(operation, ir.UserDefinedTritonKernel) and operation.kwargs is kwargs:
            changed = {value.get_name() for value in operation.mutable_args}
            return tuple(name for name, value in tensors.items() if value.get_name() in changed)
    return tuple(tensors)


def is_ours(name: str) -> bool:
    """Whether a buffer or an input of the graph is a tensor on our device, and not a tuple of them."""
    buffer = V.graph.try_get_buffer(name) or V.graph.graph_inputs.get(name)
    if isinstance(getattr(buffer, "layout", None), ir.MultiOutputLayout):
        return False
    device = buffer.get_device() if hasattr(buffer, "get_device") else None  # type: ignore[union-attr]
    return device is not None and device.type == _C.driver_name()


def is_for_streams(operator: object) -> bool:
    """Whether an operator is one of Dynamo's that record, wait or synchronize."""
    return isinstance(operator, torch._ops.OpOverload) and operator.namespace == "streams"


def keep_order_of_streams() -> None:
    """Has nothing moved across an operator for streams or events, once the graph is lowered and not yet scheduled.

    Torch 2.13 orders what a wait for an event follows, and not what follows it. Newer versions order more, and only the
    streams concerned; between them there is nothing to win by another order, as their work is concurrent anyhow.
    """
    before: list[str] = []  # buffers since the last such operator, and that operator's
    last: str | None = None
    for operation in V.graph.operations:
        overload = getattr(operation, "op_overload", None)
        own = [buffer.get_name() for buffer in operation.get_outputs()]
        if is_for_streams(overload):
            V.graph.additional_buffer_deps[operation.get_operation_name()].update(before)
            before, last = own, own[0]
            continue
        if last is not None:
            V.graph.additional_buffer_deps[operation.get_operation_name()].add(last)
        before += own


def flush_kernels() -> None:
    """Writes the kernels that the scheduling has gathered."""
    # Not the scheduler's own flush, which also frees what the operator to come is the last to use.
    for backend in V.graph.scheduler.backends.values():
        backend.flush()

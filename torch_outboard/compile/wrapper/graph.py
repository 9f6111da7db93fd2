# SPDX-License-Identifier: BSD-3-Clause
"""Functions about the graph being lowered, shared by all wrappers."""

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
    "UserKernels",
    "WithoutDeviceGuards",
    "flush_kernels",
    "is_for_streams",
    "is_ours",
    "keep_order_of_streams",
]


class WithoutDeviceGuards:
    """A mixin for wrappers whose launches and allocations name their device.

    Without this class, Inductor changes the current device around kernels of a device that it treats as a GPU.
    """

    last_seen_device_guard_index: int | None

    def codegen_device_guard_enter(self, device_idx: int, *streams: Any, **named: Any) -> None:
        self.last_seen_device_guard_index = device_idx

    def codegen_device_guard_exit(self) -> None:
        pass


class TunedKernel(Protocol):
    """A kernel with several configurations, which a scheduling passes to a wrapper's `define_tuned`."""

    name: str
    imports: tuple[str, ...]  # lines that `definition` needs

    def definition(self) -> str:
        """Return Python code that creates a launcher, whose first call determines the fastest configuration."""

    def types(self) -> tuple[str, ...]:
        """Return the types of the arguments that calls pass, as in DeviceProgram. Waits for the compiler."""

    def program(self, arguments: Callable[[], list[Any]]) -> tuple[DeviceProgram, tuple[int, ...]]:
        """Return the fastest configuration, and the bytes that each hidden pointer needs per block of the grid.

        Calls pass these pointers after the arguments. If the fastest configuration is unknown, it is measured with the
        arguments that `arguments` creates.
        """


# Arguments of define_user_defined_triton_kernel after the first three: three in torch 2.11, four in
# others.
_WITHOUT_OPTIONS = 4


class UserKernels:
    """A mixin for wrappers: a program's own Triton kernels, which the scheduling of their device defines."""

    _user_kernels: Any = None  # the scheduling while it defines one
    # The class with the metadata of the generator's kernels, for the kernel being defined.
    _user_kernel_info: Any = None

    def define_user_defined_triton_kernel(self, kernel: Any, configs: Any, kwargs: Any, *more: Any) -> Any:
        device = V.graph.get_current_device_or_throw()
        if device.type != _C.driver_name():
            return super().define_user_defined_triton_kernel(kernel, configs, kwargs, *more)  # type: ignore[misc]
        backend: Any = V.graph.scheduler.get_backend(device)
        if not hasattr(backend, "define_user_kernel"):
            raise NotSupportedError(
                f"the kernel {kernel.__name__} is written in Triton, which the code generator of {device} does not "
                "support: set the driver's code_generator to 'triton' if it has a Triton back end, or call an operator "
                "instead"
            )
        options: dict[str, Any] = {}
        if len(more) > _WITHOUT_OPTIONS:
            # From torch 2.15 on, the last argument has names that may be options of the back end.
            # Torch would look for these options by the device's name.
            *others, names = more
            arguments = {name: kwargs[name] for name in names if name in kwargs}
            options, more = backend.launch_options(device, arguments, kernel.arg_names), (*others, ())
        self._user_kernels, self._user_kernel_info = backend, backend.user_kernel_info(_changed_by(kwargs), options)
        try:
            return super().define_user_defined_triton_kernel(kernel, configs, kwargs, *more)  # type: ignore[misc]
        finally:
            self._user_kernels = self._user_kernel_info = None

    def _get_triton_info_kernel_cls(self) -> Any:
        return self._user_kernel_info or super()._get_triton_info_kernel_cls()  # type: ignore[misc]

    def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
        backend, self._user_kernels = self._user_kernels, None  # the back end calls this method again
        if backend is None:
            super().define_kernel(kernel_name, kernel_body, *args, **kwargs)  # type: ignore[misc]
        else:
            comment = args[0] if args else kwargs.get("metadata")
            backend.define_user_kernel(self, kernel_name, kernel_body, comment)


def _changed_by(kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that a program's own kernel may write to.

    They are recorded in the graph's operation. Arguments that share memory with such an argument are included.
    """
    tensors = {name: value for name, value in kwargs.items() if isinstance(value, ir.IRNode)}
    for operation in V.graph.operations:
        if isinstance(operation, ir.UserDefinedTritonKernel) and operation.kwargs is kwargs:
            changed = {value.get_name() for value in operation.mutable_args}
            return tuple(name for name, value in tensors.items() if value.get_name() in changed)
    return tuple(tensors)


def is_ours(name: str) -> bool:
    """Return True if a buffer or an input of the graph is a single tensor on our device."""
    buffer = V.graph.try_get_buffer(name) or V.graph.graph_inputs.get(name)
    if isinstance(getattr(buffer, "layout", None), ir.MultiOutputLayout):
        return False
    device = buffer.get_device() if hasattr(buffer, "get_device") else None  # type: ignore[union-attr]
    return device is not None and device.type == _C.driver_name()


def is_for_streams(operator: object) -> bool:
    """Return True if an operator is one of Dynamo's operators that record, wait or synchronize."""
    return isinstance(operator, torch._ops.OpOverload) and operator.namespace == "streams"


def keep_order_of_streams() -> None:
    """Forbid reordering across stream and event operators. Call it after the graph is lowered, before it is scheduled.

    Torch 2.13 orders the operations before a wait for an event, but not the operations after it. Newer versions order
    more, but only for the streams concerned. Reordering between streams gains nothing, because their work is concurrent
    anyway.
    """
    before: list[str] = []  # buffers since the last such operator, and its own buffers
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
    """Write the kernels that the scheduling has collected."""
    # The scheduler's own flush would also free buffers whose last user is the next operator.
    for backend in V.graph.scheduler.backends.values():
        backend.flush()

# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's C++ kernels for device memory that the host can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._inductor import config
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.utils import get_kernel_metadata
from torch._inductor.virtualized import V

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError
from torch_outboard.codegen.letters import argument_type

__all__ = ["HostScheduling"]

_Result = TypeVar("_Result")

# The entry that a launch calls: each argument is one word of the array.
_ENTRY = """
template <typename T> static inline T outboard_argument(uint64_t word) {{
    T value;
    std::memcpy(&value, &word, sizeof(T));
    return value;
}}
extern "C" void outboard_entry(const uint64_t* words) {{
    {kernel}({arguments});
}}
"""


class HostScheduling(CppScheduling):
    """CppScheduling, with an entry for our launcher in each kernel.

    Raises
    ------
    NotSupportedError
        At a compilation, if the host cannot reach the device's memory.
    """

    def codegen_node(self, node: Any) -> Any:
        # The check cannot run at attach, which opens no device, because a driver may have devices
        # of both kinds.
        device = node.get_device()
        if not _C.reaches_memory(device.index):
            raise NotSupportedError(
                f"kernels of the code generator 'cpp' run on the host, which cannot reach the memory of {device} (the "
                "driver's host_address returns no address): compile with backend='aot_eager', or run eagerly"
            )
        return _as_cpp(super().codegen_node, node)

    def codegen_template(self, *args: Any, **kwargs: Any) -> Any:
        return _as_cpp(super().codegen_template, *args, **kwargs)

    def flush(self) -> None:
        _as_cpp(super().flush)

    def codegen_comment(self, node_schedule: Any, kernel_name: str | None = None) -> None:
        # The operators that a kernel fuses. Inductor writes them for GPUs only;
        # the compile report reads them.
        origins, _ = get_kernel_metadata(node_schedule, V.graph.wrapper_code)
        V.graph.wrapper_code.make_comment(origins)  # type: ignore[no-untyped-call]
        super().codegen_comment(node_schedule, kernel_name)  # type: ignore[no-untyped-call]

    def define_kernel(self, src_code: str, nodes: Any, kernel_args: Any = None) -> str:
        arguments = self.kernel_group.args if kernel_args is None else kernel_args
        _, _, types = arguments.cpp_argdefs()
        if V.graph.cpp_wrapper:
            name: str = super().define_kernel(src_code, nodes, kernel_args)  # type: ignore[no-untyped-call]
            V.graph.wrapper_code.declare_kernel(name, types)  # type: ignore[attr-defined]
            return name
        words = ", ".join(f"outboard_argument<{argument_type(kind)}>(words[{i}])" for i, kind in enumerate(types))
        source = src_code + _ENTRY.format(kernel="kernel", arguments=words)
        with V.graph.wrapper_code.defining_for_device():  # type: ignore[attr-defined]
            return super().define_kernel(source, nodes, kernel_args)  # type: ignore[no-any-return, no-untyped-call]


def _as_cpp(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    # For an unknown device, Inductor uses the generator that this setting names
    # (get_current_backend). Its default would infer types as for Triton.
    with config.patch(cuda_backend="cpp"):
        return function(*args, **kwargs)

# SPDX-License-Identifier: BSD-3-Clause
"""The C++ generator: Inductor's CPU kernels on memory that the host can reach, queued like every launch."""

from __future__ import annotations

from typing import Any

from torch_outboard._extension import header_path
from torch_outboard.compile.generator import CodeGenerator

__all__ = ["CppGenerator", "WrappingGenerator"]


class WrappingGenerator(CodeGenerator):
    """A generator of kernels that this package's wrappers launch."""

    def wrapper(self) -> type[Any]:
        from torch_outboard.compile.wrapper.python import OutboardWrapper

        return OutboardWrapper

    def cpp_wrapper(self) -> type[Any]:
        from torch_outboard.compile.cpp.wrapper import OutboardCppWrapper

        return OutboardCppWrapper

    def model_header(self) -> str | None:
        return str(header_path("compiled_model.h"))

    def fx_wrapper(self) -> type[Any]:
        from torch_outboard.compile.fx.wrapper import OutboardFxWrapper

        return OutboardFxWrapper


class CppGenerator(WrappingGenerator):
    """A generator of C++ kernels, for memory that the host can reach.

    Raises
    ------
    NotSupportedError
        On compilation, if the host cannot reach the device's memory.
    """

    name = "cpp"
    fuses_as_cpu = True

    def scheduling(self) -> type[Any]:
        from torch_outboard.compile.cpp.scheduling import HostScheduling

        return HostScheduling

    def cache_key(self) -> dict[str, str]:
        from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

        return {"compiler": get_compiler_version_info(get_cpp_compiler())}

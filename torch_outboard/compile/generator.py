# SPDX-License-Identifier: BSD-3-Clause
"""The contract of code generators: what a vendor derives from, and what a driver names as `code_generator`."""

from __future__ import annotations

from typing import Any

from torch_outboard._errors import NotSupportedError
from torch_outboard.driver import Driver

__all__ = ["CodeGenerator"]


class CodeGenerator:
    """Says which of Inductor's classes generate code for a device. Methods are called when something is compiled.

    Attributes
    ----------
    name : str
        Part of the key under which compiled code is cached.
    fuses_as_cpu : bool
        Whether Inductor fuses loops as for the CPU. True for what derives from its C++ scheduling.
    is_gpu : bool
        Whether Inductor takes the device for one of its own GPUs, for which it writes Triton.
    """

    name: str = ""
    fuses_as_cpu: bool = False
    is_gpu: bool = False

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def scheduling(self) -> type[Any]:
        """Gives a subclass of Inductor's BaseScheduling, which is constructed with a Scheduler or None."""
        raise NotImplementedError

    def wrapper(self) -> type[Any]:
        """Gives a subclass of Inductor's PythonWrapperCodegen."""
        raise NotImplementedError

    def cpp_wrapper(self) -> type[Any]:
        """Gives a subclass of Inductor's CppWrapperCpu or CppWrapperGpu, for `cpp_wrapper` and AOTInductor."""
        raise NotSupportedError(
            f"the code generator {self.name!r} of the driver {self.driver.name!r} has no C++ wrapper: compile without "
            "cpp_wrapper and without AOTInductor"
        )

    def model_header(self) -> str | None:
        """Gives the path of the header that AOTInductor's models include first, which is then precompiled."""
        return None

    def fx_wrapper(self) -> type[Any]:
        """Gives a subclass of Inductor's WrapperFxCodegen, for `fx_wrapper`."""
        raise NotSupportedError(
            f"the code generator {self.name!r} of the driver {self.driver.name!r} has no FX wrapper: compile without "
            "fx_wrapper"
        )

    def prepare_graph(self, gm: Any) -> None:
        """Changes a torch.fx.GraphModule before Inductor lowers it; by default nothing.

        A node whose meta has "should_fallback" stays a call of its operator.
        """

    def cache_key(self) -> dict[str, str]:
        """Gives what compiled code depends on beside the driver, its devices and the version of this package.

        Kernels for eager operators are kept for all devices of one `machine` that a generator of this class and module
        writes for: what else it reads of its driver belongs here.
        """
        return {}

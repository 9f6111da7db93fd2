# SPDX-License-Identifier: BSD-3-Clause
"""The contract of code generators: the base class of vendors' generators, which a driver names as `code_generator`."""

from __future__ import annotations

from typing import Any

from torch_outboard._errors import NotSupportedError
from torch_outboard.driver import Driver

__all__ = ["CodeGenerator"]


class CodeGenerator:
    """Selects Inductor's classes that generate code for a device. Inductor calls the methods when it compiles.

    Attributes
    ----------
    name : str
        Part of the key under which compiled code is cached.
    fuses_as_cpu : bool
        True if Inductor fuses loops as for the CPU. Generators derived from its C++ scheduling need this.
    is_gpu : bool
        True if Inductor treats the device as one of its own GPUs, for which it writes Triton.
    """

    name: str = ""
    fuses_as_cpu: bool = False
    is_gpu: bool = False

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def scheduling(self) -> type[Any]:
        """Return a subclass of Inductor's BaseScheduling. Inductor constructs it with a Scheduler or None."""
        raise NotImplementedError

    def wrapper(self) -> type[Any]:
        """Return a subclass of Inductor's PythonWrapperCodegen."""
        raise NotImplementedError

    def cpp_wrapper(self) -> type[Any]:
        """Return a subclass of Inductor's CppWrapperCpu or CppWrapperGpu, for `cpp_wrapper` and AOTInductor.

        Raises
        ------
        NotSupportedError
            Always in this class: a generator without a C++ wrapper does not override the method.
        """
        raise NotSupportedError(
            f"the code generator {self.name!r} of the driver {self.driver.name!r} has no C++ wrapper: compile without "
            "cpp_wrapper and without AOTInductor"
        )

    def model_header(self) -> str | None:
        """Return the path of the header that AOTInductor's models include first. Inductor precompiles it."""
        return None

    def fx_wrapper(self) -> type[Any]:
        """Return a subclass of Inductor's WrapperFxCodegen, for `fx_wrapper`.

        Raises
        ------
        NotSupportedError
            Always in this class: a generator without an FX wrapper does not override the method.
        """
        raise NotSupportedError(
            f"the code generator {self.name!r} of the driver {self.driver.name!r} has no FX wrapper: compile without "
            "fx_wrapper"
        )

    def prepare_graph(self, gm: Any) -> None:
        """Change a torch.fx.GraphModule before Inductor lowers it. The default does nothing.

        A node whose meta has "should_fallback" remains a call of its operator.
        """

    def cache_key(self) -> dict[str, str]:
        """Return the inputs of code generation, except the driver, its devices and this package's version.

        All devices with the same `machine` share the eager kernels written by a generator of this class and module.
        Include everything else that the generator reads from its driver.
        """
        return {}

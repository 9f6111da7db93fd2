# SPDX-License-Identifier: BSD-3-Clause
"""Code generators: what a driver names as `code_generator`.

A generator is named after the language that it writes; a vendor brings another one as a subclass of `CodeGenerator`.
"""

from __future__ import annotations

from typing import Any

from torch_outboard._errors import NotSupportedError, RegistrationError
from torch_outboard._options import nearest
from torch_outboard.driver import Driver

__all__ = ["CodeGenerator", "find_generator"]


class CodeGenerator:
    """Says which of Inductor's classes generate code for a device. Methods are called when something is compiled.

    Attributes
    ----------
    name : str
        Part of the key under which compiled code is cached.
    fuses_as_cpu : bool
        Whether Inductor fuses loops as for the CPU. True for what derives from its C++ scheduling.
    """

    name: str = ""
    fuses_as_cpu: bool = False

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

    def cache_key(self) -> dict[str, str]:
        """Gives what compiled code depends on beside the driver, its devices and the version of this package."""
        return {}


class _Missing(CodeGenerator):
    """Of a driver that names none: a sentence when something is compiled; eager code goes on."""

    name = "none"

    def scheduling(self) -> type[Any]:
        message = (
            f"the driver {self.driver.name!r} has no code generator, so torch.compile cannot make kernels for it: set "
            "`code_generator` in its Driver class ('cpp' if the host can reach the device's memory), or compile with "
            "backend='aot_eager'"
        )

        class NoScheduling:
            def __init__(self, scheduler: object) -> None:
                raise NotSupportedError(message)

        return NoScheduling

    def wrapper(self) -> type[Any]:
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen

        return PythonWrapperCodegen  # never used: the scheduling raises before


def _cpp() -> type[CodeGenerator]:
    from torch_outboard.compile.cpp_generator import CppGenerator

    return CppGenerator


_LANGUAGES = {"cpp": _cpp}


def find_generator(driver: Driver) -> CodeGenerator:
    """Gives the driver's code generator. RegistrationError if it names one that there is not."""
    named = driver.code_generator
    if named is None:
        return _Missing(driver)
    if isinstance(named, str):
        if named not in _LANGUAGES:
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: there is no code generator {named!r}, only "
                f"{', '.join(_LANGUAGES)}.{nearest(named, list(_LANGUAGES))}"
            )
        return _LANGUAGES[named]()(driver)
    if isinstance(named, type) and issubclass(named, CodeGenerator):
        return named(driver)
    raise RegistrationError(
        f"driver {driver.name!r} cannot be attached: its code_generator is a name or a subclass of "
        f"torch_outboard.compile.CodeGenerator, not {named!r}"
    )

# SPDX-License-Identifier: BSD-3-Clause
"""Which code generator a driver has: one that is named after the language that it writes, or a vendor's own."""

from __future__ import annotations

from typing import Any

from torch_outboard._errors import NotSupportedError, OutboardError, RegistrationError
from torch_outboard._options import nearest
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.driver import Driver

__all__ = ["find_generator", "generator", "set_driver"]

_generator: CodeGenerator | None = None


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
    from torch_outboard.compile.cpp.generator import CppGenerator

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


def set_driver(driver: Driver) -> None:
    """Takes the generator of the driver that is attached."""
    global _generator
    _generator = find_generator(driver)


def generator() -> CodeGenerator:
    """Gives the attached driver's code generator."""
    if _generator is None:
        raise OutboardError("no driver is attached: call torch_outboard.attach first")
    return _generator

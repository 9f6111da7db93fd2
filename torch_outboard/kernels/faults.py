# SPDX-License-Identifier: BSD-3-Clause
"""The component to blame for an exception while a kernel is written: an unsupported case, or a fault in the code."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator

from torch_outboard.compile.generators import generators

__all__ = ["author_of"]

_PACKAGE, _TEMPLATES = "torch_outboard", "torch_outboard.kernels.templates"
_NOT_THE_DRIVERS = (_PACKAGE, "torch", "builtins")


def author_of(error: BaseException) -> str | None:
    """Return the component to blame, as the subject of a sentence, or None for an unsupported case.

    Code generation raises NotImplementedError for a case that it cannot express; torch's lowerings raise any exception.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, NotImplementedError):
        return None
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not modules:
        return None
    if _is_in(modules[-1], _PACKAGE) or any(_is_in(module, _TEMPLATES) for module in modules):
        return "torch-outboard"
    folder = modules[-1].rpartition(".")[0]
    if any(
        module == modules[-1] or (folder and module.rpartition(".")[0] == folder) for module in _modules_of_driver()
    ):
        return f"The code generator of the driver {generators().driver.name!r}, in {modules[-1]},"
    return None


def _modules_of_driver() -> Iterator[str]:
    """Yield the modules of the driver's generator and dialect classes, except this package's and torch's."""
    generator = generators().eager()
    for instance in (generator, getattr(generator, "dialect", None)):
        modules = (kind.__module__ for kind in type(instance).__mro__)
        yield from (module for module in modules if not any(map(functools.partial(_is_in, module), _NOT_THE_DRIVERS)))


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")

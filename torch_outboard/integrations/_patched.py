# SPDX-License-Identifier: BSD-3-Clause
"""The patches of an integration's `use()`. Each is applied once the library's module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from torch_outboard._attach import attached_driver
from torch_outboard._compat.imports import when_imported
from torch_outboard._errors import RegistrationError
from torch_outboard._patching import Patching

__all__ = ["ActiveIntegration", "attached_name", "running"]


def attached_name(subject: str) -> str:
    """Return the name of the attached driver's devices; raise RegistrationError if no driver is attached."""
    driver = attached_driver()
    if driver is None:
        raise RegistrationError(
            f"{subject} needs a device: call torch_outboard.attach(…) before it, or set OUTBOARD_DRIVER"
        )
    return driver.name


_running: dict[str, ActiveIntegration] = {}


def running(name: str, start: Callable[[], ActiveIntegration]) -> ActiveIntegration:
    """Return the integration that an earlier `use()` started, if it is still active, or start one."""
    using = _running.get(name)
    if using is None or not using.is_open:
        using = _running[name] = start()
    return using


class ActiveIntegration:
    """A library that uses the attached driver's devices. `close`, or the end of a `with`, undoes this."""

    def __init__(self) -> None:
        self._patching = Patching()
        self.is_open = True

    def when_imported(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        """Patch a module once it is imported (now, if it already is), but not after `close`."""
        when_imported(module, lambda imported: patch(imported) if self.is_open else None)

    def found(self, owner: Any, name: str) -> Any:
        """Return an attribute of a module or a class that is to be replaced; raise RegistrationError without it."""
        if name not in vars(owner):
            where = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
            raise RegistrationError(
                f"the installed {where.partition('.')[0]} lacks {where}.{name}, which use() replaces: install "
                "the version that docs/integrations.md names, or run `outboard doctor --library` to see what works"
            )
        return vars(owner)[name]

    def set(self, owner: Any, name: str, value: Any, reason: str) -> None:
        """Replace an attribute of a module or a class of the library."""
        self.found(owner, name)
        self._patching.set(owner, name, value, reason)

    def replace(self, module: ModuleType, name: str, value: Any, reason: str) -> None:
        """Replace a function of a module, also in the library's modules that have imported it by name."""
        before = self.found(module, name)
        self.set(module, name, value, reason)
        for importer in list(sys.modules.values()):
            if isinstance(importer, ModuleType) and importer is not module and vars(importer).get(name) is before:
                self._patching.set(importer, name, value, reason)

    def set_variable(self, name: str, value: str, reason: str) -> None:
        """Set an environment variable that the library reads."""
        self._patching.set_variables({name: value}, f"os.environ[{name!r}]", reason)

    def record(self, target: str, reason: str, undo: Callable[[], None]) -> None:
        """Record a change that was made by other means."""
        self._patching.record(target, reason, undo)

    def close(self) -> None:
        """Undo all patches. Objects that the library has created meanwhile, such as a model, stay on their device."""
        self.is_open = False
        self._patching.undo()

    def patches(self) -> dict[str, str]:
        """Return the patches made so far: their names in the library, with reasons."""
        return dict(self._patching.reasons)

    def __enter__(self) -> ActiveIntegration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
